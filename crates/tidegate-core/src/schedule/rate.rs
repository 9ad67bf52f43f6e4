//! The bucket that keeps a rate in this process.
//!
//! A [`Reservoir`] on the clock of the schedule. Nobody sleeps in it; whoever may not go yet is told when.

use std::time::Duration;

use crate::gate::{Flow, Reservoir, Standing};
use crate::time::Timestamp;

/// Keeps a rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    flow: Flow,
    reservoir: Reservoir,
}

impl Bucket {
    /// A full bucket.
    pub fn new(flow: impl Into<Flow>, now: Timestamp) -> Self {
        let flow = flow.into();
        Self { flow, reservoir: Reservoir::full(flow, us(now)) }
    }

    /// Takes one, or says when one may be taken.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        if self.reservoir.take(self.flow, us(now), 1) == 1 { Ok(()) } else { Err(self.next_at(now)) }
    }

    /// When one may be taken: now, or later.
    pub fn next_at(&self, now: Timestamp) -> Timestamp {
        let wait = self.standing(now).next_in;
        // Rounded up: a millisecond too late keeps the rate, one too early breaks it.
        if wait.is_zero() { now } else { now.plus(wait + Duration::from_micros(999)) }
    }

    /// How many may be taken right now.
    pub fn left(&self, now: Timestamp) -> u32 {
        self.standing(now).tokens
    }

    /// How long until it is full again.
    pub fn refilled_in(&self, now: Timestamp) -> Duration {
        self.reservoir.full_in(self.flow, us(now))
    }

    /// How it stands.
    pub fn standing(&self, now: Timestamp) -> Standing {
        self.reservoir.standing(self.flow, us(now))
    }

    /// Gives nothing until then.
    pub(super) fn penalize(&mut self, until: Timestamp, now: Timestamp) {
        self.reservoir.penalize(self.flow, us(now), us(until));
    }

    /// Gives again, slowly at first.
    pub(super) fn lift(&mut self, now: Timestamp) {
        self.reservoir.lift(self.flow, us(now));
    }

    /// Gives nothing until then, or recovers since then, as one that was penalised before it was made.
    pub(super) fn recall(&mut self, until: Timestamp, now: Timestamp) {
        self.reservoir = Reservoir::recalled(us(now), us(until));
    }

    /// What it gave before this process was there is not known: all it had.
    pub(super) fn empty(&mut self, now: Timestamp) {
        self.reservoir.drain(self.flow, us(now), us(now));
    }

    /// Keeps another rate from now on, with what it has.
    pub(super) fn change(&mut self, flow: Flow, now: Timestamp) {
        self.reservoir.take(self.flow, us(now), 0);
        self.flow = flow;
    }
}

fn us(time: Timestamp) -> i64 {
    time.as_ms().saturating_mul(1000)
}
