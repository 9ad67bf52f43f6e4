//! Retention as the store does it: in rounds of short steps.

use std::time::Duration;

use tidegate_core::id::{DeliveryNo, MetricNo, ProjectNo, Seq, SubscriberNo};
use tidegate_core::time::Timestamp;

/// What has ended stays for so long, for whoever has just read that it is there.
pub const ENDED_GRACE: Duration = Duration::from_mins(1);
/// Metrics whose rollups are looked at in one step.
pub(crate) const METRICS_PER_STEP: usize = 25;

/// Where a round of retention is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Exhausted deliveries that have been kept long enough expire.
    Exhausted(ProjectNo, DeliveryNo),
    /// Held ones do.
    Held(SubscriberNo, DeliveryNo),
    /// What has ended long enough ago is removed.
    Deliveries(DeliveryNo),
    /// Events are that outlived their term because something needed them.
    Overdue(Seq),
    /// Events are whose type has a term of its own: those of the types behind this number.
    Typed(i64),
    /// All other events that nobody needs any more are.
    Events(Seq),
    /// What metrics behind this one counted long enough ago is.
    Rollups(MetricNo),
    /// Keys are given back that metrics from this one on count nothing under, those of the pages from this one on.
    Keys(MetricNo, u32),
    /// Everything of metrics that nobody declares any more is.
    EndedMetrics,
    /// So are values by which no event is found any more, in the segments behind this one.
    Postings(i64),
    /// Objects of which nobody has spoken for long are forgotten: those of a state behind this one.
    Objects(MetricNo, String),
    /// Look-up keys, jobs, old definitions and deleted subscribers are.
    Rest,
}

impl Sweep {
    /// A new round.
    pub const BEGIN: Self = Self::Exhausted(0, 0);
    /// The objects of all states.
    pub(crate) const OBJECTS: Self = Self::Objects(0, String::new());

    /// Where a round goes on that leaves out the rest of this kind of step.
    pub fn next_kind(&self) -> Option<Self> {
        match self {
            Self::Exhausted(..) => Some(Self::Held(0, 0)),
            Self::Held(..) => Some(Self::Deliveries(0)),
            Self::Deliveries(_) => Some(Self::Overdue(0)),
            Self::Overdue(_) => Some(Self::Typed(0)),
            Self::Typed(_) => Some(Self::Events(0)),
            Self::Events(_) => Some(Self::Rollups(0)),
            Self::Rollups(_) => Some(Self::Keys(0, 0)),
            Self::Keys(..) => Some(Self::EndedMetrics),
            Self::EndedMetrics => Some(Self::Postings(-1)),
            Self::Postings(_) => Some(Self::OBJECTS),
            Self::Objects(..) => Some(Self::Rest),
            Self::Rest => None,
        }
    }
}

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Rows of what was counted that were removed: the cells of many keys in one bucket.
    pub rollups: u64,
    /// Rows of an index that were removed: the events of one flush that have a value.
    pub postings: u64,
    /// Objects that were forgotten.
    pub objects: u64,
    /// When the oldest event that is left was accepted; known at the end of a round.
    pub oldest_event: Option<Timestamp>,
}

impl Swept {
    /// Something that was passed over may be due then.
    pub(crate) fn due_at(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

/// What ended up to then has been over for the whole term.
pub(crate) fn before(now: Timestamp, term: Duration) -> i64 {
    now.as_ms() - i64::try_from(term.as_millis()).unwrap_or(i64::MAX)
}

/// When objects are gone through again, who were last gone through at `walked`, when the oldest news of any was `oldest`:
/// when the first may be due, but neither all the time nor only after long, since old news may have come meanwhile.
pub(crate) fn next_walk(walked: i64, oldest: i64, term: Duration) -> Timestamp {
    let walked = Timestamp::from_ms(walked);
    let due = Timestamp::from_ms(oldest).plus(term);
    due.min(walked.plus(term / 4)).max(walked.plus(term / 100))
}
