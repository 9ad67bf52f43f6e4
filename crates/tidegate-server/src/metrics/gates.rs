//! What is counted at gates, for all of them together: their names are users' texts.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Metrics, SECONDS};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    by: &'static str,
}

/// Counts of all gates.
pub(super) struct GateMetrics {
    passed: Family<By, Counter>,
    wait_seconds: Histogram,
    refusals: Counter,
    penalties: Counter,
    turned_away: Counter,
}

impl Default for GateMetrics {
    fn default() -> Self {
        Self {
            passed: Family::default(),
            wait_seconds: Histogram::new(SECONDS),
            refusals: Counter::default(),
            penalties: Counter::default(),
            turned_away: Counter::default(),
        }
    }
}

impl GateMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Tokens of gates that were used, by deliveries and by clients";
        registry.register("gate_passed", help, self.passed.clone());
        let help = "Time in the line of a gate, of those who passed it";
        registry.register("gate_wait_seconds", help, self.wait_seconds.clone());
        let help = "Answers 429 and 503 of receivers behind a gate that asked to wait";
        registry.register("gate_refusals", help, self.refusals.clone());
        registry.register("gate_penalties", "Times that a gate was told to pause", self.penalties.clone());
        let help = "Clients that waited at a gate in vain, or found it full";
        registry.register("gate_turned_away", help, self.turned_away.clone());
    }
}

impl Metrics {
    /// Somebody passed a gate.
    pub fn gate_passed(&self, is_client: bool, waited: Duration) {
        let by = if is_client { "client" } else { "delivery" };
        self.gates.passed.get_or_create(&By { by }).inc();
        self.gates.wait_seconds.observe(waited.as_secs_f64());
    }

    /// A receiver behind a gate asked to wait.
    pub fn gate_refused(&self) {
        self.gates.refusals.inc();
    }

    /// A gate was told to pause.
    pub fn gate_penalized(&self) {
        self.gates.penalties.inc();
    }

    /// A client got no token.
    pub fn gate_turned_away(&self) {
        self.gates.turned_away.inc();
    }
}
