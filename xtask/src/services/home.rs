//! The folder that servers live in, who they run as, and how all of them are ended.
//!
//! Whatever runs with its working directory in the folder belongs to it, and PostgreSQL and Redis both stay in the folder of
//! their data. So nobody has to remember process ids: [`clear`] finds the processes of any folder, this run's or a dead
//! one's, ends them and removes it. A folder is held by a lock on a file in it for as long as its owner lives.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, clock};

/// A killed process is gone at once unless the disk holds it.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// To quit at once takes PostgreSQL some milliseconds.
const QUIT_PATIENCE: Duration = Duration::from_secs(5);
/// Ports to listen on. All are below those that the system gives to outgoing connections: a client that knocks at the port
/// of a killed server again and again would else meet itself there some day, and the server could not come back.
const PORTS: std::ops::Range<u16> = 15_000..30_000;

/// What an interrupted run has to clear away.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static COUNT: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// The folder, until it is dropped.
pub(super) struct Home {
    path: PathBuf,
    account: Option<Account>,
    _lock: File,
}

/// Whom to be instead of root, whom PostgreSQL refuses.
#[derive(Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Home {
    /// A new, empty folder, after the folders of dead runs are gone.
    pub(super) fn new() -> Result<Self> {
        let account = account()?;
        let root = root(account)?;
        let _alone = lock(&root.join("lock"))?;
        clear_abandoned(&root)?;
        let name = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = root.join(name);
        fs::create_dir(&path).with_context(|| format!("can not create {}", path.display()))?;
        let lock = lock(&path.join("owner"))?;
        give(&path, account)?;
        WATCH.call_once(watch_for_signals);
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Ok(Self { path, account, _lock: lock })
    }

    /// A new folder in it.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path)?;
        give(&path, self.account)?;
        Ok(path)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves everything behind, as a killed process does.
    #[cfg(test)]
    pub(super) fn abandon(self) {
        self._lock.unlock().expect("the lock is ours");
        std::mem::forget(self);
    }

    /// A command that runs in `folder` as who the servers run as, in a process group of its own: what ctrl-c ends is this
    /// process, which ends the servers.
    pub(super) fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(folder).env("HOME", folder).process_group(0).stdin(Stdio::null());
        become_account(&mut command, self.account);
        command
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let cleared = clear(&self.path);
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.path);
        if let Err(error) = cleared {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Ends everything that runs in a folder and removes it.
fn clear(folder: &Path) -> Result<()> {
    // Asked to quit, PostgreSQL gives its shared memory back; killed, only its next start on the same data would.
    if !signal_all_in(folder, "-QUIT", QUIT_PATIENCE) {
        kill_all_in(folder)?;
    }
    fs::remove_dir_all(folder).with_context(|| format!("can not remove {}", folder.display()))
}

/// SIGKILL to every process that works in a folder; returns when none is left.
pub(super) fn kill_all_in(folder: &Path) -> Result<()> {
    let ended = signal_all_in(folder, "-KILL", END_PATIENCE);
    ensure!(ended, "what runs in {} can not be ended", folder.display());
    Ok(())
}

/// Whether all have ended in time.
fn signal_all_in(folder: &Path, signal: &str, patience: Duration) -> bool {
    clock::wait_until(patience, || {
        let processes = processes_in(folder);
        if !processes.is_empty() {
            Command::new("kill").arg(signal).args(&processes).stderr(Stdio::null()).status().ok();
        }
        processes.is_empty()
    })
}

/// The ids of processes whose working directory lies in a folder. One that has ended but is still listed has none.
fn processes_in(folder: &Path) -> Vec<String> {
    let Ok(listed) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|id| {
            fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|directory| directory.starts_with(folder))
        })
        .collect()
}

/// Clears away what runs left whose process is no more.
fn clear_abandoned(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        let owner = File::options().create(true).append(true).open(path.join("owner"))?;
        if owner.try_lock().is_ok() {
            clear(&path)?;
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path)?;
    file.lock().with_context(|| format!("can not lock {}", path.display()))?;
    Ok(file)
}

/// Where the folders of all runs are: under `target/`, on a real disk; in a temporary folder where `target/` is root's alone.
fn root(account: Option<Account>) -> Result<PathBuf> {
    let candidates = [cargo::target().join("services"), std::env::temp_dir().join("tidegate-services")];
    for candidate in &candidates {
        fs::create_dir_all(candidate)?;
        // What `/proc` says has no links in it.
        let candidate = candidate.canonicalize()?;
        let mut visit = Command::new("true");
        become_account(visit.current_dir(&candidate), account);
        if visit.status().is_ok_and(|status| status.success()) {
            return Ok(candidate);
        }
    }
    bail!("the user that PostgreSQL runs as can enter none of {candidates:?}")
}

/// Nobody else, unless this is root.
fn account() -> Result<Option<Account>> {
    if number(&["-u"])? != 0 {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let (Ok(uid), Ok(gid)) = (number(&["-u", name]), number(&["-g", name])) {
            return Ok(Some(Account { uid, gid }));
        }
    }
    bail!("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
}

fn number(question: &[&str]) -> Result<u32> {
    let output = Command::new("id").args(question).output().context("id does not start")?;
    String::from_utf8_lossy(&output.stdout).trim().parse().context("id does not answer a number")
}

fn become_account(command: &mut Command, account: Option<Account>) {
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
}

fn give(path: &Path, account: Option<Account>) -> Result<()> {
    match account {
        Some(Account { uid, gid }) => chown(path, Some(uid), Some(gid)).context("can not give a folder away"),
        None => Ok(()),
    }
}

/// Clears everything away when this process is told to end.
fn watch_for_signals() {
    std::thread::spawn(|| {
        if let Err(error) = wait_for_signal() {
            eprintln!("warning: ctrl-c will leave servers behind: {error:#}");
            return;
        }
        let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        for path in live.iter() {
            clear(path).unwrap_or_else(|error| eprintln!("warning: {error:#}"));
        }
        // As a shell would say that ctrl-c ended it.
        std::process::exit(130);
    });
}

fn wait_for_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

/// A port that nobody listens on. Two runs begin their search at different places.
pub(crate) fn free_port() -> Result<u16> {
    let count = PORTS.end - PORTS.start;
    let seed = std::process::id().wrapping_mul(31).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let first = u16::try_from(seed % u32::from(count))?;
    let mut ports = (0..count).map(|step| PORTS.start + (first + step) % count);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}
