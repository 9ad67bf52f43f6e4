//! Whose turn it is.
//!
//! The schedule holds the claimed deliveries that wait in memory, a queue per subscriber, and picks the next one to
//! send: subscribers take turns, each stays inside its own concurrency and rate, and all together inside one bound.
//! So a hung receiver uses up its own places and nobody else's. It also knows which subscribers have more work in the
//! store, and when; memory is bounded whatever the backlog is. A receiver that only fails is met by its [`breaker`]: what
//! waited for it goes back to the store, and single deliveries find out when it is back.
//!
//! Does not: sleep, send, or touch the store. `tidegate-server` asks and acts.

mod bounds;
pub mod breaker;
mod division;
mod lineup;
mod load;
mod meter;
mod rate;
mod replicas;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::delivery::Job;
use crate::id::{DeliveryNo, SubscriberNo};
use crate::subscriber::Rate;
use crate::time::Timestamp;
pub use bounds::{Bounds, fits};
use breaker::{Breaker, BreakerTerms, BreakerView, Outcome, Probe, Turned};
use division::Division;
pub use division::{flock, is_agreed};
use lineup::Lineup;
use meter::{Meter, Wait};
pub use rate::{Bucket, Pace, Taken};
pub use replicas::{Beg, Share, share};

/// What a subscriber allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Attempts under way at once.
    pub concurrency: u32,
    /// Attempts over time.
    pub rate: Option<Rate>,
    /// When it is left alone for a while; absent means never.
    pub breaker: Option<BreakerTerms>,
    /// Nothing but failures for this long end its part; absent means never.
    pub disable_after: Option<Duration>,
}

/// A delivery whose turn it is.
#[derive(Debug)]
pub struct Turn {
    /// What to send.
    pub job: Job,
    /// It finds out whether its receiver is back.
    pub probe: Option<Probe>,
}

/// An attempt, or a turn that was not used, that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Whose.
    pub subscriber: SubscriberNo,
    /// It was a probe.
    pub was_probe: bool,
    /// How.
    pub outcome: Outcome,
}

/// What the end of an attempt led to.
#[derive(Debug, Default)]
pub struct Aftermath {
    /// Deliveries that wait in the store from now on.
    pub given_back: Vec<Job>,
    /// What its breaker did.
    pub turned: Option<Turned>,
    /// It began to fail, or has ceased to.
    pub streak: Option<Streak>,
    /// It has done nothing but fail since then, for longer than its owner allows.
    pub given_up: Option<Timestamp>,
}

/// A change between failing and not failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streak {
    /// The first failure after a success.
    Began(Timestamp),
    /// The first success after a failure.
    Ended,
}

/// All queues and turns.
#[derive(Debug, Default)]
pub struct Schedule {
    bounds: Bounds,
    lineups: BTreeMap<SubscriberNo, Lineup>,
    /// Subscribers that could send at once, in the order of their turns.
    turns: VecDeque<SubscriberNo>,
    /// Subscribers that wait for their rate, by when they may go on.
    throttled: BTreeSet<(Timestamp, SubscriberNo)>,
    /// Subscribers with work in the store that is due.
    hungry: BTreeSet<SubscriberNo>,
    /// Subscribers with work in the store that is due later.
    later: BTreeSet<(Timestamp, SubscriberNo)>,
    in_flight: usize,
    bytes: usize,
    /// Deliveries that people want sent now, to be brought in from the store.
    asked: Vec<(SubscriberNo, DeliveryNo)>,
    /// Somebody would now be given work from the store who was not before.
    appetite: bool,
    /// This process's part of everybody's places.
    division: Division,
    /// Rates are kept for all replicas together, elsewhere.
    shares_rates: bool,
    /// Subscribers that wait for tokens of such a rate and have not asked yet.
    beggars: BTreeSet<SubscriberNo>,
}

