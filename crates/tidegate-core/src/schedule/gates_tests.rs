//! Goal: whoever shares a gate goes first come, first served, nobody starves, and no stretch of time sees more than the gate
//! allows. Method: one history per rule, told by hand, then random ones with many subscribers, clients and penalties, for
//! one process with a bucket of its own and for several around one.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::tests::job;
use super::*;
use crate::gate::Reservoir;
use crate::limits::{GATE_CLIENTS_MAX, GRANT_VALID_MS};

pub(super) const GATE: GateNo = 7;

pub(super) fn terms(concurrency: u32, rate: Option<&str>) -> Terms {
    let rate = rate.map(|rate| Rate::parse(rate).unwrap());
    Terms { concurrency, rate, breaker: None, disable_after: None, gate: Some(GATE) }
}

pub(super) fn flow(rate: &str, burst: u32) -> Flow {
    Flow::new(Rate::parse(rate).unwrap(), burst)
}

pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

/// With one gate and so many subscribers that pass it.
pub(super) fn gated(rate: &str, burst: u32, subscribers: i64) -> Schedule {
    let mut schedule = Schedule::default();
    schedule.set_gates(&BTreeMap::from([(GATE, flow(rate, burst))]), at(0));
    (1..=subscribers).for_each(|subscriber| drop(schedule.admit(subscriber, terms(100, None), at(0))));
    schedule
}

pub(super) fn push(schedule: &mut Schedule, subscriber: SubscriberNo, delivery: i64, ms: i64) {
    schedule.push(job(subscriber, delivery), at(ms)).unwrap();
}

pub(super) fn picks(schedule: &mut Schedule, ms: i64) -> Vec<i64> {
    std::iter::from_fn(|| schedule.pick(at(ms))).map(|turn| turn.job.delivery).collect()
}

fn finish(schedule: &mut Schedule, subscriber: SubscriberNo, ms: i64) {
    schedule.finish(Ended { subscriber, was_probe: false, outcome: Outcome::Delivered }, at(ms));
}

#[test]
fn those_at_a_gate_go_in_the_order_in_which_they_became_ready() {
    let mut schedule = gated("2/s", 1, 3);
    for (subscriber, delivery) in [(2, 20), (2, 21), (1, 10), (3, 30), (2, 22), (1, 11)] {
        push(&mut schedule, subscriber, delivery, 0);
    }
    let mut order = Vec::new();
    for ms in (0..3_000).step_by(500) {
        assert_eq!(schedule.throttled_until(), (ms > 0).then(|| at(ms)), "one timer, for the next token");
        order.extend(picks(&mut schedule, ms));
    }
    assert_eq!(order, [20, 21, 10, 30, 22, 11]);
}

#[test]
fn who_passes_no_gate_is_not_held_up() {
    let mut schedule = gated("1/h", 1, 1);
    schedule.admit(9, Terms { gate: None, ..terms(100, None) }, at(0));
    for n in 0..3 {
        push(&mut schedule, 1, 10 + n, 0);
        push(&mut schedule, 9, 90 + n, 0);
    }
    assert_eq!(picks(&mut schedule, 0), [10, 90, 91, 92]);
}

#[test]
fn who_can_not_go_takes_no_token_and_keeps_its_place() {
    let mut schedule = gated("1/s", 2, 0);
    schedule.admit(1, terms(1, None), at(0));
    schedule.admit(2, terms(9, Some("1/m")), at(0));
    schedule.admit(3, terms(9, None), at(0));
    for (subscriber, delivery) in [(1, 10), (1, 11), (2, 20), (2, 21), (3, 30)] {
        push(&mut schedule, subscriber, delivery, 0);
    }
    assert_eq!(picks(&mut schedule, 0), [10, 20], "1 has no place left");
    assert_eq!(picks(&mut schedule, 1_000), [30], "2 has used up its own rate");
    assert_eq!(schedule.line(GATE, at(3_000)).unwrap().standing.tokens, 2, "nobody took the others");
    push(&mut schedule, 3, 31, 3_000);
    finish(&mut schedule, 1, 3_000);
    assert_eq!(picks(&mut schedule, 3_000), [11, 31], "it was ready before");
    assert_eq!(picks(&mut schedule, 60_000), [21]);
}

