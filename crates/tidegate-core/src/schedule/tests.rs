//! Goal: turns are fair, limits hold, memory is bounded. Method: unit cases for each rule, then random histories
//! checked against what the rules promise.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::limits::{QUEUE_BYTES_MAX, QUEUE_JOBS_MAX, QUEUE_REFILL_JOBS};

pub(super) fn job(subscriber: SubscriberNo, delivery: i64) -> Job {
    Job {
        delivery,
        project: 1,
        subscriber,
        event: delivery,
        lane: None,
        attempts: 0,
        tries: 0,
        nonce: 0,
        token: 1,
        life: 0,
        accepted_at: Timestamp::from_ms(0),
        replay: false,
        out_of_order: false,
        is_suspect: false,
        fold: None,
        body: Bytes::from_static(b"{}"),
    }
}

fn terms(concurrency: u32) -> Terms {
    Terms { concurrency, rate: None, breaker: None, disable_after: None, gate: None }
}

const DELIVERED: Outcome = Outcome::Delivered;

/// Ends an attempt that was no probe.
fn finish(schedule: &mut Schedule, subscriber: SubscriberNo, outcome: Outcome, ms: i64) -> Aftermath {
    schedule.finish(Ended { subscriber, was_probe: false, outcome }, at(ms))
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

#[test]
fn a_bucket_tells_what_is_left() {
    let now = Timestamp::from_ms(1_000);
    let mut bucket = Bucket::new(Rate::parse("3/s").unwrap(), now);
    for left in [3, 2, 1, 0] {
        assert_eq!(bucket.left(now), left);
        assert_eq!(bucket.take(now).is_ok(), left > 0);
    }
    assert_eq!(bucket.refilled_in(now).as_millis(), 1_000);
    let later = Timestamp::from_ms(1_340);
    assert_eq!(bucket.left(later), 1);
    assert_eq!(bucket.left(Timestamp::from_ms(9_000)), 3, "never more than a burst");
}

#[test]
fn subscribers_take_turns_whoever_came_first() {
    let mut schedule = Schedule::default();
    for subscriber in 1..=3 {
        schedule.admit(subscriber, terms(100), at(0));
        for n in 0..3 {
            schedule.push(job(subscriber, subscriber * 10 + n), at(0)).unwrap();
        }
    }
    let order: Vec<i64> = std::iter::from_fn(|| schedule.pick(at(0))).map(|turn| turn.job.delivery).collect();
    assert_eq!(order, [10, 20, 30, 11, 21, 31, 12, 22, 32]);
}

#[test]
fn a_hung_receiver_uses_up_its_own_places_only() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(2), at(0));
    schedule.admit(2, terms(2), at(0));
    for n in 0..10 {
        schedule.push(job(1, n), at(0)).unwrap();
    }
    assert_eq!(schedule.pick(at(0)).unwrap().job.subscriber, 1);
    assert_eq!(schedule.pick(at(0)).unwrap().job.subscriber, 1);
    assert!(schedule.pick(at(0)).is_none(), "both places of 1 are taken");
    for n in 10..20 {
        schedule.push(job(2, n), at(0)).unwrap();
        assert_eq!(schedule.pick(at(0)).unwrap().job.delivery, n);
        finish(&mut schedule, 2, DELIVERED, 0);
    }
    assert_eq!(schedule.in_flight(), 2);
}

#[test]
fn a_rate_postpones_without_holding_others() {
    let mut schedule = Schedule::default();
    schedule.admit(
        1,
        Terms { concurrency: 9, rate: Rate::parse("2/s"), breaker: None, disable_after: None, gate: None },
        at(0),
    );
    schedule.admit(2, terms(9), at(0));
    for n in 0..4 {
        schedule.push(job(1, n), at(0)).unwrap();
        schedule.push(job(2, 10 + n), at(0)).unwrap();
    }
    let order: Vec<i64> = std::iter::from_fn(|| schedule.pick(at(0))).map(|turn| turn.job.delivery).collect();
    assert_eq!(order, [0, 10, 1, 11, 12, 13]);
    assert_eq!(schedule.throttled_until(), Some(at(500)));
    assert!(schedule.pick(at(499)).is_none());
    assert_eq!(schedule.pick(at(500)).unwrap().job.delivery, 2);
    assert_eq!(schedule.pick(at(1000)).unwrap().job.delivery, 3);
}

