//! What is counted of counting.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::SECONDS;

/// Slices of events, counted.
pub(super) struct Observing {
    events: Counter,
    seconds: Histogram,
}

impl Default for Observing {
    fn default() -> Self {
        Self { events: Counter::default(), seconds: Histogram::new(SECONDS) }
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
    }

    pub(super) fn flushed(&self, events: usize, spent: Duration) {
        self.events.inc_by(events as u64);
        self.seconds.observe(spent.as_secs_f64());
    }
}