#[test]
fn who_has_stepped_aside_and_given_everything_back_comes_again() {
    let mut schedule = gated("10/s", 10, 0);
    let breaker = Some(BreakerTerms { failures: 1, probe: Duration::from_secs(1) });
    schedule.admit(1, Terms { breaker, ..terms(2, Some("1/s")) }, at(0));
    (0..3).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0), [0], "the next waits for its own rate");
    let ended = Ended { subscriber: 1, was_probe: false, outcome: Outcome::Failed { chance: 0 } };
    assert_eq!(schedule.finish(ended, at(1)).given_back.len(), 2);
    assert!(picks(&mut schedule, 1_000).is_empty());
    schedule.close_breaker(1);
    push(&mut schedule, 1, 9, 2_000);
    assert_eq!(picks(&mut schedule, 2_000), [9]);
}

#[test]
fn who_gave_its_queue_back_does_not_keep_the_place_it_had() {
    let mut schedule = gated("1/s", 1, 2);
    let breaker = Some(BreakerTerms { failures: 1, probe: Duration::from_secs(1) });
    schedule.admit(1, Terms { breaker, ..terms(9, None) }, at(0));
    (0..2).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0), [0]);
    push(&mut schedule, 2, 20, 0);
    let ended = Ended { subscriber: 1, was_probe: false, outcome: Outcome::Failed { chance: 0 } };
    assert_eq!(schedule.finish(ended, at(1)).given_back.len(), 1);
    schedule.close_breaker(1);
    push(&mut schedule, 1, 9, 2);
    assert_eq!((picks(&mut schedule, 1_000), picks(&mut schedule, 2_000)), (vec![20], vec![9]));
}

#[test]
fn a_client_waits_in_the_same_line() {
    let mut schedule = gated("1/s", 1, 2);
    push(&mut schedule, 1, 10, 0);
    let ticket = schedule.queue_client(GATE, at(1)).unwrap();
    push(&mut schedule, 2, 20, 2);
    assert_eq!(picks(&mut schedule, 2), [10]);
    assert_eq!(schedule.take_passed().len(), 1);
    assert_eq!(picks(&mut schedule, 1_002), [] as [i64; 0], "the client's token");
    let waited = Duration::from_millis(1_001);
    let passed = Passed { gate: GATE, ticket: Some(ticket), waited, is_recovered: false };
    assert_eq!(schedule.take_passed(), [passed]);
    assert!(!schedule.leave_line(GATE, ticket), "it has gone through");
    assert_eq!(picks(&mut schedule, 2_002), [20]);
}

#[test]
fn a_client_that_goes_away_costs_nothing() {
    let mut schedule = gated("1/s", 1, 1);
    let first = schedule.queue_client(GATE, at(0)).unwrap();
    schedule.serve_clients(GATE, at(0));
    assert_eq!(schedule.take_passed()[0].ticket, Some(first), "at once, if there is a token");
    let second = schedule.queue_client(GATE, at(0)).unwrap();
    push(&mut schedule, 1, 10, 1);
    assert!(picks(&mut schedule, 1).is_empty() && schedule.leave_line(GATE, second));
    assert_eq!(picks(&mut schedule, 1_000), [10]);
    assert_eq!(schedule.waiting_at_gates(), (0, 0));
}

#[test]
fn only_so_many_clients_wait() {
    let mut schedule = gated("1/h", 1, 0);
    for _ in 0..GATE_CLIENTS_MAX {
        schedule.queue_client(GATE, at(0)).unwrap();
    }
    assert_eq!(schedule.queue_client(GATE, at(0)), Err(Turnaway::Full));
    assert_eq!(schedule.queue_client(GATE + 1, at(0)), Err(Turnaway::Unknown));
}

#[test]
fn nothing_passes_a_penalised_gate_and_then_it_recovers() {
    let mut schedule = gated("8/s", 8, 1);
    (0..100).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0).len(), 8);
    schedule.penalize(GATE, at(5_000), at(0));
    assert_eq!(schedule.gate_pressure(1, at(1_000)).as_secs(), 4 + 92);
    assert!(picks(&mut schedule, 4_999).is_empty());
    assert_eq!(schedule.throttled_until(), Some(at(5_000)));
    let mut given = 0;
    for ms in 5_000..15_000 {
        given += picks(&mut schedule, ms).len();
    }
    assert_eq!(given, 1 + 9, "one at the end of the penalty, then an eighth of the rate");
    assert!(!schedule.take_passed().iter().any(|passed| passed.is_recovered));
    for ms in 15_000..35_250 {
        given += picks(&mut schedule, ms).len();
    }
    assert_eq!(given, 1 + 10 + 20 + 40 + 1);
    let told = schedule.take_passed().iter().filter(|passed| passed.is_recovered).count();
    assert_eq!((told, schedule.line(GATE, at(36_000)).unwrap().penalties), (1, 1));
}

