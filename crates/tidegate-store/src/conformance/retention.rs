//! Retention: everything goes in its time, nothing that is needed goes, and what could not be delivered ends visibly.

use std::time::Duration;

use tidegate_core::delivery::Status;
use tidegate_core::retention::Retention;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;

use super::bench::{Bench, PROJECT, draft, statuses};
use super::{Case, named};
use crate::{Change, NewJob, Past, RetryOutcome, Selector, StopOutcome, Sweep, Swept, UnitStatus, What};

pub(super) fn cases() -> Vec<Case> {
    named!["retention":
        nothing_goes_before_its_time,
        events_go_before_their_deliveries,
        an_event_stays_while_a_delivery_needs_it,
        an_exhausted_delivery_keeps_its_event_and_expires,
        a_replay_keeps_its_event,
        held_deliveries_expire_in_time_and_free_their_lanes,
        a_pause_begins_anew_when_it_ends,
        what_a_deleted_subscriber_left_goes,
        an_id_is_new_again_and_numbers_are_not,
        a_unit_is_known_for_as_long_as_any_of_its_events,
        old_definitions_go_and_traces_stay_true,
        ended_jobs_go,
        numbers_of_what_is_gone_are_not_used_again,
        a_backfill_makes_nothing_of_what_is_gone,
        a_time_that_jumps_and_comes_back_keeps_order_and_events,
        a_step_is_bounded_and_a_round_ends,
    ]
}

/// In milliseconds, to be passed.
pub(super) const EVENTS: u64 = 10_000;
pub(super) const UNDELIVERED: u64 = 20_000;
pub(super) const DELIVERIES: u64 = 40_000;
pub(super) const ROLLUPS: u64 = 100_000_000;

pub(super) fn terms() -> Retention {
    Retention {
        events: Duration::from_millis(EVENTS),
        deliveries: Duration::from_millis(DELIVERIES),
        undelivered: Duration::from_millis(UNDELIVERED),
        rollups: Duration::from_millis(ROLLUPS),
    }
}

/// A whole round, all steps added up.
pub(super) async fn round(bench: &Bench, limit: usize) -> Swept {
    round_of(bench, terms(), limit).await
}

/// The same by other terms.
pub(super) async fn round_of(bench: &Bench, terms: Retention, limit: usize) -> Swept {
    let mut sum = Swept::default();
    let mut next = Some(Sweep::BEGIN);
    let mut steps = 0;
    while let Some(sweep) = next {
        let swept = bench.store().sweep(terms, sweep, limit, bench.now).await.expect("the store works");
        assert!(swept.events + swept.deliveries + swept.expired <= limit as u64, "a step is bounded");
        assert!(swept.rollups + swept.postings + swept.objects <= limit as u64, "a step is bounded");
        sum.rollups += swept.rollups;
        sum.postings += swept.postings;
        sum.objects += swept.objects;
        sum.events += swept.events;
        sum.deliveries += swept.deliveries;
        sum.expired += swept.expired;
        sum.due = [sum.due, swept.due].into_iter().flatten().min();
        sum.oldest_event = swept.oldest_event;
        next = swept.next;
        steps += 1;
        assert!(steps < 10_000, "a round ends");
        bench.audit().await;
    }
    sum
}

async fn ids(bench: &Bench) -> Vec<String> {
    bench.events(PROJECT).await.into_iter().map(|event| event.id).collect()
}

async fn nothing_goes_before_its_time(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2")]).await;
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    let began = bench.now;
    bench.pass(EVENTS - 1);
    let swept = round(&bench, 100).await;
    assert_eq!((swept.events, swept.deliveries, swept.expired), (0, 0, 0));
    assert_eq!(swept.due, Some(began.plus(terms().events)), "it says when");
    assert_eq!(swept.oldest_event, Some(began));
}