#[test]
fn a_hung_receiver_leaves_memory_for_others() {
    let mut schedule = Schedule::new(Bounds { queue_bytes: 8, ..Bounds::default() });
    for subscriber in 1..=3 {
        schedule.admit(subscriber, terms(1), at(0));
        schedule.spill(subscriber);
    }
    assert_eq!(schedule.wishes(at(0)).len(), 3);
    for n in 0..2 {
        schedule.push(job(1, n), at(0)).unwrap();
    }
    assert_eq!((schedule.held_bytes(1), schedule.room_bytes()), (4, 4));
    let wishing: Vec<SubscriberNo> =
        schedule.wishes(at(0)).iter().map(|(subscriber, _)| *subscriber).collect();
    assert_eq!(wishing, [2, 3], "1 holds as much as it leaves free");
    schedule.push(job(2, 2), at(0)).unwrap();
    schedule.push(job(2, 3), at(0)).unwrap();
    assert_eq!(schedule.room_bytes(), 0);
    assert_eq!(schedule.wishes(at(0)), [(3, QUEUE_REFILL_JOBS)], "whoever holds nothing may always have one");
    schedule.dismiss(1);
    assert_eq!((schedule.held_bytes(1), schedule.room_bytes()), (0, 4));
}

#[test]
fn what_overflowed_keeps_its_order_until_the_store_is_drained() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(1), at(0));
    assert_eq!(schedule.room(1), QUEUE_JOBS_MAX);
    schedule.spill(1);
    assert_eq!(schedule.room(1), 0, "newer ones must not pass the older ones in the store");
    assert_eq!(schedule.wishes(at(0)), [(1, QUEUE_REFILL_JOBS)]);
    schedule.refilled(1, false, Some(at(0)));
    assert_eq!(schedule.wishes(at(0)).len(), 1);
    schedule.refilled(1, true, Some(at(70)));
    assert_eq!(schedule.room(1), QUEUE_JOBS_MAX);
    assert_eq!(schedule.store_due_at(), Some(at(70)));
    assert!(schedule.wishes(at(69)).is_empty());
    assert_eq!(schedule.wishes(at(70)).len(), 1);
}

#[test]
fn a_dismissed_subscriber_gives_its_work_back_and_takes_no_more() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(1), at(0));
    for n in 0..3 {
        schedule.push(job(1, n), at(0)).unwrap();
    }
    let flying = schedule.pick(at(0)).unwrap().job;
    assert_eq!(schedule.dismiss(1).len(), 2);
    assert!(schedule.push(job(1, 9), at(0)).is_err());
    schedule.admit(1, terms(1), at(0));
    schedule.push(job(1, 9), at(0)).unwrap();
    assert!(schedule.pick(at(0)).is_none(), "the attempt under way keeps its place");
    assert_eq!(schedule.dismiss(1).len(), 1);
    finish(&mut schedule, flying.subscriber, DELIVERED, 0);
    assert_eq!((schedule.in_flight(), schedule.room_bytes()), (0, QUEUE_BYTES_MAX));
    assert!(schedule.pick(at(0)).is_none());
}

proptest! {
    /// Whatever comes and goes: limits hold at every instant, nothing is lost, nobody waits for more turns than there
    /// are others.
    #[test]
    fn random_histories(steps in prop::collection::vec((0u8..4, 1i64..5, 0i64..50), 1..400)) {
        let mut schedule = Schedule::default();
        let mut now = 0;
        let (mut pushed, mut flying) = (0i64, Vec::new());
        let mut picked = 0;
        for subscriber in 1..5 {
            schedule.admit(subscriber, terms(subscriber as u32), at(0));
        }
        for (step, subscriber, wait) in steps {
            now += wait;
            match step {
                0 | 1 => { schedule.push(job(subscriber, pushed), at(0)).unwrap(); pushed += 1; }
                2 => if let Some(turn) = schedule.pick(at(now)) { picked += 1; flying.push(turn.job.subscriber); },
                _ => if let Some(done) = flying.pop() { finish(&mut schedule, done, DELIVERED, 0); },
            }
            for subscriber in 1..5 {
                let count = flying.iter().filter(|flying| **flying == subscriber).count();
                prop_assert!(count <= subscriber as usize);
            }
        }
        while let Some(done) = flying.pop() {
            finish(&mut schedule, done, DELIVERED, 0);
            while let Some(turn) = schedule.pick(at(now)) { picked += 1; flying.push(turn.job.subscriber); }
        }
        while let Some(turn) = schedule.pick(at(now)) { picked += 1; finish(&mut schedule, turn.job.subscriber, DELIVERED, 0); }
        prop_assert_eq!(picked, pushed);
    }

    /// In any window, a bucket lets through at most its burst and what the rate adds.
    #[test]
    fn a_bucket_keeps_its_rate(count in 1u32..50, waits in prop::collection::vec(0i64..300, 1..300)) {
        let rate = Rate::parse(&format!("{count}/s")).unwrap();
        let mut bucket = Bucket::new(rate, at(0));
        let mut now = 0;
        let mut taken: Vec<i64> = Vec::new();
        for wait in waits {
            now += wait;
            match bucket.take(at(now)) {
                Ok(()) => taken.push(now),
                Err(later) => prop_assert!(later > at(now)),
            }
        }
        for (first, start) in taken.iter().enumerate() {
            let within = taken[first..].iter().take_while(|t| **t < start + 1000).count();
            prop_assert!(within <= 2 * count as usize, "{within} in one second at {count}/s");
        }
    }
}

