//! Custom headers of a subscriber: what may be sent along, and what may not.
//!
//! Called when a subscriber is saved and again when its requests are prepared.
//! Promises: what passes can not end a header, begin another, change how the request is framed or routed, or
//! imitate what Tidegate itself says about a delivery.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::limits::{HEADER_PREFIX_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX};

/// Names that frame or route the request, or that Tidegate sets itself.
const RESERVED: [&str; 17] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-webhook-signature",
];

/// Beginnings of names that are reserved as a whole.
const RESERVED_PREFIXES: [&str; 4] = ["proxy-", "webhook-", "tidegate-", "x-hub-signature"];

/// Why custom headers are refused. Names the header, never its value, which may be a credential.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderProblem {
    /// More than [`HEADERS_MAX`].
    #[error("there are more than {HEADERS_MAX} headers")]
    TooMany,
    /// Larger than [`HEADERS_BYTES_MAX`] together.
    #[error("the headers are larger than {HEADERS_BYTES_MAX} bytes together")]
    TooLarge,
    /// Not a header name.
    #[error("{0:?} is not a header name: use letters, digits and hyphens")]
    Name(String),
    /// Set by Tidegate or by the protocol.
    #[error("the header {0} is set by the gateway and can not be given")]
    Reserved(String),
    /// Given twice, in different cases.
    #[error("the header {0} is given twice")]
    Twice(String),
    /// Not a prefix of header names.
    #[error(
        "a header prefix has 1 to {HEADER_PREFIX_BYTES_MAX} lower-case letters, digits and inner hyphens"
    )]
    Prefix,
    /// Not printable ASCII.
    #[error("the value of the header {0} must be printable ASCII on one line")]
    Value(String),
}

/// Whether these headers may be sent along.
pub fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), HeaderProblem> {
    if headers.len() > HEADERS_MAX {
        return Err(HeaderProblem::TooMany);
    }
    if headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > HEADERS_BYTES_MAX {
        return Err(HeaderProblem::TooLarge);
    }
    let mut seen = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        check_name(name)?;
        let lower = name.to_ascii_lowercase();
        check_reserved(&lower)?;
        if seen.contains(&lower) {
            return Err(HeaderProblem::Twice(lower));
        }
        seen.push(lower);
        if !value.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
            return Err(HeaderProblem::Value(name.clone()));
        }
    }
    Ok(())
}

fn check_reserved(lower: &str) -> Result<(), HeaderProblem> {
    let is_reserved =
        RESERVED.contains(&lower) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix));
    if is_reserved { Err(HeaderProblem::Reserved(lower.to_owned())) } else { Ok(()) }
}

/// The names under which signatures are sent again for receivers that know another prefix than `webhook`.
pub fn prefixed(prefix: &str) -> [String; 3] {
    ["id", "timestamp", "signature"].map(|name| format!("{prefix}-{name}"))
}

/// Whether signatures may be sent again under this prefix, beside these custom headers.
pub fn check_prefix(prefix: &str, custom: &BTreeMap<String, String>) -> Result<(), HeaderProblem> {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let has_edge = prefix.starts_with('-') || prefix.ends_with('-');
    if !(1..=HEADER_PREFIX_BYTES_MAX).contains(&prefix.len()) || has_edge || !prefix.bytes().all(is_fine) {
        return Err(HeaderProblem::Prefix);
    }
    for name in prefixed(prefix) {
        check_reserved(&name)?;
        if custom.keys().any(|given| given.eq_ignore_ascii_case(&name)) {
            return Err(HeaderProblem::Twice(name));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), HeaderProblem> {
    // The token of RFC 9110, section 5.6.2.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(());
    }
    Err(HeaderProblem::Name(name.chars().take(64).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&str, &str)]) -> Result<(), HeaderProblem> {
        check_headers(
            &headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn ordinary_headers_pass() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("x-team", "core"), ("Authorization", "Bearer a.b-c"), ("x-empty", "")]), Ok(()));
    }

    #[test]
    fn reserved_names_are_refused_in_any_case() {
        for name in [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "keep-alive",
            "te",
            "upgrade",
            "expect",
            "trailer",
            "via",
            "forwarded",
            "http2-settings",
            "proxy-authorization",
            "proxy-x",
            "webhook-id",
            "webhook-signature",
            "x-webhook-signature",
            "content-type",
            "content-encoding",
            "accept-encoding",
            "user-agent",
            "tidegate-replay",
            "x-hub-signature",
            "x-hub-signature-256",
        ] {
            for spelled in [name.to_owned(), name.to_ascii_uppercase()] {
                assert_eq!(check(&[(&spelled, "x")]), Err(HeaderProblem::Reserved(name.to_owned())));
            }
        }
    }

    #[test]
    fn signatures_go_under_prefixes_that_nobody_else_uses() {
        let none = BTreeMap::new();
        for prefix in ["svix", "acme-corp", "x9"] {
            assert_eq!(check_prefix(prefix, &none), Ok(()), "{prefix}");
        }
        for prefix in ["", "-a", "a-", "Svix", "a b", "a:", "a\r\n", "é", &"a".repeat(33)] {
            assert_eq!(check_prefix(prefix, &none), Err(HeaderProblem::Prefix), "{prefix:?}");
        }
        for prefix in ["webhook", "x-webhook", "x-hub", "proxy", "tidegate", "proxy-a"] {
            assert!(matches!(check_prefix(prefix, &none), Err(HeaderProblem::Reserved(_))), "{prefix}");
        }
        let custom = BTreeMap::from([("Svix-Id".to_owned(), String::new())]);
        assert_eq!(check_prefix("svix", &custom), Err(HeaderProblem::Twice("svix-id".to_owned())));
    }

    #[test]
    fn nothing_can_break_out_of_a_header() {
        for name in ["", "a b", "a:", "a\r\nb", "a\0", "é", " a", "a\u{7f}", "a(b)"] {
            assert!(matches!(check(&[(name, "x")]), Err(HeaderProblem::Name(_))), "{name:?}");
        }
        for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "é", "\u{7f}", "\u{1b}[31m"] {
            assert_eq!(check(&[("x-a", value)]), Err(HeaderProblem::Value("x-a".to_owned())), "{value:?}");
        }
    }

    #[test]
    fn counts_and_sizes_are_capped() {
        let many: BTreeMap<_, _> = (0..=HEADERS_MAX).map(|n| (format!("x-{n}"), String::new())).collect();
        assert_eq!(check_headers(&many), Err(HeaderProblem::TooMany));
        assert_eq!(check(&[("x-a", &"v".repeat(HEADERS_BYTES_MAX))]), Err(HeaderProblem::TooLarge));
        assert_eq!(check(&[("x-a", "1"), ("X-A", "2")]), Err(HeaderProblem::Twice("x-a".to_owned())));
    }
}
