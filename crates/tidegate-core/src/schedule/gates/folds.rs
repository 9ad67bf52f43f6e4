//! Folds at a gate: sealed and put together first, so that nothing but the sending comes after the token.
//!
//! When a fold is the first in line and there is a token, it gets a turn to be prepared, without the token. What was prepared
//! travels with it, back to its place in the line; the turn it gets there is one like everybody's. Meanwhile a token is kept for
//! it, for a while: whoever comes later does not overtake it, and one that takes long holds nobody up.
//!
//! Promises: a token is taken by whoever is sent at that instant, so none is lost when a fold can not be put together. No
//! more folds are prepared than there are tokens, so the others can be joined until it is nearly their turn. What is ready
//! never waits for what is being prepared, which may wait for the memory it takes. What was prepared is not kept in memory for
//! long; who came too late for its token because of that is prepared earlier the next time.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::super::lineup::Ready;
use super::super::{Schedule, Slot, Turn};
use super::{Line, State, Waiter};
use crate::delivery::Job;
use crate::id::{DeliveryNo, GateNo, SubscriberNo};
use crate::limits::FOLD_PREPARING_MS;
use crate::time::Timestamp;

/// What somebody prepared for a delivery; nothing that is known here.
pub type Luggage = Arc<dyn Any + Send + Sync>;

/// For so long nothing is kept in memory that can be put together again.
fn is_long(wait: Duration) -> bool {
    wait > Duration::from_millis(FOLD_PREPARING_MS)
}

/// Folds that are being prepared, and since when.
#[derive(Debug, Default)]
pub(super) struct Preparing(Vec<(DeliveryNo, Timestamp)>);

impl Line {
    /// All the tokens there are belong to folds that are being prepared: when to look again.
    pub(super) fn is_kept_until(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.preparing.0.is_empty() {
            return None;
        }
        let patience = Duration::from_millis(FOLD_PREPARING_MS);
        self.preparing.0.retain(|(_, since)| now < since.plus(patience));
        let (_, first) = self.preparing.0.first()?;
        let is_enough = self.meter.left(now) as usize > self.preparing.0.len();
        let soon = now.plus(self.flow.interval(8).max(Duration::from_millis(1)));
        (!is_enough).then(|| first.plus(patience).min(soon))
    }
}

impl Schedule {
    /// The first in line gets its turn: to go, with a token, or to be prepared.
    pub(super) fn pick_first(
        &mut self,
        gate: GateNo,
        place: (u64, Waiter),
        (subscriber, is_ready): (SubscriberNo, bool),
        now: Timestamp,
    ) -> Turn {
        if is_ready {
            self.let_pass(gate, place, None, now);
        } else if let Some(line) = self.lines.get_mut(&gate) {
            line.waiting.remove(&place);
        }
        let mut turn = self.take_turn(subscriber);
        if !is_ready {
            turn.is_preparing = true;
            if let Some(line) = self.lines.get_mut(&gate) {
                line.preparing.0.push((turn.job.delivery, now));
            }
            if let Some(lineup) = self.lineups.get_mut(&subscriber) {
                (lineup.in_flight, lineup.preparing) = (lineup.in_flight - 1, lineup.preparing + 1);
            }
            (self.in_flight, self.preparing) = (self.in_flight - 1, self.preparing + 1);
            self.line_up(subscriber);
        }
        self.resume_line(gate);
        turn
    }

