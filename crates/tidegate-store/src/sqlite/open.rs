//! Opening the file: one process at a time, and its schema brought up to date.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OptionalExtension};
use tidegate_core::id::Nonce;
use tidegate_core::time::Timestamp;

use super::checkpoint::Checkpointer;
use super::db::{Calls, Readers};
use super::turns::Turns;
use super::writer::Writer;
use super::{SqliteStore, db, failed, keeping};
use crate::schema::{Migration, Recorded, by_count, migrations, missing, reached};
use crate::{Error, Result};

pub(crate) const MIGRATIONS: &[Migration] = migrations![
    "sqlite",
    "0001_init" needs 1,
    "0002_catalog" needs 2,
    "0003_sending" needs 3,
    "0004_breaker" needs 4,
    "0005_replay" needs 5,
    "0007_locking" needs 7,
    "0008_ids" needs 8,
    "0009_folds" needs 9,
    "0010_gates" needs 10,
    "0012_members" needs 12,
    "0013_observe" needs 13,
    "0015_history" needs 15,
    "0016_rebuilds" needs 16,
    "0017_objects" needs 17,
    "0020_rewinds" needs 17,
];

impl SqliteStore {
    /// Opens or creates the store in `dir`. `salt` and `nonce` are random: the first is kept only by a new store, the second
    /// is carried by the deliveries that are made until it is closed.
    pub fn open(dir: &Path, salt: &[u8], nonce: Nonce, now: Timestamp, calls: Calls) -> Result<Self> {
        crate::folder::create(dir)
            .map_err(|error| Error::Unusable(format!("cannot create {}: {error}", dir.display())))?;
        let lock = lock(dir)?;
        let path = dir.join("tidegate.db");
        let conn = db::open_first(&path)?;
        migrate(&conn)?;
        let mut writer = Writer::start(conn, path.clone(), (salt, nonce), now)?;
        let latest = writer.latest().map_err(failed)?;
        keeping::wait_at_start(&writer.conn, now, latest).map_err(failed)?;
        writer.void_claims(now.max(latest)).map_err(failed)?;
        let salt = writer.meta("salt").map_err(failed)?;
        Ok(Self {
            readers: Readers::new(&path, calls),
            dedupe: Arc::clone(&writer.dedupe),
            book: Arc::clone(&writer.book),
            recent: Arc::clone(&writer.recent),
            checkpointer: Checkpointer::new(path, calls),
            remembered: writer.remembered.clone(),
            turns: Turns::default(),
            incarnation: writer.incarnation,
            writer: Arc::new(Mutex::new(writer)),
            calls,
            salt,
            latest,
            _lock: lock,
        })
    }
}

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

/// What the newest schema needs, beside `user_version`, its number; a file without it is of a version that only counted.
const NEEDS: &str = "schema_needs";

pub(super) fn migrate(conn: &Connection) -> Result<()> {
    let version: u32 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    let mut reached = if version == 0 { Recorded::default() } else { recorded(conn, version)? };
    for migration in missing(MIGRATIONS, reached)? {
        reached = Recorded { number: migration.number, needs: reached.needs.max(migration.needs) };
        conn.execute_batch(&format!("BEGIN IMMEDIATE; {} {} COMMIT;", migration.sql, record(reached)))
            .map_err(failed)?;
    }
    Ok(())
}

/// How far a file is that was written before.
fn recorded(conn: &Connection, version: u32) -> Result<Recorded> {
    let sql = "SELECT value FROM meta WHERE name = ?1";
    let needs = conn.query_row(sql, [NEEDS], |row| row.get(0)).optional().map_err(failed)?;
    if let Some(needs) = needs {
        return Ok(Recorded { number: version, needs });
    }
    let reached = reached(by_count(MIGRATIONS, version as usize)?);
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {} COMMIT;", record(reached))).map_err(failed)?;
    Ok(reached)
}

fn record(reached: Recorded) -> String {
    let Recorded { number, needs } = reached;
    format!("PRAGMA user_version = {number}; INSERT OR REPLACE INTO meta VALUES ('{NEEDS}', {needs});")
}
