//! Durable truth.
//!
//! [`Store`] speaks the verbs of the domain. One method is one transaction: it happens wholly or not at all, and
//! when it returns `Ok` it is on disk. `now` is always a parameter; no statement reads a clock. The store is the only
//! record: what the server holds in memory can be rebuilt from here at any instant.
//!
//! [`sqlite`] is the embedded store, [`postgres`] the one that many processes share. `conformance` (a feature of its own) is the contract, executable: every store must pass it.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod postgres;
pub mod sqlite;

pub mod coordination;
pub mod decided;
pub mod doctor;
pub mod rewind;

pub mod sabotage;

mod configuration;
mod folder;
mod group;
mod history;
mod job;
mod observe;
mod read;
mod rebuild;
mod replica;
mod room;
mod schema;
mod sweep;
mod window;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::event::Fingerprint;
use tidegate_core::id::{
    BackfillNo, DeliveryKey, DeliveryNo, GateNo, Incarnation, JobNo, MetricNo, ProjectNo, Seq, SubscriberNo,
    Version, WindowNo,
};
use tidegate_core::observe::state::ObjectRow;
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;

pub use configuration::{
    Change, Changed, Configuration, GateRow, KeyRow, NewKey, NewSecret, NewSubscriber, ProjectRow, Reseal,
    SealedRow, SecretKind, SubscriberRow, SubscriberUpdate, TypeRow, VerificationRow, VerificationUpdate,
};
pub use group::{
    Admission, BackfillStep, Bundled, Claim, ClosedWindow, Committed, Finished, Group, Judge, Judged, Refill,
    Refilled, Replay, RoutedUnit, Seal, Submission, UnitStatus,
};
pub use history::{ChangeFilter, ChangePlace, Changes, Told};
pub use job::{
    DeadLetter, JobRow, JobStatus, JobStep, NewJob, Past, Scan, Scope, Selector, StopOutcome, What,
};
pub use observe::{
    Advance, BackfillRow, Buckets, Flush, Mark, Metric, NewBackfill, Recount, Recounted, Recounter, Rollups,
    Search, Slice, TypeName, TypeVersion, ValueFilter,
};
pub use read::{
    AttemptRow, Backlog, DeliveryFilter, DeliveryRow, EventFilter, EventRow, Page, Picked, QuarantineFilter,
    QuarantineRow, RetryOutcome, StorePart, Stretch, Trace, TraceRule, Triggered,
};

pub use rebuild::{LastStep, Rebuild};
pub use replica::{Beat, Load, Replica, TakenOver, Vital};
pub use room::Room;
pub use sweep::{ENDED_GRACE, Sweep, Swept};
pub use window::{EndWindows, Ended, FoldRow, WindowFilter, WindowRow, WindowsEnd};

/// What can go wrong that the caller can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration moved on: read it again, route again, commit again. Nothing was written.
    #[error("routed by configuration {routed}, but the store is at {current}")]
    Stale {
        /// The version the group was routed by.
        routed: Version,
        /// The version in force.
        current: Version,
    },
    /// The thing to change is not there.
    #[error("not found")]
    NotFound,
    /// The change contradicts what is there; the text says how.
    #[error("{0}")]
    Conflict(String),
    /// The order can not change while deliveries or windows of the old one are unfinished, since those of the new could pass
    /// them.
    #[error(
        "deliveries or open windows of the old order are unfinished, and the new order could pass them: close the windows \
         with `POST /v1/windows/flush`, change `order.by` when all deliveries have ended, or delete this subscriber and \
         create another"
    )]
    Unfinished,
    /// There may not be more of this; the text says how many there are.
    #[error("{0}")]
    Quota(String),
    /// Another process took over what this one held: its claims are void. Forget them, then [`Store::join`] anew.
    #[error("another process has taken over what this one held")]
    Fenced,
    /// The store refused to open as it is; the text says why and what to do.
    #[error("{0}")]
    Unusable(String),
    /// The store failed; nothing was written, and it may work again later.
    #[error("the store failed: {0}")]
    Unavailable(String),
}

/// The result of asking the store.
pub type Result<T> = std::result::Result<T, Error>;

