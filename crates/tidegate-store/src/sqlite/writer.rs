//! The one who writes: the connection, what memory knows beside it, and what happens when the file fails.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags, Row, Transaction, params};
use tidegate_core::delivery::after_end;
use tidegate_core::fold::Book;
use tidegate_core::id::{DeliveryNo, Incarnation, Lane, Nonce, ProjectNo, SubscriberNo, Version, WindowNo};
use tidegate_core::limits::WINDOWS_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;

use super::dedupe::Dedupe;
use super::lanes::{self, Backfilling};
use super::recent::Recent;
use super::remembered::Shared;
use super::telling::Telling;
use super::{LAST_NO, db, failed, folds, stamp, suspects};
use crate::{Committed, Result, TakenOver};

/// What was in hand when the last process ended.
pub(super) const CLAIMED: &str =
    "SELECT id, subscriber, lane, lost, project, fold FROM deliveries WHERE status = 1";

/// What only the writing connection touches.
pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) dedupe: Arc<Mutex<Dedupe>>,
    /// The windows that can be joined.
    pub(super) book: Arc<Mutex<Book>>,
    /// What joined them last.
    pub(super) recent: Arc<Mutex<Recent>>,
    /// How many of them a project may have.
    pub(super) windows_max: usize,
    pub(super) incarnation: Incarnation,
    /// What deliveries that are made carry.
    pub(super) nonce: Nonce,
    pub(super) version: Version,
    /// What counting remembers of its rows.
    pub(super) remembered: Shared,
    pub(super) next_no: i64,
    /// Subscribers whose backfill is under way, and how far it has come.
    pub(super) backfilling: Backfilling,
    /// How far the rows of open windows have been told.
    pub(super) telling: Telling,
    /// A storage fault was met: the file is opened anew before anything else is written.
    pub(super) is_suspect: bool,
    /// The number of the last commit that memory knows of.
    pub(super) known: i64,
    /// A group whose COMMIT failed and that could not be looked for: its number, and what it would hand over.
    pub(super) doubt: Option<(i64, Committed)>,
    /// What such a group does hand over, with the next one, when it turned out to be there.
    pub(super) owed: Committed,
    /// How a transaction ends; a test lets it fail here.
    pub(super) end: fn(Transaction<'_>) -> rusqlite::Result<()>,
}