#[test]
fn a_change_holds_for_the_next_token() {
    let mut schedule = gated("1/h", 1, 1);
    (0..20).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0).len(), 1);
    schedule.set_gates(&BTreeMap::from([(GATE, flow("10/s", 5))]), at(1_000));
    assert!(picks(&mut schedule, 1_000).is_empty(), "a larger bucket is not full at once");
    assert_eq!(picks(&mut schedule, 1_100).len(), 1);
    assert_eq!(picks(&mut schedule, 1_200).len(), 1);
}

#[test]
fn a_subscriber_changes_gates_and_leaves_the_old_line() {
    let mut schedule = gated("1/h", 1, 2);
    (0..3).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0), [0]);
    schedule.admit(1, Terms { gate: None, ..terms(100, None) }, at(1));
    assert_eq!(picks(&mut schedule, 1), [1, 2]);
    assert_eq!(schedule.line(GATE, at(1)).unwrap().subscribers, 0);
    push(&mut schedule, 2, 20, 2);
    schedule.dismiss(2);
    schedule.set_gates(&BTreeMap::new(), at(2));
    assert!(picks(&mut schedule, 10_000_000).is_empty() && schedule.throttled_until().is_none());
}

#[test]
fn a_gate_that_is_shared_begs_for_all_in_its_line() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    (1..=2).for_each(|subscriber| drop(schedule.admit(subscriber, terms(9, None), at(0))));
    push(&mut schedule, 1, 10, 0);
    push(&mut schedule, 2, 20, 0);
    assert!(picks(&mut schedule, 0).is_empty());
    let beg = Beg { who: Slot::Gate(GATE), flow: flow("3/s", 3), wanted: 2, since: Some(at(0)) };
    assert_eq!(schedule.begs(), [beg]);
    schedule.grant(Slot::Gate(GATE), 1, Duration::from_millis(300), at(1));
    assert_eq!(picks(&mut schedule, 1), [10]);
    assert_eq!(schedule.begs(), [Beg { wanted: 1, ..beg }]);
    schedule.grant(Slot::Gate(GATE), 0, Duration::from_millis(300), at(2));
    assert_eq!((picks(&mut schedule, 2).len(), schedule.throttled_until()), (0, Some(at(302))));
    assert!(picks(&mut schedule, 302).is_empty());
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(303));
    let void = 303 + i64::try_from(GRANT_VALID_MS).unwrap();
    assert!(picks(&mut schedule, void).is_empty(), "used at once or void");
}

#[test]
fn others_hear_when_a_client_came_not_when_something_last_happened_here() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    schedule.queue_client(GATE, at(500)).unwrap();
    assert!(picks(&mut schedule, 501).is_empty());
    assert_eq!(schedule.begs()[0].since, Some(at(500)));
}

#[test]
fn a_line_that_became_empty_lets_the_others_know() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    schedule.admit(1, terms(9, None), at(0));
    let (first, second) =
        (schedule.queue_client(GATE, at(0)).unwrap(), schedule.queue_client(GATE, at(0)).unwrap());
    assert!(picks(&mut schedule, 0).is_empty() && schedule.begs()[0].wanted == 2);
    schedule.grant(Slot::Gate(GATE), 0, Duration::from_millis(300), at(1));
    assert!(schedule.leave_line(GATE, first) && !schedule.has_beggars(), "one is left");
    assert!(schedule.leave_line(GATE, second) && schedule.has_beggars());
    assert_eq!(
        (schedule.begs()[0].wanted, schedule.has_beggars(), schedule.throttled_until()),
        (0, false, None)
    );
    push(&mut schedule, 1, 10, 2);
    assert!(picks(&mut schedule, 2).is_empty() && schedule.begs()[0].wanted == 1);
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(3));
    assert_eq!((picks(&mut schedule, 3), schedule.has_beggars()), (vec![10], false), "it was served");
}

