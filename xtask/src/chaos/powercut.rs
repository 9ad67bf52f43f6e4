//! Power cuts under load: the data lies on a disk of its own, which loses its power at random instants.
//!
//! Each round cuts, kills the server, mounts the disk again, looks whether the database is whole and starts the
//! server on it. The first cut comes right after the first acknowledged events, when files and folders are new and
//! their names must have been synced too. A control that does not sync its commits is cut the same way and must
//! lose; otherwise the campaign fails, because it would have found nothing.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::disk::Disk;
use super::scene::{CRASH_EXPLAINS_MAX, Load, Scene};
use super::{control, database};
use crate::clock;
use crate::server::{Scratch, Server};

/// Far more than the reserve that the server keeps free by default. The image is sparse.
const DISK_MIB: u64 = 1_024;
/// A cut comes at most so long after the server has acknowledged something new.
const CUT_WITHIN_MS: u64 = 1_500;
/// A server that acknowledges nothing for so long after a restart is stuck.
const PROGRESS_PATIENCE: Duration = Duration::from_secs(60);

/// How often and how hard.
#[derive(Args)]
pub(crate) struct PowerCut {
    /// How many times the power fails
    #[arg(long, default_value_t = 10)]
    pub(super) rounds: u32,
    /// Fail where the machine does not allow it, instead of saying so and succeeding
    #[arg(long)]
    pub(super) require: bool,
    #[command(flatten)]
    pub(super) load: Load,
}

/// Runs the campaign and prints its report. Says why, when it is not possible here.
pub(crate) fn run(args: &PowerCut) -> Result<Option<String>> {
    let binary = args.load.build.binary()?;
    let mut scratch = Scratch::new("powercut")?;
    let disk = match possible(scratch.path()) {
        Ok(disk) => disk,
        Err(error) if args.require => return Err(error.context("power can not be cut on this machine")),
        Err(error) => {
            let note = format!("not run: power can not be cut on this machine: {error:#}");
            println!("note: {note}");
            return Ok(Some(note));
        }
    };
    let mut server = Server::new(&binary, scratch.path(), &disk.path().join("tidegate/data"))?;
    let outcome = campaign(args, &mut server, disk, scratch.path());
    if outcome.is_err() {
        eprintln!("the server's log ends:\n{}", server.log_tail());
        scratch.keep();
    }
    outcome.map(|()| None)
}

/// A disk whose power can be cut; tried once, because only trying tells.
fn possible(folder: &Path) -> Result<Disk> {
    let mut disk = Disk::new(folder, "disk", DISK_MIB)?;
    disk.arm()?.blow()?;
    disk.power_on()?;
    Ok(disk)
}

fn campaign(args: &PowerCut, server: &mut Server, mut disk: Disk, scratch: &Path) -> Result<()> {
    let mut prng = args.load.prng();
    let control = control::run(scratch)?;
    println!(
        "control                  {} acknowledged, {} lost (must not be 0)",
        control.acknowledged, control.lost
    );
    ensure!(control.lost > 0, "the control lost nothing: cuts on this machine prove nothing");
    let mut scene = Scene::new(&args.load, &mut prng)?;
    server.resume()?;
    scene.subscribe(server)?;
    let producer = scene.produce(server, &mut prng);
    let mut ready_max = Duration::ZERO;
    for round in 0..args.rounds {
        let before = producer.ledger.accepted.load(Ordering::Relaxed);
        let progress = clock::wait_until(PROGRESS_PATIENCE, || {
            producer.ledger.accepted.load(Ordering::Relaxed) > before
        });
        ensure!(progress, "round {round}: nothing is acknowledged any more");
        let fuse = disk.arm()?;
        clock::pause(Duration::from_millis(if round == 0 { 0 } else { prng.below(CUT_WITHIN_MS) }));
        // What it says from here on is said by a server that with real power would be gone.
        scene.receiver.deafen(true);
        producer.ledger.disbelieve();
        fuse.blow()?;
        server.kill()?;
        producer.ledger.disbelieve();
        scene.receiver.deafen(false);
        disk.power_on()?;
        database::check_copy(server.data(), scratch)?;
        ready_max = ready_max.max(server.resume()?);
    }
    let outcome = scene.conclude(server, producer);
    let whole = database::check_copy(server.data(), scratch);
    server.kill()?;
    drop(disk);
    let outcome = outcome?;
    whole?;
    println!("power cuts               {}, the database was whole after each", args.rounds);
    println!("restart to ready         {} ms at most", ready_max.as_millis());
    outcome.verdict(CRASH_EXPLAINS_MAX * u64::from(args.rounds))?;
    if outcome.ledger.troubled() == 0 {
        bail!("no cut fell into a request: the run proves nothing, make it longer or harder");
    }
    Ok(())
}
