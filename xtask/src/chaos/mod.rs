//! `cargo xtask chaos`: the real binary under real faults, judged by what its users saw.
//!
//! A producer with a ledger, a receiver that misbehaves a little, and a nemesis with a seed. The judge knows only
//! the ledger and the arrivals, never the database: what was acknowledged must arrive, in order where order was
//! promised, and not more often than a crash can explain.

mod control;
mod crowd;
mod database;
mod disk;
mod diskfull;
mod io;
mod judge;
mod kill9;
mod neighbours;
mod powercut;
mod producer;
mod receiver;
pub(crate) mod replicas;
mod scene;
mod strace;

use anyhow::Result;
use clap::Subcommand;

use crate::cargo::{self, Profile};

/// The faults there are.
#[derive(Subcommand)]
pub(crate) enum Chaos {
    /// Kill the server again and again under load
    Kill9(kill9::Kill9),
    /// Cut the power of the server's disk again and again under load
    Powercut(powercut::PowerCut),
    /// Fill the server's disk under load and make room again
    Diskfull(diskfull::DiskFull),
    /// Let writes and syncs of the database fail, one after the other
    Io(io::Io),
    /// Measure what good receivers feel of bad ones
    Neighbours(neighbours::Neighbours),
    /// Put three processes that share PostgreSQL and Redis under faults
    Replicas(replicas::Replicas),
    /// Let a process join and another leave while a receiver hangs
    Joining(replicas::joining::Joining),
    /// Kill processes that share windows, one after the other
    Folds(replicas::folds::Folds),
    /// Kill processes that count the same events, and put deadlocks in their way
    Counters(replicas::counters::Counters),
    /// Let three processes share a gate while its receiver refuses
    Gate(replicas::gate::Gate),
    /// Run what every `cargo xtask test` runs: short versions of kill9, powercut and io, then of replicas
    Short,
}

/// Runs one campaign; an error when a promise was broken.
pub(crate) fn run(chaos: &Chaos) -> Result<()> {
    match chaos {
        Chaos::Kill9(args) => kill9::run(args),
        Chaos::Powercut(args) => powercut::run(args).map(drop),
        Chaos::Diskfull(args) => diskfull::run(args),
        Chaos::Io(args) => io::run(args).map(drop),
        Chaos::Neighbours(args) => neighbours::run(args),
        Chaos::Replicas(args) => replicas::run(args),
        Chaos::Joining(args) => replicas::joining::run(args),
        Chaos::Folds(args) => replicas::folds::run(args),
        Chaos::Counters(args) => replicas::counters::run(args),
        Chaos::Gate(args) => replicas::gate::run(args),
        Chaos::Short => {
            short()?;
            println!("{}", replicas::short()?);
            Ok(())
        }
    }
}

/// A short version of the campaigns that do not depend on the machine's speed, for every test run. Answers a remark.
pub(crate) fn short() -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    let load = scene::Load::of(binary);
    println!("-- kill9 --");
    kill9::run(&kill9::Kill9 { seconds: 5, load: load.clone() })?;
    println!("-- powercut --");
    let powercut = powercut::PowerCut { rounds: 3, require: false, load: load.clone() };
    let powercut = powercut::run(&powercut)?;
    println!("-- io --");
    let io = io::run(&io::Io { points: 18, starts: 6, require: false, load })?;
    let names = [("kill9", None), ("powercut", powercut), ("io", io)];
    let told = names.map(|(name, note)| match note {
        None => name.to_owned(),
        Some(note) => format!("{name} ({note})"),
    });
    Ok(told.join(", "))
}
