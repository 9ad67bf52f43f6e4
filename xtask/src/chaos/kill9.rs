//! Kill -9 under load: every two seconds the server dies without warning and is started again.
//!
//! A run whose kills never fell into a request proves nothing and fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::scene::{CRASH_EXPLAINS_MAX, Load, Scene};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{Scratch, Server};

/// Kills come this often on average.
const KILL_EVERY_MS: u64 = 2_000;

/// How long and how hard.
#[derive(Args)]
pub(crate) struct Kill9 {
    /// How long the load lasts
    #[arg(long, default_value_t = 30)]
    pub(super) seconds: u64,
    #[command(flatten)]
    pub(super) load: Load,
}

/// What the nemesis did and saw.
#[derive(Default)]
struct Kills {
    count: u64,
    ready_max: Duration,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Kill9) -> Result<()> {
    let binary = args.load.build.binary()?;
    let mut scratch = Scratch::new("kill9")?;
    let mut server = Server::start(&binary, scratch.path())?;
    let outcome = campaign(args, &mut server);
    if outcome.is_err() {
        eprintln!("the server's log ends:\n{}", server.log_tail());
        scratch.keep();
    }
    outcome
}

fn campaign(args: &Kill9, server: &mut Server) -> Result<()> {
    let mut prng = args.load.prng();
    println!("{} s of load, a kill about every {KILL_EVERY_MS} ms", args.seconds);
    let mut scene = Scene::new(&args.load, &mut prng)?;
    scene.subscribe(server)?;
    let producer = scene.produce(server, &mut prng);
    let kills = kill_repeatedly(server, Duration::from_secs(args.seconds), &mut prng)?;
    let outcome = scene.conclude(server, producer)?;
    println!("kills                    {}", kills.count);
    println!("restart to ready         {} ms at most", kills.ready_max.as_millis());
    outcome.verdict(CRASH_EXPLAINS_MAX * kills.count)?;
    if kills.count == 0 || outcome.ledger.unknown.load(Ordering::Relaxed) == 0 {
        bail!("no kill fell into a request: the run proves nothing, make it longer or harder");
    }
    Ok(())
}

fn kill_repeatedly(server: &mut Server, span: Duration, prng: &mut Prng) -> Result<Kills> {
    let mut kills = Kills::default();
    let watch = Stopwatch::start();
    while watch.elapsed() < span {
        clock::pause(Duration::from_millis(KILL_EVERY_MS / 2 + prng.below(KILL_EVERY_MS)));
        server.kill()?;
        kills.count += 1;
        kills.ready_max = kills.ready_max.max(server.resume()?);
    }
    Ok(kills)
}
