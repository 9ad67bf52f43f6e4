//! Retain: what has been kept long enough goes.
//!
//! A round goes through everything that may be due, in short steps with pauses between them, so that no request waits
//! for more than a step. Then it sleeps until the first of what it passed over may be due: a server whose oldest
//! event is young does nothing here, and what happens meanwhile is due later than that, unless the configuration says
//! otherwise meanwhile. Of processes that share a store only the one that leads does this.
//!
//! What is removed is gone, so a wrong clock must not decide it: the time is [`Clock::removes_by`], and the store keeps for how
//! long nothing is removed after a jump, so that a restart changes nothing about it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::limits::RETENTION_STEP_TRIES_MAX;
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
/// How often the store is told how much is left of the wait after a jump: a restart repeats that much of it at most.
const WAIT_KEPT_EVERY: Duration = Duration::from_mins(10);

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

    /// Waits for as long as a former process would have, and keeps it if this one has found a reason to wait longer. Before
    /// anything is written: from then on nobody sees any more that the clock and the latest time were far apart.
    pub(super) async fn recall(&self) -> tidegate_store::Result<()> {
        let (kept, found) = (self.store.sweep_wait(None).await?, self.clock.removal_wait());
        self.clock.wait_to_remove(kept);
        if found > kept {
            self.store.sweep_wait(Some(found)).await?;
        }
        Ok(())
    }

    /// For as long as the process lives.
    pub(super) async fn run(self) {
        tokio::join!(self.rounds(), self.keep_waits());
    }

    /// Keeps that a clock has jumped, whoever leads: the next process would not know.
    async fn keep_waits(&self) {
        loop {
            self.clock.jumped().await;
            while !self.keep_wait().await {
                self.clock.pause(STORE_RETRY).await;
            }
        }
    }

    /// Whether it could be kept.
    async fn keep_wait(&self) -> bool {
        let kept = self.store.sweep_wait(Some(self.clock.removal_wait())).await;
        if let Err(error) = &kept {
            tracing::warn!(%error, "that retention waits after a jump of the clock can not be kept yet");
        }
        kept.is_ok()
    }

    /// Lets the time pass for which nothing is removed.
    async fn wait(&self) {
        while !self.clock.removal_wait().is_zero() {
            self.clock.pause(self.clock.removal_wait().min(WAIT_KEPT_EVERY)).await;
            self.keep_wait().await;
        }
    }

    /// Round after round.
    async fn rounds(&self) {
        loop {
            self.standing.lead().await;
            self.wait().await;
            let version = self.rosters.current().version;
            let due = self.round().await;
            let earliest = self.clock.earlier().plus(self.terms.round_every());
            self.sleep(earliest, || false).await;
            // A type or a metric may be kept for less now.
            self.sleep(due, || self.rosters.current().version != version).await;
        }
    }

    async fn sleep(&self, until: Timestamp, is_over: impl Fn() -> bool) {
        loop {
            let now = self.clock.earlier();
            if now >= until || is_over() {
                return;
            }
            self.clock.doze(until.since(now)).await;
        }
    }

    /// Says when the next one is worth it.
    async fn round(&self) -> Timestamp {
        let mut due = self.clock.earlier().plus(self.terms.shortest());
        let mut round = Round::begin();
        while let Some(sweep) = round.next.clone() {
            let Some(now) = self.clock.removes_by().filter(|_| self.standing.leads()) else {
                return self.clock.earlier();
            };
            match self.store.sweep(self.terms, sweep, STEP_ROWS, now).await {
                Ok(swept) => {
                    self.metrics.swept(&swept);
                    due = swept.due.map_or(due, |at| due.min(at));
                    round.swept(swept.next);
                    self.clock.pause(STEP_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "retention waits for the store");
                    if round.failed() {
                        tracing::warn!("a step of retention that fails is left out until the next round");
                        self.metrics.sweep_skipped();
                        due = self.clock.earlier();
                    }
                    self.clock.pause(STORE_RETRY).await;
                }
            }
        }
        due
    }
}

/// Where a round is. One kind of step that fails time after time does not keep the others from being taken.
struct Round {
    next: Option<Sweep>,
    failures: u32,
}

impl Round {
    fn begin() -> Self {
        Self { next: Some(Sweep::BEGIN), failures: 0 }
    }

    fn swept(&mut self, next: Option<Sweep>) {
        *self = Self { next, failures: 0 };
    }

    /// Says whether the rest of this kind is left out.
    fn failed(&mut self) -> bool {
        self.failures += 1;
        if self.failures < RETENTION_STEP_TRIES_MAX {
            return false;
        }
        self.swept(self.next.as_ref().and_then(Sweep::next_kind));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever always fails, every other kind of step is taken, and the round ends.
    #[test]
    fn a_step_that_fails_again_and_again_keeps_nothing_else() {
        let kinds: Vec<Sweep> = std::iter::successors(Some(Sweep::BEGIN), Sweep::next_kind).collect();
        assert!(kinds.contains(&Sweep::Events(0)) && kinds.last() == Some(&Sweep::Rest));
        for failing in &kinds {
            let (mut round, mut taken, mut failures) = (Round::begin(), Vec::new(), 0);
            while let Some(sweep) = round.next.clone() {
                if sweep == *failing {
                    failures += 1;
                    assert!(failures <= RETENTION_STEP_TRIES_MAX, "{sweep:?} is not given up");
                    round.failed();
                } else {
                    round.swept(sweep.next_kind());
                    taken.push(sweep);
                }
            }
            let others: Vec<Sweep> = kinds.iter().filter(|kind| *kind != failing).cloned().collect();
            assert_eq!(taken, others);
        }
    }
}
