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
mod gates;
mod lineup;
mod load;
mod meter;
mod rate;
mod replicas;
mod supply;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::delivery::Job;
use crate::gate::Flow;
use crate::id::{DeliveryNo, GateNo, SubscriberNo};
use crate::subscriber::Rate;
use crate::time::Timestamp;
pub use bounds::{Bounds, fits};
use breaker::{Breaker, BreakerTerms, BreakerView, Outcome, Probe, Turned};
use division::Division;
pub use division::{Fellow, Parting, Stance, divide};
use gates::Line;
pub use gates::{LineView, Luggage, Passed, Penalty, Ticket, Turnaway};
use lineup::{Lineup, Ready};
use meter::{Meter, Wait};
pub use rate::Bucket;
pub use replicas::{Beg, Share, share};
pub use waits::Waits;

/// How many stamps a millisecond has before they run ahead of the time.
const STAMPS_PER_MS: u64 = 1_024;

/// The time at which a stamp was given.
fn stamped_at(stamp: u64) -> Timestamp {
    Timestamp::from_ms(i64::try_from(stamp / STAMPS_PER_MS).unwrap_or(i64::MAX))
}

/// What a subscriber allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Attempts under way at once.
    pub concurrency: u32,
    /// Attempts over time.
    pub rate: Option<Rate>,
    /// The gate that it passes, with others.
    pub gate: Option<GateNo>,
    /// When it is left alone for a while; absent means never.
    pub breaker: Option<BreakerTerms>,
    /// Nothing but failures for this long end its part; absent means never.
    pub disable_after: Option<Duration>,
}

/// Whoever takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// A subscriber.
    Subscriber(SubscriberNo),
    /// A gate, for all that stand in its line.
    Gate(GateNo),
}

/// A delivery whose turn it is.
#[derive(Debug)]
pub struct Turn {
    /// What to send.
    pub job: Job,
    /// It finds out whether its receiver is back.
    pub probe: Option<Probe>,
    /// It is only to be put together; [`Schedule::prepared`] lets it pass its gate.
    pub is_preparing: bool,
    /// What was prepared for it.
    pub luggage: Option<Luggage>,
    /// It was prepared once: nothing joins it any more.
    pub is_sealed: bool,
    late: u32,
    /// Its place among all that became ready.
    stamp: u64,
    /// People want it sent now.
    is_urgent: bool,
}

impl Turn {
    fn new(ready: Ready, is_urgent: bool, probe: Option<Probe>) -> Self {
        let Ready { stamp, job, luggage, is_sealed, late } = ready;
        Self { job, probe, is_preparing: false, luggage, is_sealed, late, stamp, is_urgent }
    }
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
    /// Gates and who waits at them.
    lines: BTreeMap<GateNo, Line>,
    /// Who could send at once, in the order of their turns.
    turns: VecDeque<Slot>,
    /// Who waits for a rate, by when they may go on.
    throttled: BTreeSet<(Timestamp, Slot)>,
    /// Subscribers with work in the store that is due.
    hungry: BTreeSet<SubscriberNo>,
    /// Subscribers with work in the store that is due later.
    later: BTreeSet<(Timestamp, SubscriberNo)>,
    in_flight: usize,
    /// Turns in which a fold is put together. What is ready does not wait for these: they may wait for the memory it takes.
    preparing: usize,
    bytes: usize,
    /// Deliveries that people want sent now, to be brought in from the store.
    asked: Vec<(SubscriberNo, DeliveryNo)>,
    /// Somebody would now be given work from the store who was not before.
    appetite: bool,
    /// This process's part of everybody's places.
    division: Division,
    /// Rates are kept for all replicas together, elsewhere.
    shares_rates: bool,
    /// Who waits for tokens of such a rate and has not asked yet.
    beggars: BTreeSet<Slot>,
    /// Gates of which more is to be known.
    looks: BTreeSet<GateNo>,
    /// Subscribers up to this number may have been sent to before: nobody knows how much of their rates they have used.
    known: SubscriberNo,
    /// The stamp of the delivery or client that became ready last.
    stamps: u64,
    /// The latest time that anybody said.
    latest: Timestamp,
    /// Who passed a gate and was not told yet.
    passed: Vec<Passed>,
    /// Penalties that the others have not heard of.
    penalties: Vec<Penalty>,
}

