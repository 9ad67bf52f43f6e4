//! Goal: a receiver that only fails is left alone without losing its turn, its order or anybody's memory. Method: one
//! history per rule, told by hand.

use std::time::Duration;

use super::*;
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_REFILL_JOBS};

const FAILED: Outcome = Outcome::Failed { chance: 0 };

fn job(delivery: i64) -> Job {
    super::tests::job(1, delivery)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_ms(seconds * 1000)
}

fn terms(failures: u32) -> Terms {
    let breaker = Some(BreakerTerms { failures, probe: Duration::from_secs(60) });
    Terms { concurrency: 4, rate: None, breaker, disable_after: Some(Duration::from_secs(100)), gate: None }
}

fn finish(schedule: &mut Schedule, turn: &Turn, outcome: Outcome, now: i64) -> Aftermath {
    schedule.finish(Ended { subscriber: 1, was_probe: turn.probe.is_some(), outcome }, at(now))
}

/// Two failures have opened it at 0; six were queued, and four of them came back.
fn opened() -> Schedule {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(2), at(0));
    for n in 0..6 {
        schedule.push(job(n), at(0)).unwrap();
    }
    let turns = [schedule.pick(at(0)).unwrap(), schedule.pick(at(0)).unwrap()];
    assert!(finish(&mut schedule, &turns[0], FAILED, 0).turned.is_none());
    let aftermath = finish(&mut schedule, &turns[1], FAILED, 0);
    assert_eq!(aftermath.turned, Some(Turned::Opened { failures: 2 }));
    let back: Vec<i64> = aftermath.given_back.iter().map(|job| job.delivery).collect();
    assert_eq!(back, [2, 3, 4, 5]);
    schedule
}

#[test]
fn an_open_breaker_gives_memory_back_and_takes_no_more() {
    let mut schedule = opened();
    assert_eq!((schedule.held_bytes(1), schedule.room(1), schedule.breakers_open()), (0, 0, 1));
    assert_eq!(schedule.room_bytes(), QUEUE_BYTES_MAX);
    assert!(schedule.push(job(9), at(1)).is_err(), "what a commit still hands over goes back too");
    assert!(schedule.pick(at(1)).is_none());
}

#[test]
fn the_store_is_asked_for_one_at_the_time_of_the_probe() {
    let mut schedule = opened();
    schedule.spill(1);
    schedule.expect(1, at(1));
    assert!(schedule.wishes(at(4)).is_empty());
    assert_eq!(schedule.store_due_at(), Some(at(5)));
    assert_eq!(schedule.wishes(at(5)), [(1, 1)]);
    assert_eq!(schedule.wishes(at(5)), [(1, 1)], "a commit may fail, then it is asked again");
    schedule.refilled(1, false, Some(at(0)));
    schedule.push(job(2), at(5)).unwrap();
    assert!(schedule.wishes(at(5)).is_empty());
    assert!(schedule.push(job(3), at(5)).is_err());
    let probe = schedule.pick(at(5)).unwrap();
    assert!(probe.probe.is_some() && schedule.pick(at(5)).is_none());
    assert_eq!(schedule.breaker(1).unwrap().state, "half_open");
    assert!(finish(&mut schedule, &probe, FAILED, 6).turned.is_none());
    assert!(schedule.take_appetite(), "whoever sleeps until the store has work learns of the next probe");
    assert!(schedule.wishes(at(15)).is_empty());
    assert_eq!(schedule.store_due_at(), Some(at(16)));
    assert_eq!(schedule.wishes(at(16)), [(1, 1)]);
}

/// A job that sends dead letters again waits until a subscriber is calm, also when its last ones failed and opened the breaker.
#[test]
fn one_that_has_nothing_left_is_calm() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(1), at(0));
    schedule.push(job(1), at(0)).unwrap();
    let turn = schedule.pick(at(0)).unwrap();
    assert!(finish(&mut schedule, &turn, FAILED, 0).turned.is_some());
    assert!(!schedule.is_busy(1, 10));
    schedule.spill(1);
    assert!(schedule.is_busy(1, 10) && schedule.store_due_at() == Some(at(5)));
    schedule.refilled(1, true, None);
    assert!(!schedule.is_busy(1, 10));
}

#[test]
fn a_probe_waits_for_what_is_still_under_way() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(1), at(0));
    for n in 0..3 {
        schedule.push(job(n), at(0)).unwrap();
    }
    let (first, hung) = (schedule.pick(at(0)).unwrap(), schedule.pick(at(0)).unwrap());
    assert_eq!(finish(&mut schedule, &first, FAILED, 0).given_back.len(), 1);
    schedule.spill(1);
    assert!(schedule.wishes(at(20)).is_empty(), "one is in flight");
    schedule.take_appetite();
    finish(&mut schedule, &hung, FAILED, 30);
    assert!(schedule.take_appetite());
    assert_eq!(schedule.wishes(at(30)), [(1, 1)]);
}

#[test]
fn without_work_nothing_is_awaited() {
    let mut schedule = opened();
    assert_eq!((schedule.store_due_at(), schedule.throttled_until()), (None, None));
    schedule.spill(1);
    assert_eq!(schedule.store_due_at(), Some(at(5)));
}

