//! The producers of a run with several processes: they post to all of them, and go to another one when one fails.
//!
//! Every producer has keys of its own and sends the next event of a key only when the last was acknowledged, so the order of
//! acceptance is known. Some send one event at a time, some a batch with one event of each of their keys, and twins
//! post the same batch to two processes at once, to the second in reversed order: both want the same ids.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::audience::{Kind, event};
use super::verdict::Sent;
use crate::chaos::producer::{Answer, connected, exchange};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::ADMIN_KEY;

/// A request without an answer for this long is made at another process.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// A request that no process has answered for this long was not mended. Longer than any database is away.
const MEND_PATIENCE: Duration = Duration::from_secs(40);
/// Between attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What a producer is like.
struct Habit {
    kind: Kind,
    /// Events of a request, each with a key of its own.
    keys: usize,
    has_twin: bool,
    pause: Duration,
    count: usize,
}

const fn habit(kind: Kind, count: usize, keys: usize, has_twin: bool, pause_ms: u64) -> Habit {
    Habit { kind, keys, has_twin, pause: Duration::from_millis(pause_ms), count }
}

const HABITS: [Habit; 7] = [
    // Fifty keys in all, whose events are put in order and folded.
    habit(Kind::Keyed, 8, 1, false, 120),
    habit(Kind::Keyed, 2, 10, false, 400),
    habit(Kind::Keyed, 1, 22, true, 700),
    habit(Kind::Loose, 1, 40, true, 700),
    // Many ids that cost nobody a delivery, so that two processes really want them at the same time.
    habit(Kind::Kept, 2, 150, true, 300),
    habit(Kind::Rated, 1, 60, false, 4_000),
    habit(Kind::Narrow, 1, 4, false, 250),
];

/// Counters that all producers share.
#[derive(Default)]
pub(super) struct Ledger {
    /// Requests that were made, each counted once.
    pub(super) requests: AtomicU64,
    /// Attempts that got no answer: the connection was refused or ended, or nobody answered in time.
    pub(super) unanswered: AtomicU64,
    /// Attempts that were refused for now.
    pub(super) refused: AtomicU64,
    /// Refusals that did not say when to come again.
    pub(super) without_retry_after: AtomicU64,
    /// Requests that needed another attempt and were answered then.
    pub(super) mended: AtomicU64,
    /// Requests that were never answered.
    pub(super) unmended: AtomicU64,
    /// Events answered as accepted: each once, however often it was sent.
    pub(super) accepted: AtomicU64,
    /// Events answered as known already.
    pub(super) duplicates: AtomicU64,
    stop: AtomicBool,
}

/// Running producers.
pub(super) struct Producers {
    pub(super) ledger: Arc<Ledger>,
    tasks: Vec<JoinHandle<Result<u32>>>,
    /// Per task: its kind and how many keys it has.
    shares: Vec<(Kind, usize)>,
}

impl Producers {
    /// Begins to send to these processes.
    pub(super) fn start(targets: &[SocketAddr], prng: &mut Prng) -> Self {
        let ledger = Arc::new(Ledger::default());
        let (mut tasks, mut shares, mut first_key) = (Vec::new(), Vec::new(), 0);
        for habit in &HABITS {
            for _ in 0..habit.count {
                let mut client = || Client::new(targets, &ledger, prng);
                let (client, twin) = (client(), habit.has_twin.then(&mut client));
                let producer = Producer { habit, first_key, client, twin };
                tasks.push(tokio::spawn(producer.run(Arc::clone(&ledger))));
                shares.push((habit.kind, habit.keys));
                first_key += habit.keys;
            }
        }
        Self { ledger, tasks, shares }
    }

    /// Lets every producer finish its request; answers what was acknowledged under each key.
    pub(super) async fn finish(self) -> Result<Vec<Sent>> {
        self.ledger.stop.store(true, Ordering::Relaxed);
        let mut sent = Vec::new();
        for (task, (kind, keys)) in self.tasks.into_iter().zip(self.shares) {
            let last = task.await??;
            sent.extend(std::iter::repeat_n(Sent { kind, last }, keys));
        }
        Ok(sent)
    }
}

struct Producer {
    habit: &'static Habit,
    first_key: usize,
    client: Client,
    twin: Option<Client>,
}

