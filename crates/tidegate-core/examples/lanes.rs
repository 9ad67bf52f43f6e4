//! How long a turn takes when ten thousand subscribers, a lane each, stand in line at one gate that never says no. Prints
//! microseconds: a push, a pick and a finish.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_core::delivery::Job;
use tidegate_core::gate::Flow;
use tidegate_core::schedule::breaker::Outcome;
use tidegate_core::schedule::{Ended, Schedule, Terms};
use tidegate_core::subscriber::Rate;
use tidegate_core::time::Timestamp;

const LANES: i64 = 10_000;
const TURNS: i64 = 1_000_000;
const GATE: i64 = 1;

#[expect(clippy::disallowed_methods, reason = "measures itself")]
fn main() {
    let mut schedule = Schedule::default();
    let rate = Rate { count: 100_000, per: Duration::from_secs(1) };
    schedule.set_gates(&BTreeMap::from([(GATE, Flow::new(rate, 100_000))]), at(0));
    let terms = Terms { concurrency: 16, rate: None, gate: Some(GATE), breaker: None, disable_after: None };
    for lane in 0..LANES {
        schedule.admit(lane, terms, at(0));
        schedule.push(job(lane, lane), at(0)).expect("it takes part");
    }
    let began = Instant::now();
    for turn in 0..TURNS {
        // Slowly enough that there is always a token.
        let now = at(turn / 50);
        let picked = schedule.pick(now).expect("there is always a token");
        let subscriber = picked.job.subscriber;
        schedule.finish(Ended { subscriber, was_probe: false, outcome: Outcome::Delivered }, now);
        schedule.push(job(subscriber, LANES + turn), now).expect("it takes part");
        schedule.take_passed();
    }
    println!("{:.3}", began.elapsed().as_secs_f64() * 1e6 / TURNS as f64);
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

fn job(subscriber: i64, delivery: i64) -> Job {
    Job {
        delivery,
        project: 1,
        subscriber,
        event: delivery,
        lane: Some(subscriber),
        attempts: 0,
        tries: 0,
        nonce: 0,
        token: 1,
        life: 0,
        accepted_at: at(0),
        replay: false,
        out_of_order: false,
        is_suspect: false,
        fold: None,
        body: Bytes::from_static(b"{}"),
    }
}