impl Schedule {
    /// Nobody takes part yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Lets a subscriber take part, or changes what it allows. Gives back what waited here if that leaves it no place here.
    pub fn admit(&mut self, subscriber: SubscriberNo, terms: Terms, now: Timestamp) -> Vec<Job> {
        let shares_rates = self.shares_rates;
        let lineup = self.lineups.entry(subscriber).or_insert_with(|| Lineup::new(terms, shares_rates, now));
        let is_fresh = !lineup.open || lineup.breaker.terms() != terms.breaker;
        lineup.open = true;
        let had_no_place = lineup.places == 0;
        lineup.places = self.division.of(terms.concurrency, subscriber);
        let has_new_rate = lineup.terms.rate != terms.rate;
        if has_new_rate {
            lineup.meter = Meter::new(terms.rate, shares_rates, now);
        }
        lineup.terms = terms;
        let has_place = lineup.places > 0;
        if has_new_rate {
            self.leave_queue(subscriber);
        }
        if is_fresh {
            self.close_breaker(subscriber);
        }
        if !has_place {
            return self.leave_to_others(subscriber);
        }
        if had_no_place {
            self.go_on(subscriber);
        }
        self.line_up(subscriber);
        Vec::new()
    }

    /// Sends to a subscriber as if it had never failed.
    pub fn close_breaker(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        let was_closed = lineup.breaker.is_closed();
        lineup.breaker = Breaker::new(lineup.terms.breaker);
        if !was_closed {
            self.go_on(subscriber);
        }
    }

    /// Ends a subscriber's part. The deliveries that waited here are given back; those in flight come to their end.
    pub fn dismiss(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let mut queue = std::mem::take(&mut lineup.urgent);
        queue.append(&mut lineup.queue);
        lineup.asked.clear();
        let later = lineup.later.take();
        self.bytes -= std::mem::take(&mut lineup.bytes);
        (lineup.open, lineup.spilled) = (false, false);
        self.leave_queue(subscriber);
        if self.lineups.get(&subscriber).is_some_and(|lineup| lineup.in_flight == 0) {
            self.lineups.remove(&subscriber);
        }
        self.hungry.remove(&subscriber);
        if let Some(at) = later {
            self.later.remove(&(at, subscriber));
        }
        queue.into()
    }

    /// Whatever it waits for, a turn, its rate or tokens, it waits no longer.
    fn leave_queue(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        lineup.meter.forget();
        if std::mem::take(&mut lineup.lined_up) {
            self.turns.retain(|turn| *turn != subscriber);
            self.throttled.retain(|(_, turn)| *turn != subscriber);
            self.beggars.remove(&subscriber);
        }
    }

