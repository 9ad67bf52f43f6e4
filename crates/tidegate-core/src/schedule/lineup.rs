//! One subscriber's part in the schedule: its queue, its places, its rate and its breaker.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::breaker::{Breaker, Outcome};
use super::gates::Luggage;
use super::{Bounds, Meter, Streak, Terms, Turn};
use crate::delivery::Job;
use crate::gate::Flow;
use crate::id::DeliveryNo;
use crate::limits::FOLD_PREPARING_MS;
use crate::time::Timestamp;

/// Who was late more often is not prepared earlier than this many times twice as early.
const LATE_MAX: u32 = 6;

/// A delivery that could go.
#[derive(Debug)]
pub(super) struct Ready {
    /// Its place among all that became ready.
    pub(super) stamp: u64,
    pub(super) job: Job,
    /// What was prepared for it.
    pub(super) luggage: Option<Luggage>,
    /// It was prepared once, whatever became of that.
    pub(super) is_sealed: bool,
    /// How often it was prepared in vain, since its token was gone by then.
    pub(super) late: u32,
}

impl Ready {
    /// For how long it is kept in memory what was prepared for it. Twice as long whenever it was late.
    fn patience(&self) -> Duration {
        Duration::from_millis(FOLD_PREPARING_MS << self.late.min(LATE_MAX))
    }
}

/// One subscriber's part.
#[derive(Debug)]
pub(super) struct Lineup {
    pub(super) terms: Terms,
    /// Takes part. A dismissed one is remembered while attempts are under way, so that they keep their places.
    pub(super) open: bool,
    /// How many of its places are this process's.
    pub(super) places: u32,
    pub(super) meter: Meter,
    /// When its rate lets it go, as far as it was told.
    pub(super) token_at: Timestamp,
    pub(super) breaker: Breaker,
    /// The first failure after the last success.
    pub(super) failing_since: Option<Timestamp>,
    pub(super) queue: VecDeque<Ready>,
    /// Those that people want sent now: they go first, and pass the breaker.
    pub(super) urgent: VecDeque<Ready>,
    pub(super) asked: BTreeSet<DeliveryNo>,
    /// Of the bodies in both queues.
    pub(super) bytes: usize,
    pub(super) in_flight: u32,
    /// Folds that are being prepared. What is ready to be sent does not wait for these: they may wait for the memory it takes.
    pub(super) preparing: u32,
    /// In `turns`, in `throttled`, in the line of its gate, or waiting for tokens.
    pub(super) lined_up: bool,
    /// Its place in the line of its gate, while it stands there.
    pub(super) seat: Option<u64>,
    /// New deliveries overflowed into the store: until those are drained, newer ones go there too, in order.
    pub(super) spilled: bool,
    pub(super) later: Option<Timestamp>,
    /// Since when nothing of its own keeps it from sending: neither its places nor its rate.
    pub(super) free_since: Timestamp,
}

impl Lineup {
    pub(super) fn new(terms: Terms, shares_rates: bool, is_known: bool, now: Timestamp) -> Self {
        let mut meter = Meter::new(terms.rate.map(Flow::from), shares_rates, now);
        if is_known {
            meter.empty(now);
        }
        Self {
            terms,
            open: true,
            places: terms.concurrency,
            meter,
            token_at: now,
            breaker: Breaker::new(terms.breaker),
            failing_since: None,
            queue: VecDeque::new(),
            urgent: VecDeque::new(),
            asked: BTreeSet::new(),
            bytes: 0,
            in_flight: 0,
            preparing: 0,
            lined_up: false,
            seat: None,
            spilled: false,
            later: None,
            free_since: now,
        }
    }

    /// The place of the next delivery among all that are ready anywhere. What people want sent now takes that of what it
    /// passes.
    pub(super) fn head(&self) -> Option<u64> {
        self.urgent.front().into_iter().chain(self.queue.front()).map(|ready| ready.stamp).min()
    }

