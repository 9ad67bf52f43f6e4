//! `cargo xtask chaos`: the real binary under real faults, judged by what its users saw.
//!
//! A producer with a ledger, a receiver that misbehaves a little, and a nemesis with a seed. The checker knows only
//! the ledger, the arrivals and the API, never the database: what was acknowledged must arrive, in order where order was
//! promised, under one id with one body, and not more often than a crash can explain.

mod checker;
mod control;
mod crowd;
mod database;
mod disk;
mod diskfull;
mod io;
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
    /// Kill the server about every two seconds under load; nothing may be lost
    Kill9(kill9::Kill9),
    /// Cut the power of the server's disk under load; nothing that was acknowledged may be lost
    Powercut(powercut::PowerCut),
    /// Fill the server's disk under load; it must refuse events, keep delivering, and recover by itself
    Diskfull(diskfull::DiskFull),
    /// Let single writes and syncs of the database fail; the server must recover or end with an error
    Io(io::Io),
    /// Let 1 and then 50 of 100 receivers misbehave, and measure how much the others slow down
    Neighbours(neighbours::Neighbours),
    /// Kill, stop and restart three processes that share PostgreSQL and Redis, and these servers too
    Replicas(replicas::Replicas),
    /// Kill PostgreSQL while its standby is behind and promote the standby; what is lost must not spoil the rest
    Failover(replicas::failover::Failover),
    /// Let a process join and another leave while a receiver hangs; all other receivers must be served
    Joining(replicas::joining::Joining),
    /// Kill processes that fold events into the same windows; every event must be in exactly one delivery
    Folds(replicas::folds::Folds),
    /// Kill processes that count the same events and cause deadlocks; all counts must be exact
    Counters(replicas::counters::Counters),
    /// Let three processes share a gate while its receiver answers 429; its rate and fair shares must be kept
    Gate(replicas::gate::Gate),
    /// Run what every `cargo xtask test` runs: short versions of kill9, powercut and io, then of those with several processes
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
        Chaos::Failover(args) => replicas::failover::run(args),
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
