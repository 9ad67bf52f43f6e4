//! `cargo xtask fuzz`: hostile bytes for every parser, for as long as asked.
//!
//! The fuzzer is a test of `tidegate-server`; this command only says which target it runs, for how long or from which
//! case on. A failing case prints the command that repeats it.

use anyhow::Result;
use clap::Args;

use crate::cargo::{self, Tally};

/// What to fuzz, and for how long.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// bodies, headers, urls, conditions, signatures, subscribers or settings; all of them without a name
    target: Option<String>,
    /// How long each target is fuzzed
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The first case
    #[arg(long)]
    from: Option<u64>,
    /// How many cases, instead of how long
    #[arg(long)]
    cases: Option<u64>,
}

/// Fuzzes.
pub(crate) fn run(fuzz: &Fuzz) -> Result<Tally> {
    let mut environment = vec![("TIDEGATE_FUZZ_FROM", fuzz.from.unwrap_or(0).to_string())];
    environment.push(match fuzz.cases {
        Some(cases) => ("TIDEGATE_FUZZ_CASES", cases.to_string()),
        None => ("TIDEGATE_FUZZ_SECONDS", fuzz.seconds.to_string()),
    });
    let mut args = vec!["test", "--package", "tidegate-server", "--test", "fuzz", "--"];
    args.extend(fuzz.target.as_deref());
    args.push("--nocapture");
    cargo::test(&args, &environment)
}
