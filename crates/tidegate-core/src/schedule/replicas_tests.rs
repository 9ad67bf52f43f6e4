//! Goal: several processes together stay inside every limit, and whatever one has no place for goes to the others. Method:
//! one history per rule, told by hand, then random ones with several schedules around one bucket.

use std::time::Duration;

use proptest::prelude::*;

use super::tests::job;
use super::*;
use crate::gate::{Flow, Reservoir};
use crate::limits::GRANT_VALID_MS;

/// The subscriber of [`begging`].
const ME: Slot = Slot::Subscriber(1);

fn terms(concurrency: u32, rate: Option<&str>) -> Terms {
    let rate = rate.map(|rate| Rate::parse(rate).unwrap());
    Terms { concurrency, rate, breaker: None, disable_after: None, gate: None }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

/// One that begs for its rates, with a subscriber that has this much to send.
fn begging(rate: &str, jobs: i64) -> Schedule {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.admit(1, terms(100, Some(rate)), at(0));
    (0..jobs).for_each(|n| schedule.push(job(1, n), at(0)).unwrap());
    schedule
}

/// Everybody obeys a new share.
fn set_share(schedule: &mut Schedule, share: Share) -> Vec<Job> {
    let mut back = schedule.propose(share);
    back.extend(schedule.agree(&BTreeSet::new()));
    back
}

fn picks(schedule: &mut Schedule, ms: i64) -> usize {
    std::iter::from_fn(|| schedule.pick(at(ms))).count()
}

fn finish(schedule: &mut Schedule, subscriber: SubscriberNo, ms: i64) {
    schedule.finish(Ended { subscriber, was_probe: false, outcome: Outcome::Delivered }, at(ms));
}

#[test]
fn small_limits_do_not_all_fall_to_one() {
    for rank in 0..3 {
        let share = Share { rank, replicas: 3 };
        let owned = (1..=30).filter(|subscriber| share.of(1, *subscriber) == 1).count();
        assert_eq!(owned, 10);
    }
}

#[test]
fn who_has_no_place_leaves_a_subscriber_to_the_others() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(1, None), at(0));
    (0..3).for_each(|n| schedule.push(job(1, n), at(0)).unwrap());
    let flying = schedule.pick(at(0)).unwrap();
    let elsewhere = Share { rank: 0, replicas: 2 };
    assert_eq!(elsewhere.of(1, 1), 0);

    let back: Vec<i64> = set_share(&mut schedule, elsewhere).iter().map(|job| job.delivery).collect();
    assert_eq!(back, [1, 2]);
    assert_eq!((schedule.room(1), schedule.room_bytes()), (0, Bounds::default().queue_bytes));
    assert!(schedule.push(job(1, 9), at(0)).is_err());
    schedule.spill(1);
    assert!(!schedule.is_busy(1, 0), "a job that waited for it to be calm would wait for ever");
    schedule.expect(1, at(5));
    schedule.ask(1, 7);
    assert!(schedule.wishes(at(5)).is_empty() && schedule.take_asked().is_empty());
    finish(&mut schedule, flying.job.subscriber, 5);

    assert!(set_share(&mut schedule, Share::default()).is_empty());
    assert!(schedule.take_appetite(), "the store is to be asked");
    assert_eq!(schedule.wishes(at(6)).len(), 1);
    assert_eq!(schedule.room(1), 0, "what waits in the store goes first");
    schedule.refilled(1, true, None);
    schedule.push(job(1, 9), at(6)).unwrap();
    assert_eq!(schedule.pick(at(6)).unwrap().job.delivery, 9);
}

#[test]
fn what_one_has_gathered_is_for_whoever_has_a_free_place() {
    let mut schedule = Schedule::new(Bounds { place_jobs: 3, ..Bounds::default() });
    schedule.admit(1, terms(2, None), at(0));
    (0..20).for_each(|n| schedule.push(job(1, n), at(0)).unwrap());
    assert_eq!(schedule.room(1), Bounds::default().queue_jobs - 20, "alone it takes what memory holds");

    let half = Share { rank: 0, replicas: 2 };
    let back: Vec<i64> = set_share(&mut schedule, half).iter().map(|job| job.delivery).collect();
    assert_eq!(back, (3..20).collect::<Vec<_>>(), "the newest");
    assert_eq!(schedule.room(1), 0, "newer ones do not pass these");
    assert_eq!(schedule.wishes(at(0)), [], "it has enough");
    assert_eq!(schedule.pick(at(0)).unwrap().job.delivery, 0);
    assert_eq!(schedule.wishes(at(0)), []);
    assert!(!schedule.take_appetite());
    finish(&mut schedule, 1, 1);
    assert_eq!(schedule.pick(at(1)).unwrap().job.delivery, 1);
    assert!(schedule.take_appetite(), "half of it is used up");
    assert_eq!(schedule.wishes(at(1)), [(1, 2)]);
    schedule.refilled(1, true, None);
    assert_eq!(schedule.room(1), 2);

    let mut schedule = begging("10/s", 5_000);
    assert!(set_share(&mut schedule, half).is_empty(), "a free place is not what these wait for");
    assert!(schedule.admit(1, terms(100, Some("20/s")), at(2)).is_empty());
    let back = schedule.admit(1, terms(100, None), at(2));
    assert_eq!(back.len(), 5_000 - 50 * Bounds::default().place_jobs, "now it is");
}