/// The order of events is that of their numbers, whatever the clock showed. What came by a time that was ahead goes later.
async fn a_time_that_jumps_and_comes_back_keeps_order_and_events(mut bench: Bench) {
    let far_ms = 40 * 24 * 3_600_000;
    let began = bench.now;
    bench.send([draft("1")]).await;
    bench.pass(far_ms);
    bench.send([draft("2")]).await;
    for id in ["3", "4"] {
        bench.now = began;
        bench.reopen().await;
        bench.send([draft(id)]).await;
    }
    let numbers: Vec<i64> = bench.events(PROJECT).await.into_iter().map(|event| event.seq).collect();
    assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
    assert_eq!(ids(&bench).await, ["1", "2", "3", "4"]);
    assert_eq!(round(&bench, 100).await.events, 0);
    assert_eq!(statuses(&bench.send([draft("1"), draft("2"), draft("3")]).await), [UnitStatus::Duplicate; 3]);
    bench.pass(far_ms - 24 * 3_600_000);
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["2", "3", "4"], "these wait until the time comes that was shown");
    bench.pass(3 * 24 * 3_600_000);
    round(&bench, 100).await;
    assert!(ids(&bench).await.is_empty());
}

async fn events_go_before_their_deliveries(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2")]).await;
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 2);
    assert!(ids(&bench).await.is_empty());
    let [row] = &bench.rows(subscriber).await[..] else { panic!("its delivery is still listed") };
    assert_eq!((row.status, row.events.len()), (Status::Delivered, 0));
    let (_, attempts) = bench.store().delivery(PROJECT, row.no).await.unwrap().expect("it is kept");
    assert_eq!(attempts.len(), 1);
    bench.pass(DELIVERIES - EVENTS);
    assert_eq!(round(&bench, 100).await.deliveries, 1);
    assert!(bench.rows(subscriber).await.is_empty());
    assert!(bench.store().delivery(PROJECT, row.no).await.unwrap().is_none());
}

async fn an_event_stays_while_a_delivery_needs_it(mut bench: Bench) {
    let (slow, quick) = (bench.subscriber("slow").await, bench.subscriber("quick").await);
    bench.send([draft("1").to(slow).to(quick), draft("2").to(quick)]).await;
    for job in bench.claim_all(quick).await {
        bench.deliver(&job).await;
    }
    let job = bench.claim_one(slow).await;
    bench.finish(&job, Next::RetryAt(bench.later(90_000))).await;
    bench.pass(80_000);
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["1"], "however long it takes");
    assert_eq!(bench.rows(quick).await.len(), 0);
    bench.pass(10_000);
    let job = bench.claim_one(slow).await;
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["1"], "it is in flight");
    bench.deliver(&job).await;
    assert_eq!(round(&bench, 100).await.events, 1);
}

async fn an_exhausted_delivery_keeps_its_event_and_expires(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    bench.pass(5_000);
    let job = bench.claim_one(subscriber).await;
    bench.exhaust(&job).await;
    bench.pass(UNDELIVERED - 1);
    let swept = round(&bench, 100).await;
    assert_eq!((swept.expired, swept.due), (0, Some(bench.later(1))));
    assert_eq!(bench.retry(job.delivery).await, RetryOutcome::Due { subscriber }, "it can be tried again");
    let job = bench.claim_one(subscriber).await;
    bench.exhaust(&job).await;
    bench.pass(UNDELIVERED);
    let swept = round(&bench, 100).await;
    assert_eq!((swept.expired, swept.events), (1, 1), "nobody needs the event any more");
    let [row] = &bench.rows(subscriber).await[..] else { panic!("it is kept") };
    assert_eq!((row.status, row.finished_at, row.reason.is_some()), (Status::Expired, Some(bench.now), true));
    assert_eq!(bench.retry(job.delivery).await, RetryOutcome::Refused(Status::Expired));
    bench.pass(DELIVERIES);
    assert_eq!(round(&bench, 100).await.deliveries, 1);
}

async fn a_replay_keeps_its_event(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    let version = bench.version().await;
    let routes = vec![Route::alone(subscriber, None)];
    let replay = crate::Replay { project: PROJECT, event: job.event, routes, version };
    bench.store().replay(replay.clone(), bench.now).await.unwrap();
    bench.pass(EVENTS * 3);
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["1"]);
    let again = bench.claim_one(subscriber).await;
    bench.deliver(&again).await;
    assert_eq!(round(&bench, 100).await.events, 1);
    let refused = bench.store().replay(replay, bench.now).await;
    assert!(matches!(refused, Err(crate::Error::NotFound)), "{refused:?}");
}

