//! What every campaign has in common: the load, two subscribers, and the end of the run.
//!
//! Two subscribers take everything: one in any order, one ordered by `data.key`. At the end the load stops, the
//! server drains, and the judge compares the producer's ledger with the receiver's notes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::judge::{Findings, judge};
use super::producer::{Ledger, Producer};
use super::receiver::Receiver;
use crate::cargo::{self, Profile};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::Server;

const SUBSCRIBERS: usize = 2;
/// Index of the subscriber that is ordered by key.
const ORDERED: usize = 1;
/// Requests under way to each subscriber at most.
const CONCURRENCY: u64 = 16;
/// Results of attempts that wait for the next commit at most: a crash takes them as well.
const RESULTS_WAITING_MAX: u64 = 512;
/// The duplicates that one crash can explain: requests under way to all subscribers, and results not yet on disk.
pub(super) const CRASH_EXPLAINS_MAX: u64 = CONCURRENCY * SUBSCRIBERS as u64 + RESULTS_WAITING_MAX;
/// The drain is given up when nothing has arrived for this long.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time for copies that should not come to come after all.
const AFTERMATH: Duration = Duration::from_secs(1);
/// States of deliveries that must be empty after the drain.
const UNFINISHED: [&str; 4] = ["pending", "sending", "retrying", "exhausted"];

/// How hard, and with which binary.
#[derive(Args, Clone)]
pub(super) struct Load {
    /// Decides when faults come and how the receiver behaves
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Connections of the producer
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Events per second at most
    #[arg(long, default_value_t = 3_000)]
    rate: u64,
    #[command(flatten)]
    pub(super) build: Build,
}

/// Which binary is put under faults.
#[derive(Args, Clone)]
pub(super) struct Build {
    /// Use a debug build
    #[arg(long)]
    debug: bool,
    /// A built binary to use instead of a fresh build
    #[arg(long)]
    binary: Option<PathBuf>,
}

impl Build {
    /// The given binary, without building anything.
    pub(super) fn of(binary: PathBuf) -> Self {
        Self { debug: true, binary: Some(binary) }
    }

    /// Whether there is nothing to build.
    pub(super) fn is_given(&self) -> bool {
        self.binary.is_some()
    }

    /// The binary, built if need be.
    pub(super) fn binary(&self) -> Result<PathBuf> {
        let profile = if self.debug { Profile::Debug } else { Profile::Release };
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => Ok(cargo::build(&["tidegate"], profile)?.join("tidegate")),
        }
    }
}

impl Load {
    /// The usual load on a binary that is there already.
    pub(super) fn of(binary: PathBuf) -> Self {
        Self { seed: None, connections: 32, rate: 3_000, build: Build::of(binary) }
    }

    /// The stream of chance of this run; says its seed, so that the run can be repeated.
    pub(super) fn prng(&self) -> Prng {
        seeded(self.seed)
    }
}

/// The stream of the given seed or of a new one, which is told.
pub(super) fn seeded(seed: Option<u64>) -> Prng {
    let seed = seed.unwrap_or_else(clock::wall_nanos);
    println!("seed {seed}");
    Prng::new(seed)
}

/// The receiver, and the threads on which it and the producer live.
pub(super) struct Scene {
    runtime: Runtime,
    pub(super) receiver: Receiver,
    connections: usize,
    pause: Duration,
}

