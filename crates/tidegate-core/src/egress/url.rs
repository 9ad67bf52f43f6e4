//! What saving a subscriber refuses about its URL.
//!
//! The text is parsed once, and only the parsed host is looked at: `0x7f.1`, `2130706433` and `①②⑦.0.0.1` are all
//! the address 127.0.0.1 by then. The scheme is decided first, since the parser reads addresses only for the
//! schemes it knows.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;
use url::{Host, Url};

use super::Policy;
use crate::limits::URL_BYTES_MAX;

/// Why a URL can not be a destination, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UrlProblem {
    /// Not a URL at all.
    #[error("this is not a URL: write it in full, for example https://example.com/hook")]
    Unreadable,
    /// Longer than [`URL_BYTES_MAX`], as given or once normalised.
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    /// Neither http nor https.
    #[error("the URL must begin with https:// (or http:// for receivers that egress.allow lists)")]
    Scheme,
    /// Without a host.
    #[error("the URL names no host")]
    NoHost,
    /// With a user or a password in it.
    #[error("the URL must not carry a user or password: send credentials in a header")]
    Userinfo,
    /// With a `#` part, which is never sent.
    #[error("the URL must not have a fragment (the part from # on), it is never sent")]
    Fragment,
    /// An address that is not public, or a name of this machine.
    #[error(
        "the address is not allowed: receivers must be public unless their range is listed \
         (egress.allow, or --egress-allow CIDR)"
    )]
    Blocked,
    /// Where this server itself listens.
    #[error("the address is this server's own: nothing is ever delivered to it")]
    Own,
    /// http to something that is not in an allowed range.
    #[error(
        "plain http is only sent to receivers in a listed range: use https, or list the range \
         (egress.allow, or --egress-allow CIDR)"
    )]
    PlainHttp,
}

/// The destination that `text` names, normalised, or why it can not be one. Needs no network.
pub fn check_url(text: &str, policy: &Policy) -> Result<Url, UrlProblem> {
    if text.len() > URL_BYTES_MAX {
        return Err(UrlProblem::TooLong);
    }
    let url = Url::parse(text).map_err(problem_of)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(UrlProblem::Scheme);
    }
    if url.as_str().len() > URL_BYTES_MAX {
        return Err(UrlProblem::TooLong);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlProblem::Userinfo);
    }
    if url.fragment().is_some() {
        return Err(UrlProblem::Fragment);
    }
    check_host(&url, policy)?;
    Ok(url)
}

fn problem_of(error: url::ParseError) -> UrlProblem {
    match error {
        url::ParseError::EmptyHost => UrlProblem::NoHost,
        url::ParseError::Overflow => UrlProblem::TooLong,
        _ => UrlProblem::Unreadable,
    }
}

fn check_host(url: &Url, policy: &Policy) -> Result<(), UrlProblem> {
    let plain = url.scheme() == "http";
    let port = url.port_or_known_default().unwrap_or_default();
    let address: IpAddr = match url.host().ok_or(UrlProblem::NoHost)? {
        Host::Domain(name) => return check_name(name, port, plain, policy),
        Host::Ipv4(address) => address.into(),
        Host::Ipv6(address) => address.into(),
    };
    if !policy.allows(address) {
        return Err(UrlProblem::Blocked);
    }
    if policy.is_own(SocketAddr::new(address, port)) {
        return Err(UrlProblem::Own);
    }
    if plain && !policy.may_use_plain_http(address) {
        return Err(UrlProblem::PlainHttp);
    }
    Ok(())
}

fn check_name(name: &str, port: u16, plain: bool, policy: &Policy) -> Result<(), UrlProblem> {
    // A name may end in one dot, the root of the name system, and still be the same name.
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.ends_with('.') {
        return Err(UrlProblem::NoHost);
    }
    let is_local = name == "localhost" || name.ends_with(".localhost");
    if is_local && !policy.allows_loopback() {
        return Err(UrlProblem::Blocked);
    }
    if is_local && policy.is_own_port(port) {
        return Err(UrlProblem::Own);
    }
    if plain && !policy.lists_any() {
        return Err(UrlProblem::PlainHttp);
    }
    Ok(())
}