    /// A fold was put together: it goes back to its place in the line. Hands it back when its subscriber does not take part here
    /// any more or is left alone.
    #[expect(clippy::result_large_err, reason = "a job that is refused goes back as it came")]
    pub fn prepared(&mut self, turn: Turn, luggage: Luggage, now: Timestamp) -> Result<(), Job> {
        self.latest = self.latest.max(now);
        self.unprepared(&turn);
        let Turn { job, probe, stamp, is_urgent, late, .. } = turn;
        let subscriber = job.subscriber;
        self.in_flight -= 1;
        let lineup = self.lineups.get_mut(&subscriber).expect("whoever has attempts under way is remembered");
        lineup.in_flight -= 1;
        if !lineup.open && lineup.is_idle() {
            self.lineups.remove(&subscriber);
            return Err(job);
        }
        // Of a receiver that is left alone nothing is sent but the probe, and that is another one.
        let is_probe = probe.is_some() && lineup.breaker.probe_at().is_none();
        let is_left_alone = !is_urgent && !is_probe && !lineup.breaker.is_closed();
        if !lineup.takes_part() || is_left_alone {
            lineup.spilled |= lineup.open;
            if probe.is_some() {
                lineup.breaker.call_off_probe(now);
            }
            self.line_up(subscriber);
            return Err(job);
        }
        self.bytes += job.body.len();
        lineup.bytes += job.body.len();
        let ready = Ready { stamp, job, luggage: Some(luggage), is_sealed: true, late };
        let queue = if is_urgent { &mut lineup.urgent } else { &mut lineup.queue };
        let place = queue.iter().take_while(|other| other.stamp < stamp).count();
        queue.insert(place, ready);
        if lineup.seat.is_some() {
            // It stood there for one that became ready later.
            self.quit_line(subscriber);
            self.lineups.get_mut(&subscriber).expect("it was just there").lined_up = false;
        }
        self.line_up(subscriber);
        Ok(())
    }

    /// A turn to prepare a fold ends, like any other: the token that was kept for it is anybody's.
    pub fn unprepared(&mut self, turn: &Turn) {
        (self.in_flight, self.preparing) = (self.in_flight + 1, self.preparing - 1);
        if let Some(lineup) = self.lineups.get_mut(&turn.job.subscriber) {
            (lineup.in_flight, lineup.preparing) = (lineup.in_flight + 1, lineup.preparing - 1);
        }
        let gate = self.lineups.get(&turn.job.subscriber).and_then(|lineup| lineup.terms.gate);
        let Some((gate, line)) = gate.and_then(|gate| Some((gate, self.lines.get_mut(&gate)?))) else {
            return;
        };
        line.preparing.0.retain(|(delivery, _)| *delivery != turn.job.delivery);
        if line.state == State::Later {
            line.state = State::Idle;
            self.forget_slot(Slot::Gate(gate));
            self.wake(gate);
        }
    }

    /// The first in line is a fold that was late before, and its token comes soon: it is put together without one, alone.
    pub(super) fn is_first_early(&self, gate: GateNo, place: (u64, Waiter), now: Timestamp) -> bool {
        let (stamp, Waiter::Subscriber(subscriber)) = place else { return false };
        let (Some(line), Some(lineup)) = (self.lines.get(&gate), self.lineups.get(&subscriber)) else {
            return false;
        };
        let is_room = line.preparing.0.is_empty() && self.preparing < self.bounds.in_flight;
        let may_send = lineup.may_send() && lineup.head() == Some(stamp);
        is_room && may_send && lineup.is_due_soon(line.token_at, now)
    }

    /// A line waits for a token that comes at `at`: when to look again.
    pub(in super::super) fn call_line_at(&mut self, gate: GateNo, at: Timestamp) -> Timestamp {
        let Some(line) = self.lines.get_mut(&gate) else { return at };
        line.token_at = at;
        let Some((_, Waiter::Subscriber(first))) = line.waiting.keys().next() else { return at };
        self.lineups.get(first).map_or(at, |lineup| lineup.call_at(at, self.latest))
    }

    /// Nothing passes a gate for so long.
    pub(in super::super) fn wait_at(&mut self, gate: GateNo, wait: Duration) {
        if is_long(wait) {
            let closed_until = self.lines.get(&gate).map(|line| line.closed_until).unwrap_or_default();
            let is_late = !is_long(closed_until.since(self.latest));
            let of_gate = self.lineups.values_mut().filter(|lineup| lineup.terms.gate == Some(gate));
            of_gate.for_each(|lineup| lineup.unpack(wait, is_late));
        }
    }

