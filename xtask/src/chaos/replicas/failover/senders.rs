//! The load of a failover: senders of two tenants, each with a key of its own, who know exactly when each request was begun
//! and answered.
//!
//! A sender sends its next event when the last was acknowledged, and repeats a request without an answer at the other process
//! with the same id, as a careful client does.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{KEYS, TENANTS};
use crate::chaos::checker::Event;
use crate::chaos::checker::api::SOURCE;
use crate::chaos::producer::{Answer, connected, exchange};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::ADMIN_KEY;

/// A request without an answer for this long is made at the other process.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// A request that nobody has taken for this long was given up. Longer than any failover takes.
const MEND_PATIENCE: Duration = Duration::from_secs(60);
/// Between attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Between two events of a key, on average.
const PAUSE_US: u64 = 60_000;

/// An acknowledged event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub(super) event: Event,
    /// When the first attempt was begun.
    pub(super) first: Duration,
    /// When the attempt was begun that was answered.
    pub(super) began: Duration,
    /// When its answer was read.
    pub(super) at: Duration,
}

/// What all senders share.
pub(super) struct Ledger {
    watch: Stopwatch,
    acknowledged: Mutex<Vec<Acknowledged>>,
    pub(super) unanswered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) without_retry_after: AtomicU64,
    pub(super) duplicates: AtomicU64,
    stop: AtomicBool,
}

impl Ledger {
    /// How many events were acknowledged for requests that were begun after this.
    pub(super) fn acknowledged_since(&self, since: Duration) -> usize {
        self.with(|all| all.iter().rev().filter(|acknowledged| acknowledged.began > since).count())
    }

    pub(super) fn acknowledged(&self) -> Vec<Acknowledged> {
        self.with(|all| all.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Vec<Acknowledged>) -> T) -> T {
        work(&mut self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Running senders.
pub(super) struct Senders {
    pub(super) ledger: Arc<Ledger>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

impl Senders {
    /// Begins to send to these processes.
    pub(super) fn start(targets: &[SocketAddr], watch: Stopwatch, prng: &mut Prng) -> Self {
        let ledger = Arc::new(Ledger {
            watch,
            acknowledged: Mutex::default(),
            unanswered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            without_retry_after: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let start = |key| {
            let sender = Sender {
                key,
                targets: targets.to_vec(),
                streams: targets.iter().map(|_| None).collect(),
                ledger: Arc::clone(&ledger),
                prng: Prng::new(prng.next()),
            };
            tokio::spawn(sender.run())
        };
        let tasks = (0..KEYS * TENANTS.len()).map(start).collect();
        Self { ledger, tasks }
    }

    /// Lets every sender finish its event.
    pub(super) async fn finish(self) -> Result<()> {
        self.ledger.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await??;
        }
        Ok(())
    }
}

/// One sender.
struct Sender {
    key: usize,
    targets: Vec<SocketAddr>,
    streams: Vec<Option<TcpStream>>,
    ledger: Arc<Ledger>,
    prng: Prng,
}

impl Sender {
    async fn run(mut self) -> Result<()> {
        for seq in 1.. {
            if self.ledger.stop.load(Ordering::Relaxed) {
                break;
            }
            self.send(Event { key: self.key, seq }).await?;
            clock::rest(Duration::from_micros(self.prng.below(2 * PAUSE_US))).await;
        }
        Ok(())
    }

    /// Sends one event until it is acknowledged.
    async fn send(&mut self, event: Event) -> Result<()> {
        let request = request(event);
        let first = self.ledger.watch.elapsed();
        let mut place = usize::try_from(self.prng.below(self.targets.len() as u64))?;
        loop {
            let began = self.ledger.watch.elapsed();
            if self.attempt(place, &request).await? {
                let acknowledged = Acknowledged { event, first, began, at: self.ledger.watch.elapsed() };
                self.ledger.with(|all| all.push(acknowledged));
                return Ok(());
            }
            if began - first > MEND_PATIENCE {
                bail!("no process has taken {event} within {} s", MEND_PATIENCE.as_secs());
            }
            place = (place + 1) % self.targets.len();
            clock::rest(AGAIN_AFTER).await;
        }
    }

    /// Whether one attempt was acknowledged.
    async fn attempt(&mut self, place: usize, request: &[u8]) -> Result<bool> {
        let answer = match connected(self.streams[place].take(), self.targets[place]).await {
            None => None,
            Some(mut stream) => {
                let answer = exchange(&mut stream, request, ANSWER_PATIENCE).await.ok();
                self.streams[place] = answer.is_some().then_some(stream);
                answer
            }
        };
        let count = |counter: &AtomicU64, more: bool| counter.fetch_add(u64::from(more), Ordering::Relaxed);
        let Some(Answer { status, has_retry_after, body }) = answer else {
            count(&self.ledger.unanswered, true);
            return Ok(false);
        };
        match status {
            202 => {
                let answer: Value = serde_json::from_slice(&body)?;
                match answer["results"][0]["status"].as_str() {
                    Some("accepted") => {}
                    Some("duplicate") => drop(count(&self.ledger.duplicates, true)),
                    _ => bail!("an event ended as {answer}"),
                }
                Ok(true)
            }
            429 | 503 => {
                count(&self.ledger.refused, true);
                count(&self.ledger.without_retry_after, !has_retry_after);
                Ok(false)
            }
            _ => bail!("a request was answered {status}: {}", String::from_utf8_lossy(&body)),
        }
    }
}

/// What is sent, the same every time.
pub(super) fn event(event: Event) -> Value {
    json!({
        "id": event.to_string(),
        "source": SOURCE,
        "type": "chaos.tick",
        "data": {"key": event.key.to_string(), "seq": event.seq.to_string()},
    })
}

fn request(sent: Event) -> Vec<u8> {
    let body = event(sent).to_string();
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_KEY}\r\n\
         x-tidegate-project: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        TENANTS[sent.key / KEYS],
        body.len()
    );
    [head, body].concat().into_bytes()
}
