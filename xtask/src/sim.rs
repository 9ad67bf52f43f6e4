//! `cargo xtask sim`: the simulation of the whole pipeline, over as many seeds as asked.
//!
//! The simulation is a test of `tidegate-server`; this command only says how many seeds of each kind it runs and from
//! which on. A failing seed prints the command that repeats it.

use anyhow::Result;

use crate::cargo::{self, Tally};

/// Runs seeds `from`, `from + 1` … `from + seeds - 1` of a process alone, and `shared` of processes that share a store.
pub(crate) fn run(seeds: u64, shared: u64, from: u64) -> Result<Tally> {
    println!("simulating {seeds} seeds of one process and {shared} of several from {from} on");
    let environment = [
        ("TIDEGATE_SIM_SEEDS", seeds.to_string()),
        ("TIDEGATE_SIM_SHARED", shared.to_string()),
        ("TIDEGATE_SIM_FROM", from.to_string()),
    ];
    let args = ["test", "--package", "tidegate-server", "--test", "sim", "--", "--nocapture"];
    cargo::test(&args, &environment)
}