/// When deliveries of which there are plenty are sent, looked at every 50 ms.
fn sent(schedule: &mut Schedule, times: std::ops::Range<i64>) -> Vec<i64> {
    let mut sent = Vec::new();
    for ms in times.step_by(50) {
        let _ = schedule.push(job(1, ms), at(ms));
        while let Some(turn) = schedule.pick(at(ms)) {
            sent.push(ms);
            finish(schedule, turn.job.subscriber, DELIVERED, ms);
            let _ = schedule.push(job(1, ms), at(ms));
        }
    }
    sent
}

#[test]
fn the_rate_of_a_new_subscriber_begins_full_and_that_of_others_empty() {
    let terms = Terms { rate: Rate::parse("6/m"), ..terms(9) };
    let mut schedule = Schedule::default();
    schedule.know(1);
    schedule.admit(1, terms, at(0));
    assert_eq!(sent(&mut schedule, 0..25_000), [10_000, 20_000], "a former process may have sent one");
    schedule.admit(2, terms, at(30_000));
    schedule.push(job(2, 1), at(30_000)).unwrap();
    assert!(
        std::iter::from_fn(|| schedule.pick(at(30_000))).any(|turn| turn.job.subscriber == 2),
        "it is new"
    );
}

#[test]
fn another_rate_goes_on_with_what_the_old_one_left() {
    let with = |rate: Option<&str>| Terms { rate: rate.and_then(Rate::parse), ..terms(9) };
    let mut schedule = Schedule::default();
    schedule.admit(1, with(Some("6/m")), at(0));
    assert_eq!(sent(&mut schedule, 0..2_000), [0]);
    schedule.admit(1, with(Some("12/m")), at(2_000));
    assert_eq!(sent(&mut schedule, 2_000..8_000), [6_000], "a fifth had come in before");
    schedule.admit(1, with(None), at(8_000));
    schedule.admit(1, with(Some("12/m")), at(8_000));
    assert_eq!(sent(&mut schedule, 8_000..14_000), [13_000], "nobody counted meanwhile");
}

#[derive(Clone, Copy, Debug)]
enum Meddling {
    Pause,
    Restart,
    Change(&'static str),
    Nothing,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever its owner does, and however often the process restarts: no stretch has more than the burst and the rate of the
    /// fastest that was ever asked for.
    #[test]
    fn nobody_gets_more_than_its_rate_by_meddling(
        deeds in prop::collection::vec((50_i64..4_000, prop_oneof![
            Just(Meddling::Pause), Just(Meddling::Restart), Just(Meddling::Nothing),
            prop::sample::select(vec!["2/s", "1/s", "40/m", "6/m"]).prop_map(Meddling::Change),
        ]), 1..20),
    ) {
        let mut terms = Terms { rate: Rate::parse("2/s"), ..terms(99) };
        let (mut schedule, mut now, mut all) = (Schedule::default(), 0, Vec::new());
        schedule.admit(1, terms, at(0));
        for (lasts, deed) in deeds {
            all.extend(sent(&mut schedule, now..now + lasts));
            now += lasts;
            match deed {
                Meddling::Nothing => continue,
                Meddling::Pause => drop(schedule.dismiss(1)),
                Meddling::Restart => {
                    schedule = Schedule::default();
                    schedule.know(1);
                }
                Meddling::Change(rate) => terms.rate = Rate::parse(rate),
            }
            schedule.admit(1, terms, at(now));
        }
        for (index, first) in all.iter().enumerate() {
            for (count, last) in all[index..].iter().enumerate() {
                let allowed = 2 + (last - first) * 2 / 1_000;
                prop_assert!((count as i64) < allowed, "{} from {first} to {last}", count + 1);
            }
        }
    }
}
