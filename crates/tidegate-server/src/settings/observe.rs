//! How events are observed: `observe:`.

use std::time::Duration;

use serde::Deserialize;
use tidegate_core::limits::{OBSERVE_BATCH_MAX, OBSERVE_INTERVAL_MAX, OBSERVE_WORKERS_MAX};
use tidegate_core::observe::Switches;
use tidegate_core::time::Span;

use super::Unsettled;
use crate::observing::Terms;

/// `observe:`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObserveSection {
    /// How long an event waits to be counted at most.
    pub interval: Option<Span>,
    /// Events that are counted in one transaction at most.
    pub batch: Option<usize>,
    /// Threads that read the events of one flush.
    pub workers: Option<usize>,
    /// `false` keeps all indexes as they are.
    pub index: Option<bool>,
    /// `false` keeps all counters as they are.
    pub counters: Option<bool>,
    /// `false` keeps all histograms as they are.
    pub histograms: Option<bool>,
    /// `false` keeps all states as they are.
    pub states: Option<bool>,
}

impl ObserveSection {
    pub(super) fn overridden_by(self, over: Self) -> Self {
        Self {
            interval: over.interval.or(self.interval),
            batch: over.batch.or(self.batch),
            workers: over.workers.or(self.workers),
            index: over.index.or(self.index),
            counters: over.counters.or(self.counters),
            histograms: over.histograms.or(self.histograms),
            states: over.states.or(self.states),
        }
    }

    pub(super) fn settle(self) -> Result<Terms, Unsettled> {
        let defaults = Terms::default();
        let interval = self.interval.map_or(defaults.interval, |span| span.0);
        if interval == Duration::ZERO || interval > OBSERVE_INTERVAL_MAX {
            let most = Span(OBSERVE_INTERVAL_MAX);
            return Err(Unsettled(format!("observe.interval is longer than zero and at most {most}")));
        }
        Ok(Terms {
            interval,
            batch: within("batch", self.batch, defaults.batch, OBSERVE_BATCH_MAX)?,
            workers: within("workers", self.workers, defaults.workers, OBSERVE_WORKERS_MAX)?,
            switches: Switches {
                index: self.index,
                counters: self.counters,
                histograms: self.histograms,
                states: self.states,
            },
        })
    }
}

fn within(name: &str, given: Option<usize>, default: usize, most: usize) -> Result<usize, Unsettled> {
    match given.unwrap_or(default) {
        count if (1..=most).contains(&count) => Ok(count),
        _ => Err(Unsettled(format!("observe.{name} is a number from 1 to {most}"))),
    }
}
