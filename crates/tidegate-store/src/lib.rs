//! Durable truth.
//!
//! [`Store`] speaks the verbs of the domain. One method is one transaction: it happens wholly or not at all, and
//! when it returns `Ok` it is on disk. `now` is always a parameter; no statement reads a clock. The store is the only
//! record: what the server holds in memory can be rebuilt from here at any instant.
//!
//! [`sqlite`] is the embedded store. `conformance` (a feature of its own) is the contract, executable: every store must pass it.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod sqlite;

mod configuration;
mod folder;
mod group;
mod read;

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::event::Fingerprint;
use tidegate_core::id::{DeliveryNo, Incarnation, ProjectNo, Seq, SubscriberNo, Version};
use tidegate_core::time::Timestamp;

pub use configuration::{
    Change, Changed, Configuration, KeyRow, NewKey, NewSecret, NewSubscriber, ProjectRow, Reseal, SealedRow,
    SecretKind, SubscriberRow, SubscriberUpdate,
};
pub use group::{
    BackfillStep, Claim, Committed, Finished, Group, Refill, Refilled, Room, RoutedUnit, Submission,
    UnitStatus,
};
pub use read::{
    AttemptRow, Backlog, DeliveryFilter, DeliveryRow, EventFilter, EventRow, Page, RetryOutcome, StorePart,
    Stretch, Trace, TraceRule,
};

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
    /// In this order: results of attempts, streaks, releases, what was asked for, backfill steps, new events with their deliveries, refills. A
    /// submission that fails on its own account is reported alone; its neighbours commit.
    async fn commit(&self, group: Arc<Group>) -> Result<Committed>;

    /// Changes the configuration and moves its version by one.
    async fn change(&self, change: Change, now: Timestamp) -> Result<Changed>;
    /// The configuration in force; of subscribers only those that changed after `since`.
    async fn configuration(&self, since: Version) -> Result<Configuration>;
    /// Everything that is sealed with a master key, what was deleted aside.
    async fn sealed(&self) -> Result<Vec<SealedRow>>;
    /// Puts secrets that were sealed anew in the place of what they were made from. What changed meanwhile stays as it
    /// is. The secrets are the same as before, so the version does not move.
    async fn reseal(&self, anew: Vec<Reseal>) -> Result<()>;

    /// For each subscriber that has due or future work in the store, when the first of it is due.
    async fn due(&self) -> Result<Vec<(SubscriberNo, Timestamp)>>;
    /// Puts an unfinished or exhausted delivery at the head of the queue, with a fresh schedule.
    async fn retry(&self, project: ProjectNo, delivery: DeliveryNo, now: Timestamp) -> Result<RetryOutcome>;
    /// The next events a backfill has to look at, in order of acceptance, and the step that covers them. Few events,
    /// or none, are no sign of the end: the step's marks are.
    async fn backfill(
        &self,
        subscriber: SubscriberNo,
        limit: usize,
    ) -> Result<Option<(BackfillStep, Vec<EventRow>)>>;

    /// Events, newest first.
    async fn events(&self, project: ProjectNo, filter: EventFilter) -> Result<Page<EventRow>>;
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
    /// How much waits, for metrics.
    async fn backlog(&self) -> Result<Backlog>;
    /// How much waits for each subscriber that is not deleted, for metrics.
    async fn backlogs(&self) -> Result<Vec<(SubscriberNo, Backlog)>>;
    /// How large the store is, part by part.
    async fn sizes(&self) -> Result<Vec<StorePart>>;

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
