//! The producer of a chaos run: sends numbered events per key and keeps a ledger of what was acknowledged.
//!
//! Each connection has one key and sends its next event only when the last was acknowledged; so the order of
//! acceptance is known. The keys are few and hot, so that a lane always has something that could overtake. A request
//! that broke off has an unknown outcome and is repeated with the same id until it ends as accepted or as a duplicate
//! of itself, exactly as a careful client does.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::bench::wire;
use crate::clock;
use crate::prng::Prng;
use crate::server::ADMIN_KEY;

/// A request without an answer for this long has an unknown outcome.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Between attempts while the server is down or refuses.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Counters that all connections share.
#[derive(Default)]
pub(super) struct Ledger {
    /// Events acknowledged so far.
    pub(super) accepted: AtomicU64,
    /// Requests whose outcome is unknown: sent, at least in part, and not answered.
    pub(super) unknown: AtomicU64,
    /// Requests refused with 429, 503 or 507.
    pub(super) refused: AtomicU64,
    /// Refusals that did not say when to come again.
    pub(super) without_retry_after: AtomicU64,
    /// Events that turned out to have been accepted by a request of unknown outcome.
    pub(super) duplicates_answered: AtomicU64,
    /// Answers to requests of an earlier age are not believed.
    age: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    /// Requests under way have an unknown outcome, whatever they are answered.
    pub(super) fn disbelieve(&self) {
        self.age.fetch_add(1, Ordering::SeqCst);
    }

    /// How many requests met a fault: refused, or without an answer.
    pub(super) fn troubled(&self) -> u64 {
        self.refused.load(Ordering::Relaxed) + self.unknown.load(Ordering::Relaxed)
    }
}

/// A running producer.
pub(super) struct Producer {
    pub(super) ledger: Arc<Ledger>,
    tasks: Vec<JoinHandle<Result<u32>>>,
}

impl Producer {
    /// Begins to send from `connections` connections, each pausing about `pause` between its events.
    pub(super) fn start(target: SocketAddr, connections: usize, pause: Duration, prng: &mut Prng) -> Self {
        let ledger = Arc::new(Ledger::default());
        let tasks = (0..connections)
            .map(|key| {
                let sender = Sender {
                    target,
                    stream: None,
                    ledger: Arc::clone(&ledger),
                    prng: Prng::new(prng.next()),
                    pause,
                };
                tokio::spawn(sender.run(key))
            })
            .collect();
        Self { ledger, tasks }
    }

    /// Lets every connection finish its event; answers how many events of each key were acknowledged.
    pub(super) async fn finish(self) -> Result<Vec<u32>> {
        self.ledger.stop.store(true, Ordering::Relaxed);
        let mut acknowledged = Vec::new();
        for task in self.tasks {
            acknowledged.push(task.await??);
        }
        Ok(acknowledged)
    }
}

/// One connection.
struct Sender {
    target: SocketAddr,
    stream: Option<TcpStream>,
    ledger: Arc<Ledger>,
    prng: Prng,
    pause: Duration,
}

impl Sender {
    /// Sends until told to stop; answers how many events were acknowledged.
    async fn run(mut self, key: usize) -> Result<u32> {
        let mut sent = 0;
        while !self.ledger.stop.load(Ordering::Relaxed) {
            sent += 1;
            self.send(key, sent).await?;
            let pause_us = u64::try_from(self.pause.as_micros())?;
            clock::rest(Duration::from_micros(self.prng.below(2 * pause_us + 1))).await;
        }
        Ok(sent)
    }

    /// Sends one event until it is known to be accepted.
    async fn send(&mut self, key: usize, seq: u32) -> Result<()> {
        let request = request(key, seq);
        loop {
            let Some(mut stream) = self.connected().await else {
                clock::rest(AGAIN_AFTER).await;
                continue;
            };
            let age = self.ledger.age.load(Ordering::SeqCst);
            let answer = exchange(&mut stream, &request, ANSWER_PATIENCE).await;
            let is_believed = self.ledger.age.load(Ordering::SeqCst) == age;
            let Some(Answer { status, has_retry_after, body }) = answer.ok().filter(|_| is_believed) else {
                self.ledger.unknown.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.stream = Some(stream);
            match status {
                202 => return self.acknowledged(&body),
                429 | 503 | 507 => {
                    self.ledger.refused.fetch_add(1, Ordering::Relaxed);
                    self.ledger.without_retry_after.fetch_add(u64::from(!has_retry_after), Ordering::Relaxed);
                    clock::rest(AGAIN_AFTER).await;
                }
                _ => bail!("key {key} seq {seq} was answered {status}: {}", String::from_utf8_lossy(&body)),
            }
        }
    }

    async fn connected(&mut self) -> Option<TcpStream> {
        connected(self.stream.take(), self.target).await
    }

    fn acknowledged(&self, body: &[u8]) -> Result<()> {
        let answer: Value = serde_json::from_slice(body)?;
        self.ledger.accepted.fetch_add(1, Ordering::Relaxed);
        match answer["results"][0]["status"].as_str() {
            Some("accepted") => Ok(()),
            Some("duplicate") => {
                self.ledger.duplicates_answered.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            _ => bail!("an event ended as {answer}"),
        }
    }
}

/// The connection, if it is still one, or a new one. One that ended between two events says nothing about either of them.
pub(super) async fn connected(idle: Option<TcpStream>, target: SocketAddr) -> Option<TcpStream> {
    let is_idle = |stream: &TcpStream| {
        stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    if let Some(idle) = idle.filter(is_idle) {
        return Some(idle);
    }
    let stream = TcpStream::connect(target).await.ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) has_retry_after: bool,
    pub(super) body: Vec<u8>,
}

/// One request and its answer. Any failure leaves the outcome unknown.
pub(super) async fn exchange(stream: &mut TcpStream, request: &[u8], patience: Duration) -> Result<Answer> {
    let exchange = async {
        stream.write_all(request).await?;
        let mut answer = Vec::with_capacity(1024);
        loop {
            if stream.read_buf(&mut answer).await? == 0 {
                bail!("the connection ended");
            }
            if let Some(message) = wire::message(&answer) {
                return Ok(Answer {
                    status: wire::status(&answer),
                    has_retry_after: wire::header(&answer[..message.body], "retry-after").is_some(),
                    body: answer[message.body..message.end].to_vec(),
                });
            }
        }
    };
    tokio::time::timeout(patience, exchange).await.context("no answer in time")?
}

fn request(key: usize, seq: u32) -> Vec<u8> {
    let body = format!(
        r#"{{"id":"k{key}-{seq}","source":"chaos","type":"chaos.tick","data":{{"key":"{key}","seq":"{seq}"}}}}"#
    );
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_KEY}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}