impl Schedule {
    /// Nobody takes part yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Lets a subscriber take part, or changes what it allows. Gives back what others can send
    /// sooner.
    pub fn admit(&mut self, subscriber: SubscriberNo, terms: Terms, now: Timestamp) -> Vec<Job> {
        self.latest = self.latest.max(now);
        let (shares_rates, is_known) = (self.shares_rates, subscriber <= self.known);
        let is_other = |old: &Lineup| old.terms.rate != terms.rate || old.terms.gate != terms.gate;
        if self.lineups.get(&subscriber).is_some_and(is_other) {
            self.leave_queue(subscriber);
        }
        let lineup =
            self.lineups.entry(subscriber).or_insert_with(|| Lineup::new(terms, shares_rates, is_known, now));
        let is_fresh = !lineup.open || lineup.breaker.terms() != terms.breaker;
        lineup.open = true;
        let had_no_place = lineup.places == 0;
        lineup.places = self.division.of(terms.concurrency, subscriber);
        if lineup.terms.rate != terms.rate {
            lineup.meter.change(terms.rate.map(Flow::from), shares_rates, now);
        }
        lineup.terms = terms;
        let has_place = lineup.places > 0;
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
        self.share_out(subscriber)
    }

    /// Sends to a subscriber as if it had never failed.
    pub fn close_breaker(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        let was_closed = lineup.breaker.is_closed();
        lineup.breaker = Breaker::new(lineup.terms.breaker);
        if was_closed { self.line_up(subscriber) } else { self.go_on(subscriber) }
    }

    /// Ends a subscriber's part. The deliveries that waited here are given back; those in flight come to their end.
    pub fn dismiss(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        self.know(subscriber);
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let queue = lineup.empty();
        let later = lineup.later.take();
        self.bytes -= std::mem::take(&mut lineup.bytes);
        (lineup.open, lineup.spilled) = (false, false);
        self.leave_queue(subscriber);
        if self.lineups.get(&subscriber).is_some_and(Lineup::is_idle) {
            self.lineups.remove(&subscriber);
        }
        self.hungry.remove(&subscriber);
        if let Some(at) = later {
            self.later.remove(&(at, subscriber));
        }
        queue
    }

    /// Whatever it waits for, a turn, its gate, its rate or tokens, it waits no longer; what it waits for next may take long.
    fn leave_queue(&mut self, subscriber: SubscriberNo) {
        self.quit_line(subscriber);
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        lineup.meter.forget();
        lineup.unpack(Duration::MAX, false);
        if std::mem::take(&mut lineup.lined_up) {
            self.forget_slot(Slot::Subscriber(subscriber));
        }
    }

    fn forget_slot(&mut self, slot: Slot) {
        self.turns.retain(|turn| *turn != slot);
        self.throttled.retain(|(_, turn)| *turn != slot);
        self.beggars.remove(&slot);
    }

    /// Queues a claimed delivery, or hands it back when its subscriber does not take part here or is left alone.
    #[expect(clippy::result_large_err, reason = "a job that is refused goes back as it came")]
    pub fn push(&mut self, job: Job, now: Timestamp) -> Result<(), Job> {
        self.latest = self.latest.max(now);
        let (subscriber, stamp) = (job.subscriber, self.stamp());
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
        let ready = Ready { stamp, job, luggage: None, is_sealed: false, late: 0 };
        (if is_urgent { &mut lineup.urgent } else { &mut lineup.queue }).push_back(ready);
        self.line_up(subscriber);
        Ok(())
    }

    /// A number that is higher than all before, and tells the time at which it was given.
    fn stamp(&mut self) -> u64 {
        let now = u64::try_from(self.latest.as_ms()).unwrap_or(0).saturating_mul(STAMPS_PER_MS);
        self.stamps = (self.stamps + 1).max(now);
        self.stamps
    }

    /// The next delivery to send now, in fair turn. Its place is taken until [`Schedule::finish`].
    pub fn pick(&mut self, now: Timestamp) -> Option<Turn> {
        self.latest = self.latest.max(now);
        self.readmit_throttled(now);
        while self.in_flight < self.bounds.in_flight {
            let turn = match self.turns.pop_front()? {
                Slot::Subscriber(subscriber) => self.pick_of(subscriber, now),
                Slot::Gate(gate) => self.pick_at(gate, now),
            };
            if turn.is_some() {
                return turn;
            }
        }
        None
    }

    /// It is a subscriber's turn.
    fn pick_of(&mut self, subscriber: SubscriberNo, now: Timestamp) -> Option<Turn> {
        let lineup = self.lineups.get_mut(&subscriber).expect("only those who take part have a turn");
        lineup.lined_up = false;
        if !lineup.may_send() {
            return None;
        }
        if let Err(wait) = lineup.meter.take(now) {
            lineup.lined_up = true;
            self.wait_for(Slot::Subscriber(subscriber), &wait);
            return None;
        }
        Some(self.take_turn(subscriber))
    }

    fn wait_for(&mut self, who: Slot, wait: &Wait) {
        match wait {
            Wait::Until(at) => self.throttled.insert((*at, who)),
            Wait::Tokens => self.beggars.insert(who),
        };
    }

