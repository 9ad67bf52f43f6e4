//! Goal: nobody acts on what may be another's by now. Method: a desk on paused time whose lease is let run out.

use bytes::Bytes;
use tidegate_core::lease::BEAT_TTL;
use tidegate_core::schedule::Terms;

use super::*;

const START: Timestamp = Timestamp::from_ms(1_000_000);

fn job(delivery: i64) -> Job {
    Job {
        delivery,
        project: 1,
        subscriber: 1,
        event: delivery,
        lane: None,
        token: 1,
        tries: 0,
        attempts: 0,
        replay: false,
        out_of_order: false,
        fold: None,
        accepted_at: START,
        body: Bytes::new(),
    }
}

/// A desk with two deliveries in memory and more in the store.
fn desk() -> (Clock, Arc<Standing>, Desk) {
    let clock = Clock::simulated(START);
    let standing = Standing::shared(&clock);
    standing.renew(clock.steady());
    let desk = Desk::new(clock.clone(), Arc::clone(&standing), Bounds::default());
    let terms = Terms { concurrency: 9, rate: None, breaker: None, disable_after: None, gate: None };
    let mut schedule = desk.lock();
    schedule.admit(1, terms, START);
    (1..=2).for_each(|delivery| schedule.push(job(delivery), START).unwrap());
    schedule.expect(1, START);
    drop(schedule);
    (clock, standing, desk)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_begun_without_a_lease_and_it_goes_on_with_one() {
    let (clock, standing, desk) = desk();
    let pick = desk.pick().expect("a turn");
    clock.pause(BEAT_TTL).await;
    assert!(desk.pick().is_none() && desk.wishes(clock.now()).0.is_empty());
    assert_eq!(desk.store_due_at(), None, "nobody is woken in vain");
    assert!(standing.renew(clock.steady()));
    assert!(desk.may_use(&pick).await, "nobody took it meanwhile");
    assert!(desk.pick().is_some() && !desk.wishes(clock.now()).0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_a_former_life_is_never_used() {
    let (clock, standing, desk) = desk();
    let pick = desk.pick().expect("a turn");
    standing.lose();
    desk.forget();
    standing.renew(clock.steady());
    assert!(!desk.may_use(&pick).await);
    assert!(desk.pick().is_none(), "and what waited is forgotten");
    standing.lose();
    standing.leave();
    assert!(!desk.may_use(&pick).await, "who leaves does not wait");
}
