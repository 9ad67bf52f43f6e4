//! Opening the file: one process at a time, and its schema brought up to date.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use rusqlite::Connection;

use super::failed;
use crate::{Error, Result};

pub(super) const MIGRATIONS: [&str; 14] = [
    include_str!("../../migrations/sqlite/0001_init.sql"),
    include_str!("../../migrations/sqlite/0002_catalog.sql"),
    include_str!("../../migrations/sqlite/0003_sending.sql"),
    include_str!("../../migrations/sqlite/0004_breaker.sql"),
    include_str!("../../migrations/sqlite/0005_replay.sql"),
    include_str!("../../migrations/sqlite/0007_locking.sql"),
    include_str!("../../migrations/sqlite/0008_ids.sql"),
    include_str!("../../migrations/sqlite/0009_folds.sql"),
    include_str!("../../migrations/sqlite/0010_gates.sql"),
    include_str!("../../migrations/sqlite/0012_members.sql"),
    include_str!("../../migrations/sqlite/0013_observe.sql"),
    include_str!("../../migrations/sqlite/0015_history.sql"),
    include_str!("../../migrations/sqlite/0016_rebuilds.sql"),
    include_str!("../../migrations/sqlite/0017_objects.sql"),
];

/// Keeps a second process out for as long as the file is open.
pub(super) fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| Error::Unusable(format!("cannot open {}: {error}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Unusable(format!(
            "another process uses {}: stop it, or give this one its own --data-dir",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => {
            Err(Error::Unusable(format!("cannot lock {}: {error}", path.display())))
        }
    }
}

pub(super) fn migrate(conn: &Connection) -> Result<()> {
    let have: usize = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    if have > MIGRATIONS.len() {
        return Err(Error::Unusable(format!(
            "the database has schema {have}, this version knows {}: run the newer version",
            MIGRATIONS.len()
        )));
    }
    for (number, sql) in MIGRATIONS.iter().enumerate().skip(have) {
        let step = format!("BEGIN IMMEDIATE; {sql} PRAGMA user_version = {}; COMMIT;", number + 1);
        conn.execute_batch(&step).map_err(failed)?;
    }
    Ok(())
}
