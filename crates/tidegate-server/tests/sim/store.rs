//! The real store behind a thin wrapper: it is slow or away at times, the process may die before and after every call,
//! and whatever really was committed is noted.
//!
//! It also speaks for the dead: results of attempts that a former life had claimed turn up again later, as they would
//! from a process that was only believed to be gone. The store must refuse every one of them.

mod faults;
mod ghosts;
mod observe;
pub(crate) mod restless;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::attempt::{Attempt, Phases};
use tidegate_core::id::{
    BackfillNo, DeliveryKey, DeliveryNo, GateNo, Incarnation, JobNo, MetricNo, ProjectNo, Seq, SubscriberNo,
    Version, WindowNo,
};
use tidegate_core::observe::state::ObjectRow;
use tidegate_core::retention::Retention;
use tidegate_core::retry::Next;
use tidegate_core::schedule::Bounds;
use tidegate_core::time::Timestamp;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{
    AttemptRow, BackfillRow, BackfillStep, Backlog, Beat, Buckets, Bundled, Change, ChangeFilter, Changed,
    Changes, Claim, Committed, Configuration, DeliveryFilter, DeliveryRow, EndWindows, Ended, Error,
    EventFilter, EventRow, Finished, Flush, Group, JobRow, JobStep, LastStep, Load, Mark, NewBackfill,
    NewJob, Page, Picked, QuarantineFilter, QuarantineRow, Recount, Recounted, Recounter, Replay, Reseal,
    Result, RetryOutcome, Rollups, Scan, Scope, SealedRow, Search, Selector, Slice, StopOutcome, Store,
    StorePart, Stretch, Sweep, Swept, TakenOver, Told, Trace, Triggered, TypeName, TypeVersion, ValueFilter,
    WindowFilter, WindowRow,
};

use super::counts::{self, Flushes};
use super::crowd::Membership;
use super::dice::Dice;
use super::history::{Claimed, Histories, History, JobTruth, Truth};
use super::life::Life;
use super::notes::{note_result, note_steps};
use super::plan::{END_T, Plan};
use super::{arrivals, catalog, consent, endings, far, gates, windows};
use restless::Restless;

/// Commits in one instant that are still no accident.
const SPINS_MAX: u32 = 1_000;

/// The store as the product sees it.
pub(crate) struct FaultyStore {
    pub(crate) inner: Arc<SqliteStore>,
    /// Others share it.
    pub(crate) membership: Option<Membership>,
    pub(crate) life: Arc<Life>,
    pub(crate) history: Histories,
    pub(crate) dice: Mutex<Dice>,
    pub(crate) bounds: Bounds,
    /// Claims that died with a former life and are still spoken for.
    pub(crate) zombies: Mutex<Vec<(DeliveryNo, Claimed)>>,
    /// Steps of backfills and jobs that were taken, to be taken again.
    pub(crate) steps: Mutex<(Vec<BackfillStep>, Vec<JobStep>)>,
    pub(crate) flushes: Flushes,
    /// How many windows a project may have, where those are few.
    pub(crate) windows_max: Option<usize>,
    pub(crate) restless: Restless,
    /// It breaks down at bad moments.
    pub(crate) is_fragile: bool,
    /// Calls take a while.
    pub(crate) is_slow: bool,
}

#[async_trait]
impl Store for FaultyStore {
    async fn commit(&self, group: Arc<Group>) -> Result<Committed> {
        self.enter().await.inspect_err(|_| self.life.note_commit(false))?;
        let group = self.haunt(self.repeat(group));
        self.stir(&group).await;
        let result = match &self.membership {
            Some(membership) => membership.commit(Arc::clone(&group)).await,
            None => self.inner.commit(Arc::clone(&group)).await,
        };
        self.note_outcome(&group, &result).await;
        self.exit().await;
        result
    }

    async fn change(&self, change: Change, now: Timestamp) -> Result<Changed> {
        self.enter().await?;
        if let Some(membership) = &self.membership {
            membership.step_over().await?;
        }
        let result = self.inner.change(change.clone(), now).await;
        if let Ok(changed) = &result {
            self.note_change(&change, *changed);
            counts::note_change(&self.inner, &self.history, &change).await;
        }
        self.exit().await;
        result
    }

