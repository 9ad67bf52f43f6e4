//! The embedded store: one SQLite file, one writer, group commit.
//!
//! Every group is one `BEGIN IMMEDIATE` transaction with cached statements; `synchronous=FULL` makes its commit a
//! promise. Opening the store voids the claims of whoever held it before: there is never a second process, a lock
//! file sees to that.

#[cfg(feature = "conformance")]
mod audit;
mod backfills;
mod catalog;
mod checkpoint;
mod commit;
mod configuration;
mod db;
mod dedupe;
mod deliveries;
mod events;
mod filter;
mod folds;
mod gates;
mod history;
mod jobs;
mod keeping;
mod lanes;
#[cfg(feature = "conformance")]
mod lives;
mod metrics;
mod objects;
mod observe;
mod open;
mod postings;
mod quarantine;
mod read;
mod rebuilds;
mod recent;
mod recount;
mod remembered;
mod replay;
mod rollups;
mod run;
mod sealed;
mod states;
mod suspects;
mod sweep;
mod telling;
mod trigger;
mod turns;
mod verification;
mod windows;
mod writer;

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tidegate_core::fold::Book;
use tidegate_core::id::{
    BackfillNo, DeliveryKey, DeliveryNo, GateNo, Incarnation, JobNo, MetricNo, ProjectNo, Seq, SubscriberNo,
    Version, WindowNo,
};
use tidegate_core::observe::state::ObjectRow;
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;

use crate::{
    AttemptRow, BackfillRow, BackfillStep, Backlog, Buckets, Bundled, Change, ChangeFilter, Changed, Changes,
    Committed, Configuration, DeliveryFilter, DeliveryRow, EndWindows, Ended, Error, EventFilter, EventRow,
    Flush, Group, JobRow, LastStep, Mark, NewBackfill, NewJob, Page, Picked, QuarantineFilter, QuarantineRow,
    Recount, Recounted, Recounter, Replay, Reseal, Result, RetryOutcome, Rollups, Scan, Scope, SealedRow,
    Search, Selector, Slice, StopOutcome, Store, StorePart, Stretch, Sweep, Swept, Told, Trace, Triggered,
    TypeName, TypeVersion, ValueFilter, WindowFilter, WindowRow,
};
#[cfg(feature = "conformance")]
pub use audit::audit;
use checkpoint::Checkpointer;
pub use db::Calls;
use db::Readers;
use dedupe::Dedupe;
#[cfg(test)]
pub(crate) use open::MIGRATIONS;
use recent::Recent;
use remembered::Shared;
use turns::Turns;
use writer::Writer;

/// Events and deliveries draw their numbers from one counter; retention remembers it when it removes them.
const LAST_NO: &str =
    "SELECT max(coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(id) FROM deliveries), 0),
        coalesce((SELECT max(no) FROM windows), 0), coalesce((SELECT value FROM meta WHERE name = 'last_no'), 0))";

