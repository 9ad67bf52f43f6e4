//! What the store tells about events and deliveries.

use bytes::Bytes;
use tidegate_core::attempt::Attempt;
use tidegate_core::catalog::Reason;
use tidegate_core::delivery::Status;
use tidegate_core::event::{Event, Unit};
use tidegate_core::id::{DeliveryKey, DeliveryNo, Lane, Nonce, QuarantineNo, Seq, SubscriberNo, Version};
use tidegate_core::observe::Sighting;
use tidegate_core::time::Timestamp;

use crate::FoldRow;

/// A part of a list, and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// In order.
    pub items: Vec<T>,
    /// Pass it as `before` to go on; absent at the end.
    pub next: Option<i64>,
}

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Exactly this source.
    pub source: Option<String>,
    /// Exactly this type.
    pub type_name: Option<String>,
    /// Exactly this subject.
    pub subject: Option<String>,
    /// The event's own time, from here.
    pub from: Option<Timestamp>,
    /// The event's own time, before here.
    pub to: Option<Timestamp>,
    /// Accepted before this one.
    pub before: Option<Seq>,
    /// How many at most.
    pub limit: usize,
}

impl EventFilter {
    /// Whether an event is what it asks for, its number aside.
    pub(crate) fn admits(&self, event: &EventRow) -> bool {
        let is =
            |wanted: &Option<String>, found: Option<&str>| wanted.as_deref().is_none_or(|w| found == Some(w));
        is(&self.source, Some(&event.source))
            && is(&self.type_name, Some(&event.type_name))
            && is(&self.subject, event.subject.as_deref())
            && self.from.is_none_or(|from| event.time >= from)
            && self.to.is_none_or(|to| event.time < to)
    }
}

/// An event as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Order of acceptance.
    pub seq: Seq,
    /// The configuration it was routed by.
    pub version: Version,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When it happened.
    pub time: Timestamp,
    /// Its id.
    pub id: String,
    /// Its source.
    pub source: String,
    /// Its type.
    pub type_name: String,
    /// Its subject.
    pub subject: Option<String>,
    /// The event as JSON, byte for byte as it is delivered.
    pub body: Bytes,
}

impl EventRow {
    /// As those see it who count.
    pub fn sighting(&self) -> Sighting<'_> {
        Sighting {
            seq: self.seq,
            time: self.time,
            id: &self.id,
            source: &self.source,
            type_name: &self.type_name,
            subject: self.subject.as_deref(),
            body: &self.body,
        }
    }
}

/// The events of a project that follow a mark, in order of acceptance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Oldest first.
    pub events: Vec<EventRow>,
    /// How far it reaches: the mark to go on from.
    pub through: Seq,
    /// There was nothing beyond it.
    pub is_end: bool,
}

impl EventRow {
    /// The event itself, to be judged.
    pub fn into_event(self) -> Event {
        Event {
            id: self.id,
            source: self.source,
            type_name: self.type_name,
            subject: self.subject,
            time: self.time,
            body: self.body,
        }
    }
}

/// Which deliveries.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    /// Only with this status.
    pub status: Option<Status>,
    /// Those as well that a process has in hand: only that process knows which of them it sends.
    pub in_hand: bool,
    /// Only for this subscriber.
    pub subscriber: Option<SubscriberNo>,
    /// Created before this one.
    pub before: Option<DeliveryNo>,
    /// How many at most.
    pub limit: usize,
}

/// A delivery as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRow {
    /// Inside.
    pub no: DeliveryNo,
    /// Its random part.
    pub nonce: Nonce,
    /// For whom, inside.
    pub subscriber: SubscriberNo,
    /// For whom, outside.
    pub subscriber_id: String,
    /// Where it stands.
    pub status: Status,
    /// Attempts with a result.
    pub attempts: u32,
    /// When it is, or was, due.
    pub due_at: Timestamp,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Why it ended undelivered.
    pub reason: Option<String>,
    /// Its lane.
    pub lane: Option<Lane>,
    /// The one of its lane that goes first, if it waits for that; told where one delivery or event is looked at.
    pub behind: Option<DeliveryKey>,
    /// Somebody asked for it to be sent again.
    pub replay: bool,
    /// It stepped aside for others of its lane.
    pub out_of_order: bool,
    /// The window it was, if it is a fold.
    pub fold: Option<FoldRow>,
    /// The ids of the events it carries, in order; without those that are no longer kept, and wherever there are many
    /// deliveries of no more than `DELIVERY_EVENTS_LISTED_MAX`: those that joined last.
    pub events: Vec<String>,
}

