//! Who sends the sales: each request until it is acknowledged, at one process after the other.
//!
//! Some requests go to two processes at once, some to one that is about to be killed, and now and then what was acknowledged
//! before is sent once more. All that has the same id has the same content, so whatever is stored is one of the sales.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::sales::{REQUEST, Sale};
use crate::chaos::replicas::producers::{Client, Ledger, request};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

const SENDERS: usize = 6;
/// One in so many requests goes to two processes at once, and after one in so many old sales are sent again: together a
/// tenth is sent twice.
const TWICE_ONE_IN: u64 = 20;

/// What became of it.
pub(super) struct Sent {
    /// Events that were sent although they need not have been.
    pub(super) again: u64,
    pub(super) accepted: u64,
    pub(super) duplicates: u64,
    pub(super) unanswered: u64,
    pub(super) refused: u64,
}

/// Senders at work.
pub(super) struct Sending {
    ledger: Arc<Ledger>,
    again: Arc<AtomicU64>,
    sales: Arc<Vec<Sale>>,
    tasks: Vec<JoinHandle<Result<()>>>,
}

impl Sending {
    /// Begins, at most at so many events per second.
    pub(super) fn start(targets: &[SocketAddr], sales: Vec<Sale>, rate: usize, prng: &mut Prng) -> Self {
        let (ledger, again) = (Arc::new(Ledger::default()), Arc::new(AtomicU64::new(0)));
        let sales = Arc::new(sales);
        let every = Duration::from_secs_f64((SENDERS * REQUEST) as f64 / rate.max(1) as f64);
        let mut sender = |place| Sender {
            place,
            sales: Arc::clone(&sales),
            every,
            client: Client::new(targets, &ledger, prng),
            twin: Client::new(targets, &ledger, prng),
            processes: targets.len() as u64,
            prng: Prng::new(prng.next()),
            again: Arc::clone(&again),
        };
        let tasks = (0..SENDERS).map(|place| tokio::spawn(sender(place).run())).collect();
        Self { ledger, again, sales, tasks }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.tasks.iter().all(JoinHandle::is_finished)
    }

    /// Sends any of the requests to one process and does not wait for the answer. Whoever has it in his share sends it too,
    /// before or after, and until it is acknowledged.
    pub(super) fn leave_unanswered(&self, target: SocketAddr, prng: &mut Prng) -> Result<()> {
        let place = usize::try_from(prng.below((self.sales.len() / REQUEST) as u64))? * REQUEST;
        let events: Vec<Value> = self.sales[place..place + REQUEST].iter().map(Sale::event).collect();
        self.again.fetch_add(REQUEST as u64, Ordering::Relaxed);
        TcpStream::connect(target)?.write_all(&request(&events)?)?;
        Ok(())
    }

    /// Everything is acknowledged, or somebody has failed.
    pub(super) async fn finish(self) -> Result<Sent> {
        for task in self.tasks {
            task.await??;
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(Sent {
            again: count(&self.again),
            accepted: count(&self.ledger.accepted),
            duplicates: count(&self.ledger.duplicates),
            unanswered: count(&self.ledger.unanswered),
            refused: count(&self.ledger.refused),
        })
    }
}

struct Sender {
    /// Its place among all: it sends every so-many-th request.
    place: usize,
    sales: Arc<Vec<Sale>>,
    every: Duration,
    client: Client,
    twin: Client,
    processes: u64,
    prng: Prng,
    again: Arc<AtomicU64>,
}

impl Sender {
    async fn run(mut self) -> Result<()> {
        let watch = Stopwatch::start();
        let sales = Arc::clone(&self.sales);
        let mut sent = Vec::new();
        for (turn, request) in sales.chunks(REQUEST).skip(self.place).step_by(SENDERS).enumerate() {
            clock::rest((self.every * u32::try_from(turn)?).saturating_sub(watch.elapsed())).await;
            self.send(request).await?;
            sent.extend(request);
            if self.prng.below(TWICE_ONE_IN) == 0 {
                self.send_old(&sent).await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self, request: &[Sale]) -> Result<()> {
        let events: Vec<Value> = request.iter().map(Sale::event).collect();
        if self.prng.below(TWICE_ONE_IN) > 0 {
            return self.client.send(&events, None).await;
        }
        self.again.fetch_add(events.len() as u64, Ordering::Relaxed);
        let first = usize::try_from(self.prng.below(self.processes))?;
        let (one, other) =
            tokio::join!(self.client.send(&events, Some(first)), self.twin.send(&events, Some(first + 1)));
        one.and(other)
    }

    /// Any of those that were acknowledged, from different requests.
    async fn send_old(&mut self, sent: &[&Sale]) -> Result<()> {
        let mut places: Vec<u64> = (0..REQUEST).map(|_| self.prng.below(sent.len() as u64)).collect();
        places.sort_unstable();
        places.dedup();
        self.again.fetch_add(places.len() as u64, Ordering::Relaxed);
        let events: Vec<Value> = places.iter().map(|place| sent[*place as usize].event()).collect();
        self.client.send(&events, None).await
    }
}
