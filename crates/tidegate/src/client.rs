//! A small HTTP client for our own API.
//!
//! One connection at a time, kept open between requests. A redirect is never followed, because the key would
//! travel along. A request is repeated only when hyper proves that not a byte of it was processed; whether to
//! repeat a refused one is the command's decision. Every failure names the address and what to do about it.
//! Does not: guard against internal addresses (the user chose this one), read proxies from the environment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use url::{Host, Url};

use crate::commands::Globals;
use crate::failure::{Exit, Failure};

/// TCP and TLS together; a server that needs longer is as good as absent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// From the request's first byte to the answer's last; longer than any wait the API grants.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// An answer larger than this is not ours: pages hold at most 500 items.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What the server said, whatever the status.
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// Seconds of `Retry-After`, if the server named a number.
    pub(crate) retry_after: Option<u64>,
    /// Where a redirect points.
    location: Option<String>,
    /// The body as it came.
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Failure::new(Exit::Failed, "the answer is not JSON")
                .detail(error.to_string())
                .fix("check that --url names a Tidegate server and not something in front of it")
        })
    }
}

/// A connection to the API with its key and project.
pub(crate) struct Client {
    base: Url,
    key: Option<String>,
    project: Option<String>,
    tls: Option<TlsConnector>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// Reads the address and the key; opens nothing yet.
    pub(crate) fn new(globals: &Globals) -> Result<Self, Failure> {
        let base = parse_base(&globals.url)?;
        let named = globals.key.clone().or_else(|| std::env::var("TIDEGATE_ADMIN_KEY").ok());
        let key = named.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let is_tls = base.scheme() == "https";
        let tls = if is_tls { Some(tls_connector(globals.ca.as_deref())?) } else { None };
        Ok(Self { base, key, project: globals.project.clone(), tls, connection: None })
    }

    /// The same address, key and project with a connection of its own.
    pub(crate) fn another(&self) -> Self {
        Self {
            base: self.base.clone(),
            key: self.key.clone(),
            project: self.project.clone(),
            tls: self.tls.clone(),
            connection: None,
        }
    }

    /// Reads a resource; anything but a success is a failure.
    pub(crate) async fn get(&mut self, path: &[&str], query: &[(&str, &str)]) -> Result<Answer, Failure> {
        let url = self.address(path, query);
        let answer = self.exchange(&Method::GET, &url, Bytes::new()).await?;
        self.success(answer)
    }

    /// Opens a stream, on a connection of its own; anything but a success is a failure.
    pub(crate) async fn stream(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Incoming, Failure> {
        let mut sender = self.connect().await?;
        let request = self.request(&Method::GET, &self.address(path, query), Bytes::new())?;
        let response = timeout(ANSWER_TIMEOUT, sender.send_request(request)).await;
        let response = response.map_err(|_| self.unreachable("no answer in time".to_owned()))?;
        let response = response.map_err(|error| self.unreachable(format!("no answer: {}", chain(&error))))?;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        Err(self.problem(&self.read(response).await?))
    }

    /// Reads a resource, whatever the status.
    pub(crate) async fn look(&mut self, path: &[&str], query: &[(&str, &str)]) -> Result<Answer, Failure> {
        let url = self.address(path, query);
        self.exchange(&Method::GET, &url, Bytes::new()).await
    }

    /// Asks for something with a JSON body (or none); anything but a success is a failure.
    pub(crate) async fn act(
        &mut self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        let answer = self.send(method, path, body.map_or_else(Bytes::new, |b| b.to_string().into())).await?;
        self.success(answer)
    }

    /// Asks for something with a query and a JSON body; anything but a success is a failure.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: &Value,
    ) -> Result<Answer, Failure> {
        let url = self.address(path, query);
        let answer = self.exchange(&method, &url, body.to_string().into()).await?;
        self.success(answer)
    }

