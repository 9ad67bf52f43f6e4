//! Counting under fire: three processes count the same stream while one after the other is killed and deadlocks are put in
//! their way.
//!
//! Sales are sent until they are acknowledged, some of them again, also to two processes at once. What was sold is counted again
//! here, and must be what the processes answer: at every length of bucket, to the unit. With `--sabotage watermark` the
//! mark that says what is counted does not move, and the run is good when a difference was found.

mod answers;
mod circles;
mod sales;
mod sending;
#[cfg(test)]
mod tests;
mod truth;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::answers::{Audit, Parcels, complete_until, search};
use self::circles::Circles;
use self::sales::{Calendar, REQUEST, Sale};
use self::sending::{Sending, Sent};
use self::truth::{LENGTHS, Subject, difference};
use super::cluster::Cluster;
use super::{build_sabotaged, until_proven};
use crate::bench::bare;
use crate::cargo::{self, Profile};
use crate::chaos::scene::{self, Build};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::Scratch;
use crate::services::Services;

/// Small steps, so that many of them are under way when something dies.
const SETTINGS: [(&str, &str); 2] =
    [("TIDEGATE_OBSERVE_INTERVAL", "250ms"), ("TIDEGATE_OBSERVE_BATCH", "1000")];
/// What the log says when a flush is written whole again.
const AGAIN: &str = "what events add is written again";
/// Between two deadlocks.
const CIRCLE_EVERY: Duration = Duration::from_millis(300);
/// A request's last chance before a kill: about as long as it takes.
const UNANSWERED_MS: u64 = 20;
/// The processes' clock is the database's: how far it may be from ours.
const CLOCKS_APART_MS: i64 = 1_000;
/// How long counting may take after the last event.
const COUNT_PATIENCE: Duration = Duration::from_secs(120);
/// The same where it will never end.
const SABOTAGED_PATIENCE: Duration = Duration::from_secs(3);

/// How much, and how often.
#[derive(Args)]
pub(crate) struct Counters {
    /// How many events are sent; about a tenth of them again
    #[arg(long, default_value_t = 200_000)]
    events: usize,
    /// Events per second at most
    #[arg(long, default_value_t = 3_000)]
    rate: usize,
    /// Milliseconds between two kills
    #[arg(long, default_value_t = 3_000)]
    every: u64,
    /// Decides what is sent and who is killed
    #[arg(long)]
    seed: Option<u64>,
    /// Switch off a protecting line; the run is good when that was found
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
    #[command(flatten)]
    build: Build,
}

/// A line that protects a promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Sabotage {
    /// What was counted is counted again
    Watermark,
}

/// One run.
struct Plan {
    binary: PathBuf,
    requests: usize,
    rate: usize,
    kill_every: Duration,
    sabotage: Option<Sabotage>,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Counters) -> Result<()> {
    let binary = match args.sabotage {
        Some(_) if !args.build.is_given() => build_sabotaged()?,
        _ => args.build.binary()?,
    };
    let plan = Plan {
        binary,
        requests: args.events.div_ceil(REQUEST),
        rate: args.rate,
        kill_every: Duration::from_millis(args.every),
        sabotage: args.sabotage,
    };
    plan.carry_out(&mut Services::start_own()?, &mut scene::seeded(args.seed))
}

/// A short version for every test run, as it is and with the protecting line off. Answers a remark.
pub(crate) fn short(services: &mut Services, sabotaged: &Path) -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    let mut prng = scene::seeded(None);
    println!("-- counters --");
    let watch = Stopwatch::start();
    let kill_every = Duration::from_secs(2);
    Plan { binary, requests: 100, rate: 800, kill_every, sabotage: None }.carry_out(services, &mut prng)?;
    println!("-- counters without watermark --");
    let (binary, sabotage) = (sabotaged.to_path_buf(), Some(Sabotage::Watermark));
    Plan { binary, requests: 20, rate: 800, kill_every, sabotage }.carry_out(services, &mut prng)?;
    Ok(format!("counters, with and without watermark {:.0} s", watch.seconds()))
}

