//! What is counted of windows.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tidegate_core::time::Timestamp;
use tidegate_store::ClosedWindow;

use super::{Reason, SECONDS};

/// Seconds that windows are open: from a blink to a day.
const OPEN_SECONDS: [f64; 10] = [0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0];
/// Seconds by which a window closes after its time.
const LATE_SECONDS: [f64; 7] = [0.005, 0.025, 0.05, 0.25, 1.0, 10.0, 60.0];

/// Windows, counted.
pub(super) struct Folds {
    closed: Family<Reason, Counter>,
    events: Counter,
    open_seconds: Histogram,
    late_seconds: Histogram,
    queue_seconds: Histogram,
    reruns: Counter,
}

impl Default for Folds {
    fn default() -> Self {
        Self {
            closed: Family::default(),
            events: Counter::default(),
            open_seconds: Histogram::new(OPEN_SECONDS),
            late_seconds: Histogram::new(LATE_SECONDS),
            queue_seconds: Histogram::new(SECONDS),
            reruns: Counter::default(),
        }
    }
}

impl Folds {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("windows_closed", "Windows that closed, by what closed them", self.closed.clone());
        registry.register(
            "folded_events",
            "Events in folded deliveries that were sent, each counted at its delivery's first attempt",
            self.events.clone(),
        );
        registry.register(
            "fold_queue_seconds",
            "Time from a window's closing to the first attempt of its delivery",
            self.queue_seconds.clone(),
        );
        registry.register(
            "lane_reruns",
            "Folded deliveries whose window opened while their lane worked on the one before",
            self.reruns.clone(),
        );
        registry.register(
            "window_open_seconds",
            "Time from a window's first event to its closing",
            self.open_seconds.clone(),
        );
        registry.register(
            "window_late_seconds",
            "Time by which windows that closed by themselves did so after their time",
            self.late_seconds.clone(),
        );
    }

    pub(super) fn left(&self, waited: Duration, events: usize) {
        self.queue_seconds.observe(waited.as_secs_f64());
        self.events.inc_by(events as u64);
    }

    pub(super) fn rerun(&self) {
        self.reruns.inc();
    }

    pub(super) fn closed(&self, windows: &[ClosedWindow], now: Timestamp) {
        for window in windows {
            self.closed.get_or_create(&Reason { reason: window.closed_by.name() }).inc();
            self.open_seconds.observe(now.since(window.opened_at).as_secs_f64());
            if window.closed_by == window.due_by {
                self.late_seconds.observe(now.since(window.due_at).as_secs_f64());
            }
        }
    }
}
