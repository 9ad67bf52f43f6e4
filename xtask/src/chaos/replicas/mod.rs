//! Several processes on one PostgreSQL and Redis, under faults: the promises hold across all of them.
//!
//! Three real processes, producers that post to all three, subscribers with an order, a rate and a limit, and a nemesis that
//! kills, stops and restarts processes and servers. The checker knows only what was acknowledged, what arrived and what the API says. With
//! `--sabotage` a protecting line of the product is switched off, and the run is good when a broken promise was found.

mod audience;
mod cluster;
pub(crate) mod counters;
pub(crate) mod failover;
pub(crate) mod folds;
pub(crate) mod gate;
pub(crate) mod joining;
mod nemesis;
mod producers;
mod report;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::audience::{Kind, ORDERED};
use self::cluster::Cluster;
use self::nemesis::{Deeds, Fault, Nemesis};
use self::producers::Producers;
use self::report::Outcome;
use self::verdict::promises;
use super::checker::api::{self, Asked};
use super::checker::{self, Arrival, History};
use super::receiver::Receiver;
use super::scene::{self, Build};
use crate::cargo::{self, Profile};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{PROJECT, Scratch};
use crate::services::Services;

/// Chance decides what a fault meets: a run that proves nothing is made again, but not for ever.
const TRIES: u32 = 3;
/// The load runs for so long before the first fault.
const WARM_UP: Duration = Duration::from_secs(1);
/// Longer than it takes to miss a process and to take over.
const MISSED_AFTER: Duration = Duration::from_secs(9);
/// The same on a machine that has too much to do, where being wrong would blame the product.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time for copies that should not come to come after all.
const AFTERMATH: Duration = Duration::from_secs(1);

/// How long, and which faults.
#[derive(Args)]
pub(crate) struct Replicas {
    /// How long faults come; every kind comes at least once
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Decides which faults come when, and how the receivers behave
    #[arg(long)]
    seed: Option<u64>,
    /// Which faults, separated by commas; all of them unless a line is switched off
    #[arg(long, value_enum, value_delimiter = ',')]
    nemesis: Vec<Fault>,
    /// Switch off a protecting line; the run is good when that was found
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
    #[command(flatten)]
    build: Build,
}

/// A line that protects a promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sabotage {
    /// What a dead life writes is written all the same
    Fencing,
    /// Ids and lanes are taken in the order of arrival
    Sorted,
    /// A process whose beat is stale goes on sending what it holds
    Lease,
}

impl Sabotage {
    const ALL: [Self; 3] = [Self::Fencing, Self::Sorted, Self::Lease];

    fn name(self) -> &'static str {
        match self {
            Self::Fencing => "fencing",
            Self::Sorted => "sorted",
            Self::Lease => "lease",
        }
    }

    /// What it takes to see that the line is missing.
    fn faults(self) -> Vec<Fault> {
        match self {
            Self::Fencing | Self::Lease => vec![Fault::Stop],
            Self::Sorted => Vec::new(),
        }
    }
}

/// One run.
struct Plan {
    binary: PathBuf,
    span: Duration,
    faults: Vec<Fault>,
    sabotage: Option<Sabotage>,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Replicas) -> Result<()> {
    let binary = match args.sabotage {
        Some(_) if !args.build.is_given() => build_sabotaged()?,
        _ => args.build.binary()?,
    };
    let faults = match (args.nemesis.as_slice(), args.sabotage) {
        ([], Some(sabotage)) => sabotage.faults(),
        ([], None) => Fault::expanded(&[Fault::All]),
        (chosen, _) => Fault::expanded(chosen),
    };
    let span = Duration::from_secs(args.seconds);
    let mut prng = scene::seeded(args.seed);
    Plan { binary, span, faults, sabotage: args.sabotage }.carry_out(&mut Services::start_own()?, &mut prng)
}

/// A short version for every test run: the faults of processes, those of servers, then every protecting line. Answers a
/// remark.
pub(crate) fn short() -> Result<String> {
    let sabotaged = build_sabotaged()?;
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    let mut services = Services::start_own()?;
    let mut prng = scene::seeded(None);
    let mut told = Vec::new();
    let mut timed = |name: String, plan: Plan| -> Result<()> {
        println!("-- {name} --");
        let watch = Stopwatch::start();
        plan.carry_out(&mut services, &mut prng)?;
        told.push(format!("{name} {:.0} s", watch.seconds()));
        Ok(())
    };
    let faults = vec![Fault::Kill, Fault::Stop, Fault::Rolling];
    let plan = Plan { binary: binary.clone(), span: Duration::ZERO, faults, sabotage: None };
    timed("replicas".to_owned(), plan)?;
    // Apart, so that nothing but the servers can be the reason for what is found.
    let faults = vec![Fault::Postgres, Fault::Redis];
    timed("servers".to_owned(), Plan { binary, span: Duration::ZERO, faults, sabotage: None })?;
    for sabotage in Sabotage::ALL {
        let (binary, faults) = (sabotaged.clone(), sabotage.faults());
        let span = if faults.is_empty() { Duration::from_secs(5) } else { Duration::ZERO };
        let plan = Plan { binary, span, faults, sabotage: Some(sabotage) };
        timed(format!("without {}", sabotage.name()), plan)?;
    }
    told.push(joining::short(&mut services)?);
    told.push(gate::short(&mut services)?);
    told.push(folds::short(&mut services)?);
    told.push(counters::short(&mut services, &sabotaged)?);
    drop(services);
    told.push(failover::short()?);
    Ok(told.join(", "))
}

