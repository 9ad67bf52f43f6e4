//! How SQLite is reached: one writer, a few readers, never on an async thread.
//!
//! [`Calls::Blocking`] runs each call on the blocking pool. [`Calls::Inline`] runs it where it is: simulation uses
//! that, because only then does one seed give one history.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::failed;
use crate::{Error, Result, StorePart};

/// Where database work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// On the blocking pool.
    Blocking,
    /// On the calling thread.
    Inline,
}

/// A list page, a trace and a scrape can run side by side; more readers only fight for the cache.
const READERS_MAX: usize = 4;
/// How long a connection waits for a lock that only another process could hold.
const BUSY_TIMEOUT_MS: u32 = 5_000;
/// The writer's page cache. What it writes are the ends of tables and indexes, which fit in many times over; more cache
/// was not faster, only larger.
const WRITER_CACHE_KIB: u32 = 4 * 1024;
/// The same where objects are followed: their rows are all over their table, and a flush goes through much of it.
const OBSERVING_CACHE_KIB: u32 = 16 * 1024;
/// Pages in the log at which a commit brings them into the database itself, see `checkpoint.rs`.
const CHECKPOINT_PAGES: u32 = 8_000;
/// The log is cut back to this after a checkpoint.
const WAL_BYTES_KEPT: u32 = 64 * 1024 * 1024;

/// Runs `work` with the thing behind `lock`, where `calls` says.
pub(super) async fn call<S, T>(
    calls: Calls,
    lock: &Arc<Mutex<S>>,
    work: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
) -> Result<T>
where
    S: Send + 'static,
    T: Send + 'static,
{
    let lock = Arc::clone(lock);
    // A panic inside rolled its transaction back; what the lock guards is as before.
    let run = move || work(&mut lock.lock().unwrap_or_else(PoisonError::into_inner));
    match calls {
        // A panic must not end the loop that called: the blocking pool sees to that, and here we do.
        Calls::Inline => std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            Err(Error::Unavailable("database work panicked; its transaction was rolled back".to_owned()))
        }),
        Calls::Blocking => match tokio::task::spawn_blocking(run).await {
            Ok(result) => result,
            Err(error) => Err(Error::Unavailable(format!("database work ended early: {error}"))),
        },
    }
}

/// Opens the writing connection of a process that begins, and brings what an earlier one left in the log into the
/// database, flushed. After a flush that failed, the system may show a log that the disk does not have: whatever is
/// answered from it, or written behind it, would be gone after a power cut.
pub(super) fn open_first(path: &Path) -> Result<Connection> {
    let conn = open_writer(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    let is_busy: bool =
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).map_err(failed)?;
    if is_busy {
        return Err(Error::Unusable(format!(
            "{} is open elsewhere: close whatever else reads it",
            path.display()
        )));
    }
    Ok(conn)
}

/// Opens the writing connection and makes sure that a commit is on disk when it returns.
pub(super) fn open_writer(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let conn = Connection::open_with_flags(path, flags).map_err(failed)?;
    let setting = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, rusqlite::types::Value>(0));
    setting(&format!("PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")).map_err(failed)?;
    setting("PRAGMA journal_mode = WAL").map_err(failed)?;
    setting(&format!("PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")).map_err(failed)?;
    setting(&format!("PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")).map_err(failed)?;
    conn.execute_batch(&format!("PRAGMA cache_size = -{WRITER_CACHE_KIB}")).map_err(failed)?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;").map_err(failed)?;
    check_durable(&conn)?;
    conn.set_prepared_statement_cache_capacity(64);
    keep_plans(&conn)?;
    Ok(conn)
}

/// Makes room for what a flush reads and writes; taken when it is needed.
pub(super) fn widen_cache(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "cache_size", -i64::from(OBSERVING_CACHE_KIB))
}

/// Plans must not depend on the values bound to them. Else SQLite prepares a cached statement again at each run whose
/// values differ from the last, because one of them might bring a partial index into play.
fn keep_plans(conn: &Connection) -> Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed)?;
    Ok(())
}

/// An acknowledged event must survive a power cut, so these two settings are read back, not trusted.
pub(super) fn check_durable(conn: &Connection) -> Result<()> {
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(failed)?;
    let synchronous: i64 = conn.query_row("PRAGMA synchronous", [], |row| row.get(0)).map_err(failed)?;
    if mode != "wal" || synchronous < 2 {
        return Err(Error::Unusable(format!(
            "the database is not durable (journal_mode={mode}, synchronous={synchronous}): it must be WAL and FULL; \
             put the data directory on a local disk"
        )));
    }
    Ok(())
}

/// A small pool of connections that can only read.
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    places: tokio::sync::Semaphore,
    calls: Calls,
}

impl Readers {
    pub(super) fn new(path: &Path, calls: Calls) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            idle: Mutex::new(Vec::new()),
            places: tokio::sync::Semaphore::new(READERS_MAX),
            calls,
        })
    }

    /// Runs `work` in one read transaction: everything it asks is answered as of one instant.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _place = self.places.acquire().await.expect("the semaphore is never closed");
        let readers = Arc::clone(self);
        let run = move || {
            let mut conn = readers.take()?;
            let result = {
                let tx = conn.transaction().map_err(failed)?;
                work(&tx)
            };
            readers.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
            result
        };
        match self.calls {
            Calls::Inline => run(),
            Calls::Blocking => tokio::task::spawn_blocking(run).await.unwrap_or_else(|error| {
                Err(Error::Unavailable(format!("database work ended early: {error}")))
            }),
        }
    }

    /// The files, as large as they are now; the log is gone while nothing uses it.
    pub(super) fn sizes(&self) -> Vec<StorePart> {
        let bytes = |suffix: &str| {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            std::fs::metadata(path).map_or(0, |file| file.len())
        };
        vec![
            StorePart { name: "database", bytes: bytes("") },
            StorePart { name: "wal", bytes: bytes("-wal") },
        ]
    }

    fn take(&self) -> Result<Connection> {
        if let Some(conn) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(conn);
        }
        let conn =
            Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
        conn.query_row(&format!("PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}"), [], |_| Ok(()))
            .map_err(failed)?;
        keep_plans(&conn)?;
        Ok(conn)
    }
}