#[test]
fn what_others_know_of_a_gate_stretches_windows_here() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("1/s", 1))]), at(0));
    schedule.admit(1, terms(9, None), at(0));
    assert_eq!(schedule.gate_pressure(1, at(5_000)), Duration::ZERO);
    let look = Beg { who: Slot::Gate(GATE), flow: flow("1/s", 1), wanted: 0, since: None };
    assert_eq!((schedule.begs(), schedule.has_beggars()), (vec![look], false));
    schedule.hear(GATE, Duration::ZERO, Some(at(1_000)), at(5_010));
    assert_eq!(
        schedule.gate_pressure(1, at(5_020)).as_millis(),
        4_020,
        "as long as the first of all has waited"
    );
    assert!(!schedule.has_beggars(), "that was a moment ago");
    assert_eq!(schedule.gate_pressure(1, at(6_010)).as_millis(), 5_010);
    assert_eq!(schedule.begs(), [look], "another look");
    assert_eq!(schedule.gate_pressure(1, at(7_010)), Duration::ZERO, "without an answer nothing is known");
    schedule.begs();
    schedule.hear(GATE, Duration::from_secs(9), None, at(7_020));
    assert_eq!(schedule.gate_pressure(1, at(8_020)).as_secs(), 8);
    push(&mut schedule, 1, 10, 17_000);
    let slow = schedule.line_pressure(GATE, at(17_000));
    assert_eq!(slow.as_secs(), 8, "an eighth of the rate after a pause, also of one that was heard of");
}

#[test]
fn a_penalty_here_holds_before_the_others_have_heard_of_it() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    schedule.admit(1, terms(9, None), at(0));
    (0..3).for_each(|n| push(&mut schedule, 1, n, 0));
    picks(&mut schedule, 0);
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 3, Duration::ZERO, at(0));
    assert_eq!(schedule.pick(at(0)).unwrap().job.delivery, 0);
    schedule.penalize(GATE, at(2_000), at(1));
    let penalty = Penalty { gate: GATE, flow: flow("3/s", 3), lasts: Duration::from_millis(1_999) };
    assert_eq!(schedule.take_penalties(), [penalty]);
    assert!(picks(&mut schedule, 1).is_empty() && schedule.begs().len() == 1, "its place is known");
    schedule.grant(Slot::Gate(GATE), 0, Duration::from_secs(2), at(2));
    assert!(picks(&mut schedule, 1_999).is_empty() && !schedule.has_beggars());
    assert!(picks(&mut schedule, 2_000).is_empty() && schedule.has_beggars());
    schedule.begs();
    schedule.hear(GATE, Duration::from_secs(3), None, at(2_001));
    schedule.grant(Slot::Gate(GATE), 0, Duration::from_secs(3), at(2_001));
    assert_eq!(schedule.line(GATE, at(2_001)).unwrap().standing.penalized_for.as_secs(), 3);

    assert!(picks(&mut schedule, 5_001).is_empty());
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 2, Duration::ZERO, at(5_001));
    schedule.penalize(GATE, at(5_003), at(5_002));
    assert!(picks(&mut schedule, 5_003).is_empty(), "what it had is worth nothing after a short one either");
}

#[test]
fn a_rate_of_its_own_and_a_gate_are_both_begged_for_and_neither_starves() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    schedule.admit(1, terms(9, Some("1/s")), at(0));
    schedule.admit(2, terms(9, None), at(0));
    push(&mut schedule, 1, 10, 0);
    push(&mut schedule, 2, 20, 0);
    assert!(picks(&mut schedule, 0).is_empty());
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(0));
    assert!(picks(&mut schedule, 0).is_empty(), "the token is kept for the first in line");
    assert_eq!(schedule.begs()[0].who, Slot::Subscriber(1));
    schedule.grant(Slot::Subscriber(1), 1, Duration::ZERO, at(1));
    assert_eq!(picks(&mut schedule, 1), [10]);

    push(&mut schedule, 1, 11, 1);
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(2));
    assert_eq!(picks(&mut schedule, 2), [20]);
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(3));
    push(&mut schedule, 2, 21, 3);
    assert!(picks(&mut schedule, 3).is_empty());
    schedule.begs();
    schedule.grant(Slot::Subscriber(1), 0, Duration::from_secs(1), at(4));
    assert_eq!(picks(&mut schedule, 4), [21], "it steps aside");
}

/// What happens in a random history: who does it, and after how long.
type Step = (u8, i64, i64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0_u8..12, 1_i64..6, 0_i64..400), 1..300)
}

