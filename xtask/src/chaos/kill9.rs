//! Kill -9 under load: every two seconds the server dies without warning and is started again.
//!
//! Two subscribers take everything: one in any order, one ordered by `data.key`. At the end the load stops, the
//! server drains, and the judge compares. A run whose kills never fell into a request proves nothing and fails.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::judge::{Findings, judge};
use super::producer::Producer;
use super::receiver::Receiver;
use crate::cargo::{self, Profile};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{Scratch, Server};

const SUBSCRIBERS: usize = 2;
/// Index of the subscriber that is ordered by key.
const ORDERED: usize = 1;
/// Requests under way to each subscriber at most, hence the duplicates that one kill can explain.
const CONCURRENCY: u64 = 16;
/// Kills come this often on average.
const KILL_EVERY_MS: u64 = 2_000;
/// The drain is given up when nothing has arrived for this long.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time for copies that should not come to come after all.
const AFTERMATH: Duration = Duration::from_secs(1);
/// States of deliveries that must be empty after the drain.
const UNFINISHED: [&str; 4] = ["pending", "sending", "retrying", "exhausted"];

/// How long and how hard.
#[derive(Args)]
pub(crate) struct Kill9 {
    /// How long the load lasts
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Decides when the kills come and how the receiver behaves
    #[arg(long)]
    seed: Option<u64>,
    /// Connections of the producer
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Events per second at most
    #[arg(long, default_value_t = 3_000)]
    rate: u64,
    /// Use a debug build
    #[arg(long)]
    debug: bool,
    /// A built binary to use instead of a fresh build
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// What the nemesis did and saw.
#[derive(Default)]
struct Kills {
    count: u64,
    ready_max: Duration,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Kill9) -> Result<()> {
    let profile = if args.debug { Profile::Debug } else { Profile::Release };
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => cargo::build(&["tidegate"], profile)?.join("tidegate"),
    };
    let mut scratch = Scratch::new("kill9")?;
    let mut server = Server::start(&binary, scratch.path())?;
    let outcome = campaign(args, &mut server);
    if outcome.is_err() {
        eprintln!("the server's log ends:\n{}", server.log_tail());
        scratch.keep();
    }
    outcome
}

fn campaign(args: &Kill9, server: &mut Server) -> Result<()> {
    let seed = args.seed.unwrap_or_else(clock::wall_nanos);
    println!("seed {seed}: {} s of load, a kill about every {KILL_EVERY_MS} ms", args.seconds);
    let mut prng = Prng::new(seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let receiver = runtime.block_on(Receiver::start(prng.next()))?;
    subscribe(server, &receiver)?;
    let pause = Duration::from_secs(1) * u32::try_from(args.connections)? / u32::try_from(args.rate.max(1))?;
    let producer = {
        let _inside = runtime.enter();
        Producer::start(server.address, args.connections, pause, &mut prng)
    };
    let kills = kill_repeatedly(server, Duration::from_secs(args.seconds), &mut prng)?;
    conclude(&runtime, server, producer, &receiver, &kills)
}

fn subscribe(server: &Server, receiver: &Receiver) -> Result<()> {
    for (index, order) in ["none", "data.key"].into_iter().enumerate() {
        let rest = json!({
            "order": {"by": order},
            "limits": {"concurrency": CONCURRENCY},
            "retry": {"schedule": vec!["100ms"; 20]},
        });
        server.subscribe(order, &format!("http://{}/{index}", receiver.address), &rest)?;
    }
    Ok(())
}

fn kill_repeatedly(server: &mut Server, span: Duration, prng: &mut Prng) -> Result<Kills> {
    let mut kills = Kills::default();
    let watch = Stopwatch::start();
    while watch.elapsed() < span {
        clock::pause(Duration::from_millis(KILL_EVERY_MS / 2 + prng.below(KILL_EVERY_MS)));
        server.kill()?;
        kills.count += 1;
        kills.ready_max = kills.ready_max.max(server.resume()?);
    }
    Ok(kills)
}

/// Stops the load, drains, judges and reports.
fn conclude(
    runtime: &Runtime,
    server: &mut Server,
    producer: Producer,
    receiver: &Receiver,
    kills: &Kills,
) -> Result<()> {
    let ledger = std::sync::Arc::clone(&producer.ledger);
    let acknowledged = runtime.block_on(producer.finish())?;
    let events = acknowledged.iter().map(|last| u64::from(*last)).sum::<u64>();
    let drained = drain(receiver, &acknowledged);
    let unfinished = unfinished(server)?;
    server.stop()?;
    let findings = judge(&acknowledged, SUBSCRIBERS, ORDERED, &receiver.arrivals());
    let unknown = ledger.unknown.load(Ordering::Relaxed);
    let bound = CONCURRENCY * SUBSCRIBERS as u64 * kills.count;
    println!("kills               {}", kills.count);
    println!("sent, acknowledged  {events}, to {SUBSCRIBERS} subscribers each");
    println!("unknown outcomes    {unknown} (all repeated until acknowledged)");
    println!("  already accepted  {}", ledger.duplicates_answered.load(Ordering::Relaxed));
    println!("refused             {}", ledger.refused.load(Ordering::Relaxed));
    println!("lost                {} (must be 0)", findings.lost);
    println!("duplicates          {} (at most {bound}: requests in flight × kills)", findings.duplicates);
    println!("order violations    {} (must be 0)", findings.order_violations);
    println!("changed webhook-ids {} (must be 0)", findings.changed_ids);
    println!("made-up events      {} (must be 0)", findings.strangers);
    println!("unfinished          {unfinished} (must be 0)");
    println!("restart to ready    {} ms at most", kills.ready_max.as_millis());
    println!("drained             {drained}");
    verdict(&findings, bound, kills.count, unknown, unfinished)
}

fn verdict(findings: &Findings, bound: u64, kills: u64, unknown: u64, unfinished: usize) -> Result<()> {
    let harmless = Findings { duplicates: findings.duplicates, ..Findings::default() };
    if *findings != harmless || findings.duplicates > bound || unfinished > 0 {
        bail!("a promise was broken");
    }
    if kills == 0 || unknown == 0 {
        bail!("no kill fell into a request: the run proves nothing, make it longer or harder");
    }
    println!("every promise was kept");
    Ok(())
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

/// How many kinds of unfinished deliveries the API still lists.
fn unfinished(server: &Server) -> Result<usize> {
    let mut count = 0;
    for status in UNFINISHED {
        let page = server.api("GET", &format!("/v1/deliveries?status={status}&limit=500"), &Value::Null)?;
        count += page["items"].as_array().map_or(0, Vec::len);
    }
    Ok(count)
}
