//! What is counted of counting.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tidegate_store::Swept;

use super::SECONDS;

/// Slices of events, counted.
pub(super) struct Observing {
    events: Counter,
    seconds: Histogram,
    rollups_removed: Counter,
    postings_removed: Counter,
    objects_removed: Counter,
}

impl Default for Observing {
    fn default() -> Self {
        Self {
            events: Counter::default(),
            seconds: Histogram::new(SECONDS),
            rollups_removed: Counter::default(),
            postings_removed: Counter::default(),
            objects_removed: Counter::default(),
        }
    }
}

impl Observing {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "observed_events",
            "Stored events that were looked at for metrics",
            self.events.clone(),
        );
        registry.register(
            "observe_flush_seconds",
            "Time to write what a slice of events adds to metrics",
            self.seconds.clone(),
        );
        registry.register(
            "rollups_removed",
            "Rows of what was counted that retention removed",
            self.rollups_removed.clone(),
        );
        registry.register(
            "postings_removed",
            "Rows of indexes that retention removed",
            self.postings_removed.clone(),
        );
        registry.register(
            "objects_removed",
            "Objects that retention forgot, without news for long or of states that nobody declares",
            self.objects_removed.clone(),
        );
    }

    pub(super) fn swept(&self, swept: &Swept) {
        self.rollups_removed.inc_by(swept.rollups);
        self.postings_removed.inc_by(swept.postings);
        self.objects_removed.inc_by(swept.objects);
    }

    pub(super) fn flushed(&self, events: usize, spent: Duration) {
        self.events.inc_by(events as u64);
        self.seconds.observe(spent.as_secs_f64());
    }
}