    /// How many deliveries wait here.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() + self.urgent.len()
    }

    /// How many of them could go at once.
    pub(super) fn usable(&self) -> u32 {
        u32::try_from(self.waiting()).unwrap_or(u32::MAX).min(self.free_places())
    }

    /// Everything that waits, what people want sent now first.
    pub(super) fn empty(&mut self) -> Vec<Job> {
        self.asked.clear();
        let urgent = std::mem::take(&mut self.urgent);
        urgent.into_iter().chain(std::mem::take(&mut self.queue)).map(|ready| ready.job).collect()
    }

    /// It takes part, and some of its places are here.
    pub(super) fn takes_part(&self) -> bool {
        self.open && self.places > 0
    }

    /// It has something to send, and a place for it.
    pub(super) fn may_send(&self) -> bool {
        let has_work = !(self.urgent.is_empty() && self.queue.is_empty());
        has_work && self.free_places() > 0
    }

    /// How many more it could send at once.
    pub(super) fn free_places(&self) -> u32 {
        let allowed = if self.urgent.is_empty() { self.breaker.allowed() } else { u32::MAX };
        let taken = if self.is_unprepared() { self.in_flight + self.preparing } else { self.in_flight };
        self.places.min(allowed).saturating_sub(taken)
    }

    /// Nobody does anything for it.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight + self.preparing == 0
    }

    /// What a result says about the receiver in the long run.
    pub(super) fn judge(&mut self, outcome: Outcome, now: Timestamp) -> (Option<Streak>, Option<Timestamp>) {
        match outcome {
            Outcome::Unsent => (None, None),
            Outcome::Delivered => (self.failing_since.take().map(|_| Streak::Ended), None),
            Outcome::Failed { .. } => {
                let streak = self.failing_since.is_none().then_some(Streak::Began(now));
                let since = *self.failing_since.get_or_insert(now);
                let is_over = self.terms.disable_after.is_some_and(|after| now.since(since) >= after);
                (streak, is_over.then_some(since))
            }
        }
    }

    pub(super) fn take_turn(&mut self) -> Turn {
        if let Some(ready) = self.urgent.pop_front() {
            return Turn::new(ready, true, None);
        }
        let ready = self.queue.pop_front().expect("only those with work have a turn");
        Turn::new(ready, false, self.breaker.probe())
    }

    /// Nothing goes for so long: what was put together will be put together again. Whatever was is in front: it came from
    /// there. `is_late`: because a token came too early for it.
    pub(super) fn unpack(&mut self, wait: Duration, is_late: bool) {
        for queue in [&mut self.urgent, &mut self.queue] {
            let sealed = queue.iter_mut().take_while(|ready| ready.is_sealed);
            for ready in sealed.filter(|ready| wait > ready.patience()) {
                ready.late += u32::from(ready.luggage.take().is_some() && is_late);
            }
        }
    }

    /// The next delivery is a fold that was late before: it is put together so long before its token comes.
    pub(super) fn head_start(&self) -> Option<Duration> {
        let next = self.urgent.front().or(self.queue.front()).filter(|ready| ready.late > 0);
        next.filter(|_| self.is_unprepared()).map(Ready::patience)
    }

    /// When to look again if a token comes at `at`.
    pub(super) fn call_at(&self, at: Timestamp, now: Timestamp) -> Timestamp {
        let early = self.head_start().map(|start| now.plus(at.since(now).saturating_sub(start)));
        early.filter(|early| *early > now).unwrap_or(at)
    }

    /// It is time to put the next delivery together, for a token that comes at `at`.
    pub(super) fn is_due_soon(&self, at: Timestamp, now: Timestamp) -> bool {
        now < at && self.head_start().is_some_and(|start| at.since(now) <= start)
    }

    /// The next delivery is a fold that nobody has put together yet.
    pub(super) fn is_unprepared(&self) -> bool {
        let next = self.urgent.front().or(self.queue.front());
        next.is_some_and(|ready| ready.job.fold.is_some() && ready.luggage.is_none())
    }

    /// How many deliveries may wait here. Where other processes have places too, only what the places here soon use; what waits
    /// for a rate or at a gate waits for that everywhere alike.
    pub(super) fn capacity(&self, bounds: &Bounds) -> usize {
        let is_divided = self.places < self.terms.concurrency;
        if is_divided && self.terms.rate.is_none() && self.terms.gate.is_none() {
            bounds.queue_jobs.min(self.places as usize * bounds.place_jobs)
        } else {
            bounds.queue_jobs
        }
    }

    /// It is time to take more from the store.
    pub(super) fn runs_low(&self, bounds: &Bounds) -> bool {
        self.queue.len() < bounds.refill_below.min(self.capacity(bounds).div_ceil(2))
    }

    /// How many deliveries it would take from the store: one when it is time for a probe and nothing else is under
    /// way.
    pub(super) fn wish(&self, bounds: &Bounds, now: Timestamp) -> usize {
        if self.places == 0 {
            return 0;
        }
        match self.breaker.probe_at() {
            Some(at) => usize::from(at <= now && self.in_flight == 0 && self.queue.is_empty()),
            None if self.breaker.is_closed() && self.runs_low(bounds) => {
                self.capacity(bounds) - self.queue.len()
            }
            None => 0,
        }
    }
}