#[test]
fn a_smaller_limit_may_leave_no_place_here() {
    let mut schedule = Schedule::default();
    set_share(&mut schedule, Share { rank: 0, replicas: 2 });
    schedule.admit(1, terms(2, None), at(0));
    schedule.push(job(1, 1), at(0)).unwrap();
    assert_eq!(schedule.admit(1, terms(1, None), at(0)).len(), 1);
    assert!(schedule.pick(at(0)).is_none());
    assert!(schedule.admit(1, terms(2, None), at(0)).is_empty());
    assert!(schedule.take_appetite());
}

#[test]
fn whoever_has_a_rate_begs_and_holds_nobody_up() {
    let mut schedule = begging("10/s", 30);
    schedule.admit(2, terms(3, None), at(0));
    (50..53).for_each(|n| schedule.push(job(2, n), at(0)).unwrap());
    assert_eq!(picks(&mut schedule, 0), 3, "those without a rate");
    assert!(schedule.has_beggars());
    let beg = Beg { who: ME, flow: Rate::parse("10/s").unwrap().into(), wanted: 10, since: None };
    assert_eq!(schedule.begs(), [beg]);
    assert!(!schedule.has_beggars() && schedule.begs().is_empty(), "it has asked");
    schedule.push(job(1, 99), at(1)).unwrap();
    assert_eq!(picks(&mut schedule, 1), 0, "and waits");

    schedule.grant(ME, 4, Duration::from_millis(100), at(2));
    assert_eq!(picks(&mut schedule, 2), 4);
    assert_eq!(schedule.begs(), [beg]);
    schedule.grant(ME, 0, Duration::from_millis(98), at(3));
    assert_eq!(schedule.throttled_until(), Some(at(101)));
    assert_eq!(picks(&mut schedule, 100), 0);
    assert!(!schedule.has_beggars());
    assert_eq!(picks(&mut schedule, 101), 0);
    assert_eq!(schedule.begs(), [beg]);
}

#[test]
fn nobody_begs_for_more_than_it_can_use() {
    let mut schedule = begging("10/s", 3);
    assert_eq!(picks(&mut schedule, 0), 0);
    assert_eq!(schedule.begs()[0].wanted, 3, "what waits");
    let mut schedule = begging("10/s", 30);
    schedule.admit(1, terms(2, Some("10/s")), at(0));
    assert_eq!(picks(&mut schedule, 0), 0);
    assert_eq!(schedule.begs()[0].wanted, 2, "its places");
}

#[test]
fn tokens_that_were_held_back_are_void() {
    let mut schedule = begging("10/s", 30);
    schedule.admit(1, terms(1, Some("10/s")), at(0));
    assert_eq!(picks(&mut schedule, 0), 0);
    schedule.begs();
    schedule.grant(ME, 10, Duration::ZERO, at(0));
    let valid = i64::try_from(GRANT_VALID_MS).unwrap();
    assert_eq!(picks(&mut schedule, 0), 1, "its only place");
    finish(&mut schedule, 1, valid - 1);
    assert_eq!(picks(&mut schedule, valid - 1), 1);
    finish(&mut schedule, 1, valid);
    assert_eq!(picks(&mut schedule, valid), 0);
    assert!(schedule.has_beggars());
}

#[test]
fn an_answer_that_nobody_waits_for_is_lost() {
    let mut schedule = begging("10/s", 30);
    assert_eq!(picks(&mut schedule, 0), 0);
    schedule.begs();
    schedule.dismiss(1);
    schedule.admit(1, terms(100, Some("10/s")), at(0));
    (0..9).for_each(|n| schedule.push(job(1, n), at(0)).unwrap());
    schedule.grant(ME, 9, Duration::ZERO, at(0));
    schedule.grant(Slot::Subscriber(2), 9, Duration::ZERO, at(0));
    assert_eq!(picks(&mut schedule, 0), 0);
    assert_eq!(schedule.begs().len(), 1, "it begs anew");
}

#[test]
fn a_new_rate_does_not_wait_for_the_old_one() {
    let mut own = Schedule::default();
    own.admit(1, terms(9, Some("1/h")), at(0));
    (0..2).for_each(|n| own.push(job(1, n), at(0)).unwrap());
    assert_eq!(picks(&mut own, 0), 1);
    own.admit(1, terms(9, Some("5/s")), at(1));
    assert_eq!((picks(&mut own, 1), own.throttled_until()), (0, Some(at(201))), "not in an hour");
    assert_eq!(picks(&mut own, 201), 1);

    let mut shared = begging("1/h", 5);
    assert_eq!(picks(&mut shared, 0), 0);
    shared.begs();
    shared.grant(ME, 0, Duration::from_secs(3600), at(0));
    shared.admit(1, terms(9, Some("5/s")), at(1));
    assert_eq!(picks(&mut shared, 1), 0);
    assert_eq!(shared.begs()[0].wanted, 5);
}