async fn held_deliveries_expire_in_time_and_free_their_lanes(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").lane(subscriber, 1), draft("2").lane(subscriber, 1)]).await;
    bench.pause(subscriber).await;
    bench.pass(UNDELIVERED - 1);
    bench.send([draft("3").lane(subscriber, 1), draft("4").to(subscriber)]).await;
    round(&bench, 100).await;
    assert_eq!(bench.status(subscriber, "1").await, Status::Held);
    bench.pass(1);
    let swept = round(&bench, 1).await;
    assert_eq!((swept.expired, swept.events), (2, 2));
    assert_eq!(swept.due, Some(bench.later(EVENTS - 1)), "the younger ones are next");
    bench.resume(subscriber).await;
    let mut rest: Vec<_> = bench.claim_all(subscriber).await.iter().map(|job| job.event).collect();
    rest.sort_unstable();
    assert_eq!(rest.len(), 2, "the rest goes, also in the lane");
}

async fn a_pause_begins_anew_when_it_ends(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    bench.pause(subscriber).await;
    bench.pass(UNDELIVERED - 1);
    bench.pause(subscriber).await;
    bench.resume(subscriber).await;
    bench.pause(subscriber).await;
    bench.pass(UNDELIVERED - 1);
    assert_eq!(round(&bench, 100).await.expired, 0, "it has been held for less than the term");
    bench.pass(1);
    assert_eq!(round(&bench, 100).await.expired, 1);
}

async fn what_a_deleted_subscriber_left_goes(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench
        .send([draft("1").lane(subscriber, 1), draft("2").lane(subscriber, 1), draft("3").to(subscriber)])
        .await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    bench.pass(DELIVERIES - 1);
    round(&bench, 100).await;
    assert_eq!(bench.rows(subscriber).await.len(), 3, "history stays until retention");
    bench.pass(1);
    let swept = round(&bench, 2).await;
    assert_eq!((swept.deliveries, swept.events), (3, 3));
    bench.reopen().await;
    let known = bench.store().configuration(0).await.unwrap().subscribers;
    assert!(known.iter().all(|row| row.no != subscriber), "nothing speaks of it any more");
}

async fn an_id_is_new_again_and_numbers_are_not(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let first = bench.claim_one(subscriber).await;
    bench.deliver(&first).await;
    bench.pass(EVENTS - 1);
    round(&bench, 100).await;
    let repeated = bench.send([draft("1").to(subscriber)]).await;
    assert_eq!(super::bench::statuses(&repeated), [UnitStatus::Duplicate], "known for as long as it is kept");
    bench.pass(DELIVERIES);
    round(&bench, 100).await;
    assert!(bench.rows(subscriber).await.is_empty() && ids(&bench).await.is_empty());
    bench.reopen().await;
    let again = bench.send([draft("1").to(subscriber)]).await;
    assert_eq!(super::bench::statuses(&again), [UnitStatus::Accepted]);
    let second = bench.claim_one(subscriber).await;
    assert!(
        second.delivery > first.delivery && second.event > first.delivery,
        "numbers are never used again"
    );
}

/// The events of a unit go one by one, each when nothing needs it.
async fn a_unit_is_known_for_as_long_as_any_of_its_events(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let unit = || draft("whole").with(draft("part").to(subscriber));
    bench.send([unit()]).await;
    let job = bench.claim_one(subscriber).await;
    bench.exhaust(&job).await;
    bench.pass(EVENTS);
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["part"]);
    let again = bench.send([unit(), draft("other").with(draft("part"))]).await;
    assert_eq!(super::bench::statuses(&again), [UnitStatus::Duplicate, UnitStatus::Conflict]);
    let lone = bench.send([unit()]).await;
    assert_eq!(super::bench::statuses(&lone), [UnitStatus::Duplicate]);
    assert_eq!(ids(&bench).await, ["part"]);
}

