//! A full disk under load: the data lies on a small disk that a ballast file fills, again and again.
//!
//! Three ways to be full: the ballast takes everything to the last byte at once; it leaves a little that the events
//! themselves use up; it leaves less than the reserve that the server keeps (`store.disk_reserve`), which must refuse
//! while there still is room. Each time the server must refuse new events with a time to come again, go on
//! delivering what it has in memory, and take events again by itself when there is room. It is never restarted, so
//! not one delivery may come twice.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::database;
use super::disk::Disk;
use super::producer::Ledger;
use super::scene::{Load, Scene};
use crate::clock::{self, Stopwatch};
use crate::server::{Scratch, Server};

const MIB: u64 = 1024 * 1024;
const DISK_MIB: u64 = 160;
/// What the server keeps free when it keeps something.
const RESERVE_MIB: u64 = 32;
/// Left to the events when they shall fill the disk themselves.
const REST_MIB: u64 = 2;
/// Left when the reserve shall refuse: less than it, and far more than the log needs.
const WITHIN_RESERVE_MIB: u64 = 16;
/// How long a receiver takes for an answer while a backlog shall gather.
const SLOW: Duration = Duration::from_millis(50);
/// The load before each fault, for a backlog.
const WARM_UP: Duration = Duration::from_secs(1);
/// A fault that is not reached by then will not be.
const REACH_PATIENCE: Duration = Duration::from_secs(60);
/// Recovery needs no human and no restart; a loaded machine may take its time.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(30);

/// How often and how hard.
#[derive(Args)]
pub(crate) struct DiskFull {
    /// How many times each kind of fault comes
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// Fail where the machine does not allow it, instead of saying so and succeeding
    #[arg(long)]
    require: bool,
    #[command(flatten)]
    load: Load,
}

/// How the disk gets full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// To the last byte, at once.
    Sudden,
    /// By the events themselves.
    Gradual,
    /// Down into the reserve only.
    Reserve,
}

/// What one fault came to.
struct Seen {
    delivered_while_full: usize,
    recovery: Duration,
}

/// Runs the campaign with and without a reserve, and prints its report.
pub(crate) fn run(args: &DiskFull) -> Result<()> {
    let binary = args.load.build.binary()?;
    let reserve = format!("{RESERVE_MIB}MiB");
    let with_reserve = [Fault::Reserve, Fault::Sudden];
    let without = [Fault::Sudden, Fault::Gradual];
    for (reserve, faults) in [("off", without), (reserve.as_str(), with_reserve)] {
        println!("\nstore.disk_reserve: {reserve}");
        let mut scratch = Scratch::new("diskfull")?;
        let disk = match Disk::new(scratch.path(), "disk", DISK_MIB) {
            Ok(disk) => disk,
            Err(error) if args.require => return Err(error.context("this machine has no small disk")),
            Err(error) => {
                println!("note: not run: this machine has no small disk: {error:#}");
                return Ok(());
            }
        };
        let mut server = Server::new(&binary, scratch.path(), &disk.path().join("data"))?;
        server.set("TIDEGATE_STORE_DISK_RESERVE", reserve);
        let outcome = campaign(args, &mut server, disk, &faults, scratch.path());
        if outcome.is_err() {
            eprintln!("the server's log ends:\n{}", server.log_tail());
            scratch.keep();
        }
        outcome?;
    }
    Ok(())
}

fn campaign(
    args: &DiskFull,
    server: &mut Server,
    disk: Disk,
    faults: &[Fault],
    scratch: &Path,
) -> Result<()> {
    let mut prng = args.load.prng();
    let mut scene = Scene::new(&args.load, &mut prng)?;
    server.resume()?;
    scene.subscribe(server)?;
    let producer = scene.produce(server, &mut prng);
    let ballast = Ballast::new(disk.path())?;
    for _ in 0..args.rounds {
        for fault in faults {
            let seen = fill(&scene, server, &producer.ledger, &ballast, *fault)?;
            println!(
                "full: {:<10}    {} delivered meanwhile, took events again after {} ms",
                format!("{fault:?}").to_lowercase(),
                seen.delivered_while_full,
                seen.recovery.as_millis()
            );
        }
    }
    let outcome = scene.conclude(server, producer);
    let whole = database::check_copy(server.data(), scratch);
    server.kill()?;
    drop(disk);
    whole?;
    outcome?.verdict(0)
}

/// Fills the disk, watches, and makes room again.
fn fill(
    scene: &Scene,
    server: &mut Server,
    ledger: &Ledger,
    ballast: &Ballast,
    fault: Fault,
) -> Result<Seen> {
    scene.receiver.slow(SLOW);
    clock::pause(WARM_UP);
    let refused = ledger.refused.load(Ordering::Relaxed);
    ballast.fill()?;
    match fault {
        Fault::Sudden => {}
        Fault::Gradual => ballast.leave(REST_MIB * MIB)?,
        Fault::Reserve => ballast.leave(WITHIN_RESERVE_MIB * MIB)?,
    }
    let reached = clock::wait_until(REACH_PATIENCE, || ledger.refused.load(Ordering::Relaxed) > refused);
    ensure!(reached, "the disk was never full for the server: the run proves nothing");
    if fault == Fault::Reserve {
        ensure!(ballast.grows(MIB)?, "events were taken until there was no room, in spite of the reserve");
    }
    let before = scene.receiver.taken();
    scene.receiver.slow(Duration::ZERO);
    let delivers = clock::wait_until(RECOVERY_PATIENCE, || scene.receiver.taken() > before);
    ensure!(delivers, "nothing was delivered while the disk was full");
    clock::pause(WARM_UP);
    let delivered_while_full = scene.receiver.taken() - before;
    ballast.free()?;
    let watch = Stopwatch::start();
    let accepted = ledger.accepted.load(Ordering::Relaxed);
    let recovered =
        clock::wait_until(RECOVERY_PATIENCE, || ledger.accepted.load(Ordering::Relaxed) > accepted);
    if server.has_ended() || !recovered {
        bail!("there is room again, and the server takes no events");
    }
    Ok(Seen { delivered_while_full, recovery: watch.elapsed() })
}

/// A file that takes all the room.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("ballast");
        File::create(&path)?;
        Ok(Self { path })
    }

    /// Takes everything, to the last block.
    fn fill(&self) -> Result<()> {
        let mut file = File::options().append(true).open(&self.path)?;
        for bytes in [MIB, 4096, 1] {
            let piece = vec![0_u8; usize::try_from(bytes)?];
            while file.write_all(&piece).is_ok() {}
        }
        // Blocks are given out when the file system gets to it, which must not be after the events.
        file.sync_all().or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })?;
        Ok(())
    }

    /// Gives so much back.
    fn leave(&self, bytes: u64) -> Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let length = file.metadata()?.len();
        file.set_len(length.saturating_sub(bytes))?;
        file.sync_all()?;
        Ok(())
    }

    /// Whether there is room for so much more.
    fn grows(&self, bytes: u64) -> Result<bool> {
        let mut file = File::options().append(true).open(&self.path)?;
        match file.write_all(&vec![0; usize::try_from(bytes)?]) {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives everything back.
    fn free(&self) -> Result<()> {
        fs::write(&self.path, b"")?;
        Ok(())
    }
}

fn is_full(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::StorageFull
}