    /// Nothing is sent any more: what was put together takes no memory.
    pub fn unpack(&mut self) {
        self.lineups.values_mut().for_each(|lineup| lineup.unpack(Duration::MAX, false));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::breaker::{BreakerTerms, Outcome};
    use super::super::super::tests::job;
    use super::super::super::{Ended, Terms};
    use super::*;
    use crate::gate::Flow;
    use crate::subscriber::Rate;

    const GATE: GateNo = 7;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    fn fold(subscriber: SubscriberNo, delivery: DeliveryNo) -> Job {
        Job { fold: Some(delivery), ..job(subscriber, delivery) }
    }

    /// Three subscribers at one gate of one a second.
    fn gated(burst: u32) -> Schedule {
        let mut schedule = Schedule::default();
        let flow = Flow::new(Rate::parse("1/s").unwrap(), burst);
        schedule.set_gates(&BTreeMap::from([(GATE, flow)]), at(0));
        for subscriber in 1..=3 {
            let terms =
                Terms { concurrency: 9, rate: None, breaker: None, disable_after: None, gate: Some(GATE) };
            schedule.admit(subscriber, terms, at(0));
        }
        schedule
    }

    fn tokens(schedule: &Schedule, ms: i64) -> u32 {
        schedule.line(GATE, at(ms)).unwrap().standing.tokens
    }

    fn luggage() -> Luggage {
        Arc::new("what is sent")
    }

    #[test]
    fn a_fold_takes_its_token_when_it_was_put_together() {
        let mut schedule = gated(1);
        schedule.push(fold(1, 10), at(0)).unwrap();
        schedule.push(fold(2, 20), at(0)).unwrap();
        schedule.push(job(3, 30), at(0)).unwrap();
        let turn = schedule.pick(at(0)).unwrap();
        assert!(turn.is_preparing && turn.luggage.is_none() && turn.job.delivery == 10);
        assert_eq!(tokens(&schedule, 0), 1, "it has not taken it");
        assert!(schedule.pick(at(0)).is_none(), "and nobody else does, nor is another one put together");
        schedule.prepared(turn, luggage(), at(40)).unwrap();
        let turn = schedule.pick(at(40)).unwrap();
        assert!(!turn.is_preparing && turn.luggage.is_some() && turn.job.delivery == 10);
        assert_eq!(tokens(&schedule, 40), 0);
        assert!(schedule.pick(at(41)).is_none());
        let next = schedule.pick(at(1_040)).unwrap();
        assert!(next.is_preparing && next.job.delivery == 20);
    }

    #[test]
    fn a_fold_that_can_not_be_put_together_costs_no_token() {
        let mut schedule = gated(1);
        schedule.push(fold(1, 10), at(0)).unwrap();
        schedule.push(job(2, 20), at(0)).unwrap();
        let turn = schedule.pick(at(0)).unwrap();
        schedule.unprepared(&turn);
        schedule.finish(Ended { subscriber: 1, was_probe: false, outcome: Outcome::Unsent }, at(5));
        let next = schedule.pick(at(5)).unwrap();
        assert!(!next.is_preparing && next.job.delivery == 20);
    }

    #[test]
    fn one_that_takes_long_holds_nobody_up_and_keeps_its_place() {
        let mut schedule = gated(1);
        schedule.push(fold(1, 10), at(0)).unwrap();
        (0..3).for_each(|n| schedule.push(job(2, 20 + n), at(0)).unwrap());
        let turn = schedule.pick(at(0)).unwrap();
        assert!(schedule.pick(at(999)).is_none());
        assert_eq!(schedule.throttled_until(), Some(at(1_000)), "somebody looks again");
        assert_eq!(schedule.pick(at(1_000)).unwrap().job.delivery, 20);
        schedule.prepared(turn, luggage(), at(1_500)).unwrap();
        assert_eq!(schedule.pick(at(2_000)).unwrap().job.delivery, 10);
    }

    #[test]
    fn as_many_are_put_together_as_may_go() {
        let mut schedule = gated(2);
        (1..=3).for_each(|n| schedule.push(fold(n, n * 10), at(0)).unwrap());
        let turns: Vec<Turn> = std::iter::from_fn(|| schedule.pick(at(0))).collect();
        assert_eq!(turns.len(), 2);
        // The second one is ready first, and goes first: a token is kept for the other.
        for turn in turns.into_iter().rev() {
            schedule.prepared(turn, luggage(), at(1)).unwrap();
            assert!(schedule.pick(at(1)).is_some_and(|turn| turn.luggage.is_some()));
        }
        assert_eq!(tokens(&schedule, 1), 0);
    }

    #[test]
    fn what_is_ready_needs_no_place_of_one_that_is_being_prepared() {
        let mut schedule = gated(2);
        let terms =
            Terms { concurrency: 2, rate: None, breaker: None, disable_after: None, gate: Some(GATE) };
        schedule.admit(1, terms, at(0));
        (10..13).for_each(|n| schedule.push(fold(1, n), at(0)).unwrap());
        let (first, second) = (schedule.pick(at(0)).unwrap(), schedule.pick(at(0)).unwrap());
        schedule.admit(1, Terms { concurrency: 1, ..terms }, at(0));
        schedule.prepared(first, luggage(), at(1)).unwrap();
        assert_eq!(
            schedule.pick(at(1)).unwrap().job.delivery,
            10,
            "the second may wait for the memory it holds"
        );
        schedule.prepared(second, luggage(), at(2)).unwrap();
        assert!(schedule.pick(at(3)).is_none(), "one at a time");
        schedule.finish(Ended { subscriber: 1, was_probe: false, outcome: Outcome::Delivered }, at(4));
        assert_eq!(schedule.pick(at(4)).unwrap().job.delivery, 11);
    }

    #[test]
    fn what_is_ready_needs_no_place_among_all_either() {
        let mut schedule = gated(9);
        schedule.bounds.in_flight = 1;
        (1..=2).for_each(|n| schedule.push(fold(n, n * 10), at(0)).unwrap());
        let turn = schedule.pick(at(0)).unwrap();
        assert!(turn.is_preparing && schedule.pick(at(0)).is_none(), "one at a time");
        schedule.push(job(3, 30), at(0)).unwrap();
        assert_eq!(schedule.pick(at(0)).unwrap().job.delivery, 30);
        assert_eq!(schedule.in_flight(), 2);
        schedule.prepared(turn, luggage(), at(1)).unwrap();
        assert!(schedule.pick(at(1)).is_none(), "all places are taken");
        schedule.finish(Ended { subscriber: 3, was_probe: false, outcome: Outcome::Delivered }, at(2));
        assert_eq!(schedule.pick(at(2)).unwrap().job.delivery, 10);
    }

    #[test]
    fn who_waits_long_for_a_rate_of_its_own_gives_memory_back() {
        let mut schedule = gated(9);
        let rate = Some(Rate::parse("1/m").unwrap());
        let terms = Terms { concurrency: 9, rate, breaker: None, disable_after: None, gate: Some(GATE) };
        schedule.admit(1, terms, at(0));
        let minute = 60_000;
        (10..12).for_each(|n| schedule.push(fold(1, n), at(minute)).unwrap());
        let turns: Vec<Turn> = std::iter::from_fn(|| schedule.pick(at(minute))).collect();
        assert_eq!(turns.len(), 2);
        let parcels = [luggage(), luggage()];
        for (turn, parcel) in turns.into_iter().zip(&parcels) {
            schedule.prepared(turn, Arc::clone(parcel), at(minute + 1)).unwrap();
        }
        let sent = schedule.pick(at(minute + 1)).unwrap();
        assert!(sent.job.delivery == 10 && schedule.pick(at(minute + 1)).is_none());
        assert_eq!((Arc::strong_count(&parcels[0]), Arc::strong_count(&parcels[1])), (2, 1));
    }

    #[test]
    fn one_that_was_put_together_too_late_does_not_go_as_the_probe_of_another() {
        let mut schedule = gated(9);
        let breaker = Some(BreakerTerms { failures: 1, probe: Duration::from_secs(1) });
        let terms = Terms { concurrency: 9, rate: None, breaker, disable_after: None, gate: Some(GATE) };
        schedule.admit(1, terms, at(0));
        schedule.push(fold(1, 10), at(0)).unwrap();
        schedule.push(job(1, 11), at(0)).unwrap();
        let late = schedule.pick(at(0)).unwrap();
        assert!(late.is_preparing && schedule.pick(at(0)).is_some());
        let outcome = Outcome::Failed { chance: 0 };
        schedule.finish(Ended { subscriber: 1, was_probe: false, outcome }, at(1));
        let probe_at = schedule.breaker(1).unwrap().next_probe_at.unwrap();
        schedule.push(fold(1, 12), probe_at).unwrap();
        assert!(schedule.pick(probe_at).is_none(), "one at a time");
        assert_eq!(schedule.prepared(late, luggage(), probe_at).unwrap_err().delivery, 10);
        let probe = schedule.pick(probe_at).unwrap();
        assert!(probe.is_preparing && probe.probe.is_some() && probe.job.delivery == 12);
        schedule.prepared(probe, luggage(), probe_at).unwrap();
        assert!(schedule.pick(probe_at).is_some_and(|turn| turn.probe.is_some() && turn.job.delivery == 12));
    }

    /// Every beggar gets as many tokens.
    fn grant_all(schedule: &mut Schedule, tokens: u32, next_in: Duration, now: Timestamp) -> usize {
        let begs = schedule.begs();
        begs.iter().for_each(|beg| schedule.grant(beg.who, tokens, next_in, now));
        begs.len()
    }

    #[test]
    fn one_that_takes_longer_than_a_token_lasts_is_late_only_once() {
        let mut schedule = Schedule::default();
        schedule.share_rates();
        let (flow, minute) = (Flow::new(Rate::parse("1/m").unwrap(), 1), Duration::from_secs(60));
        schedule.set_gates(&BTreeMap::from([(GATE, flow)]), at(0));
        let terms =
            Terms { concurrency: 9, rate: None, breaker: None, disable_after: None, gate: Some(GATE) };
        schedule.admit(1, terms, at(0));
        schedule.push(fold(1, 10), at(0)).unwrap();
        let parcel = luggage();
        assert!(schedule.pick(at(0)).is_none() && grant_all(&mut schedule, 1, minute, at(0)) == 1);
        let turn = schedule.pick(at(0)).unwrap();
        schedule.prepared(turn, Arc::clone(&parcel), at(200)).unwrap();
        assert!(schedule.pick(at(200)).is_none(), "its token is worth nothing any more");
        assert_eq!(grant_all(&mut schedule, 0, minute, at(200)), 1);
        assert_eq!(Arc::strong_count(&parcel), 1, "that is too long to be kept in memory");
        let early = schedule.throttled_until().unwrap().as_ms();
        assert!((58_100..58_300).contains(&early), "{early}");
        let turn = schedule.pick(at(early)).unwrap();
        assert!(turn.is_preparing, "without a token, since it was late");
        schedule.prepared(turn, Arc::clone(&parcel), at(early + 200)).unwrap();
        assert!(schedule.pick(at(early + 200)).is_none());
        assert_eq!(grant_all(&mut schedule, 0, Duration::from_millis(1_800), at(early + 200)), 1);
        let now = schedule.throttled_until().unwrap();
        assert!(schedule.pick(now).is_none() && grant_all(&mut schedule, 1, minute, now) == 1);
        assert!(schedule.pick(now).is_some_and(|turn| !turn.is_preparing));
    }

    #[test]
    fn an_answer_finds_one_that_waits_for_a_place_by_now() {
        let mut schedule = gated(9);
        let rate = Some(Rate::parse("100/s").unwrap());
        let terms = Terms { concurrency: 3, rate, breaker: None, disable_after: None, gate: Some(GATE) };
        schedule.shares_rates = true;
        schedule.admit(1, terms, at(0));
        (10..13).for_each(|n| schedule.push(fold(1, n), at(0)).unwrap());
        let second = Duration::from_secs(1);
        assert!(schedule.pick(at(0)).is_none() && grant_all(&mut schedule, 9, second, at(0)) == 1);
        let mut turns: Vec<Turn> = std::iter::from_fn(|| schedule.pick(at(0))).collect();
        assert_eq!(turns.len(), 3);
        schedule.prepared(turns.remove(0), luggage(), at(0)).unwrap();
        assert_eq!(schedule.pick(at(0)).unwrap().job.delivery, 10);
        schedule.prepared(turns.remove(0), luggage(), at(500)).unwrap();
        assert!(schedule.pick(at(500)).is_none(), "its tokens are worth nothing any more");
        let begs = schedule.begs();
        schedule.admit(1, Terms { concurrency: 1, ..terms }, at(500));
        schedule.prepared(turns.remove(0), luggage(), at(500)).unwrap();
        begs.iter().for_each(|beg| schedule.grant(beg.who, 0, second, at(501)));
        assert_eq!((schedule.throttled_until(), schedule.dismiss(1).len()), (None, 2));
        assert!(schedule.pick(at(9_000)).is_none());
    }

    #[test]
    fn what_is_put_together_during_a_penalty_gives_memory_back_too() {
        let mut schedule = gated(2);
        (10..12).for_each(|n| schedule.push(fold(1, n), at(0)).unwrap());
        let (first, second) = (schedule.pick(at(0)).unwrap(), schedule.pick(at(0)).unwrap());
        schedule.prepared(first, luggage(), at(1)).unwrap();
        schedule.penalize(GATE, at(5_000), at(1));
        let parcel = luggage();
        schedule.prepared(second, Arc::clone(&parcel), at(2)).unwrap();
        assert!(schedule.pick(at(2)).is_none());
        assert_eq!(Arc::strong_count(&parcel), 1, "it is behind one that gave its own back");
    }

    #[test]
    fn who_goes_to_another_gate_gives_memory_back() {
        let mut schedule = gated(1);
        schedule.push(fold(1, 10), at(0)).unwrap();
        let (turn, parcel) = (schedule.pick(at(0)).unwrap(), luggage());
        schedule.prepared(turn, Arc::clone(&parcel), at(1)).unwrap();
        let rate = Some(Rate::parse("1/h").unwrap());
        let terms = Terms { concurrency: 9, rate, breaker: None, disable_after: None, gate: None };
        schedule.admit(1, terms, at(2));
        assert_eq!(Arc::strong_count(&parcel), 1);
        let hour_later = at(3_600_002);
        assert!(schedule.pick(hour_later).is_some_and(|turn| !turn.is_preparing && turn.is_sealed));
    }

    #[test]
    fn a_penalty_gives_memory_back_and_who_is_gone_is_handed_back() {
        let mut schedule = gated(2);
        (1..=2).for_each(|n| schedule.push(fold(n, n * 10), at(0)).unwrap());
        let first = schedule.pick(at(0)).unwrap();
        let second = schedule.pick(at(0)).unwrap();
        let (kept, back) = (luggage(), luggage());
        schedule.prepared(first, Arc::clone(&kept), at(1)).unwrap();
        schedule.penalize(GATE, at(5_000), at(1));
        assert_eq!(Arc::strong_count(&kept), 1);
        schedule.dismiss(2);
        assert_eq!(schedule.prepared(second, Arc::clone(&back), at(2)).unwrap_err().delivery, 20);
        assert_eq!((Arc::strong_count(&back), schedule.in_flight()), (1, 0));
        assert!(schedule.pick(at(5_000)).is_some_and(|turn| turn.is_preparing));
    }
}
