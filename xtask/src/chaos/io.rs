//! Input and output that fails: the k-th write or sync of the server's database does not happen, for a sweep of k.
//!
//! Under load, `strace` makes one call fail and lets go again. Then the server must take events again by itself, or
//! have ended with a failure (and work when it is started again); it must never hang, and never have acknowledged
//! what the failed call should have kept. A second sweep lets calls fail during a first start: it may fail, but the
//! next start on the same folder must work. Kinds of faults that never struck fail the campaign.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use super::database;
use super::producer::Ledger;
use super::scene::{CRASH_EXPLAINS_MAX, Load, Scene};
use super::strace::{self, Fault, Tracer};
use crate::clock;
use crate::server::{Scratch, Server};

/// The database with its log.
const BOTH: &[&str] = &["tidegate.db", "tidegate.db-wal"];
/// The database itself, which only checkpoints write.
const DATABASE: &[&str] = &["tidegate.db"];
/// Everything that a first start creates, and the folder.
const ALL: &[&str] =
    &["tidegate.db", "tidegate.db-wal", "tidegate.db-journal", "master.key.new", "master.key", ""];
/// A fault that has not struck by then is not reached.
const STRIKE_PATIENCE: Duration = Duration::from_secs(20);
/// How long all calls fail, when all do.
const OUTAGE: Duration = Duration::from_millis(700);
/// Longer than anything the server waits for before it tries again.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);
/// A start that is neither ready nor over by then hangs.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How much and how hard.
#[derive(Args)]
pub(crate) struct Io {
    /// How many faults under load
    #[arg(long, default_value_t = 60)]
    pub(super) points: u32,
    /// How many faults during a first start
    #[arg(long, default_value_t = 20)]
    pub(super) starts: u32,
    /// Fail where strace can not be used, instead of saying so and succeeding
    #[arg(long)]
    pub(super) require: bool,
    #[command(flatten)]
    pub(super) load: Load,
}

/// What was done and seen, by kind of fault.
#[derive(Default)]
struct Tally {
    struck: BTreeMap<&'static str, u32>,
    missed: BTreeMap<&'static str, u32>,
    restarts: u64,
    recovery_max: Duration,
}

impl Tally {
    fn add(&mut self, kind: &'static str, has_struck: bool) {
        let counts = if has_struck { &mut self.struck } else { &mut self.missed };
        *counts.entry(kind).or_default() += 1;
    }

    fn print(&self) -> Result<()> {
        for (kind, count) in &self.struck {
            println!(
                "struck                   {kind}: {count} times, missed {}",
                self.missed.get(kind).unwrap_or(&0)
            );
        }
        match self.missed.keys().find(|kind| !self.struck.contains_key(*kind)) {
            Some(kind) => bail!("no fault of the kind `{kind}` was reached: the run proves nothing about it"),
            None => Ok(()),
        }
    }
}

/// The kinds of faults under load, with the k-th call of each.
fn fault(kind: usize, k: u32) -> (&'static str, Fault) {
    let one = k.to_string();
    let all = format!("{k}+");
    let of = |calls, error, when, files| Fault { calls, error, when, files };
    match kind {
        0 => ("a write fails", of("pwrite64", "EIO", one, BOTH)),
        1 => ("a sync fails", of("fdatasync,fsync", "EIO", one, BOTH)),
        2 => ("a write finds no room", of("pwrite64", "ENOSPC", one, BOTH)),
        3 => ("a checkpoint's write fails", of("pwrite64", "EIO", one, DATABASE)),
        // A checkpoint syncs the database once, so that later ones would take long to reach.
        4 => ("a checkpoint's sync fails", of("fdatasync,fsync", "EIO", "1".to_owned(), DATABASE)),
        _ => ("everything fails for a while", of("pwrite64,fdatasync,fsync", "EIO", all, BOTH)),
    }
}

const KINDS: usize = 6;
const OUTAGE_KIND: usize = 5;

/// Runs both sweeps and prints their report. Says why, when they are not possible here.
pub(crate) fn run(args: &Io) -> Result<Option<String>> {
    let binary = args.load.build.binary()?;
    if let Err(error) = possible() {
        if args.require {
            return Err(error);
        }
        let note = format!("not run: {error:#}");
        println!("note: {note}");
        return Ok(Some(note));
    }
    let mut scratch = Scratch::new("io")?;
    let mut server = Server::new(&binary, scratch.path(), &scratch.path().join("data"))?;
    let outcome = sweep_starts(args, &binary, scratch.path())
        .and_then(|()| sweep_load(args, &mut server, scratch.path()));
    if outcome.is_err() {
        eprintln!("the server's log ends:\n{}", server.log_tail());
        scratch.keep();
    }
    outcome.map(|()| None)
}

/// Whether this machine lets one process trace another; only trying tells.
fn possible() -> Result<()> {
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    let traced = traced.context("strace is not installed")?;
    ensure!(
        traced.status.success(),
        "strace is not allowed here: {}",
        String::from_utf8_lossy(&traced.stderr)
    );
    Ok(())
}

