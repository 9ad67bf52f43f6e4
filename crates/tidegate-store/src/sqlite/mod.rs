//! The embedded store: one SQLite file, one writer, group commit.
//!
//! Every group is one `BEGIN IMMEDIATE` transaction with cached statements; `synchronous=FULL` makes its commit a
//! promise. Opening the store voids the claims of whoever held it before: there is never a second process, a lock
//! file sees to that.

#[cfg(feature = "conformance")]
mod audit;
mod catalog;
mod checkpoint;
mod commit;
mod configuration;
mod db;
mod dedupe;
mod deliveries;
mod events;
mod filter;
mod gates;
mod jobs;
mod lanes;
mod quarantine;
mod read;
mod replay;
mod run;
mod sealed;
mod sweep;
mod trigger;
mod verification;

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags, Transaction, params};
use tidegate_core::id::{DeliveryNo, Incarnation, JobNo, ProjectNo, Seq, SubscriberNo, Version};
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;

use crate::{
    AttemptRow, BackfillStep, Backlog, Change, Changed, Committed, Configuration, DeliveryFilter,
    DeliveryRow, Error, EventFilter, EventRow, Group, JobRow, NewJob, Page, Picked, QuarantineFilter,
    QuarantineRow, Replay, Reseal, Result, RetryOutcome, Scan, Scope, SealedRow, Selector, StopOutcome,
    Store, StorePart, Stretch, Sweep, Swept, Trace, Triggered,
};
#[cfg(feature = "conformance")]
pub use audit::audit;
use checkpoint::Checkpointer;
pub use db::Calls;
use db::Readers;
use dedupe::Dedupe;
use lanes::Backfilling;

/// What was in hand when the last process ended.
const CLAIMED: &str = "SELECT id, subscriber, lane, lost + 1 FROM deliveries WHERE status = 1";

/// Events and deliveries draw their numbers from one counter; retention remembers it when it removes them.
const LAST_NO: &str =
    "SELECT max(coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(id) FROM deliveries), 0),
        coalesce((SELECT value FROM meta WHERE name = 'last_no'), 0))";

const MIGRATIONS: [&str; 8] = [
    include_str!("../../migrations/sqlite/0001_init.sql"),
    include_str!("../../migrations/sqlite/0002_catalog.sql"),
    include_str!("../../migrations/sqlite/0003_sending.sql"),
    include_str!("../../migrations/sqlite/0004_breaker.sql"),
    include_str!("../../migrations/sqlite/0005_replay.sql"),
    include_str!("../../migrations/sqlite/0007_locking.sql"),
    include_str!("../../migrations/sqlite/0008_ids.sql"),
    include_str!("../../migrations/sqlite/0010_gates.sql"),
];

/// The embedded store.
pub struct SqliteStore {
    writer: Arc<Mutex<Writer>>,
    readers: Arc<Readers>,
    dedupe: Arc<Mutex<Dedupe>>,
    checkpointer: Checkpointer,
    calls: Calls,
    incarnation: Incarnation,
    salt: Vec<u8>,
    latest: Timestamp,
    _lock: File,
}

