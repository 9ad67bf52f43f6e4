//! The shared store: one PostgreSQL database, any number of processes, group commit in each.
//!
//! Every group is one transaction and, when nothing stands in its way, one round trip: its statements are sent together
//! and each is one statement for many rows. What two processes could both want is taken in a fixed order: the
//! configuration (shared by groups, alone by changes), then lanes, then ids, each sorted. So nobody waits in a circle.
//!
//! A process is known by its row in `replicas`. Its groups renew that row and come to nothing when it is gone, which is
//! how another one takes over what it held.

mod address;
mod admit;
mod at_once;
mod backfills;
mod catalog;
mod commit;
mod configuration;
pub mod connect;
mod db;
mod deliveries;
mod events;
mod folds;
mod gates;
mod health;
mod held;
mod history;
pub(crate) mod holding;
mod jobs;
mod keeping;
mod lanes;
mod lineage;
mod metrics;
mod observe;
mod open;
mod postings;
mod quarantine;
mod reach;
mod read;
mod rebuilds;
mod recount;
mod refusal;
mod replay;
mod replicas;
mod rewind;
mod rollups;
mod sealed;
mod shared;
mod states;
mod submit;
mod suspects;
mod sweep;
mod terms;
mod tls;
mod trigger;
mod verification;
mod windows;
mod write;

#[cfg(feature = "conformance")]
mod audit;
mod plans;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::id::{
    BackfillNo, DeliveryKey, DeliveryNo, Incarnation, JobNo, MetricNo, ProjectNo, Seq, SubscriberNo, Version,
    WindowNo,
};
use tidegate_core::observe::state::ObjectRow;
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;
use tokio::sync::Mutex;

use crate::{
    AttemptRow, BackfillRow, BackfillStep, Backlog, Beat, Buckets, Bundled, Change, ChangeFilter, Changed,
    Changes, Committed, Configuration, DeliveryFilter, DeliveryRow, EndWindows, Ended, EventFilter, EventRow,
    Flush, Group, JobRow, LastStep, Load, Mark, NewBackfill, NewJob, Page, Picked, QuarantineFilter,
    QuarantineRow, Recount, Recounted, Recounter, Replay, Reseal, Result, RetryOutcome, Rollups, Scan, Scope,
    SealedRow, Search, Selector, Slice, StopOutcome, Store, StorePart, Stretch, Sweep, Swept, TakenOver,
    Told, Trace, Triggered, TypeName, TypeVersion, ValueFilter, Vital, WindowFilter, WindowRow,
};
#[cfg(feature = "conformance")]
pub use audit::{audit, end_all, remove};
use commit::Writer;
use db::{Pool, Pulse};
#[cfg(feature = "conformance")]
pub use events::key_of;
pub(crate) use reach::Opening;
use shared::Shared;
pub use terms::{Periods, Terms};

/// The shared store.
pub struct PostgresStore {
    pool: Arc<Pool>,
    writer: Arc<Mutex<Writer>>,
    shared: Arc<Shared>,
    /// The session that beats.
    pulse: Mutex<Pulse>,
}

/// A process whose last beat is older than this has expired.
pub use tidegate_core::lease::BEAT_TTL;

pub(crate) use open::{ENCODING, ENCODING_REMEDY, MIGRATIONS, VERSION_MIN, rights_remedy, takes_no_writes};
pub(crate) use refusal::Refusal;