impl Plan {
    fn carry_out(&self, services: &mut Services, prng: &mut Prng) -> Result<()> {
        until_proven(|| self.attempt(services, prng))
    }

    /// One run. Answers why it proves nothing, if so.
    fn attempt(&self, services: &mut Services, prng: &mut Prng) -> Result<Option<String>> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let mut scratch = Scratch::new(&format!("counters-{}", RUNS.fetch_add(1, Ordering::Relaxed)))?;
        let mut settings = SETTINGS.to_vec();
        settings.extend(self.sabotage.map(|_| ("TIDEGATE_SABOTAGE", "watermark")));
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
        let path = "/v1/catalog/services/chaos/types/sale";
        cluster.replicas[0].api("PUT", path, &sales::declared())?;
        let url = cluster.services.postgres_url();
        let deadlocks_before = bare::deadlocks(&url)?;
        let logged_before = cluster.services.postgres_log()?.len();
        let calendar = Calendar::before(wall_ms());
        let sales = sales::invent(self.requests, &calendar, prng);
        let (sending, circles) = {
            let _inside = runtime.enter();
            let circles = Circles::start(&url, &cluster.schema, CIRCLE_EVERY, prng);
            (Sending::start(&cluster.addresses(), sales.clone(), self.rate, prng), circles)
        };
        let kills = self.kill(cluster, &sending, prng)?;
        let sent = runtime.block_on(sending.finish())?;
        let closed = runtime.block_on(circles.finish())?;
        let counted = self.wait(cluster)?;
        let deadlocks = (bare::deadlocks(&url)? - deadlocks_before) as u64;
        let mut report = Report { broken: Vec::new() };
        report.tell("kills", kills);
        self.report_sent(&sent, &mut report);
        let again: u64 = cluster.replicas.iter().map(|server| server.log_count(AGAIN)).sum();
        report.tell("deadlocks", format!("{deadlocks} on purpose, {again} flushes were written again"));
        let log = cluster.services.postgres_log()?.split_off(logged_before);
        report.zero("deadlocks by themselves", circles::not_on_purpose(&log));
        report.tell(
            "all counted after",
            counted.map_or("never".to_owned(), |took| format!("{:.1} s", took.as_secs_f64())),
        );
        self.compare(cluster, &sales, &calendar, &mut report)?;
        match self.sabotage {
            Some(_) => cluster.abandon()?,
            None => cluster.stop()?,
        }
        let proves = [
            (kills, "nobody was killed"),
            (sent.duplicates, "nothing was sent twice"),
            (closed.min(deadlocks), "no deadlock came about"),
            (again, "no flush was ended by a deadlock"),
        ];
        let void = proves.iter().find(|(count, _)| *count == 0).map(|(_, why)| *why);
        self.conclude(&report.broken, void)
    }

    /// Kills one after the other until all is sent.
    fn kill(&self, cluster: &mut Cluster<'_>, sending: &Sending, prng: &mut Prng) -> Result<u64> {
        let mut kills = 0;
        let mut watch = Stopwatch::start();
        while !sending.is_finished() {
            clock::pause(Duration::from_millis(20));
            if watch.elapsed() < self.kill_every {
                continue;
            }
            watch = Stopwatch::start();
            let victim = usize::try_from(prng.below(cluster.replicas.len() as u64))?;
            sending.leave_unanswered(cluster.replicas[victim].address, prng)?;
            clock::pause(Duration::from_millis(prng.below(UNANSWERED_MS)));
            cluster.kill(victim)?;
            cluster.replicas[victim].resume()?;
            kills += 1;
        }
        Ok(kills)
    }

    /// Waits until a process says that everything is counted, and tells how long that took.
    fn wait(&self, cluster: &Cluster<'_>) -> Result<Option<Duration>> {
        let (watch, ended) = (Stopwatch::start(), wall_ms());
        let patience = if self.sabotage.is_some() { SABOTAGED_PATIENCE } else { COUNT_PATIENCE };
        while watch.elapsed() < patience {
            if complete_until(&cluster.replicas[0])? > ended + CLOCKS_APART_MS {
                return Ok(Some(watch.elapsed()));
            }
            clock::pause(Duration::from_millis(100));
        }
        Ok(None)
    }

    fn report_sent(&self, sent: &Sent, report: &mut Report) {
        let events = (self.requests * REQUEST) as u64;
        report.tell("sent, acknowledged", format!("{events} events, {} of them again", sent.again));
        report.tell(
            "failed attempts",
            format!("{} without an answer, {} refused", sent.unanswered, sent.refused),
        );
        report.tell("answered as duplicate", sent.duplicates);
        report.zero("accepted twice", sent.accepted.saturating_sub(events));
    }

    /// Compares what is answered with what was sold. Without the mark the first difference is enough: every question takes long.
    fn compare(
        &self,
        cluster: &Cluster<'_>,
        sales: &[Sale],
        calendar: &Calendar,
        report: &mut Report,
    ) -> Result<()> {
        let servers = &cluster.replicas;
        for (place, subject) in Subject::ALL.into_iter().enumerate() {
            let mut told = Vec::new();
            for (every, length) in LENGTHS {
                let expected = subject.expected(sales, calendar, length);
                let ranges = Subject::ranges(calendar, length);
                let found = subject.asked(&servers[place % servers.len()], every, &ranges)?;
                let gap = difference(&expected, &found);
                told.push((every, expected.len(), gap));
                if self.sabotage.is_some() && gap > 0 {
                    report.differences(subject.name(), &told);
                    return Ok(());
                }
            }
            report.differences(subject.name(), &told);
        }
        let parcels = Parcels::asked(&servers[1], calendar.all)?;
        report.zero("parcels, difference", parcels.difference(&truth::parcels(sales)));
        let shop = sales::shop(1);
        let expected = sales.iter().filter(|sale| sale.shop == Some(1)).count() as u64;
        report.zero("search, difference", expected.abs_diff(search(&servers[2], &shop)?));
        let audit = Audit::run(&self.binary, &servers[0])?;
        report.zero("tidegate audit", audit.differences);
        report.zero("events stored, difference", audit.events.abs_diff(sales.len() as u64));
        Ok(())
    }

    fn conclude(&self, broken: &[String], void: Option<&str>) -> Result<Option<String>> {
        match self.sabotage {
            None if !broken.is_empty() => bail!("a promise was broken: {}", broken.join(", ")),
            None => {
                if void.is_none() {
                    println!("every promise was kept");
                }
                Ok(void.map(str::to_owned))
            }
            Some(_) if broken.is_empty() => {
                Ok(Some("nobody found out that the watermark was off".to_owned()))
            }
            Some(_) => {
                println!("found, without watermark: {}", broken.join(", "));
                Ok(None)
            }
        }
    }
}

