//! What every campaign has in common: the load, two subscribers, and the end of the run.
//!
//! Two subscribers take everything: one in any order, one ordered by `data.key`. At the end the load stops, the
//! server drains, and the checker compares the producer's ledger with the receiver's notes and with traces.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::checker::api::{self, Asked};
use super::checker::{self, Event, Findings, History, Promise, Rule};
use super::producer::{Ledger, Producer};
use super::receiver::{Manner, Receiver};
use crate::cargo::{self, Profile};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{PROJECT, Server};

const SUBSCRIBERS: usize = 2;
const EVERYBODY: &[usize] = &[0, ORDERED];
/// Index of the subscriber that is ordered by key.
const ORDERED: usize = 1;
/// Now and then it fails, and answers late enough for a kill to fall into a request.
const MANNER: Manner = Manner { fail_one_in: 50, slowness: |_| Duration::from_millis(5) };
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
    /// The subscribers' ids by place.
    subscribers: Vec<String>,
    connections: usize,
    pause: Duration,
}

impl Scene {
    /// A receiver that waits for deliveries.
    pub(super) fn new(load: &Load, prng: &mut Prng) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let receiver = runtime.block_on(Receiver::start(Stopwatch::start(), MANNER, prng.next()))?;
        let pause =
            Duration::from_secs(1) * u32::try_from(load.connections)? / u32::try_from(load.rate.max(1))?;
        Ok(Self { runtime, receiver, subscribers: Vec::new(), connections: load.connections, pause })
    }

    /// Creates the subscribers.
    pub(super) fn subscribe(&mut self, server: &Server) -> Result<()> {
        for (index, order) in ["none", "data.key"].into_iter().enumerate() {
            let rest = json!({
                "order": {"by": order},
                "limits": {"concurrency": CONCURRENCY},
                "retry": {"schedule": vec!["100ms"; 20]},
            });
            let url = format!("http://{}/{index}", self.receiver.address);
            self.subscribers.push(server.subscribe(order, &url, &rest)?.id);
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
        let promises = promises(&acknowledged);
        let drained = drain(&self.receiver, promises.len() * SUBSCRIBERS);
        let unfinished = unfinished(server)?;
        let asked = Asked { server, project: PROJECT, subscribers: &self.subscribers };
        let traces = api::traces(&asked, &promises, &self.receiver.arrivals())?;
        server.stop()?;
        let arrivals = &self.receiver.arrivals();
        let findings = checker::check(&History { promises: &promises, arrivals, traces: &traces, ends: &[] });
        let out_of_order = checker::out_of_order(arrivals, ORDERED, |_| true);
        Ok(Outcome { ledger, events: promises.len(), findings, out_of_order, unfinished, drained })
    }
}

/// Every event that was acknowledged, for everybody: `acknowledged` is how many there are of each key.
fn promises(acknowledged: &[u32]) -> Vec<Promise<'static>> {
    let of_key = |(key, last): (usize, &u32)| (1..=*last).map(move |seq| Event { key, seq });
    let events = acknowledged.iter().enumerate().flat_map(of_key);
    events.map(|event| Promise::firm(event, EVERYBODY)).collect()
}

/// What a run came to.
pub(super) struct Outcome {
    pub(super) ledger: Arc<Ledger>,
    events: usize,
    findings: Findings,
    out_of_order: Rule,
    unfinished: usize,
    drained: bool,
}

impl Outcome {
    /// Prints the report; an error when a promise was broken. Crashes explain at most `bound` duplicates.
    pub(super) fn verdict(&self, bound: u64) -> Result<()> {
        let Self { ledger, events, findings, out_of_order, unfinished, .. } = self;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let repeats = findings.repeats.len() as u64;
        println!("sent, acknowledged       {events}, to {SUBSCRIBERS} subscribers each");
        println!("unknown outcomes         {} (all repeated until acknowledged)", count(&ledger.unknown));
        println!("  already accepted       {}", count(&ledger.duplicates_answered));
        println!("refused                  {}", count(&ledger.refused));
        println!("  no Retry-After         {} (must be 0)", count(&ledger.without_retry_after));
        let mut broken = findings.report();
        println!("duplicates               {repeats} (at most {bound} can be explained)");
        println!("order violations         {} (must be 0) {:?}", out_of_order.count, out_of_order.examples);
        println!("unfinished               {unfinished} (must be 0)");
        println!("drained                  {}", self.drained);
        let zeros = [
            ("order violations", out_of_order.count),
            ("unfinished", *unfinished as u64),
            ("refusals without Retry-After", count(&ledger.without_retry_after)),
            ("duplicates beyond what crashes explain", repeats.saturating_sub(bound)),
        ];
        broken.extend(zeros.iter().filter(|zero| zero.1 > 0).map(|(name, count)| format!("{name} {count}")));
        if !broken.is_empty() {
            bail!("a promise was broken: {}", broken.join(", "));
        }
        println!("every promise was kept");
        Ok(())
    }
}

/// Waits until everything acknowledged has been taken, as long as something still arrives.
fn drain(receiver: &Receiver, expected: usize) -> bool {
    let mut stalled = Stopwatch::start();
    let mut seen = 0;
    loop {
        clock::pause(Duration::from_millis(100));
        let now = receiver.taken();
        if now >= expected {
            clock::pause(AFTERMATH);
            return true;
        }
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