proptest! {
    /// First come, first served over all subscribers, whatever happens; every delivery goes in the end, and the gate's
    /// bound holds in every stretch of time.
    #[test]
    fn first_come_first_served(steps in steps(), burst in 1_u32..5) {
        let mut schedule = gated("3/s", burst, 5);
        let (mut now, mut next, mut closed_until) = (0, 0, 0);
        let mut passed: Vec<(i64, i64)> = Vec::new();
        let mut clients: Vec<(i64, Ticket)> = Vec::new();
        for (step, subscriber, wait) in steps {
            now += wait;
            match step {
                0..6 => { next += 1; push(&mut schedule, subscriber, next, now); }
                6 => { next += 1; clients.push((next, schedule.queue_client(GATE, at(now)).unwrap())); }
                7 => if let Some((_, ticket)) = clients.pop() { schedule.leave_line(GATE, ticket); },
                8 => { schedule.penalize(GATE, at(now + wait * 10), at(now)); closed_until = closed_until.max(now + wait * 10); }
                _ => {}
            }
            pass(&mut schedule, now, &clients, &mut passed);
            prop_assert!(passed.last().is_none_or(|(last, _)| *last != now || now >= closed_until));
        }
        for _ in 0..next {
            now += 3_700_000;
            pass(&mut schedule, now, &clients, &mut passed);
        }
        prop_assert_eq!(schedule.waiting_at_gates(), (0, 0), "nobody starves");
        prop_assert!(passed.is_sorted_by_key(|(_, delivery)| *delivery), "{passed:?}");
        for (first, (from, _)) in passed.iter().enumerate() {
            for (count, (until, _)) in passed[first..].iter().enumerate() {
                prop_assert!((count as i64) < i64::from(burst) + (until - from) * 3 / 1_000);
            }
        }
    }

    /// Several processes around one bucket keep its bound, with tokens that are under way for a moment.
    #[test]
    fn a_crowd_keeps_a_shared_gate(steps in prop::collection::vec((0_usize..3, 0_i64..30, 0_i64..60), 1..400)) {
        let terms_of_gate = flow("5/s", 3);
        let mut schedules: Vec<Schedule> = (0..3).map(|_| crowded(terms_of_gate)).collect();
        let mut reservoir = Reservoir::full(terms_of_gate, 0);
        let (mut now, mut sent, mut closed_until) = (0, Vec::new(), 0);
        for (n, (replica, latency, wait)) in steps.into_iter().enumerate() {
            now += wait;
            let schedule = &mut schedules[replica];
            if n % 50 == 49 {
                schedule.penalize(GATE, at(now + 1_000), at(now));
                closed_until = now + 1_000;
            }
            for penalty in schedule.take_penalties() {
                reservoir.penalize(penalty.flow, now * 1_000, now * 1_000 + penalty.lasts.as_micros() as i64);
            }
            for beg in schedule.begs() {
                let tokens = reservoir.take(beg.flow, now * 1_000, beg.wanted);
                let standing = reservoir.standing(beg.flow, now * 1_000);
                now += latency;
                schedule.hear(GATE, standing.penalized_for, None, at(now));
                schedule.grant(beg.who, tokens, standing.next_in, at(now));
            }
            for delivery in picks(schedule, now) {
                sent.push(now);
                finish(schedule, delivery % 3 + 1, now);
            }
            schedule.take_passed();
        }
        let late = i64::try_from(GRANT_VALID_MS).unwrap() + 90;
        prop_assert!(!sent.iter().any(|ms| (closed_until - 1_000 + late..closed_until).contains(ms)));
        for (first, from) in sent.iter().enumerate() {
            for (count, until) in sent[first..].iter().enumerate() {
                prop_assert!((count as i64) <= 3 + (until - from + late) * 5 / 1_000);
            }
        }
    }
}

/// Lets everything pass that may.
fn pass(schedule: &mut Schedule, now: i64, clients: &[(i64, Ticket)], passed: &mut Vec<(i64, i64)>) {
    loop {
        let turn = schedule.pick(at(now));
        // Clients that went before the delivery that was picked.
        let tickets = schedule.take_passed().into_iter().filter_map(|one| one.ticket);
        for ticket in tickets {
            let client = clients.iter().find(|(_, known)| *known == ticket);
            passed.extend(client.map(|(number, _)| (now, *number)));
        }
        let Some(turn) = turn else { return };
        passed.push((now, turn.job.delivery));
        finish(schedule, turn.job.subscriber, now);
    }
}

/// One of several, with much to send through the gate.
fn crowded(terms_of_gate: Flow) -> Schedule {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, terms_of_gate)]), at(0));
    for subscriber in 1..=3 {
        schedule.admit(subscriber, terms(9, None), at(0));
        (0..300).for_each(|n| push(&mut schedule, subscriber, n * 3 + subscriber - 1, 0));
    }
    schedule
}