async fn old_definitions_go_and_traces_stay_true(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("old")]).await;
    let define =
        |text: &str| crate::SubscriberUpdate { definition: Some(text.to_owned()), ..Default::default() };
    bench.update(subscriber, define("{\"name\":\"second\"}")).await;
    bench.pass(EVENTS);
    bench.send([draft("new")]).await;
    bench.update(subscriber, define("{\"name\":\"third\"}")).await;
    round(&bench, 100).await;
    let [event] = &bench.events(PROJECT).await[..] else { panic!("the new one is left") };
    let trace = bench.store().trace(PROJECT, event.seq).await.unwrap();
    assert_eq!(trace.rules[0].definition.as_deref(), Some("{\"name\":\"second\"}"));
}

async fn ended_jobs_go(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let what = What::Replay { subscriber, past: Past::Any };
    let selector = Selector { what, types: Vec::new(), from: None, to: None };
    for id in ["job_1", "job_2"] {
        let scope = bench.store().scope(PROJECT, selector.clone(), bench.now).await.unwrap();
        bench.store().start_job(NewJob { id: id.to_owned(), scope }, bench.now).await.unwrap();
    }
    let stopped = bench.store().stop_job(PROJECT, "job_1".to_owned(), bench.now).await.unwrap();
    assert!(matches!(stopped, StopOutcome::Stopped(_)));
    bench.pass(DELIVERIES);
    round(&bench, 100).await;
    let left = bench.store().jobs(PROJECT, None, 10).await.unwrap().items;
    assert_eq!(left.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["job_2"], "it still runs");
}

async fn a_step_is_bounded_and_a_round_ends(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send((0..50).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    for job in bench.claim_all(subscriber).await.iter().take(25) {
        bench.exhaust(job).await;
    }
    bench.pass(DELIVERIES);
    let swept = round(&bench, 3).await;
    assert_eq!((swept.expired, swept.events), (25, 25), "the others are in flight");
    bench.pass(DELIVERIES);
    assert_eq!(round(&bench, 3).await.deliveries, 25);
}

async fn numbers_of_what_is_gone_are_not_used_again(mut bench: Bench) {
    let keeper = bench.subscriber("keeper").await;
    let mut numbers = Vec::new();
    for round in 0..3 {
        let id = format!("job_{round}");
        let what = What::Replay { subscriber: keeper, past: Past::Any };
        let selector = Selector { what, types: Vec::new(), from: None, to: None };
        let scope = bench.store().scope(PROJECT, selector, bench.now).await.unwrap();
        let job = bench.store().start_job(NewJob { id: id.clone(), scope }, bench.now).await.unwrap().no;
        bench.store().stop_job(PROJECT, id, bench.now).await.unwrap();
        let subscriber = bench.subscriber(&format!("s{round}")).await;
        bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
        numbers.push((job, subscriber));
        bench.pass(DELIVERIES);
        self::round(&bench, 100).await;
        if round == 1 {
            bench.reopen().await;
        }
    }
    assert!(bench.store().jobs(PROJECT, None, 10).await.unwrap().items.is_empty(), "all of them are gone");
    assert!(numbers.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{numbers:?}");
}

async fn a_backfill_makes_nothing_of_what_is_gone(mut bench: Bench) {
    bench.send([draft("old")]).await;
    bench.pass(EVENTS / 2);
    bench.send([draft("young")]).await;
    let new = crate::NewSubscriber {
        backfill_from: Some(tidegate_core::time::Timestamp::from_ms(0)),
        ..super::bench::new_subscriber("late")
    };
    let subscriber = bench.change(Change::CreateSubscriber(new)).await.no;
    let (mut step, events) = bench.store().backfill(subscriber, 10).await.unwrap().expect("there is a past");
    step.matched = events.iter().map(|event| (event.seq, Route::alone(step.subscriber, None))).collect();
    assert_eq!(step.matched.len(), 2);
    bench.pass(EVENTS / 2);
    assert_eq!(round(&bench, 100).await.events, 1, "one goes between the look and the commit");
    bench.commit(crate::Group { backfills: vec![step], ..crate::Group::default() }).await;
    bench.audit().await;
    let made: Vec<_> = bench.claim_all(subscriber).await.into_iter().map(|job| job.event).collect();
    assert_eq!(made, [events[1].seq]);
}