/// Several processes around one bucket, whose answers take their time.
struct Crowd {
    schedules: Vec<Schedule>,
    /// When each comes, to whom, how many it brings, and when it is worth asking again.
    answers: Vec<(i64, usize, u32, Duration)>,
    flow: Flow,
    reservoir: Reservoir,
    /// How many, and when.
    sent: Vec<(i64, i64)>,
}

impl Crowd {
    fn new(rate: &str) -> Self {
        let schedules = (0..3).map(|_| begging(rate, 3_000)).collect();
        let flow = Flow::from(Rate::parse(rate).unwrap());
        let reservoir = Reservoir::full(flow, 0);
        Self { schedules, answers: Vec::new(), flow, reservoir, sent: Vec::new() }
    }

    /// One of them does what it can; its begging is answered `latency` later.
    fn step(&mut self, replica: usize, latency: i64, now: i64) {
        let due = self.answers.extract_if(.., |(at, ..)| *at <= now);
        for (_, replica, tokens, next_in) in due {
            self.schedules[replica].grant(ME, tokens, next_in, at(now));
        }
        let schedule = &mut self.schedules[replica];
        let sent = picks(schedule, now);
        self.sent.push((now, sent as i64));
        (0..sent).for_each(|_| finish(schedule, 1, now));
        for beg in schedule.begs() {
            let tokens = self.reservoir.take(self.flow, now * 1_000, beg.wanted);
            let next_in = self.reservoir.standing(self.flow, now * 1_000).next_in;
            self.answers.push((now + latency, replica, tokens, next_in));
        }
    }
}

proptest! {
    /// All parts of a limit are the limit, and fair.
    #[test]
    fn shares_add_up(limit in 0_u32..300, replicas in 1_u32..40, subscriber in any::<i64>()) {
        let shares: Vec<u32> = (0..replicas).map(|rank| Share { rank, replicas }.of(limit, subscriber)).collect();
        prop_assert_eq!(shares.iter().sum::<u32>(), limit);
        prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
    }

    /// Whoever sends when, however long answers take: in any stretch of time no more goes out than a burst, the rate's
    /// worth of it, and of the time for which tokens may be under way.
    #[test]
    fn a_crowd_keeps_a_shared_rate(
        steps in prop::collection::vec((0_usize..3, 0_i64..40, 0_i64..30), 1..600),
        rate in prop::sample::select(vec!["5/s", "50/s", "400/s"]),
    ) {
        const LATENCY_MAX: i64 = 40;
        // Answers are handed over at the next step, at the latest.
        const STEP_MAX: i64 = 30;
        let mut crowd = Crowd::new(rate);
        let mut now = 0;
        for (replica, latency, wait) in steps {
            now += wait;
            crowd.step(replica, latency, now);
        }
        let rate = Rate::parse(rate).unwrap();
        let late = i64::try_from(GRANT_VALID_MS).unwrap() + LATENCY_MAX + STEP_MAX;
        for (first, (from, _)) in crowd.sent.iter().enumerate() {
            let mut total = 0;
            for (until, sent) in &crowd.sent[first..] {
                total += sent;
                let interval_us = crowd.flow.interval(8).as_micros() as i64;
                let flow = (until - from + late) * 1_000 / interval_us + 1;
                let most = i64::from(rate.burst()) + flow;
                prop_assert!(total <= most, "{total} from {from} to {until}");
            }
        }
    }

    /// Replicas come and go: nobody uses more places than are his, and every delivery is sent here or given back.
    #[test]
    fn random_shares(steps in prop::collection::vec((0_u8..5, 1_i64..5, 0_u32..4), 1..300)) {
        let mut schedule = Schedule::default();
        let (mut pushed, mut ended, mut flying) = (0_i64, 0_i64, Vec::new());
        let mut share = Share::default();
        (1..5).for_each(|subscriber| drop(schedule.admit(subscriber, terms(subscriber as u32, None), at(0))));
        for (step, subscriber, rank) in steps {
            match step {
                0 | 1 => {
                    pushed += 1;
                    let refused = schedule.push(job(subscriber, pushed), at(0)).is_err();
                    prop_assert_eq!(refused, share.of(subscriber as u32, subscriber) == 0);
                    ended += i64::from(refused);
                }
                2 => if let Some(turn) = schedule.pick(at(0)) {
                    let subscriber = turn.job.subscriber;
                    flying.push(subscriber);
                    let count = flying.iter().filter(|flying| **flying == subscriber).count();
                    prop_assert!(count <= share.of(subscriber as u32, subscriber) as usize);
                },
                3 => if let Some(done) = flying.pop() { finish(&mut schedule, done, 0); ended += 1; },
                _ => {
                    share = Share { rank, replicas: rank + subscriber as u32 };
                    ended += set_share(&mut schedule, share).len() as i64;
                }
            }
        }
        ended += schedule.drain().len() as i64 + flying.len() as i64;
        prop_assert_eq!(ended, pushed);
    }
}
