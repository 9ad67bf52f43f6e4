//! `cargo xtask chaos`: the real binary under real faults, judged by what its users saw.
//!
//! A producer with a ledger, a receiver that misbehaves a little, and a nemesis with a seed. The judge knows only
//! the ledger and the arrivals, never the database: what was acknowledged must arrive, in order where order was
//! promised, and not more often than a crash can explain.

mod control;
mod database;
mod disk;
mod judge;
mod kill9;
mod powercut;
mod producer;
mod receiver;
mod scene;

use anyhow::Result;
use clap::Subcommand;

/// The faults there are.
#[derive(Subcommand)]
pub(crate) enum Chaos {
    /// Kill the server again and again under load
    Kill9(kill9::Kill9),
    /// Cut the power of the server's disk again and again under load
    Powercut(powercut::PowerCut),
}

/// Runs one campaign; an error when a promise was broken.
pub(crate) fn run(chaos: &Chaos) -> Result<()> {
    match chaos {
        Chaos::Kill9(args) => kill9::run(args),
        Chaos::Powercut(args) => powercut::run(args).map(drop),
    }
}
