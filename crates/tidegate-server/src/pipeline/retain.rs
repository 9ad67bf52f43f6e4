//! Retain: what has been kept long enough goes.
//!
//! A round goes through everything that may be due, in short steps with pauses between them, so that no request waits
//! for more than a step. Then it sleeps until the first of what it passed over may be due: a server whose oldest
//! event is young does nothing here, and what happens meanwhile is due later than that, unless the configuration says
//! otherwise meanwhile. Of processes that share a store only the one that leads does this.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;
use tidegate_store::{Store, Sweep};

use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::roster::Rosters;
use crate::standing::Standing;

/// Rows looked at per step: a millisecond or two.
const STEP_ROWS: usize = 200;
/// Between two steps the store belongs to everybody else.
const STEP_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Retain {
    store: Arc<dyn Store>,
    clock: Clock,
    metrics: Arc<Metrics>,
    standing: Arc<Standing>,
    rosters: Arc<Rosters>,
    terms: Retention,
}

impl Retain {
    pub(super) fn new(parts: &Parts) -> Self {
        Self {
            store: Arc::clone(&parts.store),
            clock: parts.clock.clone(),
            metrics: Arc::clone(&parts.metrics),
            standing: Arc::clone(&parts.standing),
            rosters: Arc::clone(&parts.rosters),
            terms: parts.retention,
        }
    }

    /// Round after round, for as long as the process lives.
    pub(super) async fn run(self) {
        loop {
            self.standing.lead().await;
            let version = self.rosters.current().version;
            let due = self.round().await;
            let earliest = self.clock.now().plus(self.terms.round_every());
            self.sleep(earliest, || false).await;
            // A type or a metric may be kept for less now.
            self.sleep(due, || self.rosters.current().version != version).await;
        }
    }

    async fn sleep(&self, until: Timestamp, is_over: impl Fn() -> bool) {
        while self.clock.now() < until && !is_over() {
            self.clock.doze_until(until).await;
        }
    }

    /// Says when the next one is worth it.
    async fn round(&self) -> Timestamp {
        let mut due = self.clock.now().plus(self.terms.shortest());
        let mut next = Some(Sweep::BEGIN);
        while let Some(sweep) = next.clone() {
            if !self.standing.leads() {
                return self.clock.now();
            }
            match self.store.sweep(self.terms, sweep, STEP_ROWS, self.clock.now()).await {
                Ok(swept) => {
                    self.metrics.swept(&swept);
                    due = swept.due.map_or(due, |at| due.min(at));
                    next = swept.next;
                    self.clock.pause(STEP_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "retention waits for the store");
                    self.clock.pause(STORE_RETRY).await;
                }
            }
        }
        due
    }
}