impl Producer {
    /// Sends until told to stop; answers how many rounds were acknowledged.
    async fn run(mut self, ledger: Arc<Ledger>) -> Result<u32> {
        let mut rounds = 0;
        while !ledger.stop.load(Ordering::Relaxed) {
            rounds += 1;
            self.round(rounds).await?;
            let pause_us = u64::try_from(self.habit.pause.as_micros())?;
            clock::rest(Duration::from_micros(self.client.prng.below(2 * pause_us + 1))).await;
        }
        Ok(rounds)
    }

    async fn round(&mut self, seq: u32) -> Result<()> {
        let keys = self.first_key..self.first_key + self.habit.keys;
        let events: Vec<Value> = keys.map(|key| event(self.habit.kind, key, seq)).collect();
        let Some(twin) = &mut self.twin else { return self.client.send(&events, None).await };
        let reversed: Vec<Value> = events.iter().rev().cloned().collect();
        let first = usize::try_from(self.client.prng.below(self.client.targets.len() as u64))?;
        let (one, other) =
            tokio::join!(self.client.send(&events, Some(first)), twin.send(&reversed, Some(first + 1)));
        one.and(other)
    }
}

/// One who sends, with a connection to every process.
pub(super) struct Client {
    targets: Vec<SocketAddr>,
    streams: Vec<Option<TcpStream>>,
    ledger: Arc<Ledger>,
    prng: Prng,
}

impl Client {
    pub(super) fn new(targets: &[SocketAddr], ledger: &Arc<Ledger>, prng: &mut Prng) -> Self {
        Self {
            targets: targets.to_vec(),
            streams: targets.iter().map(|_| None).collect(),
            ledger: Arc::clone(ledger),
            prng: Prng::new(prng.next()),
        }
    }

    /// Sends events until they are known to be accepted, at one process after the other.
    pub(super) async fn send(&mut self, events: &[Value], first: Option<usize>) -> Result<()> {
        let request = request(events)?;
        let chosen = usize::try_from(self.prng.below(self.targets.len() as u64))?;
        let (first, watch) = (first.unwrap_or(chosen), Stopwatch::start());
        self.ledger.requests.fetch_add(1, Ordering::Relaxed);
        for attempt in 0.. {
            let place = (first + attempt) % self.targets.len();
            if let Some(body) = self.attempt(place, &request).await? {
                self.ledger.mended.fetch_add(u64::from(attempt > 0), Ordering::Relaxed);
                return self.acknowledged(&body, events.len());
            }
            if watch.elapsed() > MEND_PATIENCE {
                break;
            }
            clock::rest(AGAIN_AFTER).await;
        }
        self.ledger.unmended.fetch_add(1, Ordering::Relaxed);
        bail!("no process has taken a request within {} s", MEND_PATIENCE.as_secs())
    }

    /// The answer to one attempt, if it was taken.
    async fn attempt(&mut self, place: usize, request: &[u8]) -> Result<Option<Vec<u8>>> {
        let answer = match connected(self.streams[place].take(), self.targets[place]).await {
            None => None,
            Some(mut stream) => {
                let answer = exchange(&mut stream, request, ANSWER_PATIENCE).await.ok();
                self.streams[place] = answer.is_some().then_some(stream);
                answer
            }
        };
        let Some(Answer { status, has_retry_after, body }) = answer else {
            self.ledger.unanswered.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        };
        match status {
            202 => Ok(Some(body)),
            429 | 503 => {
                self.ledger.refused.fetch_add(1, Ordering::Relaxed);
                self.ledger.without_retry_after.fetch_add(u64::from(!has_retry_after), Ordering::Relaxed);
                Ok(None)
            }
            _ => bail!("a request was answered {status}: {}", String::from_utf8_lossy(&body)),
        }
    }

    fn acknowledged(&self, body: &[u8], events: usize) -> Result<()> {
        let answer: Value = serde_json::from_slice(body)?;
        let results = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(results.len() == events, "{events} events were answered {answer}");
        for result in results {
            let counter = match result["status"].as_str() {
                Some("accepted") => &self.ledger.accepted,
                Some("duplicate") => &self.ledger.duplicates,
                _ => bail!("an event ended as {result}"),
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// One event goes alone, several as an array.
pub(super) fn request(events: &[Value]) -> Result<Vec<u8>> {
    let body = match events {
        [event] => serde_json::to_string(event)?,
        events => serde_json::to_string(events)?,
    };
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_KEY}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Ok([head, body].concat().into_bytes())
}