#[test]
fn a_success_closes_it_slowly_and_brings_the_rest_in() {
    let mut schedule = opened();
    schedule.spill(1);
    assert_eq!(schedule.wishes(at(5)), [(1, 1)]);
    schedule.refilled(1, false, Some(at(0)));
    schedule.push(job(2), at(5)).unwrap();
    let probe = schedule.pick(at(5)).unwrap();
    let aftermath = finish(&mut schedule, &probe, Outcome::Delivered, 6);
    assert_eq!(aftermath.turned, Some(Turned::Closed { opened_at: at(0) }));
    assert!(schedule.take_appetite());
    assert_eq!(schedule.wishes(at(6)), [(1, QUEUE_REFILL_JOBS)]);
    assert_eq!(schedule.room(1), 0, "older ones wait in the store");
    schedule.refilled(1, true, None);
    for n in 3..12 {
        schedule.push(job(n), at(6)).unwrap();
    }
    let alone = schedule.pick(at(6)).unwrap();
    assert!(schedule.pick(at(6)).is_none(), "one at a time at first");
    finish(&mut schedule, &alone, Outcome::Delivered, 7);
    assert_eq!(std::iter::from_fn(|| schedule.pick(at(7))).count(), 2);
}

#[test]
fn what_people_ask_for_passes() {
    let mut schedule = opened();
    schedule.ask(1, 3);
    assert_eq!((schedule.take_asked(), schedule.take_asked()), (vec![(1, 3)], vec![]));
    schedule.push(job(3), at(1)).unwrap();
    let turn = schedule.pick(at(1)).unwrap();
    assert!(turn.job.delivery == 3 && turn.probe.is_none());
    assert_eq!(schedule.breaker(1).unwrap().state, "open");
    finish(&mut schedule, &turn, Outcome::Delivered, 2);
    assert_eq!(schedule.breaker(1).unwrap().state, "closed");
    assert_eq!(schedule.wishes(at(2)), [(1, QUEUE_REFILL_JOBS)]);
}

#[test]
fn new_terms_a_resume_and_an_owner_close_it() {
    let wants_all = [(1, QUEUE_REFILL_JOBS)];
    let mut changed = opened();
    changed.admit(1, terms(2), at(1));
    assert_eq!(changed.breaker(1).unwrap().state, "open", "nothing about it changed");
    changed.admit(1, Terms { breaker: None, ..terms(2) }, at(1));
    assert_eq!(changed.wishes(at(1)), wants_all);
    let mut resumed = opened();
    resumed.dismiss(1);
    resumed.admit(1, terms(2), at(1));
    assert_eq!(resumed.breaker(1).unwrap().state, "closed");
    let mut told = opened();
    told.close_breaker(1);
    assert_eq!((told.breaker(1).unwrap().failures, told.wishes(at(1))), (0, wants_all.to_vec()));
}

#[test]
fn nothing_but_failures_for_too_long_is_given_up() {
    let mut schedule = Schedule::default();
    schedule.admit(1, Terms { breaker: None, ..terms(1) }, at(0));
    let mut attempt = |outcome, now| {
        schedule.push(job(now), at(now)).unwrap();
        let turn = schedule.pick(at(now)).unwrap();
        let aftermath = finish(&mut schedule, &turn, outcome, now);
        (aftermath.streak, aftermath.given_up)
    };
    assert_eq!(attempt(FAILED, 1), (Some(Streak::Began(at(1))), None));
    assert_eq!(attempt(FAILED, 100), (None, None));
    assert_eq!(attempt(Outcome::Delivered, 101), (Some(Streak::Ended), None));
    assert_eq!(attempt(Outcome::Delivered, 102), (None, None), "only changes are told");
    assert_eq!(attempt(FAILED, 150), (Some(Streak::Began(at(150))), None));
    assert_eq!(attempt(Outcome::Unsent, 300), (None, None));
    assert_eq!(attempt(FAILED, 249), (None, None));
    assert_eq!(attempt(FAILED, 250), (None, Some(at(150))));
    schedule.recall(1, Some(at(2)));
    assert_eq!(schedule.failing_since(1), Some(at(2)));
}

#[test]
fn what_comes_while_a_probe_is_out_waits_in_the_store() {
    let mut schedule = opened();
    schedule.spill(1);
    assert_eq!(schedule.wishes(at(5)), [(1, 1)]);
    schedule.refilled(1, true, None);
    schedule.push(job(2), at(5)).unwrap();
    assert_eq!(schedule.room(1), 0, "though nothing older waits there");
}

#[test]
fn what_arrives_while_everything_stops_ends_a_streak_too() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(9), at(0));
    schedule.recall(1, Some(at(1)));
    (1..=2).for_each(|delivery| schedule.push(job(delivery), at(2)).unwrap());
    let turns = [schedule.pick(at(2)).unwrap(), schedule.pick(at(2)).unwrap()];
    schedule.drain();
    assert_eq!(finish(&mut schedule, &turns[0], FAILED, 3).streak, None, "nobody counts failures now");
    assert_eq!(finish(&mut schedule, &turns[1], Outcome::Delivered, 3).streak, Some(Streak::Ended));
}

#[test]
fn a_probe_that_another_process_takes_over_keeps_nobody_waiting() {
    let mut schedule = opened();
    schedule.spill(1);
    schedule.push(job(2), at(5)).unwrap();
    assert_eq!(schedule.breaker(1).unwrap().state, "half_open");
    let shares = (0..5).map(|rank| Share { rank, replicas: 5 });
    let elsewhere = shares.into_iter().find(|share| share.of(4, 1) == 0).unwrap();
    assert_eq!(schedule.propose(elsewhere).len(), 1, "the probe goes back to the store");
    assert!(schedule.wishes(at(6)).is_empty());
    schedule.agree(&BTreeSet::new());
    schedule.propose(Share::default());
    schedule.agree(&BTreeSet::new());
    assert_eq!(schedule.wishes(at(7)), [(1, 1)], "and another one comes when there is a place again");
}