    async fn configuration(&self, since: Version) -> Result<Configuration> {
        self.enter().await?;
        let result = match &self.membership {
            Some(membership) => membership.configuration(since).await,
            None => self.inner.configuration(since).await,
        };
        self.break_down();
        self.exit().await;
        result
    }

    async fn sealed(&self) -> Result<Vec<SealedRow>> {
        self.inner.sealed().await
    }

    async fn reseal(&self, anew: Vec<Reseal>) -> Result<()> {
        self.inner.reseal(anew).await
    }

    async fn due(&self) -> Result<Vec<(SubscriberNo, Timestamp)>> {
        self.enter().await?;
        self.inner.due().await
    }

    async fn penalties(&self) -> Result<Vec<(GateNo, Timestamp)>> {
        self.enter().await?;
        self.inner.penalties().await
    }

    async fn retry(&self, project: ProjectNo, delivery: DeliveryNo, now: Timestamp) -> Result<RetryOutcome> {
        self.enter().await?;
        let result = self.inner.retry(project, delivery, now).await;
        if let Ok(RetryOutcome::Due { .. } | RetryOutcome::Queued) = &result {
            let t = self.life.t();
            let mut history = self.history.lock();
            history.retries.push((t, delivery));
            history.line(t, format_args!("{delivery} is retried by hand: {result:?}"));
            history.reach(match &result {
                Ok(RetryOutcome::Queued) => "a retry by hand queued",
                _ => "a retry by hand",
            });
        }
        self.exit().await;
        result
    }

    async fn trigger(&self, project: ProjectNo, now: Timestamp) -> Result<Triggered> {
        self.enter().await?;
        self.inner.trigger(project, now).await
    }

    async fn windows(&self, project: ProjectNo, filter: WindowFilter) -> Result<Page<WindowRow>> {
        self.enter().await?;
        self.inner.windows(project, filter).await
    }

    async fn end_windows(&self, project: ProjectNo, ask: EndWindows, now: Timestamp) -> Result<Ended> {
        self.enter().await?;
        let result = endings::end(&self.inner, (&self.history, self.life.t()), project, ask, now).await;
        self.exit().await;
        result
    }

    async fn bundle(
        &self,
        window: WindowNo,
        carrier: DeliveryKey,
        bytes_max: usize,
    ) -> Result<Option<Bundled>> {
        self.enter().await?;
        self.inner.bundle(window, carrier, bytes_max).await
    }

    async fn close_due(&self) -> Result<Option<Timestamp>> {
        self.enter().await?;
        self.inner.close_due().await
    }

    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryKey>> {
        self.enter().await?;
        let result = self.replay_noted(replay, now).await;
        self.exit().await;
        result
    }

    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>> {
        self.enter().await?;
        // A step may be of any size; small ones leave room for something to happen between two of them.
        let limit = limit.min(1 + self.lock_dice().below(6));
        let result = self.inner.backfill(subscriber, limit).await;
        self.exit().await;
        result
    }

    // Where nothing is counted these two are all that is asked, and chance has no part in them.
    async fn version(&self) -> Result<Version> {
        self.inner.version().await
    }

    async fn descends_from(&self, version: Version) -> Result<bool> {
        let is_lost = self.membership.as_ref().is_some_and(|membership| membership.is_lost(version));
        Ok(!is_lost && version <= self.inner.version().await?)
    }

    async fn type_versions(&self, since: Version) -> Result<Vec<TypeVersion>> {
        self.inner.type_versions(since).await
    }

    async fn marks(&self) -> Result<Vec<Mark>> {
        self.enter().await?;
        self.inner.marks().await
    }

    async fn unobserved(&self, of: Incarnation, after: Seq, limit: usize, bytes: usize) -> Result<Slice> {
        self.enter().await?;
        // A slice may be of any size; small ones leave room for something to happen between two of them.
        let limit = limit.min(1 + self.lock_dice().below(6));
        self.inner.unobserved(of, after, limit, bytes).await
    }

    async fn observe(&self, flush: Flush, now: Timestamp) -> Result<()> {
        self.enter().await?;
        let mut result = self.inner.observe(flush.clone(), now).await;
        if result.is_ok() {
            self.note_step(&flush);
            let flush = (flush, now, self.life.t());
            result = self.flushes.written(&self.inner, &self.history, flush).await;
        }
        self.exit().await;
        result
    }

