//! `cargo xtask bench`: how fast the product is, as shares of what the same machine does without it.
//!
//! Builds the product and itself in release, then goes on as the release build: generator, receiver and server are
//! three processes on the same cores, talking over loopback. Reads `/proc`, so it needs Linux. Numbers of different
//! machines can not be compared; ratios of one run can.

pub(crate) mod bare;
mod figures;
mod folds;
pub(crate) mod generator;
mod histogram;
mod lanes;
mod observe;
mod postgres;
mod process;
mod questions;
pub(crate) mod receiver;
mod searches;
mod stage;
mod table;
mod template;
pub(crate) mod wire;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::figures::{FIGURES, Figure};
use self::stage::Stage;
use crate::cargo::{self, Profile};
use crate::clock;
use crate::services::Services;

/// A machine that works more than this before the measurement is not ours alone.
const BUSY_SHARE_MAX: f64 = 0.05;

/// What to measure.
#[derive(Args)]
pub(crate) struct Bench {
    /// Small counts: shows that everything works, not how fast
    #[arg(long)]
    quick: bool,
    /// Write the figures to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A built binary to measure instead of a fresh release build
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the events are kept
    #[arg(long, value_enum, default_value_t = Kept::Sqlite)]
    store: Kept,
    /// e2e1, e2e5, ingest, batch, backlog, latency, idle, waiting, folds or observe (of postgres: e2e1, batch,
    /// latency, replicas, waiting, folds or observe), or one part such as observe-count; all without a name
    names: Vec<String>,
}

/// A store to measure.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kept {
    /// Embedded
    Sqlite,
    /// A throw-away PostgreSQL, and Redis beside it
    Postgres,
}

impl Kept {
    fn figures(self) -> &'static [(&'static str, Figure)] {
        match self {
            Self::Sqlite => &FIGURES,
            Self::Postgres => &postgres::FIGURES,
        }
    }
}

/// Measures and prints.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    let figures = bench.store.figures();
    let unknown = bench.names.iter().find(|name| !figures.iter().any(|(known, _)| is_of(known, name)));
    if let Some(unknown) = unknown {
        let known: Vec<&str> = figures.iter().map(|(name, _)| *name).collect();
        bail!("there is no figure `{unknown}`; there are {}", known.join(", "));
    }
    if cfg!(debug_assertions) {
        return go_on_in_release(bench);
    }
    let binary = match &bench.binary {
        Some(binary) => binary.clone(),
        None => cargo::build(&["tidegate"], Profile::Release)?.join("tidegate"),
    };
    measure(bench, &binary)
}

/// Whether a figure is the one that is wanted, or a part of it.
fn is_of(figure: &str, wanted: &str) -> bool {
    figure.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn measure(bench: &Bench, binary: &Path) -> Result<()> {
    let busy = busy_share()?;
    let services = match bench.store {
        Kept::Sqlite => None,
        Kept::Postgres => Some(Services::start_own()?),
    };
    let mut stage = Stage::new(binary, bench.quick, services)?;
    let mut rows = Vec::new();
    for (name, figure) in bench.store.figures() {
        if bench.names.is_empty() || bench.names.iter().any(|wanted| is_of(name, wanted)) {
            println!("measuring {name}");
            rows.extend(figure(&mut stage).with_context(|| format!("figure {name}"))?);
        }
    }
    println!();
    table::print(&rows);
    if busy > BUSY_SHARE_MAX {
        println!(
            "others used {:.0} % of the machine when this began: do not trust these figures",
            busy * 100.0
        );
    }
    match &bench.json {
        Some(path) => table::write_json(&rows, path),
        None => Ok(()),
    }
}

/// How much of the machine is in use while we do nothing.
fn busy_share() -> Result<f64> {
    let before = process::machine_ticks()?;
    clock::pause(Duration::from_secs(1));
    let now = process::machine_ticks()?;
    let (worked, idled) = (now.0 - before.0, now.1.saturating_sub(before.1));
    Ok(worked as f64 / (worked + idled).max(1) as f64)
}

/// A debug build of the generator would measure itself: hand over to the release build of this same command.
fn go_on_in_release(bench: &Bench) -> Result<()> {
    let packages: &[&str] = if bench.binary.is_some() { &["xtask"] } else { &["xtask", "tidegate"] };
    let folder = cargo::build(packages, Profile::Release)?;
    let failure = Command::new(folder.join("xtask")).args(std::env::args_os().skip(1)).exec();
    Err(failure).context("can not start the release build of xtask")
}
