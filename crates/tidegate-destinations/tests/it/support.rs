//! Receivers, names and canaries for the tests.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use tidegate_core::attempt::ErrorClass;
use tidegate_core::egress::{Policy, Url};
use tidegate_destinations::{Answer, Exchange, Failure, HttpTransport, Outbound, Resolve, Target, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Generous, for what must succeed; nothing waits for it.
pub(crate) const PLENTY: Duration = Duration::from_secs(20);
/// For what must run into it.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

pub(crate) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn policy(ranges: &[&str]) -> Policy {
    Policy::new(ranges.iter().map(|range| range.parse().unwrap()).collect())
}

pub(crate) fn target(url: &str) -> Arc<Target> {
    Target::new(Url::parse(url).unwrap())
}

/// A transport that may reach this machine, and knows no names.
pub(crate) fn loopback() -> HttpTransport {
    HttpTransport::new(policy(&["127.0.0.0/8"]), Arc::new(Names::default()))
}

pub(crate) fn post(target: &Arc<Target>, timeout: Duration) -> Outbound {
    Outbound {
        target: Arc::clone(target),
        method: Method::POST,
        headers: HeaderMap::new(),
        body: "{}".into(),
        timeout,
    }
}

/// Sends one request and expects an answer.
pub(crate) async fn answer(transport: &HttpTransport, target: &Arc<Target>) -> Answer {
    transport.send(post(target, PLENTY)).await.result.expect("an answer")
}

/// Sends one request and expects a failure.
pub(crate) async fn failure(transport: &HttpTransport, target: &Arc<Target>, timeout: Duration) -> Failure {
    transport.send(post(target, timeout)).await.result.expect_err("a failure")
}

#[track_caller]
pub(crate) fn assert_blocked(exchange: &Exchange, what: &str) {
    let failure = exchange.result.as_ref().expect_err(what);
    assert_eq!(failure.class, ErrorClass::Blocked, "{what}");
    assert_eq!(failure.detail, "the address is not allowed: see egress.allow", "{what}");
    assert_eq!(exchange.phases.connect_us, None, "{what} was dialled");
}

/// A resolver whose answers are a script: the n-th question about a name gets the n-th answer, then round again.
#[derive(Default)]
pub(crate) struct Names {
    answers: BTreeMap<String, Vec<Vec<SocketAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    pub(crate) fn new(name: &str, answers: Vec<Vec<SocketAddr>>) -> Arc<Self> {
        Arc::new(Self { answers: BTreeMap::from([(name.to_owned(), answers)]), asked: AtomicUsize::new(0) })
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Resolve for Names {
    async fn resolve(&self, name: &str, _port: u16) -> io::Result<Vec<SocketAddr>> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let answers = self.answers.get(name).ok_or_else(|| io::Error::other("no such name"))?;
        Ok(answers[asked % answers.len()].clone())
    }
}

/// Listens on every loopback address this machine has, and must never be reached. The kernel completes connections
/// without our help, so that one which was attempted is always seen.
pub(crate) struct Canary {
    listeners: Vec<StdListener>,
    pub(crate) port: u16,
}

impl Canary {
    pub(crate) fn new() -> Self {
        let first = StdListener::bind(("127.0.0.1", 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = StdListener::bind((Ipv6Addr::LOCALHOST, port));
        let listeners: Vec<_> = [Some(first), second.ok()].into_iter().flatten().collect();
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        Self { listeners, port }
    }

    pub(crate) fn at(&self, address: &str) -> SocketAddr {
        SocketAddr::new(address.parse::<IpAddr>().unwrap(), self.port)
    }

    /// Connections since the last call.
    pub(crate) fn connections(&self) -> usize {
        self.listeners.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).sum()
    }
}

/// A receiver whose connections are handled by a script.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// `script` gets each connection, with its number from 0.
    pub(crate) async fn start<S, F>(script: S) -> Self
    where
        S: Fn(usize, Peer) -> F + Send + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        Self::on(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), script)
    }

    /// As [`Receiver::start`], on a listener of the caller's choice.
    pub(crate) fn on<S, F>(listener: TcpListener, script: S) -> Self
    where
        S: Fn(usize, Peer) -> F + Send + 'static,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let receiver = Self { address, accepted: Arc::clone(&accepted), seen: Arc::clone(&seen) };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let peer = Peer { stream, seen: Arc::clone(&seen) };
                tokio::spawn(script(accepted.fetch_add(1, Ordering::SeqCst), peer));
            }
        });
        receiver
    }

    /// Answers every request on a connection with these bytes, and keeps it open.
    pub(crate) async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = Arc::new(bytes.into());
        Self::start(move |_, mut peer| {
            let bytes = Arc::clone(&bytes);
            async move {
                while peer.read_request().await.is_ok() {
                    peer.stream.write_all(&bytes).await?;
                }
                Ok(())
            }
        })
        .await
    }

    pub(crate) fn target(&self) -> Arc<Target> {
        target(&format!("http://{}/hook", self.address))
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// The requests that were read completely, as text.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// The receiver's end of a connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// Reads one request, head and body.
    pub(crate) async fn read_request(&mut self) -> io::Result<()> {
        let mut request = Vec::new();
        while !is_whole(&request) {
            let mut byte = [0; 1];
            self.stream.read_exact(&mut byte).await?;
            request.push(byte[0]);
        }
        self.seen.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
        Ok(())
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}