impl Writer {
    pub(super) fn start(
        conn: Connection,
        path: PathBuf,
        (salt, nonce): (&[u8], Nonce),
        now: Timestamp,
    ) -> Result<Self> {
        let tx = conn.unchecked_transaction().map_err(failed)?;
        let fresh = params![salt, now.as_ms()];
        let seeds = [
            "INSERT OR IGNORE INTO meta VALUES ('salt', ?1)",
            "INSERT OR IGNORE INTO meta VALUES ('version', 1)",
            "INSERT OR IGNORE INTO meta VALUES ('incarnation', 0)",
            "INSERT OR IGNORE INTO projects (no, id, created_at) VALUES (1, 'default', ?2)",
            "UPDATE meta SET value = value + 1 WHERE name = 'incarnation'",
        ];
        for sql in seeds {
            let mut statement = tx.prepare(sql).map_err(failed)?;
            let count = statement.parameter_count();
            match count {
                0 => statement.execute([]),
                1 => statement.execute([salt]),
                _ => statement.execute(fresh),
            }
            .map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        let dedupe = Dedupe::load(&conn).map_err(failed)?;
        let (book, joined) = folds::load(&conn).map_err(failed)?;
        let last_no = conn.query_row(LAST_NO, [], |row| row.get(0)).map_err(failed)?;
        let telling = Telling::start(&conn, &book, &joined, last_no).map_err(failed)?;
        let mut writer = Self {
            conn,
            path,
            dedupe: Arc::new(Mutex::new(dedupe)),
            book: Arc::new(Mutex::new(book)),
            recent: Arc::default(),
            windows_max: WINDOWS_PER_PROJECT_MAX,
            incarnation: 0,
            nonce,
            version: 0,
            remembered: Shared::default(),
            next_no: 0,
            backfilling: Backfilling::new(),
            telling,
            is_suspect: false,
            known: 0,
            doubt: None,
            owed: Committed::default(),
            end: |tx| tx.commit(),
        };
        writer.read_counters().map_err(failed)?;
        writer.known = writer.last_commit()?;
        Ok(writer)
    }

    pub(super) fn read_counters(&mut self) -> rusqlite::Result<()> {
        self.incarnation = self.meta("incarnation")?;
        self.version = self.meta("version")?;
        self.next_no = self.conn.query_row(LAST_NO, [], |row| row.get::<_, i64>(0))? + 1;
        let mut statement = self.conn.prepare(
            "SELECT no, backfill_after FROM subscribers WHERE backfill_after IS NOT NULL AND deleted_at IS NULL",
        )?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.backfilling = rows.collect::<rusqlite::Result<_>>()?;
        Ok(())
    }

    pub(super) fn meta<T: rusqlite::types::FromSql>(&self, name: &str) -> rusqlite::Result<T> {
        self.conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
    }

    pub(super) fn last_commit(&self) -> Result<i64> {
        let last = self.conn.prepare_cached("SELECT no FROM commits");
        last.and_then(|mut last| last.query_row([], |row| row.get(0))).map_err(failed)
    }

    pub(super) fn latest(&self) -> rusqlite::Result<Timestamp> {
        self.conn.query_row("SELECT at FROM commits", [], |row| row.get(0).map(Timestamp::from_ms))
    }

    /// Whatever was claimed was claimed by a process that is no more. Its requests may or may not have arrived:
    /// they are due again, under the same id. A suspect that was being sent is set aside.
    pub(super) fn void_claims(&mut self, now: Timestamp) -> rusqlite::Result<()> {
        self.void(CLAIMED, true, now).map(drop)
    }

    /// Voids the claims that this finds; says how many are due again and how many are set aside.
    pub(super) fn void(&mut self, sql: &str, is_hard: bool, now: Timestamp) -> rusqlite::Result<TakenOver> {
        let shared = Arc::clone(&self.book);
        let mut book = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = self.conn.transaction()?;
        let claims = tx.prepare(sql)?.query_map([], claimed)?.collect::<rusqlite::Result<Vec<Claimed>>>()?;
        let (mut ended, mut void) = (Vec::new(), TakenOver::default());
        for Claimed { id, subscriber, lane, lost, fold } in claims {
            let lost = after_end(lost, is_hard);
            *(if lost.is_some() { &mut void.due } else { &mut void.set_aside }) += 1;
            suspects::void_claim(&tx, id, lost, now)?;
            if let Some(lane) = lane {
                lanes::make_next_due(&tx, &self.backfilling, subscriber, lane, now)?;
            }
            ended.extend(fold.filter(|_| lost.is_none()));
        }
        let sealed = folds::seal_ended(&tx, &book, &ended, now)?;
        stamp(&tx, now)?;
        tx.commit()?;
        book.apply(sealed);
        Ok(void)
    }

    /// After a storage fault neither the connection's nor memory's view of the file can be trusted: look again.
    pub(super) fn recover(&mut self) -> Result<()> {
        if !self.is_suspect {
            return Ok(());
        }
        self.reopen()?;
        let last = self.last_commit()?;
        // Something was written that was reported as failed.
        if last != self.known {
            let known = Dedupe::load(&self.conn).map_err(failed)?;
            *self.dedupe.lock().unwrap_or_else(PoisonError::into_inner) = known;
            let (book, _) = folds::load(&self.conn).map_err(failed)?;
            *self.book.lock().unwrap_or_else(PoisonError::into_inner) = book;
            self.known = last;
        }
        if let Some((no, mut found)) = self.doubt.take()
            && no == last
        {
            // Whoever waited for an answer has been told that it failed, and asks again.
            found.submissions.clear();
            found.numbers.clear();
            found.refilled.clear();
            self.owed.absorb(found);
        }
        self.is_suspect = false;
        Ok(())
    }

    pub(super) fn reopen(&mut self) -> Result<()> {
        self.remembered.take();
        self.conn = db::open_writer(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        self.read_counters().map_err(failed)
    }
}

/// A delivery in somebody's hands.
struct Claimed {
    id: DeliveryNo,
    subscriber: SubscriberNo,
    lane: Option<Lane>,
    /// How many ends of a process it has seen.
    lost: u32,
    fold: Option<(ProjectNo, WindowNo)>,
}

fn claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    let fold: Option<WindowNo> = row.get(5)?;
    let project: ProjectNo = row.get(4)?;
    Ok(Claimed {
        id: row.get(0)?,
        subscriber: row.get(1)?,
        lane: row.get(2)?,
        lost: row.get(3)?,
        fold: fold.map(|window| (project, window)),
    })
}