/// What only the writing connection touches.
struct Writer {
    conn: Connection,
    path: PathBuf,
    dedupe: Arc<Mutex<Dedupe>>,
    incarnation: Incarnation,
    version: Version,
    next_no: i64,
    /// Subscribers whose backfill is under way, and how far it has come.
    backfilling: Backfilling,
    /// A storage fault was met: the file is opened anew before anything else is written.
    is_suspect: bool,
    /// A group whose COMMIT failed and that could not be looked for: its number, and what it would hand over.
    doubt: Option<(i64, Committed)>,
    /// What such a group does hand over, with the next one, when it turned out to be there.
    owed: Committed,
    /// How a transaction ends; a test lets it fail here.
    end: fn(Transaction<'_>) -> rusqlite::Result<()>,
}

/// Numbers a transaction and keeps its time, see the schema.
fn stamp(conn: &Connection, now: Timestamp) -> rusqlite::Result<i64> {
    conn.prepare_cached("UPDATE commits SET no = no + 1, at = max(at, ?1) RETURNING no")?
        .query_row([now.as_ms()], |row| row.get(0))
}

/// An error of SQLite, as the caller sees it.
#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` asks for")]
fn failed(error: rusqlite::Error) -> Error {
    Error::Unavailable(error.to_string())
}

impl SqliteStore {
    /// Opens or creates the store in `dir`. `salt` is kept only by a new one.
    pub fn open(dir: &Path, salt: &[u8], now: Timestamp, calls: Calls) -> Result<Self> {
        crate::folder::create(dir)
            .map_err(|error| Error::Unusable(format!("cannot create {}: {error}", dir.display())))?;
        let lock = lock(dir)?;
        let path = dir.join("tidegate.db");
        let conn = db::open_first(&path)?;
        migrate(&conn)?;
        let mut writer = Writer::start(conn, path.clone(), salt, now)?;
        let latest = writer.latest().map_err(failed)?;
        writer.void_claims(now.max(latest)).map_err(failed)?;
        let salt = writer.meta("salt").map_err(failed)?;
        Ok(Self {
            readers: Readers::new(&path, calls),
            dedupe: Arc::clone(&writer.dedupe),
            checkpointer: Checkpointer::new(path, calls),
            incarnation: writer.incarnation,
            writer: Arc::new(Mutex::new(writer)),
            calls,
            salt,
            latest,
            _lock: lock,
        })
    }

    async fn write<T: Send + 'static>(
        &self,
        calls: Calls,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let run = move |writer: &mut Writer| {
            writer.recover()?;
            let result = work(writer);
            writer.is_suspect |= matches!(result, Err(Error::Unavailable(_)));
            result
        };
        db::call(calls, &self.writer, run).await
    }
}