    /// Queues a claimed delivery, or hands it back when its subscriber does not take part here or is left alone.
    pub fn push(&mut self, job: Job, now: Timestamp) -> Result<(), Job> {
        let subscriber = job.subscriber;
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.takes_part()) else {
            return Err(job);
        };
        let is_urgent = !lineup.asked.is_empty() && lineup.asked.remove(&job.delivery);
        if !is_urgent && !lineup.breaker.is_closed() {
            if lineup.breaker.probe_at().is_none_or(|at| now < at) {
                return Err(job);
            }
            lineup.breaker.half_open();
        }
        self.bytes += job.body.len();
        lineup.bytes += job.body.len();
        (if is_urgent { &mut lineup.urgent } else { &mut lineup.queue }).push_back(job);
        self.line_up(subscriber);
        Ok(())
    }

    /// The next delivery to send now, in fair turn. Its place is taken until [`Schedule::finish`].
    pub fn pick(&mut self, now: Timestamp) -> Option<Turn> {
        self.readmit_throttled(now);
        while self.in_flight < self.bounds.in_flight {
            let subscriber = self.turns.pop_front()?;
            let lineup = self.lineups.get_mut(&subscriber).expect("only those who take part have a turn");
            lineup.lined_up = false;
            if !lineup.may_send() {
                continue;
            }
            if let Err(wait) = lineup.meter.take(now) {
                lineup.lined_up = true;
                match wait {
                    Wait::Until(at) => self.throttled.insert((at, subscriber)),
                    Wait::Tokens => self.beggars.insert(subscriber),
                };
                continue;
            }
            let turn = lineup.take_turn();
            lineup.in_flight += 1;
            self.in_flight += 1;
            let is_low = lineup.queue.len() < self.bounds.refill_below && self.hungry.contains(&subscriber);
            self.appetite |= is_low;
            lineup.bytes -= turn.job.body.len();
            self.bytes -= turn.job.body.len();
            self.line_up(subscriber);
            return Some(turn);
        }
        None
    }

    /// An attempt has ended: its place is free, and its breaker knows how.
    pub fn finish(&mut self, ended: Ended, now: Timestamp) -> Aftermath {
        let subscriber = ended.subscriber;
        self.in_flight -= 1;
        let lineup = self.lineups.get_mut(&subscriber).expect("whoever has attempts under way is remembered");
        lineup.in_flight -= 1;
        if !lineup.open {
            if lineup.in_flight == 0 {
                self.lineups.remove(&subscriber);
            }
            return Aftermath::default();
        }
        let (streak, given_up) = lineup.judge(ended.outcome, now);
        let turned = lineup.breaker.ended(ended.outcome, ended.was_probe, lineup.places.max(1), now);
        let given_back = match turned {
            Some(Turned::Opened { .. }) => self.leave_alone(subscriber),
            Some(Turned::Closed { .. }) => {
                self.go_on(subscriber);
                Vec::new()
            }
            None => {
                self.park(subscriber);
                Vec::new()
            }
        };
        self.line_up(subscriber);
        Aftermath { given_back, turned, streak, given_up }
    }

    /// Its breaker opened: memory is given back, and the store is not asked until the probe.
    fn leave_alone(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let queue = std::mem::take(&mut lineup.queue);
        let bytes: usize = queue.iter().map(|job| job.body.len()).sum();
        lineup.bytes -= bytes;
        self.bytes -= bytes;
        lineup.spilled = true;
        self.park(subscriber);
        queue.into()
    }

    /// While its breaker is open, a subscriber's wishes wait for the time of the probe.
    fn park(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get(&subscriber) else { return };
        let Some(at) = lineup.breaker.probe_at() else { return };
        if self.hungry.remove(&subscriber) {
            self.expect(subscriber, at);
            self.appetite = true;
        }
    }

    /// Its breaker closed: whatever waits in the store is wanted again.
    fn go_on(&mut self, subscriber: SubscriberNo) {
        self.hungry.insert(subscriber);
        self.appetite = true;
        self.line_up(subscriber);
    }

    /// Somebody wants this delivery, which is due in the store, sent now, whatever its breaker says.
    pub fn ask(&mut self, subscriber: SubscriberNo, delivery: DeliveryNo) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.takes_part()) {
            lineup.asked.insert(delivery);
            self.asked.push((subscriber, delivery));
        }
    }

    /// The deliveries that were asked for since.
    pub fn take_asked(&mut self) -> Vec<(SubscriberNo, DeliveryNo)> {
        std::mem::take(&mut self.asked)
    }

    /// A subscriber has done nothing but fail since then, as was known before it took part here.
    pub fn recall(&mut self, subscriber: SubscriberNo, failing_since: Option<Timestamp>) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber) {
            lineup.failing_since = failing_since;
        }
    }

    /// Since when a subscriber has done nothing but fail.
    pub fn failing_since(&self, subscriber: SubscriberNo) -> Option<Timestamp> {
        self.lineups.get(&subscriber).filter(|lineup| lineup.open).and_then(|lineup| lineup.failing_since)
    }

    /// How a subscriber's breaker stands; `None` when it does not take part.
    pub fn breaker(&self, subscriber: SubscriberNo) -> Option<BreakerView> {
        self.lineups.get(&subscriber).filter(|lineup| lineup.open).map(|lineup| lineup.breaker.view())
    }

    /// How many breakers are not closed.
    pub fn breakers_open(&self) -> usize {
        self.lineups.values().filter(|lineup| lineup.open && !lineup.breaker.is_closed()).count()
    }

    /// How many new deliveries of a subscriber memory takes. None while older ones wait in the store.
    pub fn room(&self, subscriber: SubscriberNo) -> usize {
        match self.lineups.get(&subscriber) {
            Some(lineup) if lineup.takes_part() && !lineup.spilled && lineup.breaker.is_closed() => {
                self.bounds.queue_jobs.saturating_sub(lineup.queue.len())
            }
            _ => 0,
        }
    }

    /// Whether a new delivery of a subscriber would wait for more than `calm` others. One that does not take part is
    /// never busy.
    pub fn is_busy(&self, subscriber: SubscriberNo, calm: usize) -> bool {
        let open = self.lineups.get(&subscriber).filter(|lineup| lineup.open);
        open.is_some_and(|lineup| lineup.spilled || lineup.queue.len() > calm)
    }

    /// How many bytes of bodies memory takes.
    pub fn room_bytes(&self) -> usize {
        self.bounds.queue_bytes.saturating_sub(self.bytes)
    }

    /// How many bytes of bodies a subscriber has in memory.
    pub fn held_bytes(&self, subscriber: SubscriberNo) -> usize {
        self.lineups.get(&subscriber).map_or(0, |lineup| lineup.bytes)
    }

    /// New deliveries of a subscriber are due in the store because memory had no room.
    pub fn spill(&mut self, subscriber: SubscriberNo) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) {
            lineup.spilled = true;
            match lineup.breaker.probe_at() {
                Some(at) => self.expect(subscriber, at),
                None => {
                    self.hungry.insert(subscriber);
                }
            }
        }
    }

    /// A subscriber has work in the store that is due at `at`.
    pub fn expect(&mut self, subscriber: SubscriberNo, at: Timestamp) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if lineup.later.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = lineup.later.replace(at) {
            self.later.remove(&(known, subscriber));
        }
        self.later.insert((at, subscriber));
    }

    /// Who wants how much from the store now. Asks for a bounded amount in all, so that a commit stays short.
    pub fn wishes(&mut self, now: Timestamp) -> Vec<(SubscriberNo, usize)> {
        self.wake_later(now);
        let (mut left, free) = (self.bounds.refill_jobs, self.room_bytes());
        let mut wishes = Vec::new();
        for subscriber in &self.hungry {
            if left == 0 {
                break;
            }
            let lineup = &self.lineups[subscriber];
            let jobs = lineup.wish(&self.bounds, now).min(left);
            if jobs > 0 && fits(lineup.bytes, free) {
                wishes.push((*subscriber, jobs));
                left = if jobs == left { left / 2 } else { left - jobs };
            }
        }
        wishes
    }

    /// A wish was answered. `drained`: nothing due is left in the store; `next_due`: what is left is due then.
    pub fn refilled(&mut self, subscriber: SubscriberNo, drained: bool, next_due: Option<Timestamp>) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if !drained {
            return;
        }
        lineup.spilled = false;
        self.hungry.remove(&subscriber);
        if let Some(at) = next_due {
            self.expect(subscriber, at);
        }
    }

    /// When the next subscriber that waits for its rate may go on.
    pub fn throttled_until(&self) -> Option<Timestamp> {
        self.throttled.first().map(|(at, _)| *at)
    }

    /// When the next work in the store is due.
    pub fn store_due_at(&self) -> Option<Timestamp> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Whether, since last asked, somebody came to want work from the store.
    pub fn take_appetite(&mut self) -> bool {
        std::mem::take(&mut self.appetite)
    }

    /// Somebody could send more at once.
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty() && self.in_flight < self.bounds.in_flight
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes everything that waits in memory, for a graceful stop.
    pub fn drain(&mut self) -> Vec<Job> {
        let everyone: Vec<SubscriberNo> = self.lineups.keys().copied().collect();
        everyone.into_iter().flat_map(|subscriber| self.dismiss(subscriber)).collect()
    }

    /// Puts a subscriber at the end of the turns, if it has work and a place for it.
    fn line_up(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        if lineup.open && !lineup.lined_up && lineup.may_send() {
            lineup.lined_up = true;
            self.turns.push_back(subscriber);
        }
    }

    fn readmit_throttled(&mut self, now: Timestamp) {
        while let Some((at, subscriber)) = self.throttled.first().copied().filter(|(at, _)| *at <= now) {
            self.throttled.remove(&(at, subscriber));
            self.turns.push_back(subscriber);
        }
    }

    fn wake_later(&mut self, now: Timestamp) {
        while let Some((at, subscriber)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, subscriber));
            let Some(lineup) = self.lineups.get_mut(&subscriber) else { continue };
            lineup.later = None;
            match lineup.breaker.probe_at().filter(|at| now < *at) {
                Some(at) => self.expect(subscriber, at),
                None => {
                    self.hungry.insert(subscriber);
                }
            }
        }
    }
}

#[cfg(test)]
mod breaker_tests;
#[cfg(test)]
mod replicas_tests;
#[cfg(test)]
mod tests;