    async fn start_backfill(&self, new: NewBackfill, now: Timestamp) -> Result<BackfillRow> {
        self.enter().await?;
        let result = self.inner.start_backfill(new, now).await;
        if let Ok(row) = &result {
            self.note_past(row);
        }
        self.exit().await;
        result
    }

    async fn backfills(
        &self,
        project: ProjectNo,
        before: Option<BackfillNo>,
        limit: usize,
    ) -> Result<Page<BackfillRow>> {
        self.inner.backfills(project, before, limit).await
    }

    async fn backfills_running(&self) -> Result<Vec<BackfillRow>> {
        self.enter().await?;
        self.inner.backfills_running().await
    }

    async fn unbackfilled(&self, of: BackfillRow, limit: usize, bytes: usize) -> Result<Slice> {
        self.enter().await?;
        let limit = limit.min(1 + self.lock_dice().below(6));
        let result = self.inner.unbackfilled(of.clone(), limit, bytes).await;
        if let Ok(slice) = &result {
            self.note_next(&of, slice);
        }
        result
    }

    async fn finish_rebuild(&self, of: BackfillRow, last: LastStep, now: Timestamp) -> Result<bool> {
        self.enter().await?;
        let result = self.finish_past(of, last, now).await;
        self.exit().await;
        result
    }

    async fn stop_backfill(&self, project: ProjectNo, no: BackfillNo, now: Timestamp) -> Result<BackfillRow> {
        self.inner.stop_backfill(project, no, now).await
    }

    async fn observed_until(&self, now: Timestamp) -> Result<Timestamp> {
        self.inner.observed_until(now).await
    }

    async fn kept_since(&self, of: TypeName) -> Result<Option<Timestamp>> {
        self.inner.kept_since(of).await
    }

    async fn recount(&self, of: Recount, recounter: Box<dyn Recounter>) -> Result<Recounted> {
        self.inner.recount(of, recounter).await
    }

    async fn rollups(&self, metric: MetricNo, buckets: Vec<Buckets>) -> Result<Rollups> {
        self.inner.rollups(metric, buckets).await
    }

    async fn search(&self, project: ProjectNo, search: Search) -> Result<Page<EventRow>> {
        self.inner.search(project, search).await
    }

    async fn values(&self, filter: ValueFilter) -> Result<Vec<(Vec<u8>, u64)>> {
        self.inner.values(filter).await
    }

    async fn object(&self, states: Vec<MetricNo>, id: String) -> Result<Vec<(MetricNo, Told<ObjectRow>)>> {
        self.inner.object(states, id).await
    }

    async fn changes(&self, filter: ChangeFilter) -> Result<Changes> {
        self.inner.changes(filter).await
    }

    async fn scope(&self, project: ProjectNo, selector: Selector, now: Timestamp) -> Result<Scope> {
        self.enter().await?;
        self.inner.scope(project, selector, now).await
    }

    async fn scan(&self, scope: Scope, after: i64, limit: usize) -> Result<Scan> {
        self.enter().await?;
        let limit = limit.min(1 + self.lock_dice().below(6));
        let result = self.inner.scan(scope, after, limit).await;
        self.exit().await;
        result
    }

    async fn start_job(&self, job: NewJob, now: Timestamp) -> Result<JobRow> {
        self.enter().await?;
        let result = self.inner.start_job(job, now).await;
        if let Ok(row) = &result {
            let t = self.life.t();
            let mut history = self.history.lock();
            history.line(t, format_args!("job {} begins: {:?}", row.no, row.scope));
            let (scope, mark, version) = (row.scope.clone(), row.after, history.version);
            let truth = JobTruth { scope, mark, versions: (version, version), covered: Vec::new() };
            history.jobs.insert(row.no, truth);
        }
        self.exit().await;
        result
    }

    async fn stop_job(&self, project: ProjectNo, id: String, now: Timestamp) -> Result<StopOutcome> {
        self.enter().await?;
        self.inner.stop_job(project, id, now).await
    }

    async fn job(&self, project: ProjectNo, id: String) -> Result<Option<JobRow>> {
        self.inner.job(project, id).await
    }

    async fn job_by_no(&self, job: JobNo) -> Result<Option<JobRow>> {
        self.enter().await?;
        self.inner.job_by_no(job).await
    }

