//! How long things are kept.
//!
//! Events go after a while, but never while a delivery needs them. Finished deliveries go later. What could not be
//! delivered is kept longest, then ends visibly as expired and is kept as long as other finished ones. Look-up keys are
//! kept at least as long as their events, so an id stays known for `events` at least. What was counted outlives the events
//! by far. A declared type may have a term of its own for its events, and a metric one for what it has counted.

use std::time::Duration;

use crate::observe::Grain;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_hours(24);
/// Between two rounds passes a thousandth of the shortest term, within these bounds.
const ROUND_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(10));

/// The terms; every one longer than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Events, unless a delivery needs them.
    pub events: Duration,
    /// Delivered, expired and cancelled deliveries, from their end.
    pub deliveries: Duration,
    /// Exhausted deliveries, from their end; held ones, from when they were held.
    pub undelivered: Duration,
    /// What was counted, from the end of its bucket, and objects that nobody speaks of; short buckets go sooner.
    pub rollups: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events: 7 * DAY, deliveries: 30 * DAY, undelivered: 30 * DAY, rollups: 400 * DAY }
    }
}

impl Retention {
    /// Whatever happens from now on, nothing of it is due sooner than this, unless its type or metric says so.
    pub fn shortest(&self) -> Duration {
        self.events.min(self.deliveries).min(self.undelivered).min(Grain::S5.kept(self.rollups))
    }

    /// The least time between two rounds: what became due meanwhile goes together.
    pub fn round_every(&self) -> Duration {
        (self.shortest() / 1_000).clamp(ROUND_EVERY.0, ROUND_EVERY.1)
    }

    /// When a held delivery expires: it must have waited for the whole term, and its subscriber been away for it.
    pub fn held_until(&self, created_at: Timestamp, inactive_at: Timestamp) -> Timestamp {
        created_at.max(inactive_at).plus(self.undelivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_delivery_waits_for_the_later_of_its_two_beginnings() {
        let terms = Retention::default();
        let (early, late) = (Timestamp::from_ms(1_000), Timestamp::from_ms(9_000));
        assert_eq!(terms.held_until(early, late), late.plus(30 * DAY));
        assert_eq!(terms.held_until(late, early), late.plus(30 * DAY));
    }

    #[test]
    fn rounds_are_neither_restless_nor_lazy() {
        assert_eq!(Retention::default().round_every(), ROUND_EVERY.1);
        let short = Retention { events: Duration::from_secs(2), ..Retention::default() };
        assert_eq!((short.shortest(), short.round_every()), (Duration::from_secs(2), ROUND_EVERY.0));
        let long = Retention {
            events: 900 * DAY,
            deliveries: 900 * DAY,
            undelivered: 900 * DAY,
            rollups: 900 * DAY,
        };
        assert_eq!(long.round_every(), ROUND_EVERY.1);
    }
}