/// Keeps a second process out for as long as the file is open.
fn lock(dir: &Path) -> Result<File> {
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

fn migrate(conn: &Connection) -> Result<()> {
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

impl Writer {
    fn start(conn: Connection, path: PathBuf, salt: &[u8], now: Timestamp) -> Result<Self> {
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
        let mut writer = Self {
            conn,
            path,
            dedupe: Arc::new(Mutex::new(dedupe)),
            incarnation: 0,
            version: 0,
            next_no: 0,
            backfilling: Backfilling::new(),
            is_suspect: false,
            doubt: None,
            owed: Committed::default(),
            end: |tx| tx.commit(),
        };
        writer.read_counters().map_err(failed)?;
        Ok(writer)
    }

    fn read_counters(&mut self) -> rusqlite::Result<()> {
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

    fn meta<T: rusqlite::types::FromSql>(&self, name: &str) -> rusqlite::Result<T> {
        self.conn.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
    }

    fn last_commit(&self) -> Result<i64> {
        self.conn.query_row("SELECT no FROM commits", [], |row| row.get(0)).map_err(failed)
    }

    fn latest(&self) -> rusqlite::Result<Timestamp> {
        self.conn.query_row("SELECT at FROM commits", [], |row| row.get(0).map(Timestamp::from_ms))
    }

    /// Whatever was claimed was claimed by a process that is no more. Its requests may or may not have arrived:
    /// they are due again, under the same id. What was in hand at too many such ends is set aside.
    fn void_claims(&mut self, now: Timestamp) -> rusqlite::Result<()> {
        let tx = self.conn.transaction()?;
        let lost = tx
            .prepare(CLAIMED)?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .collect::<rusqlite::Result<Vec<(DeliveryNo, SubscriberNo, Option<i64>, u32)>>>()?;
        for (id, subscriber, lane, lost) in lost {
            deliveries::void_claim(&tx, id, lost, now)?;
            if let Some(lane) = lane {
                lanes::make_next_due(&tx, &self.backfilling, subscriber, lane, now)?;
            }
        }
        stamp(&tx, now)?;
        tx.commit()
    }

    /// After a storage fault neither the connection's nor memory's view of the file can be trusted: look again.
    fn recover(&mut self) -> Result<()> {
        if !self.is_suspect {
            return Ok(());
        }
        self.reopen()?;
        let last = self.last_commit()?;
        if let Some((no, mut found)) = self.doubt.take()
            && no == last
        {
            let known = Dedupe::load(&self.conn).map_err(failed)?;
            *self.dedupe.lock().unwrap_or_else(PoisonError::into_inner) = known;
            // Whoever waited for an answer has been told that it failed, and asks again.
            found.submissions.clear();
            found.refilled.clear();
            self.owed.absorb(found);
        }
        self.is_suspect = false;
        Ok(())
    }

    fn reopen(&mut self) -> Result<()> {
        self.conn = db::open_writer(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        self.read_counters().map_err(failed)
    }
}

#[async_trait]
impl Store for SqliteStore {
    /// Runs where it is called, which is a loop that does nothing else: handing it to another thread and back would
    /// cost more than half of what a small commit takes.
    async fn commit(&self, group: Arc<Group>) -> Result<Committed> {
        let written = Arc::clone(&group);
        let committed = self.write(Calls::Inline, move |writer| commit::commit(writer, &group)).await?;
        self.checkpointer.written(&written);
        Ok(committed)
    }

    async fn change(&self, change: Change, now: Timestamp) -> Result<Changed> {
        self.write(self.calls, move |writer| configuration::change(writer, &change, now)).await
    }

    async fn configuration(&self, since: Version) -> Result<Configuration> {
        self.readers.read(move |conn| configuration::load(conn, since).map_err(failed)).await
    }

    async fn sealed(&self) -> Result<Vec<SealedRow>> {
        self.readers.read(|conn| sealed::list(conn).map_err(failed)).await
    }

    async fn reseal(&self, anew: Vec<Reseal>) -> Result<()> {
        self.write(self.calls, move |writer| sealed::replace(writer, &anew).map_err(failed)).await
    }

    async fn due(&self) -> Result<Vec<(SubscriberNo, Timestamp)>> {
        self.readers.read(|conn| deliveries::due(conn).map_err(failed)).await
    }

    async fn retry(&self, project: ProjectNo, delivery: DeliveryNo, now: Timestamp) -> Result<RetryOutcome> {
        self.write(self.calls, move |writer| {
            deliveries::retry(writer, project, delivery, now).map_err(failed)
        })
        .await
    }

    async fn trigger(&self, project: ProjectNo, now: Timestamp) -> Result<Triggered> {
        self.write(self.calls, move |writer| trigger::trigger(writer, project, now).map_err(failed)).await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryNo>> {
        self.write(self.calls, move |writer| replay::replay(writer, &replay, now)).await
    }

    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>> {
        self.readers.read(move |conn| events::backfill(conn, subscriber, limit).map_err(failed)).await
    }

    async fn scope(&self, project: ProjectNo, selector: Selector, now: Timestamp) -> Result<Scope> {
        self.readers.read(move |conn| jobs::scope(conn, project, selector, now).map_err(failed)).await
    }

    async fn scan(&self, scope: Scope, after: i64, limit: usize) -> Result<Scan> {
        self.readers.read(move |conn| jobs::scan(conn, &scope, after, limit).map_err(failed)).await
    }

    async fn start_job(&self, job: NewJob, now: Timestamp) -> Result<JobRow> {
        self.write(self.calls, move |writer| jobs::start(writer, &job, now)).await
    }

    async fn stop_job(&self, project: ProjectNo, id: String, now: Timestamp) -> Result<StopOutcome> {
        self.write(self.calls, move |writer| jobs::stop(writer, project, &id, now)).await
    }

    async fn job(&self, project: ProjectNo, id: String) -> Result<Option<JobRow>> {
        self.readers.read(move |conn| jobs::by_id(conn, project, &id).map_err(failed)).await
    }

    async fn job_by_no(&self, job: JobNo) -> Result<Option<JobRow>> {
        self.readers.read(move |conn| jobs::by_no(conn, job).map_err(failed)).await
    }

    async fn jobs(&self, project: ProjectNo, before: Option<JobNo>, limit: usize) -> Result<Page<JobRow>> {
        self.readers.read(move |conn| jobs::list(conn, project, before, limit).map_err(failed)).await
    }

    async fn jobs_running(&self) -> Result<Vec<JobNo>> {
        self.readers.read(|conn| jobs::running(conn).map_err(failed)).await
    }

    async fn sweep(&self, terms: Retention, sweep: Sweep, limit: usize, now: Timestamp) -> Result<Swept> {
        self.write(self.calls, move |writer| sweep::sweep(writer, &terms, sweep, limit, now)).await
    }

    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>> {
        self.readers.read(move |conn| events::list(conn, project, &filter).map_err(failed)).await
    }

    async fn newest(&self) -> Result<Seq> {
        self.readers.read(|conn| events::newest(conn).map_err(failed)).await
    }

    async fn events_after(
        &self,
        project: ProjectNo,
        after: Seq,
        limit: usize,
        bytes: usize,
    ) -> Result<Stretch> {
        let read = move |conn: &Connection| events::after(conn, project, after, limit, bytes).map_err(failed);
        self.readers.read(read).await
    }

    async fn event(&self, project: ProjectNo, id: String) -> Result<Vec<EventRow>> {
        let dedupe = Arc::clone(&self.dedupe);
        self.readers.read(move |conn| events::by_id(conn, &dedupe, project, &id).map_err(failed)).await
    }

    async fn trace(&self, project: ProjectNo, event: Seq) -> Result<Trace> {
        self.readers.read(move |conn| read::trace(conn, project, event).map_err(failed)).await
    }

    async fn deliveries(&self, project: ProjectNo, filter: DeliveryFilter) -> Result<Page<DeliveryRow>> {
        self.readers.read(move |conn| read::list(conn, project, &filter).map_err(failed)).await
    }

    async fn delivery(
        &self,
        project: ProjectNo,
        no: DeliveryNo,
    ) -> Result<Option<(DeliveryRow, Vec<AttemptRow>)>> {
        self.readers.read(move |conn| read::one(conn, project, no).map_err(failed)).await
    }

    async fn deliveries_among(
        &self,
        project: ProjectNo,
        numbers: Vec<DeliveryNo>,
    ) -> Result<Vec<DeliveryRow>> {
        self.readers.read(move |conn| read::among(conn, project, numbers).map_err(failed)).await
    }

    async fn dead_letters(&self, at_most: u64) -> Result<u64> {
        self.readers.read(move |conn| read::dead_letters(conn, at_most).map_err(failed)).await
    }

    async fn quarantine(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Page<QuarantineRow>> {
        self.readers.read(move |conn| quarantine::list(conn, project, &filter).map_err(failed)).await
    }

    async fn pick(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Picked> {
        self.readers.read(move |conn| quarantine::pick(conn, project, &filter).map_err(failed)).await
    }

    async fn discard(&self, project: ProjectNo, filter: QuarantineFilter, now: Timestamp) -> Result<Picked> {
        self.write(self.calls, move |writer| {
            quarantine::discard(writer, project, &filter, now).map_err(failed)
        })
        .await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.readers.read(|conn| read::backlog(conn).map_err(failed)).await
    }

    async fn backlogs(&self) -> Result<Vec<(SubscriberNo, Backlog)>> {
        self.readers.read(|conn| read::backlogs(conn).map_err(failed)).await
    }

    async fn sizes(&self) -> Result<Vec<StorePart>> {
        Ok(self.readers.sizes())
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn salt(&self) -> &[u8] {
        &self.salt
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }
}

#[cfg(test)]
mod tests;