/// The table as it grows.
struct Report {
    broken: Vec<String>,
}

impl Report {
    fn tell(&self, name: &str, value: impl std::fmt::Display) {
        println!("{name:<27} {value}");
    }

    fn zero(&mut self, name: &str, value: u64) {
        self.tell(name, format!("{value} (must be 0){}", if value == 0 { "" } else { "  BROKEN" }));
        if value > 0 {
            self.broken.push(format!("{name} {value}"));
        }
    }

    /// Differences at every length of bucket.
    fn differences(&mut self, name: &str, told: &[(&str, usize, u64)]) {
        let cells: usize = told.iter().map(|(_, cells, _)| cells).sum();
        let gaps: Vec<String> = told.iter().map(|(every, _, gap)| format!("{every} {gap}")).collect();
        let is_broken = told.iter().any(|(_, _, gap)| *gap > 0);
        let verdict = if is_broken { "  BROKEN" } else { "" };
        self.tell(name, format!("differs by {} (must be 0) in {cells} cells{verdict}", gaps.join(", ")));
        if is_broken {
            self.broken.push(format!("{name} differs by {}", gaps.join(", ")));
        }
    }
}

fn wall_ms() -> i64 {
    i64::try_from(clock::wall_nanos() / 1_000_000).unwrap_or(i64::MAX)
}
