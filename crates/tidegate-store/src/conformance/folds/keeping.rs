//! How long what was folded is kept: as long as it may be sent, and no longer than anything else.

use tidegate_core::delivery::Status;
use tidegate_core::fold::ClosedBy;
use tidegate_core::retry::Next;

use super::super::bench::{Bench, PROJECT, START, draft};
use super::past::step;
use super::retention::{DELIVERIES, EVENTS, UNDELIVERED, round};
use super::{Case, carried, close, drain, named, open, route, seal, told, window};
use crate::{Group, Past, Selector, Sweep, What};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        an_event_in_an_open_window_stays,
        an_event_of_an_unsent_fold_stays,
        windows_go_with_their_deliveries,
        ended_windows_go,
        nothing_joins_a_fold_that_expired,
        events_of_the_past_stay_while_they_are_folded,
        events_that_are_left_to_a_backfill_stay,
        ended_windows_go_a_few_at_a_time,
        what_is_left_of_a_fold_is_found,
    ]
}

async fn ids(bench: &Bench) -> Vec<String> {
    bench.events(PROJECT).await.into_iter().map(|event| event.id).collect()
}

async fn an_event_in_an_open_window_stays(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(DELIVERIES * 3);
    let folded = |id: &str| draft(id).folded(subscriber, &terms, "a");
    bench.send([folded("1"), draft("nobody's"), folded("2")]).await;
    for _ in 0..2 {
        bench.pass(DELIVERIES);
        round(&bench, 100).await;
        assert_eq!(ids(&bench).await, ["1", "2"]);
    }
    bench.reopen().await;
    bench.pass(DELIVERIES);
    close(&bench).await;
    round(&bench, 100).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2")]));
    assert_eq!(round(&bench, 100).await.events, 2);
}

async fn an_event_of_an_unsent_fold_stays(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(["1", "2", "3"].map(|id| draft(id).folded(subscriber, &window(1_000), "a"))).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.pass(EVENTS * 2);
    round(&bench, 1).await;
    let job = bench.claim_one(subscriber).await;
    round(&bench, 2).await;
    assert_eq!(ids(&bench).await.len(), 3, "it is in flight");
    bench.finish(&job, Next::RetryAt(bench.later(EVENTS))).await;
    bench.pass(EVENTS);
    round(&bench, 2).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!(carried(&bench, &job).await.1, "1 2 3");
    bench.exhaust(&job).await;
    round(&bench, 2).await;
    assert_eq!(ids(&bench).await.len(), 3, "it can be tried again");
    bench.pass(UNDELIVERED);
    let swept = round(&bench, 2).await;
    assert_eq!((swept.expired, swept.events), (1, 3));
    let [row] = &bench.rows(subscriber).await[..] else { panic!("it is listed") };
    assert_eq!((row.status, row.events.len()), (Status::Expired, 0));
    assert!(row.fold.is_some());
}

async fn windows_go_with_their_deliveries(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1"), folded("2")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    assert!(seal(&bench, &job).await);
    bench.deliver(&job).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 2);
    let (row, _) = bench.store().delivery(PROJECT, job.delivery).await.unwrap().expect("it is kept");
    assert_eq!((row.events.len(), row.fold.map(|fold| fold.key)), (0, Some("{\"key\":\"a\"}".to_owned())));
    bench.pass(DELIVERIES);
    assert_eq!(round(&bench, 100).await.deliveries, 1);
    let window = job.fold.expect("it was a fold");
    assert!(bench.store().bundle(window, job.key(), usize::MAX).await.unwrap().is_none());
    bench.reopen().await;
    bench.send([folded("3")]).await;
    assert!(open(&bench).await[0].no > window, "numbers are never used again");
}

async fn ended_windows_go(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded(subscriber, &window(1_000), "a");
    bench.send([folded("1"), folded("2").cancelling()]).await;
    let event = bench.events(PROJECT).await[0].seq;
    assert_eq!(bench.store().trace(PROJECT, event).await.unwrap().windows.len(), 1);
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 2, "nobody waits for them");
    let due = round(&bench, 100).await.due;
    assert_eq!(due, Some(bench.later(DELIVERIES - EVENTS)), "the window itself is next");
    bench.pass(DELIVERIES - EVENTS);
    assert_eq!(round(&bench, 100).await.due, None, "nothing is left");
}