/// The embedded store.
pub struct SqliteStore {
    writer: Arc<Mutex<Writer>>,
    readers: Arc<Readers>,
    dedupe: Arc<Mutex<Dedupe>>,
    book: Arc<Mutex<Book>>,
    recent: Arc<Mutex<Recent>>,
    checkpointer: Checkpointer,
    /// What counting remembers of its rows.
    remembered: Shared,
    turns: Turns,
    calls: Calls,
    incarnation: Incarnation,
    salt: Vec<u8>,
    latest: Timestamp,
    _lock: File,
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
    /// Writes something that is not a group: a turn.
    async fn write<T: Send + 'static>(
        &self,
        calls: Calls,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turns = self.turns.clone();
        self.run(calls, move |writer| {
            let _turn = turns.begin();
            work(writer)
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        calls: Calls,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let run = move |writer: &mut Writer| {
            writer.recover()?;
            let result = work(writer);
            writer.is_suspect |= matches!(result, Err(Error::Unavailable(_)));
            if !writer.is_suspect {
                writer.known = writer.last_commit()?;
            }
            result
        };
        db::call(calls, &self.writer, run).await
    }

    /// Writes what a flush adds to the indexes, so that nobody waits long for the writer.
    async fn post(&self, flush: Arc<Flush>) -> Result<Arc<Flush>> {
        for part in 0..postings::parts(&flush.delta.postings) {
            let flush = Arc::clone(&flush);
            self.run(self.calls, move |writer| postings::write(writer, &flush.delta.postings, part)).await?;
        }
        Ok(flush)
    }
}

#[async_trait]
impl Store for SqliteStore {
    /// Runs where it is called, which is a loop that does nothing else: handing it to another thread and back would
    /// cost more than half of what a small commit takes.
    async fn commit(&self, group: Arc<Group>) -> Result<Committed> {
        let written = Arc::clone(&group);
        let committed = self.run(Calls::Inline, move |writer| commit::commit(writer, &group)).await?;
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

    async fn penalties(&self) -> Result<Vec<(GateNo, Timestamp)>> {
        self.readers.read(|conn| gates::penalties(conn).map_err(failed)).await
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

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryKey>> {
        self.write(self.calls, move |writer| replay::replay(writer, &replay, now)).await
    }

    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>> {
        self.readers.read(move |conn| events::backfill(conn, subscriber, limit).map_err(failed)).await
    }

    async fn windows(&self, project: ProjectNo, filter: WindowFilter) -> Result<Page<WindowRow>> {
        let book = Arc::clone(&self.book);
        self.readers.read(move |conn| windows::list(conn, &book, project, &filter).map_err(failed)).await
    }

    async fn end_windows(&self, project: ProjectNo, ask: EndWindows, now: Timestamp) -> Result<Ended> {
        self.write(self.calls, move |writer| folds::end(writer, project, &ask, now).map_err(failed)).await
    }

    async fn bundle(
        &self,
        window: WindowNo,
        carrier: DeliveryKey,
        bytes_max: usize,
    ) -> Result<Option<Bundled>> {
        let recent = Arc::clone(&self.recent);
        let bundle = move |conn: &Connection| windows::bundle(conn, &recent, (window, carrier), bytes_max);
        self.readers.read(move |conn| bundle(conn).map_err(failed)).await
    }

    async fn windows_open(&self) -> Result<Option<u64>> {
        Ok(Some(self.book.lock().unwrap_or_else(PoisonError::into_inner).gathering() as u64))
    }

    async fn close_due(&self) -> Result<Option<Timestamp>> {
        Ok(self.book.lock().unwrap_or_else(PoisonError::into_inner).next_due())
    }

    async fn type_versions(&self, since: Version) -> Result<Vec<TypeVersion>> {
        self.readers.read(move |conn| catalog::versions(conn, since).map_err(failed)).await
    }

    async fn marks(&self) -> Result<Vec<Mark>> {
        self.readers.read(|conn| observe::marks(conn).map_err(failed)).await
    }

    async fn unobserved(&self, _of: Incarnation, after: Seq, limit: usize, bytes: usize) -> Result<Slice> {
        self.readers.read(move |conn| observe::unobserved(conn, after, limit, bytes).map_err(failed)).await
    }

    /// Most of the work is done beside the writer, which then only writes what has been made ready.
    async fn observe(&self, flush: Flush, now: Timestamp) -> Result<()> {
        let (since, known) = (self.turns.now(), self.remembered.take());
        let flush = Arc::new(flush);
        let read = Arc::clone(&flush);
        let make = move |conn: &Connection| observe::Ready::make(conn, known, &read.delta).map_err(failed);
        let ready = self.readers.read(make).await?;
        let flush = self.post(flush).await?;
        let turns = self.turns.clone();
        self.run(self.calls, move |writer| {
            let turn = turns.begin();
            let ready = Some(ready).filter(|_| turn.is_next(since));
            observe::observe(writer, &flush, ready, now)
        })
        .await
    }

    async fn start_backfill(&self, new: NewBackfill, now: Timestamp) -> Result<BackfillRow> {
        self.write(self.calls, move |writer| backfills::start(writer, &new, now)).await
    }

    async fn backfills(
        &self,
        project: ProjectNo,
        before: Option<BackfillNo>,
        limit: usize,
    ) -> Result<Page<BackfillRow>> {
        self.readers.read(move |conn| backfills::list(conn, project, before, limit).map_err(failed)).await
    }

    async fn backfills_running(&self) -> Result<Vec<BackfillRow>> {
        self.readers.read(|conn| backfills::running(conn).map_err(failed)).await
    }

    async fn unbackfilled(&self, of: BackfillRow, limit: usize, bytes: usize) -> Result<Slice> {
        self.readers.read(move |conn| backfills::unbackfilled(conn, &of, limit, bytes).map_err(failed)).await
    }

    async fn stop_backfill(&self, project: ProjectNo, no: BackfillNo, now: Timestamp) -> Result<BackfillRow> {
        self.write(self.calls, move |writer| backfills::stop(writer, (project, no), now)).await
    }

    async fn finish_rebuild(&self, of: BackfillRow, last: LastStep, now: Timestamp) -> Result<bool> {
        self.write(self.calls, move |writer| rebuilds::finish(writer, &of, last, now)).await
    }

    async fn observed_until(&self, now: Timestamp) -> Result<Timestamp> {
        self.readers.read(move |conn| observe::until(conn, now).map_err(failed)).await
    }

    async fn kept_since(&self, of: TypeName) -> Result<Option<Timestamp>> {
        self.readers.read(move |conn| keeping::kept_since(conn, &of).map_err(failed)).await
    }

    async fn recount(&self, of: Recount, recounter: Box<dyn Recounter>) -> Result<Recounted> {
        self.readers.read(move |conn| recount::recount(conn, &of, recounter).map_err(failed)).await
    }

    async fn rollups(&self, metric: MetricNo, buckets: Vec<Buckets>) -> Result<Rollups> {
        self.readers.read(move |conn| rollups::read(conn, metric, &buckets).map_err(failed)).await
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

    async fn sweep_wait(&self, set: Option<Duration>) -> Result<Duration> {
        self.write(self.calls, move |writer| keeping::sweep_wait(&writer.conn, set).map_err(failed)).await
    }

    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>> {
        self.readers.read(move |conn| events::list(conn, project, &filter).map_err(failed)).await
    }

    async fn search(&self, project: ProjectNo, search: Search) -> Result<Page<EventRow>> {
        self.readers.read(move |conn| postings::search(conn, project, &search).map_err(failed)).await
    }

    async fn values(&self, filter: ValueFilter) -> Result<Vec<(Vec<u8>, u64)>> {
        self.readers.read(move |conn| postings::values(conn, &filter).map_err(failed)).await
    }

    async fn object(&self, states: Vec<MetricNo>, id: String) -> Result<Vec<(MetricNo, Told<ObjectRow>)>> {
        self.readers.read(move |conn| history::object(conn, &states, &id).map_err(failed)).await
    }

    async fn changes(&self, filter: ChangeFilter) -> Result<Changes> {
        self.readers.read(move |conn| history::changes(conn, &filter).map_err(failed)).await
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
        let book = Arc::clone(&self.book);
        self.readers.read(move |conn| read::trace(conn, &book, project, event).map_err(failed)).await
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

    #[cfg(feature = "conformance")]
    fn limit_windows(&self, of_a_project: usize) {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).windows_max = of_a_project;
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