/// A debug build in which lines can be switched off. It lies apart, so that nobody takes it for the product.
fn build_sabotaged() -> Result<PathBuf> {
    cargo::run(&["build", "--package", "tidegate", "--features", "sabotage"])?;
    let folder = cargo::target().join("sabotage");
    fs::create_dir_all(&folder)?;
    let (built, apart) = (cargo::target().join("debug/tidegate"), folder.join("tidegate"));
    fs::copy(&built, &apart)?;
    fs::remove_file(built)?;
    Ok(apart)
}

/// Runs until one proves something. A broken promise is an error at once; that nothing was proven is one in the end.
fn until_proven(mut attempt: impl FnMut() -> Result<Option<String>>) -> Result<()> {
    for left in (0..TRIES).rev() {
        match attempt()? {
            Some(why) if left == 0 => bail!("{TRIES} runs prove nothing: {why}"),
            Some(why) => println!("once more, because this run proves nothing: {why}"),
            None => break,
        }
    }
    Ok(())
}

impl Plan {
    fn carry_out(&self, services: &mut Services, prng: &mut Prng) -> Result<()> {
        until_proven(|| self.attempt(services, prng))
    }

    /// One run. Answers why it proves nothing, if so.
    fn attempt(&self, services: &mut Services, prng: &mut Prng) -> Result<Option<String>> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let name = format!("replicas-{}", RUNS.fetch_add(1, Ordering::Relaxed));
        let mut scratch = Scratch::new(&name)?;
        let settings: Vec<(&str, &str)> =
            self.sabotage.iter().map(|line| ("TIDEGATE_SABOTAGE", line.name())).collect();
        let mut cluster = Cluster::start(services, &self.binary, scratch.path(), &settings)?;
        let outcome = self.campaign(&mut cluster, prng);
        if !matches!(outcome, Ok(None)) {
            eprintln!("{}", cluster.log_tails());
            scratch.keep();
        }
        outcome
    }

    fn campaign(&self, cluster: &mut Cluster<'_>, prng: &mut Prng) -> Result<Option<String>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let watch = Stopwatch::start();
        let receiver = runtime.block_on(Receiver::start(watch, audience::MANNER, prng.next()))?;
        let subscribers = audience::subscribe(&cluster.replicas[0], receiver.address)?;
        let producers = {
            let _inside = runtime.enter();
            Producers::start(&cluster.addresses(), prng)
        };
        let ledger = Arc::clone(&producers.ledger);
        clock::pause(WARM_UP);
        let nemesis = Nemesis { cluster, receiver: &receiver, watch, prng, deeds: Deeds::default() };
        let deeds = nemesis.run(&self.faults, self.span)?;
        let sent = runtime.block_on(producers.finish())?;
        let promises = promises(&sent, Kind::audience);
        drain(&receiver, promises.iter().map(|promise| promise.wanted.len()).sum(), self.patience());
        let (counts, unfinished) = (cluster.counts()?, cluster.unfinished()?);
        let asked = Asked { server: &cluster.replicas[0], project: PROJECT, subscribers: &subscribers };
        let traces = api::traces(&asked, &promises, &receiver.arrivals())?;
        match self.sabotage {
            // It may have nothing left that could stop in good order.
            Some(_) => cluster.abandon()?,
            None => cluster.stop()?,
        }
        let arrivals = receiver.arrivals();
        let history = History { promises: &promises, arrivals: &arrivals, traces: &traces, ends: &[] };
        let outcome = Outcome {
            ledger: &ledger,
            sent: &sent,
            arrivals: &arrivals,
            findings: checker::check(&history),
            out_of_order: checker::out_of_order(&arrivals, ORDERED, |_| true),
            deeds: &deeds,
            counts,
            deadlocks: cluster.deadlocks()?,
            unfinished,
            last: last_first_taking(&arrivals),
        };
        self.conclude(&outcome)
    }

    /// The drain is given up when nothing has arrived for this long.
    fn patience(&self) -> Duration {
        if self.sabotage.is_some() { MISSED_AFTER } else { DRAIN_PATIENCE }
    }

    fn conclude(&self, outcome: &Outcome<'_>) -> Result<Option<String>> {
        let broken = outcome.report();
        let why = match self.sabotage {
            None if !broken.is_empty() => bail!("a promise was broken: {}", broken.join(", ")),
            None => outcome.void().map(str::to_owned),
            Some(sabotage) => {
                broken.is_empty().then(|| format!("nobody found out that {} was off", sabotage.name()))
            }
        };
        match self.sabotage {
            _ if why.is_some() => {}
            None => println!("every promise was kept"),
            Some(sabotage) => println!("found, without {}: {}", sabotage.name(), broken.join(", ")),
        }
        Ok(why)
    }
}

/// Waits until everything acknowledged has been taken, as long as something still arrives.
fn drain(receiver: &Receiver, expected: usize, patience: Duration) {
    let mut stalled = Stopwatch::start();
    let mut seen = receiver.count();
    loop {
        clock::pause(Duration::from_millis(100));
        if receiver.taken() >= expected {
            clock::pause(AFTERMATH);
            return;
        }
        let now = receiver.count();
        if now > seen {
            seen = now;
            stalled = Stopwatch::start();
        } else if stalled.elapsed() > patience {
            return;
        }
    }
}

/// When the last event that somebody still missed was taken.
fn last_first_taking(arrivals: &[Arrival]) -> Option<&Arrival> {
    let mut met = BTreeSet::new();
    let firsts = arrivals.iter().filter(|arrival| arrival.is_taken()).filter(|arrival| {
        let before = met.len();
        met.extend(arrival.events.iter().map(|event| (arrival.subscriber, *event)));
        met.len() > before
    });
    firsts.max_by_key(|arrival| arrival.at)
}
