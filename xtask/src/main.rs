//! Development commands: `cargo xtask run | test | tidy | verifiers | sim | bench | chaos`.
//!
//! Everything a contributor types lives here, in Rust, so that the repository needs no shell scripts. The
//! commands speak to the product only as a user does: they build its binary, start it and talk HTTP to it.

mod tidy;

use std::path::{Path, PathBuf};

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
    /// Check the sources for what compilers and linters do not see
    Tidy,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Tidy => tidy::run(),
    }
}

/// The folder that holds the workspace's `Cargo.toml`.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}
