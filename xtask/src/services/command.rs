//! `cargo xtask services`: the servers for a shell, or for one command.
//!
//! Alone it prints how to find them, on standard output and in the words of a shell, and keeps them until ctrl-c; meanwhile it
//! takes orders from standard input, for trying faults by hand. With a command it runs that and ends with it.

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::Services;
use crate::cargo;

/// What to run beside them.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Start both, even if the environment names servers
    #[arg(long)]
    own: bool,
    /// A command that is told where they are, for example `-- cargo test -p tidegate-store`
    #[arg(last = true)]
    command: Vec<String>,
}

/// Starts them, and ends them.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut services = if arguments.own { Services::start_own() } else { Services::start() }?;
    match arguments.command.as_slice() {
        [] => keep(&mut services),
        [program, args @ ..] => accompany(&services, program, args),
    }
}

fn accompany(services: &Services, program: &str, args: &[String]) -> Result<()> {
    let mut command = Command::new(program);
    cargo::forget_ours(&mut command);
    command.args(args).envs(services.environment());
    let status = command.status().with_context(|| format!("{program} does not start"))?;
    if !status.success() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}

fn keep(services: &mut Services) -> Result<()> {
    for (name, url) in services.environment() {
        println!("export {name}={url}");
    }
    eprintln!("until ctrl-c; takes: kill postgres, start postgres, kill redis, start redis, flush redis");
    for line in std::io::stdin().lines() {
        match obey(services, line?.trim()) {
            Ok(()) => eprintln!("done"),
            Err(error) => eprintln!("error: {error:#}"),
        }
    }
    // Nobody types; a signal ends it.
    loop {
        std::thread::park();
    }
}

fn obey(services: &mut Services, order: &str) -> Result<()> {
    match order {
        "" => Ok(()),
        "kill postgres" => services.kill_postgres(),
        "start postgres" => services.resume_postgres(),
        "kill redis" => services.kill_redis(),
        "start redis" => services.resume_redis(),
        "flush redis" => services.flush_redis(),
        _ => bail!("not one of the orders"),
    }
}