/// The store of record. See the module for what every method promises.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Everything that many requests, workers and timers want written, in one transaction.
    ///
    /// In this order: results of attempts, streaks, penalties, releases, what was asked for, folded deliveries that leave, windows
    /// whose time has come, backfill steps, job steps, new events with their deliveries, refills. A
    /// submission that fails on its own account is reported alone; its neighbours commit.
    async fn commit(&self, group: Arc<Group>) -> Result<Committed>;

    /// Changes the configuration. Its version grows, not always by one.
    async fn change(&self, change: Change, now: Timestamp) -> Result<Changed>;
    /// The configuration in force; of subscribers, declared types and gates only those that changed after `since`.
    /// [`Version::MAX`] asks for none of them.
    async fn configuration(&self, since: Version) -> Result<Configuration>;
    /// The version in force, for those who only want to know whether they are up to date.
    async fn version(&self) -> Result<Version> {
        Ok(self.configuration(Version::MAX).await?.version)
    }
    /// Whether the configuration in force came out of this one. It did not if the database went back in time since.
    async fn descends_from(&self, version: Version) -> Result<bool> {
        Ok(version <= self.version().await?)
    }
    /// Everything that is sealed with a master key, what was deleted aside.
    async fn sealed(&self) -> Result<Vec<SealedRow>>;
    /// Puts secrets that were sealed anew in the place of what they were made from. What changed meanwhile stays as it
    /// is. The secrets are the same as before, so the version does not move.
    async fn reseal(&self, anew: Vec<Reseal>) -> Result<()>;

    /// For each subscriber that has due or future work in the store, when the first of it is due.
    async fn due(&self) -> Result<Vec<(SubscriberNo, Timestamp)>>;
    /// Until when gates give nothing, or since when they do again; nothing where several processes coordinate that themselves.
    async fn penalties(&self) -> Result<Vec<(GateNo, Timestamp)>> {
        Ok(Vec::new())
    }
    /// Puts an unfinished or exhausted delivery at the head of the queue, with a fresh schedule.
    async fn retry(&self, project: ProjectNo, delivery: DeliveryNo, now: Timestamp) -> Result<RetryOutcome>;
    /// Makes a project's deliveries due that wait for a later try, up to a limit; those of inactive subscribers stay.
    async fn trigger(&self, project: ProjectNo, now: Timestamp) -> Result<Triggered>;
    /// Makes new deliveries of an event that was accepted before; says which, in the order of their routes. Refused as
    /// stale when the configuration they were routed by is no longer in force.
    async fn replay(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryKey>>;
    /// The next events a backfill has to look at, in order of acceptance, and the step that covers them. Few events,
    /// or none, are no sign of the end: the step's marks are.
    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>>;

    /// The windows of a project that gather, and on demand those that wait in their lanes, oldest first.
    async fn windows(&self, project: ProjectNo, filter: WindowFilter) -> Result<Page<WindowRow>>;
    /// Closes windows that gather, or ends them without a delivery, because somebody asked.
    async fn end_windows(&self, project: ProjectNo, ask: EndWindows, now: Timestamp) -> Result<Ended>;
    /// Everything that a folded delivery carries, unless its events have more bytes than that. Nothing if its window is
    /// still open or gone.
    async fn bundle(
        &self,
        window: WindowNo,
        carrier: DeliveryKey,
        bytes_max: usize,
    ) -> Result<Option<Bundled>>;
    /// How many windows gather in all projects, if that is known without much ado.
    async fn windows_open(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// When the next window closes by itself.
    async fn close_due(&self) -> Result<Option<Timestamp>>;

    /// Declared types as they were from each version after `since` on, oldest first.
    async fn type_versions(&self, since: Version) -> Result<Vec<TypeVersion>>;
    /// How far the events of this life, and of those that ended, have been observed.
    async fn marks(&self) -> Result<Vec<Mark>>;
    /// The events behind a mark: at most `limit` of them, and no further one after `bytes` bytes. All of them are there:
    /// none with a lower number will ever come.
    async fn unobserved(&self, of: Incarnation, after: Seq, limit: usize, bytes: usize) -> Result<Slice>;
    /// Adds what a slice of events says and moves the mark behind it. A conflict, and nothing else, when somebody else
    /// has moved it.
    async fn observe(&self, flush: Flush, now: Timestamp) -> Result<()>;
    /// Begins to count what was accepted before a type declared some of its metrics; a conflict when that was asked before.
    async fn start_backfill(&self, new: NewBackfill, now: Timestamp) -> Result<BackfillRow>;
    /// Backfills of a project's metrics, newest first.
    async fn backfills(
        &self,
        project: ProjectNo,
        before: Option<BackfillNo>,
        limit: usize,
    ) -> Result<Page<BackfillRow>>;
    /// Those of all projects that are running, newest first.
    async fn backfills_running(&self) -> Result<Vec<BackfillRow>>;
    /// The next events that a backfill looks at, bounded like a slice behind a mark.
    async fn unbackfilled(&self, of: BackfillRow, limit: usize, bytes: usize) -> Result<Slice>;
    /// Ends a backfill that counts states anew: counts the events that it has not looked at, and lets the types declare
    /// what it made, which moves the version by one. Says no, and does nothing, when too many events are left, or `last`
    /// can not tell what they add; a conflict when somebody else has moved it.
    async fn finish_rebuild(&self, of: BackfillRow, last: LastStep, now: Timestamp) -> Result<bool>;
    /// Ends a running rebuild where it is: what it made goes, the old numbers stay. A conflict if it is none.
    async fn stop_backfill(&self, project: ProjectNo, no: BackfillNo, now: Timestamp) -> Result<BackfillRow>;
    /// Everything that any process accepted before this time has been observed.
    async fn observed_until(&self, now: Timestamp) -> Result<Timestamp>;
    /// Ends the mark of a life that has ended and of which everything is observed.
    async fn end_mark(&self, _mark: Mark) -> Result<()> {
        Ok(())
    }
    /// Hands every observed event of a type to somebody who counts again, and says what was counted; all as of one instant.
    async fn recount(&self, of: Recount, recounter: Box<dyn Recounter>) -> Result<Recounted>;
    /// Events of a type that happened, or were accepted, later than this are all still there; absent: all that ever came.
    async fn kept_since(&self, of: TypeName) -> Result<Option<Timestamp>>;
    /// What a metric has counted in these buckets.
    async fn rollups(&self, metric: MetricNo, buckets: Vec<Buckets>) -> Result<Rollups>;

    /// What a selector means at this instant.
    async fn scope(&self, project: ProjectNo, selector: Selector, now: Timestamp) -> Result<Scope>;
    /// What lies behind `after` in a scope, `limit` of it at most, where a fold counts as one and brings all its events.
    /// Little, or nothing, is no sign of the end: the mark is.
    async fn scan(&self, scope: Scope, after: i64, limit: usize) -> Result<Scan>;
    /// Begins a job; a conflict when too many of the project's are running.
    async fn start_job(&self, job: NewJob, now: Timestamp) -> Result<JobRow>;
    /// Ends a running job where it is.
    async fn stop_job(&self, project: ProjectNo, id: String, now: Timestamp) -> Result<StopOutcome>;
    /// A job of a project.
    async fn job(&self, project: ProjectNo, id: String) -> Result<Option<JobRow>>;
    /// A job, whosever it is.
    async fn job_by_no(&self, job: JobNo) -> Result<Option<JobRow>>;
    /// Jobs of a project, newest first, those before `before`.
    async fn jobs(&self, project: ProjectNo, before: Option<JobNo>, limit: usize) -> Result<Page<JobRow>>;
    /// All that are running, oldest first.
    async fn jobs_running(&self) -> Result<Vec<JobNo>>;

    /// One step of a round of retention, looking at `limit` rows at most: what has been kept long enough expires or goes.
    /// Nothing is removed that a delivery which may still be sent needs, no event that has not been observed while there
    /// is any metric, and no number is ever used again. `now` may be earlier than that of other calls.
    async fn sweep(&self, terms: Retention, sweep: Sweep, limit: usize, now: Timestamp) -> Result<Swept>;
    /// For how long nothing may be swept yet, because a clock jumped: as it was set last, over restarts. Sets it if it is given.
    async fn sweep_wait(&self, set: Option<Duration>) -> Result<Duration>;

    /// Events, newest first.
    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>>;
    /// Events by the values of their indexed attributes, newest first. Looks at a bounded number of them: a page may have
    /// few, or none, and still be followed by others.
    async fn search(&self, project: ProjectNo, search: Search) -> Result<Page<EventRow>>;
    /// Values of an indexed attribute in order, and how many events have each.
    async fn values(&self, filter: ValueFilter) -> Result<Vec<(Vec<u8>, u64)>>;
    /// What is known of an object in each of these states in which it was seen, in order of the states.
    async fn object(&self, states: Vec<MetricNo>, id: String) -> Result<Vec<(MetricNo, Told<ObjectRow>)>>;
    /// What happened to objects. Looks through a bounded number of changes: a page may have few, or none, and still be
    /// followed by others.
    async fn changes(&self, filter: ChangeFilter) -> Result<Changes>;
    /// The number of the newest event: whatever is accepted from now on has a higher one.
    async fn newest(&self) -> Result<Seq>;
    /// The events after a mark, oldest first: at most `limit` of them, and no further one after `bytes` bytes. Passes
    /// over a bounded number of rows, and never over a number under which an event may still be accepted.
    async fn events_after(
        &self,
        project: ProjectNo,
        after: Seq,
        limit: usize,
        bytes: usize,
    ) -> Result<Stretch>;
    /// The events with this id: one, or one per source.
    async fn event(&self, project: ProjectNo, id: String) -> Result<Vec<EventRow>>;
    /// What became of an event, and the rules it was judged by.
    async fn trace(&self, project: ProjectNo, event: Seq) -> Result<Trace>;
    /// Deliveries, newest first.
    async fn deliveries(&self, project: ProjectNo, filter: DeliveryFilter) -> Result<Page<DeliveryRow>>;
    /// One delivery with its attempts.
    async fn delivery(
        &self,
        project: ProjectNo,
        delivery: DeliveryNo,
    ) -> Result<Option<(DeliveryRow, Vec<AttemptRow>)>>;
    /// Those of these deliveries that are the project's and still kept, in order of their numbers.
    async fn deliveries_among(
        &self,
        project: ProjectNo,
        numbers: Vec<DeliveryNo>,
    ) -> Result<Vec<DeliveryRow>>;
    /// How many deliveries are exhausted; counts no further than `at_most`.
    async fn dead_letters(&self, at_most: u64) -> Result<u64>;
    /// Quarantined units, newest first. Their events are not read.
    async fn quarantine(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Page<QuarantineRow>>;
    /// Quarantined units with their events, oldest first, for release: as many as the filter's limit and
    /// `REQUEST_BYTES_MAX` allow, but at least one.
    async fn pick(&self, project: ProjectNo, filter: QuarantineFilter) -> Result<Picked>;
    /// Takes quarantined units away for good, oldest first, as many as the filter's limit allows.
    async fn discard(&self, project: ProjectNo, filter: QuarantineFilter, now: Timestamp) -> Result<Picked>;
    /// How much waits, for metrics.
    async fn backlog(&self) -> Result<Backlog>;
    /// How much waits for each subscriber that is not deleted, for metrics.
    async fn backlogs(&self) -> Result<Vec<(SubscriberNo, Backlog)>>;
    /// How large the store is, part by part.
    async fn sizes(&self) -> Result<Vec<StorePart>>;

    /// Whether other processes may share it. What follows is only of use then; a store of one process keeps to itself.
    fn is_shared(&self) -> bool {
        false
    }
    /// Tells the others that this process lives, and hears who else does.
    async fn beat(&self, _load: Load) -> Result<Beat> {
        Ok(Beat {
            now: None,
            incarnation: self.incarnation(),
            replicas: Vec::new(),
            expired: Vec::new(),
            version: None,
            weakness: None,
        })
    }
    /// Voids what an expired process held: those requests may have arrived, so they are due again under the same id.
    /// Nothing happens if it beats again, or somebody else was quicker.
    async fn take_over(&self, _expired: Incarnation, _now: Timestamp) -> Result<TakenOver> {
        Ok(TakenOver::default())
    }
    /// Begins a new life: after [`Error::Fenced`], when nothing of the old one is in memory any more.
    async fn join(&self, _now: Timestamp) -> Result<Incarnation> {
        Ok(self.incarnation())
    }
    /// How often the database was found to have gone back in time.
    fn rewinds(&self) -> u64 {
        0
    }
    /// Ends this life in good order: whatever it still holds is void at once, and nobody waits for its next beat.
    async fn leave(&self, _now: Timestamp) -> Result<()> {
        Ok(())
    }
    /// Whether any process has delivered something to a subscriber after `since`.
    async fn has_delivered(&self, _subscriber: SubscriberNo, _since: Timestamp) -> Result<bool> {
        Ok(false)
    }
    /// Keeps a sealed text, if there is none yet, and says which is kept: whoever can not open it has another master key.
    async fn proof(&self, sealed: Vec<u8>) -> Result<Vec<u8>> {
        Ok(sealed)
    }

    /// Puts another sealed text in the place of the one that is kept, if it is still that one.
    async fn prove_anew(&self, _kept: Vec<u8>, _anew: Vec<u8>) -> Result<()> {
        Ok(())
    }
    /// How the store itself is doing: names and numbers for metrics. Cheap, but not to be asked all the time.
    async fn health(&self) -> Result<Vec<Vital>> {
        Ok(Vec::new())
    }

    /// Another limit on the windows of a project that can be joined, for tests that can not open so many.
    #[cfg(feature = "conformance")]
    fn limit_windows(&self, _of_a_project: usize) {}

    /// This process's life; its claims carry it.
    fn incarnation(&self) -> Incarnation;
    /// The installation's secret salt for public ids.
    fn salt(&self) -> &[u8];
    /// The latest instant the store has seen: a clock must not start before it.
    fn latest(&self) -> Timestamp;
}

/// A fingerprint as the store keeps it.
pub(crate) fn fingerprint_from(bytes: &[u8]) -> Option<Fingerprint> {
    bytes.try_into().ok()
}
