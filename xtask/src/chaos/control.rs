//! The control of the power cuts: a writer that is known to lose.
//!
//! It commits row by row with `synchronous=NORMAL`, which does not sync a commit, and counts each as acknowledged.
//! When a cut costs it nothing, then the cuts of this machine prove nothing about anybody.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rusqlite::Connection;

use super::disk::Disk;
use crate::clock;

/// Commits before the cut: far more than enough.
const COMMITS: u64 = 200;
/// Even a slow machine has made them by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the careless writer said it had, and what it had after the cut.
pub(super) struct Control {
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
}

/// Cuts the power under the careless writer.
pub(super) fn run(folder: &Path) -> Result<Control> {
    let mut disk = Disk::new(folder, "control", 64)?;
    let path = disk.path().join("control.db");
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&path, &acknowledged));
        clock::wait_until(PATIENCE, || {
            acknowledged.load(Ordering::Relaxed) >= COMMITS || writer.is_finished()
        });
        disk.cut()?;
        // It ends with the error that the cut gave it.
        writer.join().ok();
        anyhow::Ok(())
    })?;
    disk.power_on()?;
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    Ok(Control { acknowledged, lost: acknowledged.saturating_sub(rows(&path).unwrap_or(0)) })
}

/// Writes until the disk fails.
fn write(path: &Path, acknowledged: &AtomicU64) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    conn.execute_batch("PRAGMA synchronous = NORMAL; CREATE TABLE acknowledged (n INTEGER PRIMARY KEY);")?;
    loop {
        conn.execute("INSERT INTO acknowledged DEFAULT VALUES", [])?;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

fn rows(path: &Path) -> Result<u64> {
    let conn = Connection::open(path)?;
    let rows: i64 = conn.query_row("SELECT count(*) FROM acknowledged", [], |row| row.get(0))?;
    u64::try_from(rows).context("a count below zero")
}
