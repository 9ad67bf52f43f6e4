//! `cargo xtask test`: everything a change must pass, in the order in which failing is cheapest.
//!
//! Each step has a heading and a time; the first failing step ends the run. What a machine lacks is said, never
//! passed over in silence: a missing verifier fails the run where `CI=true`, a missing PostgreSQL or Redis everywhere.

use anyhow::{Result, bail};

use crate::cargo;
use crate::clock::Stopwatch;
use crate::services::Services;
use crate::{chaos, deny, schemathesis, sim, tidy, verifiers};

/// Seeds of the simulation in every test run; `cargo xtask sim` runs more.
const SIM_SEEDS: u64 = 1_000;
/// The same of processes that share a store: about a minute on one core.
const SIM_SHARED: u64 = 100;

/// How long the API is searched for answers that its description does not know.
const SCHEMATHESIS_SECONDS: u32 = 30;

/// One step: its name and what it does. The answer is a remark for the table.
struct Step {
    name: &'static str,
    work: fn(&mut Stage) -> Result<String>,
}

/// What steps leave for those after them.
#[derive(Default)]
struct Stage {
    /// PostgreSQL and Redis, for all the tests.
    services: Option<Services>,
}

const STEPS: [Step; 11] = [
    Step { name: "format", work: format },
    Step { name: "clippy", work: clippy },
    Step { name: "tidy", work: house_rules },
    Step { name: "services", work: services },
    Step { name: "tests", work: tests },
    Step { name: "simulation", work: simulation },
    Step { name: "verifiers", work: public_verifiers },
    Step { name: "description", work: description },
    Step { name: "chaos", work: faults },
    Step { name: "replicas", work: replicas },
    Step { name: "dependencies", work: dependencies },
];

/// Runs all steps and prints a table of them.
pub(crate) fn run() -> Result<()> {
    let whole = Stopwatch::start();
    let mut stage = Stage::default();
    let mut table = Vec::new();
    let mut failure = None;
    for step in STEPS {
        println!("\n== {} ==", step.name);
        let watch = Stopwatch::start();
        let outcome = (step.work)(&mut stage);
        let (verdict, remark) = match &outcome {
            Ok(remark) => ("ok", remark.clone()),
            Err(error) => ("FAILED", format!("{error:#}")),
        };
        table.push(format!("{:<14} {verdict:<7} {:>7.1} s  {remark}", step.name, watch.seconds()));
        if let Err(error) = outcome {
            failure = Some(error);
            break;
        }
    }
    println!("\n== summary ==");
    for line in &table {
        println!("{line}");
    }
    println!("{:<14} {:<7} {:>7.1} s", "all", "", whole.seconds());
    match failure {
        None => Ok(()),
        Some(_) => bail!("{} of {} steps passed", table.len() - 1, STEPS.len()),
    }
}

fn format(_: &mut Stage) -> Result<String> {
    cargo::run(&["fmt", "--all", "--check"])?;
    Ok(String::new())
}

fn clippy(_: &mut Stage) -> Result<String> {
    cargo::run(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    Ok(String::new())
}

fn house_rules(_: &mut Stage) -> Result<String> {
    tidy::run()?;
    Ok(String::new())
}

/// Every later step finds them, and they end with the run.
fn services(stage: &mut Stage) -> Result<String> {
    let services = stage.services.insert(Services::start()?);
    Ok(format!("{} {}", services.postgres_url(), services.redis_url()))
}

fn tests(stage: &mut Stage) -> Result<String> {
    let environment = stage.services.as_ref().map(Services::environment).unwrap_or_default();
    let tally = cargo::test(&["test", "--workspace"], &environment)?;
    Ok(format!("{} tests passed", tally.passed))
}

fn simulation(_: &mut Stage) -> Result<String> {
    sim::run(SIM_SEEDS, SIM_SHARED, 0)?;
    Ok(format!("{SIM_SEEDS} seeds, {SIM_SHARED} of several processes"))
}

fn public_verifiers(_: &mut Stage) -> Result<String> {
    verifiers::run(None)
}

/// Real faults; `cargo xtask chaos` has longer ones.
fn faults(_: &mut Stage) -> Result<String> {
    chaos::short()
}

/// Several processes under faults, on servers of their own, and every line that protects them.
fn replicas(_: &mut Stage) -> Result<String> {
    chaos::replicas::short()
}

/// The API against what it says of itself, for a while; `cargo xtask schemathesis` searches longer.
fn description(_: &mut Stage) -> Result<String> {
    schemathesis::run(None, Some(SCHEMATHESIS_SECONDS))
}

/// What must never be in the tree is part of tidy.
fn dependencies(_: &mut Stage) -> Result<String> {
    deny::run()
}