async fn nothing_joins_a_fold_that_expired(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.pause(subscriber).await;
    bench.send([folded("2")]).await;
    bench.pass(UNDELIVERED);
    assert_eq!(round(&bench, 100).await.expired, 1);
    bench.send([folded("3")]).await;
    assert_eq!(open(&bench).await.len(), 1, "it is not lost with what expired");
    bench.reopen().await;
    bench.send([folded("4")]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.resume(subscriber).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "3 4")]));
}

async fn events_of_the_past_stay_while_they_are_folded(mut bench: Bench) {
    bench.send(["1", "2", "3"].map(draft)).await;
    bench.pass(EVENTS / 2);
    let subscriber = bench.backfilled("s", tidegate_core::time::Timestamp::from_ms(0)).await;
    let terms = window(DELIVERIES * 2);
    bench.send([draft("live").folded(subscriber, &terms, "a")]).await;
    let (mut step, events) = bench.store().backfill(subscriber, 9).await.unwrap().expect("a past");
    step.matched =
        events.iter().take(2).map(|event| (event.seq, route(subscriber, &terms, "a", 0))).collect();
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    bench.pass(DELIVERIES);
    assert_eq!(round(&bench, 1).await.events, 1);
    assert_eq!(ids(&bench).await, ["1", "2", "live"]);
    bench.pass(DELIVERIES);
    close(&bench).await;
    round(&bench, 1).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 live")]));
}

/// No delivery and no window speaks of a live event before the backfill has come to it (P2).
async fn events_that_are_left_to_a_backfill_stay(mut bench: Bench) {
    bench.send([draft("past")]).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = window(1_000);
    bench.send([draft("live").folded_in(subscriber, &terms, "a", 7)]).await;
    bench.send([draft("nobody's")]).await;
    for limit in [1, 100] {
        bench.pass(DELIVERIES);
        round(&bench, limit).await;
        assert_eq!(ids(&bench).await, ["live"], "only that is left to the backfill");
        bench.reopen().await;
    }
    while !step(&bench, subscriber, 1, &terms, 7).await {}
    bench.pass(1_000);
    close(&bench).await;
    round(&bench, 1).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "live")]));
    assert_eq!(round(&bench, 1).await.events, 1, "now it may go");
}

async fn ended_windows_go_a_few_at_a_time(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for n in 0..5 {
        let folded = |id: String| draft(id).folded(subscriber, &window(1_000), &format!("{n}"));
        bench.send([folded(format!("{n}a")), folded(format!("{n}b")).cancelling()]).await;
    }
    bench.pass(DELIVERIES);
    let mut steps = 0;
    let mut next = Some(Sweep::Rest);
    while let Some(sweep) = next {
        next = bench.store().sweep(super::retention::terms(), sweep, 2, bench.now).await.unwrap().next;
        steps += 1;
    }
    assert!(steps >= 3, "{steps} steps");
}

/// Some of its events are kept longer, because others still wait for them.
async fn what_is_left_of_a_fold_is_found(mut bench: Bench) {
    let (subscriber, other) = (bench.subscriber("s").await, bench.subscriber("other").await);
    let folded = |id: &str| draft(id).folded(subscriber, &window(1_000), "a");
    let waited_for = |id: &str| draft(id).to(other);
    let long = |id: &str| {
        let mut both = folded(id);
        both.routes.extend(waited_for(id).routes);
        both
    };
    bench.send([long("a"), folded("b"), long("c"), folded("d")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 2);
    let (row, _) = bench.store().delivery(PROJECT, job.delivery).await.unwrap().expect("it is kept");
    assert_eq!(row.events, ["a", "c"]);
    let what = What::Replay { subscriber, past: Past::Delivered };
    let selector = Selector { what, types: Vec::new(), from: None, to: None };
    let scope = bench.store().scope(PROJECT, selector, bench.now).await.unwrap();
    let scan = bench.store().scan(scope.clone(), scope.begin, 9).await.unwrap();
    assert_eq!(scan.events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}