    async fn jobs(&self, project: ProjectNo, before: Option<JobNo>, limit: usize) -> Result<Page<JobRow>> {
        self.inner.jobs(project, before, limit).await
    }

    async fn jobs_running(&self) -> Result<Vec<JobNo>> {
        self.enter().await?;
        self.inner.jobs_running().await
    }

    async fn sweep(&self, terms: Retention, sweep: Sweep, limit: usize, now: Timestamp) -> Result<Swept> {
        self.enter().await?;
        let limit = limit.min(1 + self.lock_dice().below(20));
        let result = self.inner.sweep(terms, sweep, limit, now).await;
        if let Ok(swept) = &result {
            self.note_sweep(swept, now);
        }
        self.exit().await;
        result
    }

    async fn sweep_wait(&self, set: Option<Duration>) -> Result<Duration> {
        self.inner.sweep_wait(set).await
    }

    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>> {
        self.inner.events(project, filter).await
    }

    async fn newest(&self) -> Result<Seq> {
        self.inner.newest().await
    }

    async fn events_after(
        &self,
        project: ProjectNo,
        after: Seq,
        limit: usize,
        bytes: usize,
    ) -> Result<Stretch> {
        self.inner.events_after(project, after, limit, bytes).await
    }

    async fn event(&self, project: ProjectNo, id: String) -> Result<Vec<EventRow>> {
        self.inner.event(project, id).await
    }

    async fn trace(&self, project: ProjectNo, event: Seq) -> Result<Trace> {
        self.inner.trace(project, event).await
    }

    async fn deliveries(&self, project: ProjectNo, filter: DeliveryFilter) -> Result<Page<DeliveryRow>> {
        self.inner.deliveries(project, filter).await
    }

    async fn delivery(
        &self,
        project: ProjectNo,
        delivery: DeliveryNo,
    ) -> Result<Option<(DeliveryRow, Vec<AttemptRow>)>> {
        self.inner.delivery(project, delivery).await
    }

    async fn deliveries_among(
        &self,
        project: ProjectNo,
        numbers: Vec<DeliveryNo>,
    ) -> Result<Vec<DeliveryRow>> {
        self.inner.deliveries_among(project, numbers).await
    }

    async fn dead_letters(&self, at_most: u64) -> Result<u64> {
        self.inner.dead_letters(at_most).await
    }

    async fn quarantine(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Page<QuarantineRow>> {
        self.inner.quarantine(project, filter).await
    }

    async fn pick(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Picked> {
        self.inner.pick(project, filter).await
    }

    async fn discard(&self, project: ProjectNo, filter: QuarantineFilter, now: Timestamp) -> Result<Picked> {
        self.enter().await?;
        self.inner.discard(project, filter, now).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.backlog().await
    }

    async fn backlogs(&self) -> Result<Vec<(SubscriberNo, Backlog)>> {
        self.inner.backlogs().await
    }

    async fn sizes(&self) -> Result<Vec<StorePart>> {
        self.inner.sizes().await
    }

    fn is_shared(&self) -> bool {
        self.membership.is_some()
    }

    async fn beat(&self, load: Load) -> Result<Beat> {
        self.enter().await?;
        let result = self.member().beat(load).await;
        self.exit().await;
        result
    }

    async fn take_over(&self, expired: Incarnation, now: Timestamp) -> Result<TakenOver> {
        self.enter().await?;
        let result = self.member().take_over(expired, now).await;
        self.exit().await;
        result
    }

    async fn join(&self, now: Timestamp) -> Result<Incarnation> {
        self.enter().await?;
        self.member().join(now).await
    }

    fn rewinds(&self) -> u64 {
        self.membership.as_ref().map_or(0, Membership::rewinds)
    }

    async fn leave(&self, now: Timestamp) -> Result<()> {
        self.enter().await?;
        self.member().leave(now).await
    }

    fn incarnation(&self) -> Incarnation {
        self.membership.as_ref().map_or_else(|| self.inner.incarnation(), Membership::incarnation)
    }

    fn salt(&self) -> &[u8] {
        self.inner.salt()
    }

    fn latest(&self) -> Timestamp {
        self.membership.as_ref().map_or_else(|| self.inner.latest(), Membership::latest)
    }
}
