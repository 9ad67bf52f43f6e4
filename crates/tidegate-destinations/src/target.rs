//! A target: one URL of one subscriber, with everything about it that does not change between requests, and the
//! connections to it that are idle.
//!
//! Dropping the last handle closes them. A subscriber whose URL changes gets a new target.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use rustls::pki_types::ServerName;
use tidegate_core::attempt::ErrorClass;
use tidegate_core::egress::Url;

use crate::failure::Failure;
use crate::pool::{self, Connection, Idle};

/// One receiver. Made once per subscriber and URL, then shared by all its requests.
pub struct Target {
    url: Url,
    host: Host,
    port: u16,
    /// What TLS must prove; absent for plain http.
    server_name: Option<ServerName<'static>>,
    /// `host` and the request's path, both ready to be written. Absent when the URL can not be sent at all.
    prepared: Option<(HeaderValue, Uri)>,
    idle: Idle,
}

/// Where to connect to.
pub(crate) enum Host {
    Name(String),
    Address(IpAddr),
}

impl Target {
    /// Prepares a URL that [`tidegate_core::egress::check_url`] accepted. Nothing is dialled yet.
    pub fn new(url: Url) -> Arc<Self> {
        let host = match url.host() {
            Some(url::Host::Ipv4(address)) => Host::Address(address.into()),
            Some(url::Host::Ipv6(address)) => Host::Address(address.into()),
            Some(url::Host::Domain(name)) => Host::Name(name.to_owned()),
            None => Host::Name(String::new()),
        };
        let port = url.port_or_known_default().unwrap_or(443);
        let server_name = if url.scheme() == "http" { None } else { server_name(&host) };
        let prepared = prepare(&url);
        Arc::new(Self { url, host, port, server_name, prepared, idle: Idle::default() })
    }

    /// The URL, for whoever needs to tell receivers apart. It may carry a token: never log it.
    pub fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Only the scheme decides, so that a name no certificate can carry fails instead of going out in the clear.
    pub(crate) fn is_plain(&self) -> bool {
        self.url.scheme() == "http"
    }

    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    pub(crate) fn idle(&self) -> &Idle {
        &self.idle
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn give_back(self: &Arc<Self>, connection: Connection, now: Instant) {
        pool::give_back(self, connection, now);
    }

    pub(crate) fn request(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let Some((host, uri)) = &self.prepared else {
            return Err(Failure::new(ErrorClass::Protocol, "the URL can not be written as an HTTP request"));
        };
        headers.insert(HOST, host.clone());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

fn server_name(host: &Host) -> Option<ServerName<'static>> {
    match host {
        Host::Address(address) => Some(ServerName::IpAddress((*address).into())),
        // Certificates carry names without the dot of the root.
        Host::Name(name) => ServerName::try_from(name.strip_suffix('.').unwrap_or(name).to_owned()).ok(),
    }
}

fn prepare(url: &Url) -> Option<(HeaderValue, Uri)> {
    let host = url.host_str()?;
    let host = match url.port() {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
        None => HeaderValue::from_str(host),
    };
    let path = match url.query() {
        Some(query) => PathAndQuery::try_from(format!("{}?{query}", url.path())),
        None => PathAndQuery::try_from(url.path()),
    };
    Some((host.ok()?, Uri::from(path.ok()?)))
}