fn sweep_load(args: &Io, server: &mut Server, scratch: &Path) -> Result<()> {
    let mut prng = args.load.prng();
    let mut scene = Scene::new(&args.load, &mut prng)?;
    server.resume()?;
    scene.subscribe(server)?;
    let producer = scene.produce(server, &mut prng);
    let mut tally = Tally::default();
    for point in 0..args.points as usize {
        let kind = point % KINDS;
        let k = u32::try_from(point / KINDS)? + 1;
        let (name, fault) = fault(kind, k);
        let has_struck = strike(server, &fault, scratch, kind == OUTAGE_KIND)
            .with_context(|| format!("{name}, k = {k}"))?;
        tally.add(name, has_struck);
        recover(server, &producer.ledger, &mut tally).with_context(|| format!("{name}, k = {k}"))?;
        database::check_live(server.data()).with_context(|| format!("{name}, k = {k}"))?;
    }
    let outcome = scene.conclude(server, producer)?;
    database::check_copy(server.data(), scratch)?;
    println!("restarts                 {}, the database was whole after each fault", tally.restarts);
    println!("recovery                 {} ms at most", tally.recovery_max.as_millis());
    tally.print()?;
    // Results wait in memory for the store to work again: only a process that ended explains a second copy.
    outcome.verdict(CRASH_EXPLAINS_MAX * tally.restarts)
}

/// Lets one fault happen; says whether it did.
fn strike(server: &mut Server, fault: &Fault, scratch: &Path, is_outage: bool) -> Result<bool> {
    let mut tracer = Tracer::attach(fault, server.pid(), server.data(), &scratch.join("trace"))?;
    clock::wait_until(STRIKE_PATIENCE, || tracer.has_struck() || tracer.has_ended() || server.has_ended());
    if is_outage {
        clock::pause(OUTAGE);
    }
    Ok(tracer.has_struck())
}

/// The server takes events again, or has ended with a failure and works after another start.
fn recover(server: &mut Server, ledger: &Ledger, tally: &mut Tally) -> Result<()> {
    let watch = clock::Stopwatch::start();
    let before = ledger.accepted.load(Ordering::Relaxed);
    let is_back = |server: &mut Server| {
        clock::wait_until(RECOVERY_PATIENCE, || {
            ledger.accepted.load(Ordering::Relaxed) > before || server.has_ended()
        })
    };
    ensure!(is_back(server), "the server neither takes events nor has ended");
    if let Some(status) = server.ended()? {
        ensure!(!status.success(), "the server ended as if all were well");
        tally.restarts += 1;
        server.resume()?;
        ensure!(is_back(server), "the server takes no events after another start");
    }
    tally.recovery_max = tally.recovery_max.max(watch.elapsed());
    Ok(())
}

/// First starts with failing calls, each in a folder of its own; then a start without.
fn sweep_starts(args: &Io, binary: &Path, scratch: &Path) -> Result<()> {
    let mut failed = 0;
    let mut struck = 0;
    for point in 0..args.starts {
        let fault = Fault {
            calls: "write,pwrite64,fdatasync,fsync",
            error: if point % 2 == 0 { "EIO" } else { "ENOSPC" },
            when: spread(point).to_string(),
            files: ALL,
        };
        let folder = scratch.join(format!("start-{point}"));
        std::fs::create_dir_all(&folder)?;
        let (has_struck, has_failed) =
            first_start(binary, &folder, &fault).with_context(|| format!("a first start with {fault:?}"))?;
        struck += u32::from(has_struck);
        failed += u32::from(has_failed);
    }
    println!(
        "first starts             {}, struck {struck}, failed {failed}, all worked afterwards",
        args.starts
    );
    ensure!(struck > 0 || args.starts == 0, "no start was struck: the run proves nothing");
    Ok(())
}

/// One by one at first, then further and further apart.
fn spread(point: u32) -> u32 {
    let dense = point.min(8) + 1;
    let sparse = point.saturating_sub(8);
    dense + sparse * (sparse + 1) / 2
}

fn first_start(binary: &Path, folder: &Path, fault: &Fault) -> Result<(bool, bool)> {
    let mut server = Server::new(binary, folder, &folder.join("data"))?;
    let trace = folder.join("trace");
    server.spawn(&fault.wrapper(server.data(), &trace))?;
    let settled = clock::wait_until(START_PATIENCE, || server.has_ended() || server.is_ready());
    ensure!(settled, "the start hangs\n{}", server.log_tail());
    let ended = server.ended()?;
    if let Some(status) = ended {
        ensure!(!status.success(), "the server ended as if all were well");
    }
    server.kill()?;
    let has_struck = strace::has_struck(&trace);
    server.resume().context("the start after it")?;
    server.api("POST", "/v1/events", &json!({"source": "chaos", "type": "chaos.start", "data": {}}))?;
    server.stop()?;
    database::check_copy(server.data(), folder)?;
    Ok((has_struck, ended.is_some()))
}

#[cfg(test)]
mod tests {
    use super::{Tally, spread};

    #[test]
    fn starts_are_struck_early_one_by_one_and_later_here_and_there() {
        let points: Vec<u32> = (0..12).map(spread).collect();
        assert_eq!(points, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15]);
    }

    #[test]
    fn a_kind_that_never_struck_fails_the_campaign() {
        let mut tally = Tally::default();
        tally.add("a write fails", true);
        tally.add("a write fails", false);
        assert!(tally.print().is_ok());
        tally.add("a sync fails", false);
        assert!(tally.print().is_err_and(|error| error.to_string().contains("a sync fails")));
    }
}