impl Scene {
    /// A receiver that waits for deliveries.
    pub(super) fn new(load: &Load, prng: &mut Prng) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let receiver = runtime.block_on(Receiver::start(prng.next()))?;
        let pause =
            Duration::from_secs(1) * u32::try_from(load.connections)? / u32::try_from(load.rate.max(1))?;
        Ok(Self { runtime, receiver, connections: load.connections, pause })
    }

    /// Creates the subscribers.
    pub(super) fn subscribe(&self, server: &Server) -> Result<()> {
        for (index, order) in ["none", "data.key"].into_iter().enumerate() {
            let rest = json!({
                "order": {"by": order},
                "limits": {"concurrency": CONCURRENCY},
                "retry": {"schedule": vec!["100ms"; 20]},
            });
            server.subscribe(order, &format!("http://{}/{index}", self.receiver.address), &rest)?;
        }
        Ok(())
    }

    /// Begins the load.
    pub(super) fn produce(&self, server: &Server, prng: &mut Prng) -> Producer {
        let _inside = self.runtime.enter();
        Producer::start(server.address, self.connections, self.pause, prng)
    }

    /// Ends the load, drains, stops the server and judges.
    pub(super) fn conclude(&self, server: &mut Server, producer: Producer) -> Result<Outcome> {
        let ledger = Arc::clone(&producer.ledger);
        let acknowledged = self.runtime.block_on(producer.finish())?;
        let drained = drain(&self.receiver, &acknowledged);
        let unfinished = unfinished(server)?;
        server.stop()?;
        let findings = judge(&acknowledged, SUBSCRIBERS, ORDERED, &self.receiver.arrivals());
        Ok(Outcome { ledger, acknowledged, findings, unfinished, drained })
    }
}

/// What a run came to.
pub(super) struct Outcome {
    pub(super) ledger: Arc<Ledger>,
    acknowledged: Vec<u32>,
    findings: Findings,
    unfinished: usize,
    drained: bool,
}

impl Outcome {
    /// Prints the report; an error when a promise was broken. Crashes explain at most `bound` duplicates.
    pub(super) fn verdict(&self, bound: u64) -> Result<()> {
        let Self { ledger, findings, unfinished, .. } = self;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let events = self.acknowledged.iter().map(|last| u64::from(*last)).sum::<u64>();
        println!("sent, acknowledged  {events}, to {SUBSCRIBERS} subscribers each");
        println!("unknown outcomes    {} (all repeated until acknowledged)", count(&ledger.unknown));
        println!("  already accepted  {}", count(&ledger.duplicates_answered));
        println!("refused             {}", count(&ledger.refused));
        println!("  no Retry-After    {} (must be 0)", count(&ledger.without_retry_after));
        println!("lost                {} (must be 0)", findings.lost);
        println!("duplicates          {} (at most {bound} can be explained)", findings.duplicates);
        println!("order violations    {} (must be 0)", findings.order_violations);
        println!("changed webhook-ids {} (must be 0)", findings.changed_ids);
        println!("made-up events      {} (must be 0)", findings.strangers);
        println!("unfinished          {unfinished} (must be 0)");
        println!("drained             {}", self.drained);
        let harmless = Findings { duplicates: findings.duplicates, ..Findings::default() };
        let is_kept = *findings == harmless
            && findings.duplicates <= bound
            && *unfinished == 0
            && count(&ledger.without_retry_after) == 0;
        if !is_kept {
            bail!("a promise was broken");
        }
        println!("every promise was kept");
        Ok(())
    }
}

/// Waits until everything acknowledged has been taken, as long as something still arrives.
fn drain(receiver: &Receiver, acknowledged: &[u32]) -> bool {
    let mut stalled = Stopwatch::start();
    let mut seen = receiver.taken();
    loop {
        clock::pause(Duration::from_millis(100));
        if judge(acknowledged, SUBSCRIBERS, ORDERED, &receiver.arrivals()).lost == 0 {
            clock::pause(AFTERMATH);
            return true;
        }
        let now = receiver.taken();
        if now > seen {
            seen = now;
            stalled = Stopwatch::start();
        } else if stalled.elapsed() > DRAIN_PATIENCE {
            return false;
        }
    }
}

/// How many unfinished deliveries the API still lists.
fn unfinished(server: &Server) -> Result<usize> {
    let mut count = 0;
    for status in UNFINISHED {
        let page = server.api("GET", &format!("/v1/deliveries?status={status}&limit=500"), &Value::Null)?;
        count += page["items"].as_array().map_or(0, Vec::len);
    }
    Ok(count)
}