    /// Sends bytes of JSON and returns the answer, whatever its status.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &[&str],
        body: Bytes,
    ) -> Result<Answer, Failure> {
        let url = self.address(path, &[]);
        self.exchange(&method, &url, body).await
    }

    /// A success as it is, anything else as a failure with its remedy.
    pub(crate) fn success(&self, answer: Answer) -> Result<Answer, Failure> {
        if answer.status.is_success() { Ok(answer) } else { Err(self.problem(&answer)) }
    }

    /// Reads problem+json and adds what to do about it.
    pub(crate) fn problem(&self, answer: &Answer) -> Failure {
        let problem: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        let text = |name: &str| problem.get(name).and_then(Value::as_str).unwrap_or_default();
        let title = match text("title") {
            "" => format!("{} answered {}", self.base, answer.status),
            title => title.to_owned(),
        };
        let field = text("field");
        let code = match text("code") {
            "" => String::new(),
            code => format!("code: {code} (HTTP {})", answer.status.as_u16()),
        };
        // The API counts from 0, people from 1.
        let event = problem.get("index").and_then(Value::as_u64).map(|index| format!("event: {}", index + 1));
        Failure::new(exit_of(answer.status), title)
            .detail(text("detail"))
            .detail(event.unwrap_or_default())
            .detail(if field.is_empty() { String::new() } else { format!("field: {field}") })
            .detail(code)
            .fix(self.remedy(answer, field))
    }

    fn remedy(&self, answer: &Answer, field: &str) -> String {
        match answer.status.as_u16() {
            300..=399 => match &answer.location {
                Some(location) => {
                    format!("redirects are not followed; if you trust it, pass --url {location}")
                }
                None => "redirects are not followed; pass the final address with --url".to_owned(),
            },
            401 if self.key.is_none() => {
                "pass an API key with --key tgk_… or TIDEGATE_KEY; `tidegate serve` \
                 prints the admin key when it first starts"
                    .to_owned()
            }
            401 => "the server does not know this key: check --key, TIDEGATE_KEY and --url".to_owned(),
            403 => "use a key whose role allows this, for example an admin key".to_owned(),
            404 => "check the id, and that --project (or the key's project) is the right one".to_owned(),
            409 => "look at what is already there, then change one of the two".to_owned(),
            413 => "send less at once".to_owned(),
            429 | 503 => match answer.retry_after {
                Some(seconds) => format!("try again in {seconds} s"),
                None => "try again a little later".to_owned(),
            },
            400..=499 if !field.is_empty() => format!("correct `{field}` and try again"),
            400..=499 => "correct the request and try again".to_owned(),
            _ => "look into the server's log".to_owned(),
        }
    }

    fn address(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("http addresses have a path").pop_if_empty().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    async fn exchange(&mut self, method: &Method, url: &Url, body: Bytes) -> Result<Answer, Failure> {
        match timeout(ANSWER_TIMEOUT, self.exchange_now(method, url, body)).await {
            Ok(result) => result,
            Err(_) => {
                self.connection = None;
                Err(self.unreachable(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))
            }
        }
    }

    /// A connection kept open may have been closed by the server meanwhile; then the request that hyper hands
    /// back unsent goes out once more, on a fresh one.
    async fn exchange_now(&mut self, method: &Method, url: &Url, body: Bytes) -> Result<Answer, Failure> {
        loop {
            let kept = self.connection.take().filter(|sender| !sender.is_closed());
            let is_fresh = kept.is_none();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            let request = self.request(method, url, body.clone())?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = self.read(response).await?;
                    self.connection = Some(sender);
                    return Ok(answer);
                }
                Err(mut error) => {
                    let was_sent = error.take_message().is_none();
                    if is_fresh || was_sent {
                        return Err(self.unreachable(format!("no answer: {}", chain(&error.into_error()))));
                    }
                }
            }
        }
    }

    fn request(&self, method: &Method, url: &Url, body: Bytes) -> Result<Request<Full<Bytes>>, Failure> {
        let target = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tidegate-cli/", env!("CARGO_PKG_VERSION")));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if let Some(project) = &self.project {
            request = request.header("x-tidegate-project", project);
        }
        request.body(Full::new(body)).map_err(|_| {
            Failure::usage("the key or the project has characters that a header can not carry")
                .fix("check --key, TIDEGATE_KEY and --project for spaces and line breaks")
        })
    }

    async fn read(&self, response: http::Response<Incoming>) -> Result<Answer, Failure> {
        let (parts, body) = response.into_parts();
        let text = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.unreachable(format!("the answer broke off: {error}")))?;
        Ok(Answer {
            status: parts.status,
            retry_after: text(header::RETRY_AFTER).and_then(|value| value.trim().parse().ok()),
            location: text(header::LOCATION).map(str::to_owned),
            body: body.to_bytes(),
        })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        match timeout(CONNECT_TIMEOUT, self.connect_now()).await {
            Ok(result) => result,
            Err(_) => Err(self.unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))),
        }
    }

    async fn connect_now(&self) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let host = self.base.host().expect("checked when the address was parsed");
        let port = self.base.port_or_known_default().expect("http and https have one");
        let stream = match &host {
            Host::Domain(name) => TcpStream::connect((*name, port)).await,
            Host::Ipv4(address) => TcpStream::connect((*address, port)).await,
            Host::Ipv6(address) => TcpStream::connect((*address, port)).await,
        };
        let stream = stream.map_err(|error| self.refused(&error))?;
        // A batch of events is one write; waiting to join it with the next only delays it.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.handshake(stream).await };
        let name = match host {
            Host::Domain(name) => ServerName::try_from(name.to_owned()),
            Host::Ipv4(address) => Ok(ServerName::IpAddress(std::net::IpAddr::V4(address).into())),
            Host::Ipv6(address) => Ok(ServerName::IpAddress(std::net::IpAddr::V6(address).into())),
        };
        let name = name.map_err(|error| self.unreachable(error.to_string()))?;
        let stream = tls.connect(name, stream).await.map_err(|error| {
            Failure::new(Exit::Later, format!("no TLS connection to {}", self.base))
                .detail(error.to_string())
                .fix("check the address; a certificate of a private authority needs --ca FILE (or TIDEGATE_CA)")
        })?;
        self.handshake(stream).await
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unreachable(error.to_string()))?;
        // Its error reaches the request in flight; there is nothing to add.
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(sender)
    }

    fn refused(&self, error: &std::io::Error) -> Failure {
        if error.kind() != std::io::ErrorKind::ConnectionRefused {
            return self.unreachable(error.to_string());
        }
        Failure::new(Exit::Later, format!("nothing listens at {}", self.base))
            .fix("start `tidegate serve`, or name another address with --url or TIDEGATE_URL")
    }

    fn unreachable(&self, reason: String) -> Failure {
        Failure::new(Exit::Later, format!("can not talk to {}", self.base))
            .detail(reason)
            .fix("check --url (or TIDEGATE_URL) and that `tidegate serve` runs there")
    }
}

fn parse_base(text: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| {
        Failure::usage(format!("--url {text}: {why}"))
            .fix("write it like http://127.0.0.1:8700 or https://tidegate.example.com")
    };
    let url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("only http and https are spoken"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a user name or password has no place here; the key goes into --key"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it may not have a query or a fragment"));
    }
    Ok(url)
}

fn tls_connector(ca: Option<&Path>) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca {
        add_authorities(&mut roots, path)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn add_authorities(roots: &mut RootCertStore, path: &Path) -> Result<(), Failure> {
    let wrong = |why: String| {
        Failure::usage(format!("--ca {}: {why}", path.display()))
            .fix("name a file with the authority's certificate in PEM (-----BEGIN CERTIFICATE-----)")
    };
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("it holds no certificate".to_owned()));
    }
    found.into_iter().try_for_each(|one| roots.add(one).map_err(|error| wrong(error.to_string())))
}

/// An error with its causes: hyper's own text leaves them out.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn exit_of(status: StatusCode) -> Exit {
    match status.as_u16() {
        401 | 403 => Exit::NotAllowed,
        404 => Exit::NotFound,
        429 | 503 => Exit::Later,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests;
