//! The one binary.
//!
//! Reads the command line, runs one command and turns its end into an exit code; what the codes mean stands in
//! `tidegate --help`. Everything else lives in `commands/`, one file per command.

mod client;
mod clock;
mod commands;
mod failure;
mod output;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}
