//! Development commands: `cargo xtask run | test | services | tidy | deny | verifiers | schemathesis | sim | fuzz | bench | chaos`.
//!
//! Everything a contributor types lives here, in Rust, so that the repository needs no shell scripts. The
//! commands speak to the product only as a user does: they build its binary, start it and talk HTTP to it. What they share
//! with it is how times are written, and how counts are packed, where a database is filled for a measurement.

mod bench;
mod cargo;
mod chaos;
mod clock;
mod deny;
mod fuzz;
mod http;
mod prng;
mod run;
mod schemathesis;
mod server;
mod services;
mod sim;
mod test;
mod tidy;
mod verifiers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development commands of Tidegate")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the release binary and run `tidegate serve` with the given arguments
    Run {
        /// Passed to `tidegate serve`, for example `-- --listen 127.0.0.1:9000`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run everything a change must pass
    Test,
    /// Start throw-away PostgreSQL and Redis, for a shell or for one command
    Services(services::Arguments),
    /// Check the sources for what compilers and linters do not see
    Tidy,
    /// Check the dependencies' licences, sources and known flaws
    Deny,
    /// Check deliveries with the public Standard Webhooks packages of Python and JavaScript
    Verifiers {
        /// A built binary to check instead of a fresh debug build
        #[arg(long)]
        binary: Option<PathBuf>,
    },
    /// Check the API against its own description with Schemathesis
    Schemathesis {
        /// A built binary to check instead of a fresh debug build
        #[arg(long)]
        binary: Option<PathBuf>,
        /// How long to search with a key; a third of it without
        #[arg(long)]
        seconds: Option<u32>,
    },
    /// Simulate the whole pipeline on virtual time
    Sim {
        /// How many seeds to run in which a process has its store for itself
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// How many seeds to run in which some processes share a store
        #[arg(long, default_value_t = 100)]
        shared: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
    },
    /// Feed hostile bytes to every parser
    Fuzz(fuzz::Fuzz),
    /// Measure the product against the bare pieces of the same machine
    Bench(bench::Bench),
    /// Put the real binary under real faults
    #[command(subcommand)]
    Chaos(chaos::Chaos),
    #[command(hide = true)]
    BenchGenerator(bench::generator::Load),
    #[command(hide = true)]
    BenchReceiver,
    #[command(hide = true)]
    BenchAxum,
    #[command(hide = true)]
    BenchHyper(bench::bare::Posts),
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run { args } => run::run(&args),
        Command::Test => test::run(),
        Command::Services(arguments) => services::run(&arguments),
        Command::Tidy => tidy::run(),
        Command::Deny => deny::run().map(drop),
        Command::Verifiers { binary } => verifiers::run(binary).map(drop),
        Command::Schemathesis { binary, seconds } => schemathesis::run(binary, seconds).map(drop),
        Command::Sim { seeds, shared, from } => sim::run(seeds, shared, from).map(drop),
        Command::Fuzz(fuzz) => fuzz::run(&fuzz).map(drop),
        Command::Bench(bench) => bench::run(&bench),
        Command::Chaos(chaos) => chaos::run(&chaos),
        Command::BenchGenerator(load) => bench::generator::run(load),
        Command::BenchReceiver => bench::receiver::run(),
        Command::BenchAxum => bench::bare::run_axum(),
        Command::BenchHyper(posts) => bench::bare::run_hyper(&posts),
    }
}

/// The folder that holds the workspace's `Cargo.toml`.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}