    /// Nothing stands in its way any more.
    fn take_turn(&mut self, subscriber: SubscriberNo) -> Turn {
        let lineup = self.lineups.get_mut(&subscriber).expect("only those who take part have a turn");
        (lineup.lined_up, lineup.seat) = (false, None);
        let turn = lineup.take_turn();
        lineup.in_flight += 1;
        self.in_flight += 1;
        self.appetite |= lineup.runs_low(&self.bounds) && self.hungry.contains(&subscriber);
        lineup.bytes -= turn.job.body.len();
        self.bytes -= turn.job.body.len();
        self.line_up(subscriber);
        turn
    }

    /// An attempt has ended: its place is free, and its breaker knows how.
    pub fn finish(&mut self, ended: Ended, now: Timestamp) -> Aftermath {
        let subscriber = ended.subscriber;
        self.latest = self.latest.max(now);
        self.in_flight -= 1;
        let lineup = self.lineups.get_mut(&subscriber).expect("whoever has attempts under way is remembered");
        if lineup.free_places() == 0 {
            lineup.free_since = now;
        }
        lineup.in_flight -= 1;
        if !lineup.open {
            // That it took something is worth knowing all the same: whoever goes on later counts from there.
            let streak = lineup.judge(ended.outcome, now).0.filter(|streak| *streak == Streak::Ended);
            if lineup.is_idle() {
                self.lineups.remove(&subscriber);
            }
            return Aftermath { streak, ..Aftermath::default() };
        }
        let (streak, given_up) = lineup.judge(ended.outcome, now);
        let turned = lineup.breaker.ended(ended.outcome, ended.was_probe, lineup.places.max(1), now);
        let given_back = match turned {
            Some(Turned::Opened { .. }) => self.leave_alone(subscriber),
            Some(Turned::Closed { .. }) => {
                self.go_on(subscriber);
                Vec::new()
            }
            None if lineup.breaker.probe_at().is_some() => self.leave_alone(subscriber),
            None => Vec::new(),
        };
        self.line_up(subscriber);
        Aftermath { given_back, turned, streak, given_up }
    }

    /// Its breaker opened: memory is given back, and the store is not asked until the probe.
    fn leave_alone(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let queue = std::mem::take(&mut lineup.queue);
        let bytes: usize = queue.iter().map(|ready| ready.job.body.len()).sum();
        lineup.bytes -= bytes;
        self.bytes -= bytes;
        // What the store has of it otherwise is known; a look that nobody will make must not be waited for.
        lineup.spilled |= !queue.is_empty();
        self.park(subscriber);
        queue.into_iter().map(|ready| ready.job).collect()
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

    /// When the next one that waits for a rate or a gate may go on.
    pub fn throttled_until(&self) -> Option<Timestamp> {
        self.throttled.first().map(|(at, _)| *at)
    }

    /// Whether, since last asked, somebody came to want work from the store.
    pub fn take_appetite(&mut self) -> bool {
        std::mem::take(&mut self.appetite)
    }

    /// Takes everything that waits in memory, for a graceful stop.
    pub fn drain(&mut self) -> Vec<Job> {
        let everyone: Vec<SubscriberNo> = self.lineups.keys().copied().collect();
        everyone.into_iter().flat_map(|subscriber| self.dismiss(subscriber)).collect()
    }

    /// Puts a subscriber at the end of the turns, or in the line of its gate, if it has work and a place for it.
    fn line_up(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        if lineup.open && !lineup.lined_up && lineup.may_send() {
            lineup.lined_up = true;
            self.readmit(Slot::Subscriber(subscriber));
        }
    }

    /// It waits for nothing but its turn.
    fn readmit(&mut self, who: Slot) {
        match who {
            Slot::Gate(gate) => self.resume_line(gate),
            Slot::Subscriber(subscriber) => match self.lineups.get(&subscriber) {
                Some(Lineup { terms: Terms { gate: Some(gate), .. }, seat, .. }) => match seat {
                    Some(_) => self.release_line(*gate, subscriber),
                    None => self.join_line(*gate, subscriber),
                },
                _ => self.turns.push_back(who),
            },
        }
    }

    fn readmit_throttled(&mut self, now: Timestamp) {
        while let Some((at, who)) = self.throttled.first().copied().filter(|(at, _)| *at <= now) {
            self.throttled.remove(&(at, who));
            self.readmit(who);
        }
    }
}

#[cfg(test)]
mod breaker_tests;
#[cfg(test)]
mod chronicle_tests;
#[cfg(test)]
mod division_tests;
#[cfg(test)]
mod fairness_tests;
#[cfg(test)]
mod gates_tests;
#[cfg(test)]
mod overtaking_tests;
#[cfg(test)]
mod penalties_tests;
#[cfg(test)]
mod replicas_tests;
#[cfg(test)]
mod tests;
