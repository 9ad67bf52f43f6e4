//! Windows under fire: three processes fold the same keys while one after the other is killed.
//!
//! Every event must be in exactly one delivery of each subscriber, no delivery may change once it was sent, and of a key later
//! deliveries carry later events.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::audience::Kind;
use super::cluster::Cluster;
use super::producers::Producers;
use super::verdict::promises;
use crate::cargo::{self, Profile};
use crate::chaos::checker::api::{self, Asked};
use crate::chaos::checker::{self, Findings, History};
use crate::chaos::receiver::{Manner, Receiver};
use crate::chaos::scene::{self, Build};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{PROJECT, Scratch, Server};
use crate::services::Services;

/// Now and then a receiver fails.
const MANNER: Manner = Manner { fail_one_in: 20, slowness: |_| Duration::ZERO };
/// Everything has arrived when nothing came for so long: longer than a process is missed, a window and a retry.
const CALM: Duration = Duration::from_secs(12);
/// A run is given up after this long without an end.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long, and how often.
#[derive(Args)]
pub(crate) struct Folds {
    /// How long processes are killed
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// About how many milliseconds lie between two kills
    #[arg(long, default_value_t = 2_000)]
    every: u64,
    /// Decides who is killed when
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    build: Build,
}

/// One who folds.
struct Folder {
    name: &'static str,
    is_ordered: bool,
}

const FOLDERS: [Folder; 3] = [
    Folder { name: "window", is_ordered: false },
    Folder { name: "quiet", is_ordered: true },
    Folder { name: "batch", is_ordered: false },
];

const EVERYBODY: &[usize] = &[0, 1, 2];

fn definition(folder: &Folder) -> Value {
    let fold = match folder.name {
        "window" => json!({"mode": "window", "window": "1s", "by": ["data.key"]}),
        "quiet" => {
            json!({"mode": "quiet", "quiet": "400ms", "max_wait": "2s", "by": ["data.key"], "max_events": 20})
        }
        _ => json!({"mode": "batch", "every": "1s", "max_events": 25}),
    };
    let mut definition = json!({
        "match": {"types": [Kind::Keyed.name()]},
        "retry": {"schedule": vec!["200ms"; 40]},
        "breaker": "off",
        "fold": fold,
    });
    if folder.is_ordered {
        definition["order"] = json!({"by": "data.key"});
    }
    definition
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Folds) -> Result<()> {
    let plan = Plan {
        binary: args.build.binary()?,
        span: Duration::from_secs(args.seconds),
        every_ms: args.every,
        prng: scene::seeded(args.seed),
    };
    plan.carry_out(&mut Services::start_own()?)
}

/// A short version for every test run. Answers a remark.
pub(crate) fn short(services: &mut Services) -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    println!("-- folds --");
    let watch = Stopwatch::start();
    let plan = Plan { binary, span: Duration::from_secs(6), every_ms: 1_500, prng: scene::seeded(None) };
    plan.carry_out(services)?;
    Ok(format!("folds {:.0} s", watch.seconds()))
}

struct Plan {
    binary: PathBuf,
    span: Duration,
    every_ms: u64,
    prng: Prng,
}

impl Plan {
    fn carry_out(self, services: &mut Services) -> Result<()> {
        let mut scratch = Scratch::new("folds")?;
        let mut cluster = Cluster::start(services, &self.binary, scratch.path(), &[])?;
        let outcome = campaign(self, &mut cluster);
        if outcome.is_err() {
            eprintln!("{}", cluster.log_tails());
            scratch.keep();
        }
        outcome
    }
}

fn campaign(plan: Plan, cluster: &mut Cluster<'_>) -> Result<()> {
    let Plan { span, every_ms, mut prng, .. } = plan;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let receiver = runtime.block_on(Receiver::start(Stopwatch::start(), MANNER, prng.next()))?;
    let subscribers = subscribe(&cluster.replicas[0], receiver.address)?;
    let producers = {
        let _inside = runtime.enter();
        Producers::start(&cluster.addresses(), &mut prng)
    };
    let watch = Stopwatch::start();
    let mut kills = 0;
    while watch.elapsed() < span {
        clock::pause(Duration::from_millis(every_ms / 2 + prng.below(every_ms)));
        let victim = usize::try_from(prng.below(cluster.replicas.len() as u64))?;
        cluster.kill(victim)?;
        clock::pause(Duration::from_millis(prng.pick(&[0, 300])));
        cluster.replicas[victim].resume()?;
        kills += 1;
    }
    let sent = runtime.block_on(producers.finish())?;
    let promises = promises(&sent, |kind| if kind == Kind::Keyed { EVERYBODY } else { &[] });
    let members = promises.iter().map(|promise| promise.wanted.len()).sum();
    drain(&receiver, members);
    let (deadlocks, unfinished) = (cluster.deadlocks()?, cluster.unfinished()?);
    let asked = Asked { server: &cluster.replicas[0], project: PROJECT, subscribers: &subscribers };
    let traces = api::traces(&asked, &promises, &receiver.arrivals())?;
    cluster.stop()?;
    let arrivals = &receiver.arrivals();
    let findings = checker::check(&History { promises: &promises, arrivals, traces: &traces, ends: &[] });
    let ordered = (0..FOLDERS.len()).filter(|place| FOLDERS[*place].is_ordered);
    let out_of_order =
        ordered.map(|place| checker::out_of_order(arrivals, place, |_| true).count).sum::<u64>();
    let deliveries = arrivals.iter().map(|arrival| &arrival.delivery).collect::<BTreeSet<_>>().len();
    println!("kills                    {kills}");
    println!("members                  {members} in {deliveries} deliveries");
    let zeros = [("out of order", out_of_order), ("deadlocks", deadlocks), ("unfinished", unfinished)];
    report(&findings, &zeros)?;
    ensure!(kills > 0 && members > 0 && deliveries < members, "nothing was folded: the run proves nothing");
    println!("every promise was kept");
    Ok(())
}

fn subscribe(server: &Server, receiver: SocketAddr) -> Result<Vec<String>> {
    let subscribe = |(place, folder): (usize, &Folder)| {
        let url = format!("http://{receiver}/{place}");
        Ok(server.subscribe(folder.name, &url, &definition(folder))?.id)
    };
    FOLDERS.iter().enumerate().map(subscribe).collect()
}

/// Waits until everything has arrived, or nothing comes any more.
fn drain(receiver: &Receiver, members: usize) {
    let (all, mut calm, mut seen) = (Stopwatch::start(), Stopwatch::start(), 0);
    while all.elapsed() < PATIENCE && calm.elapsed() < CALM {
        clock::pause(Duration::from_millis(200));
        let count = receiver.count();
        if count > seen {
            (seen, calm) = (count, Stopwatch::start());
        }
        if receiver.taken() >= members {
            // Time for what should not come to come after all.
            clock::pause(Duration::from_secs(1));
            return;
        }
    }
}

fn report(findings: &Findings, zeros: &[(&str, u64)]) -> Result<()> {
    let mut broken = findings.report();
    for (name, count) in zeros {
        println!("{name:<24} {count} (must be 0)");
    }
    broken.extend(zeros.iter().filter(|zero| zero.1 > 0).map(|(name, count)| format!("{name} {count}")));
    ensure!(broken.is_empty(), "a promise was broken: {}", broken.join(", "));
    Ok(())
}
