//! The control of the power cuts: a writer that is known to lose.
//!
//! It commits row by row with `synchronous=NORMAL`, which does not sync a commit, and counts each as acknowledged.
//! When a cut costs it nothing, then the cuts of this machine prove nothing about anybody.

use std::path::Path;

use anyhow::{Context, Result};
use rusqlite::Connection;

use super::disk::Disk;

/// Commits before the cut: a moment's work, long before the kernel writes anything by itself.
const COMMITS: u64 = 500;

/// What the careless writer said it had, and what it had after the cut.
pub(super) struct Control {
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
}

/// Cuts the power under the careless writer.
pub(super) fn run(folder: &Path) -> Result<Control> {
    let mut disk = Disk::new(folder, "control", 64)?;
    let path = disk.path().join("control.db");
    let careless = write(&path)?;
    disk.arm()?.blow()?;
    drop(careless);
    disk.power_on()?;
    // Even the table may be gone.
    Ok(Control { acknowledged: COMMITS, lost: COMMITS.saturating_sub(rows(&path).unwrap_or(0)) })
}

/// The connection stays open, because closing it would sync.
fn write(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path)?;
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    // A checkpoint syncs now and then; one just before the cut would hide what is to be shown.
    conn.query_row("PRAGMA wal_autocheckpoint = 0", [], |_| Ok(()))?;
    conn.execute_batch("PRAGMA synchronous = NORMAL; CREATE TABLE acknowledged (n INTEGER PRIMARY KEY);")?;
    for _ in 0..COMMITS {
        conn.execute("INSERT INTO acknowledged DEFAULT VALUES", [])?;
    }
    Ok(conn)
}

fn rows(path: &Path) -> Result<u64> {
    let conn = Connection::open(path)?;
    let rows: i64 = conn.query_row("SELECT count(*) FROM acknowledged", [], |row| row.get(0))?;
    u64::try_from(rows).context("a count below zero")
}