impl DeliveryRow {
    /// This delivery, and no other.
    pub fn key(&self) -> DeliveryKey {
        DeliveryKey { no: self.no, nonce: self.nonce }
    }

    /// Its lane, if it may have to wait for others there.
    pub(crate) fn waiting_lane(&self) -> Option<Lane> {
        self.lane.filter(|_| matches!(self.status, Status::Pending | Status::Retrying))
    }
}

/// An attempt as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    /// From 1.
    pub n: u32,
    /// What happened.
    pub attempt: Attempt,
}

/// What a trigger did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Triggered {
    /// How many deliveries became due.
    pub deliveries: usize,
    /// Whose.
    pub subscribers: Vec<SubscriberNo>,
    /// There were no more of them than one trigger takes.
    pub is_complete: bool,
}

/// Which quarantined units.
#[derive(Clone, Debug, Default)]
pub struct QuarantineFilter {
    /// With one of these ids; none means any.
    pub ids: Vec<String>,
    /// From this source.
    pub source: Option<String>,
    /// Of this type.
    pub type_name: Option<String>,
    /// For this reason.
    pub reason: Option<Reason>,
    /// Beyond this one, in the order of the list.
    pub beyond: Option<QuarantineNo>,
    /// How many at most.
    pub limit: usize,
}

/// A quarantined unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineRow {
    /// Order of arrival.
    pub no: QuarantineNo,
    /// The id of its event.
    pub id: String,
    /// Its source.
    pub source: String,
    /// Its type.
    pub type_name: String,
    /// Why it is here.
    pub reason: Reason,
    /// The same for people.
    pub detail: String,
    /// Since when.
    pub at: Timestamp,
    /// Its events, where they were asked for.
    pub unit: Option<Unit>,
}

/// Quarantined units that something is done with, and what it leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picked {
    /// Oldest first.
    pub units: Vec<QuarantineRow>,
    /// Units that the filter asks for beyond these, as far as was looked.
    pub remaining: u64,
    /// Pass it as `beyond` to go on; absent at the end.
    pub next: Option<QuarantineNo>,
}

/// What a manual retry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOutcome {
    /// It is due now.
    Due {
        /// For whom.
        subscriber: SubscriberNo,
    },
    /// It is due as soon as it is its turn in its lane: older ones, an attempt under way and a backfill go first.
    Queued,
    /// It is finished, or in flight right now, or its subscriber is gone: nothing changed.
    Refused(Status),
    /// There is no such delivery.
    NotFound,
}

/// What became of an event.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its deliveries, oldest first.
    pub deliveries: Vec<DeliveryRow>,
    /// The windows it joined.
    pub windows: Vec<FoldRow>,
    /// For every subscriber of the project, what it wanted when the event was accepted.
    pub rules: Vec<TraceRule>,
}

/// What a subscriber wanted when an event was accepted.
#[derive(Clone, Debug)]
pub struct TraceRule {
    /// Who.
    pub subscriber: SubscriberNo,
    /// Its public id.
    pub subscriber_id: String,
    /// The definition in force; absent when the subscriber did not exist yet.
    pub definition: Option<String>,
    /// A backfill of the subscriber is under way and has not come to the event yet.
    pub is_behind: bool,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Due now or later, of active subscribers, those waiting in a lane included.
    pub waiting: u64,
    /// Of inactive subscribers.
    pub held: u64,
    /// Every attempt failed.
    pub exhausted: u64,
}

impl Backlog {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            held: self.held + other.held,
            exhausted: self.exhausted + other.exhausted,
        }
    }
}

/// A part of the store on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePart {
    /// What it is, for example `database`.
    pub name: &'static str,
    /// How large it is.
    pub bytes: u64,
}
