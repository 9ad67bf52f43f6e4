//! Goal: nobody acts on what may be another's by now. Method: a desk on paused time whose lease is let run out.

use bytes::Bytes;
use tidegate_core::gate::Flow;
use tidegate_core::lease::BEAT_TTL;
use tidegate_core::limits::GATE_CLIENTS_MAX;
use tidegate_core::schedule::breaker::BreakerTerms;
use tidegate_core::schedule::{Parting, Share, Stance, Terms};
use tidegate_core::subscriber::Rate;

use super::*;
use crate::pipeline::gates::Refused;

const START: Timestamp = Timestamp::from_ms(1_000_000);

fn job(delivery: i64) -> Job {
    Job {
        delivery,
        project: 1,
        subscriber: 1,
        event: delivery,
        lane: None,
        nonce: 0,
        token: 1,
        life: 0,
        tries: 0,
        attempts: 0,
        replay: false,
        out_of_order: false,
        is_suspect: false,
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
async fn nothing_is_begun_while_results_can_not_be_written() {
    let (_, _, desk) = desk();
    desk.hold_back();
    assert!(desk.pick().is_none());
    desk.go_on();
    tokio::time::timeout(Duration::from_secs(1), desk.work()).await.expect("everybody is told");
    assert!(desk.pick().is_some());
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

/// A delivery fails, and later a fold is found that goes as the probe.
async fn probe(clock: &Clock, desk: &Desk, failing: i64, probing: i64) {
    let gates = BTreeMap::from([(7, Flow::from(Rate::parse("100/s").unwrap()))]);
    let breaker = Some(BreakerTerms { failures: 1, probe: Duration::from_secs(60) });
    let terms = Terms { concurrency: 9, rate: None, breaker, disable_after: None, gate: Some(7) };
    {
        let mut schedule = desk.lock();
        schedule.set_gates(&gates, clock.now());
        schedule.admit(1, terms, clock.now());
        schedule.push(job(failing), clock.now()).unwrap();
        assert!(schedule.pick(clock.now()).is_some());
        let outcome = Outcome::Failed { chance: 0 };
        schedule.finish(Ended { subscriber: 1, was_probe: false, outcome }, clock.now());
    }
    clock.pause(Duration::from_secs(10)).await;
    let fold = Job { fold: Some(probing), ..job(probing) };
    desk.lock().push(fold, clock.now()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_probe_of_a_former_life_that_comes_late_gives_back_what_waits_here() {
    let clock = Clock::simulated(START);
    let standing = Standing::shared(&clock);
    standing.renew(clock.steady());
    let desk = Desk::new(clock.clone(), Arc::clone(&standing), Bounds::default());
    probe(&clock, &desk, 1, 2).await;
    standing.renew(clock.steady());
    let late = desk.pick().expect("a turn");
    assert!(late.turn.is_preparing && late.turn.probe.is_some());
    desk.forget();
    let (life, _) = desk.speak(0, false);
    desk.divide(life, &alone());
    probe(&clock, &desk, 3, 4).await;
    standing.renew(clock.steady());
    let (next, released) = desk.prepared(late, Arc::new(()));
    let released: Vec<DeliveryNo> = released.iter().map(|claim| claim.delivery).collect();
    // The one that waits is not the one that ended, but nobody can tell: another probe will come.
    assert_eq!((next.is_none(), released), (true, vec![4, 2]));
    assert_eq!((desk.in_flight(), desk.speak(0, false).1.queued), (0, 0));
}

/// Everything is ours.
fn alone() -> Parting {
    Parting { flock: 1, share: Share::default(), agreed: Some(BTreeSet::new()) }
}

#[tokio::test(start_paused = true)]
async fn what_was_agreed_with_a_former_life_gives_this_one_nothing() {
    let (clock, _, desk) = desk();
    let (life, _) = desk.speak(7, false);
    desk.forget();
    let terms = Terms { concurrency: 9, rate: None, breaker: None, disable_after: None, gate: None };
    desk.lock().admit(1, terms, clock.now());
    desk.divide(life, &alone());
    assert!(desk.lock().push(job(3), clock.now()).is_err());
    let (life, _) = desk.speak(7, false);
    desk.divide(life, &alone());
    assert!(desk.lock().push(job(3), clock.now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_leaves_names_all_that_is_under_way() {
    let (_, _, desk) = desk();
    let _pick = desk.pick().expect("a turn");
    let stance = |is_leaving| desk.speak(7, is_leaving).1.stance;
    assert_eq!(stance(false), Some(Stance { divides: 7, busy: Some(vec![]), is_leaving: false }));
    desk.close();
    assert_eq!(stance(true), Some(Stance { divides: 7, busy: Some(vec![1]), is_leaving: true }));
    assert!(desk.pick().is_none());
    let (_, load) = desk.speak(7, true);
    assert_eq!((load.in_flight, load.obeys), (1, 0), "older versions wait for it");
}

#[tokio::test(start_paused = true)]
async fn who_finds_a_full_line_is_told_how_long_it_takes() {
    let (clock, _, desk) = desk();
    let gates = BTreeMap::from([(7, Flow::from(Rate::parse("100/s").unwrap()))]);
    {
        let mut schedule = desk.lock();
        schedule.set_gates(&gates, clock.now());
        (0..GATE_CLIENTS_MAX).for_each(|_| assert!(schedule.queue_client(7, clock.now()).is_ok()));
    }
    let refused = desk.acquire(7, Duration::from_secs(60)).await;
    let Err(Refused::Full(wait)) = refused else { panic!("{refused:?}") };
    assert!((Duration::from_secs(8)..=Duration::from_secs(10)).contains(&wait), "{wait:?}");
}
