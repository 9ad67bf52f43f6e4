//! Retention as the store does it: in rounds of short steps.

use tidegate_core::id::{DeliveryNo, ProjectNo, Seq, SubscriberNo};
use tidegate_core::time::Timestamp;

/// Where a round of retention is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Exhausted deliveries that have been kept long enough expire.
    Exhausted(ProjectNo, DeliveryNo),
    /// Held ones do.
    Held(SubscriberNo, DeliveryNo),
    /// What has ended long enough ago is removed.
    Deliveries(DeliveryNo),
    /// Events that nobody needs any more are.
    Events(Seq),
    /// Look-up keys, jobs, old definitions and deleted subscribers are.
    Rest,
}

impl Sweep {
    /// A new round.
    pub const BEGIN: Self = Self::Exhausted(0, 0);
}

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Where the round goes on; absent when it is over.
    pub next: Option<Sweep>,
    /// When the first of what it passed over may be due.
    pub due: Option<Timestamp>,
    /// Events removed.
    pub events: u64,
    /// Deliveries removed, with their attempts.
    pub deliveries: u64,
    /// Deliveries that ended as expired.
    pub expired: u64,
    /// When the oldest event that is left was accepted; known at the end of a round.
    pub oldest_event: Option<Timestamp>,
}

impl Swept {
    /// Something that was passed over may be due then.
    pub(crate) fn due_at(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}