/// Sessions that one process opens at most: the pool, the one that writes, the one that beats, and two for
/// coordination.
pub(crate) const SESSIONS_OF_A_PROCESS: usize = db::SESSIONS_MAX + 4;

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, group: Arc<Group>) -> Result<Committed> {
        commit::commit(&self.writer, &self.pool, group).await
    }

    async fn change(&self, change: Change, now: Timestamp) -> Result<Changed> {
        let space = self.shared.space;
        let changing =
            self.pool.transact(move |conn| Box::pin(configuration::change(conn, space, change, now)));
        let changed = changing.await?;
        self.shared.seen.version(changed.version);
        Ok(changed)
    }

    async fn configuration(&self, since: Version) -> Result<Configuration> {
        let (seen, known) = (&self.shared.seen, self.shared.seen.known());
        let loaded = configuration::load(&self.pool, since).await?;
        seen.loaded(known, loaded.version);
        Ok(loaded)
    }

    async fn version(&self) -> Result<Version> {
        Ok(configuration::version(&*self.pool.lend().await?).await?)
    }

    async fn descends_from(&self, version: Version) -> Result<bool> {
        Ok(configuration::descends_from(&*self.pool.lend().await?, version).await?)
    }

    async fn sealed(&self) -> Result<Vec<SealedRow>> {
        Ok(sealed::list(&*self.pool.lend().await?).await?)
    }

    async fn reseal(&self, anew: Vec<Reseal>) -> Result<()> {
        Ok(self
            .pool
            .transact(move |conn| Box::pin(async move { sealed::replace(conn, &anew).await }))
            .await?)
    }

    async fn due(&self) -> Result<Vec<(SubscriberNo, Timestamp)>> {
        Ok(deliveries::due(&*self.pool.lend().await?).await?)
    }

    async fn retry(&self, project: ProjectNo, delivery: DeliveryNo, now: Timestamp) -> Result<RetryOutcome> {
        let space = self.shared.space;
        self.change_at(now, move |conn| Box::pin(deliveries::retry(conn, space, project, delivery, now)))
            .await
    }

    async fn trigger(&self, project: ProjectNo, now: Timestamp) -> Result<Triggered> {
        self.change_at(now, move |conn| Box::pin(async move { trigger::trigger(conn, project, now).await }))
            .await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryKey>> {
        let space = self.shared.space;
        self.change_at(now, move |conn| {
            Box::pin(async move { replay::replay(conn, space, &replay, now).await })
        })
        .await
    }

    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>> {
        Ok(events::backfill(&*self.pool.lend().await?, self.shared.space, subscriber, limit).await?)
    }

    async fn windows(&self, project: ProjectNo, filter: WindowFilter) -> Result<Page<WindowRow>> {
        Ok(windows::list(&*self.pool.lend().await?, project, &filter).await?)
    }

    async fn end_windows(&self, project: ProjectNo, ask: EndWindows, now: Timestamp) -> Result<Ended> {
        let space = self.shared.space;
        self.change_at(now, move |conn| {
            Box::pin(async move { windows::end(conn, space, project, &ask, now).await })
        })
        .await
    }

    async fn bundle(
        &self,
        window: WindowNo,
        carrier: DeliveryKey,
        bytes_max: usize,
    ) -> Result<Option<Bundled>> {
        Ok(windows::bundle(&*self.pool.lend().await?, window, carrier, bytes_max).await?)
    }

    async fn windows_open(&self) -> Result<Option<u64>> {
        Ok(Some(windows::open(&*self.pool.lend().await?).await?))
    }

    async fn close_due(&self) -> Result<Option<Timestamp>> {
        Ok(windows::next_due(&*self.pool.lend().await?).await?)
    }

    async fn type_versions(&self, since: Version) -> Result<Vec<TypeVersion>> {
        Ok(catalog::versions(&*self.pool.lend().await?, since).await?)
    }

    async fn marks(&self) -> Result<Vec<Mark>> {
        Ok(observe::marks(&*self.pool.lend().await?, self.shared.incarnation()).await?)
    }

    async fn unobserved(&self, of: Incarnation, after: Seq, limit: usize, bytes: usize) -> Result<Slice> {
        observe::slice(self, of, after, limit, bytes).await
    }

    async fn observe(&self, flush: Flush, now: Timestamp) -> Result<()> {
        observe::flush(self, Arc::new(flush), now).await
    }

    async fn start_backfill(&self, new: NewBackfill, now: Timestamp) -> Result<BackfillRow> {
        let space = self.shared.space;
        self.change_at(now, move |conn| {
            Box::pin(async move { backfills::start(conn, space, &new, now).await })
        })
        .await
    }

    async fn backfills(
        &self,
        project: ProjectNo,
        before: Option<BackfillNo>,
        limit: usize,
    ) -> Result<Page<BackfillRow>> {
        Ok(backfills::list(&*self.pool.lend().await?, project, before, limit).await?)
    }

    async fn backfills_running(&self) -> Result<Vec<BackfillRow>> {
        Ok(backfills::running(&*self.pool.lend().await?).await?)
    }

    async fn unbackfilled(&self, of: BackfillRow, limit: usize, bytes: usize) -> Result<Slice> {
        let conn = self.pool.lend().await?;
        Ok(backfills::unbackfilled(&conn, self.shared.space, &of, limit, bytes).await?)
    }

    async fn stop_backfill(&self, project: ProjectNo, no: BackfillNo, now: Timestamp) -> Result<BackfillRow> {
        let space = self.shared.space;
        self.change_at(now, move |conn| Box::pin(backfills::stop(conn, space, (project, no), now))).await
    }

    async fn finish_rebuild(&self, of: BackfillRow, last: LastStep, now: Timestamp) -> Result<bool> {
        let space = self.shared.space;
        self.change_at(now, move |conn| Box::pin(rebuilds::finish(conn, space, of, last, now))).await
    }

    async fn observed_until(&self, now: Timestamp) -> Result<Timestamp> {
        Ok(observe::until(&*self.pool.lend().await?, now).await?)
    }

    async fn end_mark(&self, mark: Mark) -> Result<()> {
        Ok(observe::end_mark(&*self.pool.lend().await?, mark).await?)
    }

    async fn kept_since(&self, of: TypeName) -> Result<Option<Timestamp>> {
        Ok(keeping::kept_since(&*self.pool.lend().await?, &of).await?)
    }

    async fn recount(&self, of: Recount, recounter: Box<dyn Recounter>) -> Result<Recounted> {
        let work = self
            .pool
            .transact(move |conn| Box::pin(async move { recount::recount(conn, &of, recounter).await }));
        Ok(work.await?)
    }

    async fn rollups(&self, metric: MetricNo, buckets: Vec<Buckets>) -> Result<Rollups> {
        Ok(rollups::read(&*self.pool.lend().await?, metric, &buckets).await?)
    }

    async fn scope(&self, project: ProjectNo, selector: Selector, now: Timestamp) -> Result<Scope> {
        Ok(jobs::scope(&*self.pool.lend().await?, &self.shared, project, selector, now).await?)
    }

    async fn scan(&self, scope: Scope, after: i64, limit: usize) -> Result<Scan> {
        Ok(jobs::scan(&*self.pool.lend().await?, &scope, after, limit).await?)
    }

    async fn start_job(&self, job: NewJob, now: Timestamp) -> Result<JobRow> {
        self.change_at(now, move |conn| Box::pin(async move { jobs::start(conn, &job, now).await })).await
    }

    async fn stop_job(&self, project: ProjectNo, id: String, now: Timestamp) -> Result<StopOutcome> {
        self.change_at(now, move |conn| Box::pin(async move { jobs::stop(conn, project, &id, now).await }))
            .await
    }

    async fn job(&self, project: ProjectNo, id: String) -> Result<Option<JobRow>> {
        Ok(jobs::by_id(&*self.pool.lend().await?, project, &id).await?)
    }

    async fn job_by_no(&self, job: JobNo) -> Result<Option<JobRow>> {
        Ok(jobs::by_no(&*self.pool.lend().await?, job).await?)
    }

    async fn jobs(&self, project: ProjectNo, before: Option<JobNo>, limit: usize) -> Result<Page<JobRow>> {
        Ok(jobs::list(&*self.pool.lend().await?, project, before, limit).await?)
    }

    async fn jobs_running(&self) -> Result<Vec<JobNo>> {
        Ok(jobs::running(&*self.pool.lend().await?).await?)
    }

    async fn sweep(&self, terms: Retention, sweep: Sweep, limit: usize, now: Timestamp) -> Result<Swept> {
        Ok(sweep::sweep(&self.pool, &self.shared, terms, sweep, limit, now).await?)
    }

    async fn sweep_wait(&self, set: Option<Duration>) -> Result<Duration> {
        Ok(keeping::sweep_wait(&*self.pool.lend().await?, set).await?)
    }

    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>> {
        Ok(events::list(&*self.pool.lend().await?, project, &filter).await?)
    }

    async fn search(&self, project: ProjectNo, search: Search) -> Result<Page<EventRow>> {
        Ok(postings::search(&*self.pool.lend().await?, project, &search).await?)
    }

    async fn values(&self, filter: ValueFilter) -> Result<Vec<(Vec<u8>, u64)>> {
        Ok(postings::values(&*self.pool.lend().await?, &filter).await?)
    }

    async fn object(&self, states: Vec<MetricNo>, id: String) -> Result<Vec<(MetricNo, Told<ObjectRow>)>> {
        Ok(history::object(&*self.pool.lend().await?, &states, &id).await?)
    }

    async fn changes(&self, filter: ChangeFilter) -> Result<Changes> {
        Ok(history::changes(&*self.pool.lend().await?, &filter).await?)
    }

    async fn newest(&self) -> Result<Seq> {
        let newest = events::newest(&*self.pool.lend().await?, self.shared.space).await?;
        Ok(self.shared.saw(newest))
    }

    async fn events_after(
        &self,
        project: ProjectNo,
        after: Seq,
        limit: usize,
        bytes: usize,
    ) -> Result<Stretch> {
        let (conn, space) = (self.pool.lend().await?, self.shared.space);
        let stretch = events::after(&conn, space, project, after, limit, bytes).await?;
        self.shared.saw(stretch.events.last().map_or(0, |event| event.seq));
        Ok(stretch)
    }

    async fn event(&self, project: ProjectNo, id: String) -> Result<Vec<EventRow>> {
        Ok(events::by_id(&*self.pool.lend().await?, project, &id).await?)
    }

    async fn trace(&self, project: ProjectNo, event: Seq) -> Result<Trace> {
        Ok(self.pool.transact(move |conn| Box::pin(read::trace(conn, project, event))).await?)
    }

    async fn deliveries(&self, project: ProjectNo, filter: DeliveryFilter) -> Result<Page<DeliveryRow>> {
        Ok(read::list(&*self.pool.lend().await?, project, &filter).await?)
    }

    async fn delivery(
        &self,
        project: ProjectNo,
        no: DeliveryNo,
    ) -> Result<Option<(DeliveryRow, Vec<AttemptRow>)>> {
        Ok(read::one(&*self.pool.lend().await?, project, no).await?)
    }

    async fn deliveries_among(
        &self,
        project: ProjectNo,
        numbers: Vec<DeliveryNo>,
    ) -> Result<Vec<DeliveryRow>> {
        Ok(read::among(&*self.pool.lend().await?, project, numbers).await?)
    }

    async fn has_delivered(&self, subscriber: SubscriberNo, since: Timestamp) -> Result<bool> {
        Ok(read::has_delivered(&*self.pool.lend().await?, subscriber, since).await?)
    }

    async fn dead_letters(&self, at_most: u64) -> Result<u64> {
        Ok(read::dead_letters(&*self.pool.lend().await?, at_most).await?)
    }

    async fn quarantine(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Page<QuarantineRow>> {
        Ok(quarantine::list(&*self.pool.lend().await?, project, &filter).await?)
    }

    async fn pick(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Picked> {
        Ok(quarantine::pick(&*self.pool.lend().await?, project, &filter).await?)
    }

    async fn discard(&self, project: ProjectNo, filter: QuarantineFilter, _now: Timestamp) -> Result<Picked> {
        Ok(self
            .pool
            .transact(move |conn| Box::pin(async move { quarantine::discard(conn, project, &filter).await }))
            .await?)
    }

    async fn backlog(&self) -> Result<Backlog> {
        Ok(read::backlog(&*self.pool.lend().await?).await?)
    }

    async fn backlogs(&self) -> Result<Vec<(SubscriberNo, Backlog)>> {
        Ok(read::backlogs(&*self.pool.lend().await?).await?)
    }

    async fn sizes(&self) -> Result<Vec<StorePart>> {
        Ok(read::sizes(&*self.pool.lend().await?).await?)
    }

    #[cfg(feature = "conformance")]
    fn limit_windows(&self, of_a_project: usize) {
        self.shared.windows_max.store(of_a_project, std::sync::atomic::Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn beat(&self, load: Load) -> Result<Beat> {
        // On a session of its own: a beat must not wait for somebody's list. It is given up with a beat that fails or is
        // given up; one that is being opened is not.
        let mut pulse = self.pulse.lock().await;
        let conn = pulse.take(&self.shared.target).await?;
        let beat = replicas::beat(&conn, self.shared.incarnation(), load, &self.shared.seen).await?;
        pulse.keep(conn);
        Ok(beat)
    }

    async fn take_over(&self, expired: Incarnation, now: Timestamp) -> Result<TakenOver> {
        let space = self.shared.space;
        Ok(self
            .pool
            .transact(move |conn| {
                Box::pin(async move { replicas::take_over(conn, space, expired, now).await })
            })
            .await?)
    }

    async fn join(&self, now: Timestamp) -> Result<Incarnation> {
        rewind::join(self, now).await
    }

    fn rewinds(&self) -> u64 {
        self.shared.seen.times()
    }

    async fn leave(&self, now: Timestamp) -> Result<()> {
        let (space, incarnation) = (self.shared.space, self.shared.incarnation());
        Ok(self
            .pool
            .transact(move |conn| {
                Box::pin(async move { replicas::leave(conn, space, incarnation, now).await })
            })
            .await?)
    }

    async fn health(&self) -> Result<Vec<Vital>> {
        Ok(health::look(&*self.pool.lend().await?).await?)
    }

    async fn proof(&self, sealed: Vec<u8>) -> Result<Vec<u8>> {
        Ok(replicas::proof(&*self.pool.lend().await?, &sealed).await?)
    }

    async fn prove_anew(&self, kept: Vec<u8>, anew: Vec<u8>) -> Result<()> {
        Ok(replicas::prove_anew(&*self.pool.lend().await?, &kept, &anew).await?)
    }

    fn incarnation(&self) -> Incarnation {
        self.shared.incarnation()
    }

    fn salt(&self) -> &[u8] {
        &self.shared.salt
    }

    fn latest(&self) -> Timestamp {
        self.shared.latest
    }
}
