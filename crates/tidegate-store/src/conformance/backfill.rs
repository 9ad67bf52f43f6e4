//! Backfill: exactly the older events, each once, and what is new waits behind them where order was asked for.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::id::{Lane, SubscriberNo};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::bench::{Bench, PROJECT, START, bodies, draft, room};
use super::{Case, named};
use crate::{BackfillStep, Change, Group, RetryOutcome, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["backfill":
        exactly_the_older_events_are_covered,
        it_begins_where_it_was_asked_to,
        it_covers_its_own_project_only,
        a_step_covers_what_did_not_match_too,
        a_repeated_step_is_ignored,
        a_step_that_was_judged_by_other_rules_is_ignored,
        a_restart_in_the_middle_goes_on,
        an_empty_store_is_done_at_once,
        live_events_of_lanes_wait_behind_it,
        live_events_outside_lanes_do_not_wait,
        past_events_of_a_lane_go_on_while_it_runs,
        a_retry_does_not_pass_it,
        a_retry_of_a_past_event_keeps_the_order,
        deleting_the_subscriber_ends_it,
    ]
}

/// Commits one step of up to `limit` events, all of which match. Says whether it was the last.
async fn step(bench: &Bench, subscriber: SubscriberNo, limit: usize, lane: Option<Lane>) -> bool {
    let found = bench.store().backfill(subscriber, limit).await.unwrap();
    let (mut step, events) = found.expect("the backfill is under way");
    assert!(events.len() <= limit);
    step.matched = events.iter().map(|event| (event.seq, Route::alone(step.subscriber, lane))).collect();
    let is_last = step.through >= step.until;
    let committed = bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert_eq!(committed.spilled, [subscriber], "memory hears of it");
    assert_eq!(committed.backfilled.is_empty(), !is_last);
    bench.audit().await;
    is_last
}

async fn finish(bench: &Bench, subscriber: SubscriberNo, limit: usize, lane: Option<Lane>) {
    while !step(bench, subscriber, limit, lane).await {}
    assert!(bench.store().backfill(subscriber, limit).await.unwrap().is_none(), "it is over");
}

async fn covered(bench: &Bench, subscriber: SubscriberNo) -> Vec<String> {
    bench.rows(subscriber).await.into_iter().map(|row| row.events[0].clone()).collect()
}

async fn send_named(bench: &Bench, names: &[&str]) {
    bench.send(names.iter().map(|name| draft(*name).saying((*name).to_owned()))).await;
}

/// Claims and delivers until nothing is due; says in which order.
async fn drain(bench: &Bench, subscriber: SubscriberNo) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        let jobs = bench.claim_all(subscriber).await;
        for job in &jobs {
            bench.deliver(job).await;
        }
        if jobs.is_empty() {
            return order;
        }
        order.extend(bodies(&jobs));
    }
}

async fn is_backfilling(bench: &Bench, subscriber: SubscriberNo) -> bool {
    let rows = bench.store().configuration(0).await.unwrap().subscribers;
    rows.into_iter().find(|row| row.no == subscriber).expect("it exists").backfilling
}

async fn exactly_the_older_events_are_covered(bench: Bench) {
    let early = bench.subscriber("early").await;
    bench.send((0..7).map(|n| draft(format!("old{n}")).to(early))).await;
    let late = bench.backfilled("late", START).await;
    assert!(is_backfilling(&bench, late).await);
    bench.send([draft("new0").to(early).to(late)]).await;
    assert!(!step(&bench, late, 3, None).await);
    bench.send([draft("new1").to(early).to(late)]).await;
    finish(&bench, late, 3, None).await;
    let mut got = covered(&bench, late).await;
    got.sort();
    assert_eq!(got, ["new0", "new1", "old0", "old1", "old2", "old3", "old4", "old5", "old6"]);
    assert!(!is_backfilling(&bench, late).await);
    assert_eq!(covered(&bench, early).await.len(), 9, "nobody else is touched");
}

async fn it_begins_where_it_was_asked_to(mut bench: Bench) {
    send_named(&bench, &["1"]).await;
    bench.pass(1_000);
    let from = bench.now;
    send_named(&bench, &["2", "3"]).await;
    bench.pass(1_000);
    let subscriber = bench.backfilled("s", from).await;
    finish(&bench, subscriber, 1, None).await;
    assert_eq!(covered(&bench, subscriber).await, ["2", "3"]);
    let nothing = bench.backfilled("none", bench.now).await;
    finish(&bench, nothing, 10, None).await;
    assert!(covered(&bench, nothing).await.is_empty());
}

async fn it_covers_its_own_project_only(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    bench.send([draft("mine"), draft("theirs").of(other)]).await;
    let subscriber = bench.backfilled("s", Timestamp::from_ms(0)).await;
    let (step, events) = bench.store().backfill(subscriber, 10).await.unwrap().unwrap();
    assert_eq!(events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["mine"]);
    assert_eq!((step.project, step.subscriber), (PROJECT, subscriber));
    finish(&bench, subscriber, 10, None).await;
}

async fn a_step_covers_what_did_not_match_too(bench: Bench) {
    send_named(&bench, &["1", "2", "3"]).await;
    let subscriber = bench.backfilled("s", START).await;
    let (mut step, events) = bench.store().backfill(subscriber, 2).await.unwrap().unwrap();
    step.matched = vec![(events[1].seq, Route::alone(step.subscriber, None))];
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    let (_, rest) = bench.store().backfill(subscriber, 2).await.unwrap().unwrap();
    assert_eq!(rest.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["3"]);
    finish(&bench, subscriber, 2, None).await;
    assert_eq!(covered(&bench, subscriber).await, ["2", "3"]);
}

async fn a_repeated_step_is_ignored(bench: Bench) {
    send_named(&bench, &["1", "2", "3"]).await;
    let subscriber = bench.backfilled("s", START).await;
    let (mut step, events) = bench.store().backfill(subscriber, 2).await.unwrap().unwrap();
    step.matched = events.iter().map(|event| (event.seq, Route::alone(step.subscriber, None))).collect();
    let backfills: Vec<BackfillStep> = vec![step.clone(), step.clone()];
    bench.commit(Group { backfills, ..Group::default() }).await;
    bench.commit(Group { backfills: vec![step.clone()], ..Group::default() }).await;
    assert_eq!(covered(&bench, subscriber).await, ["1", "2"]);
    finish(&bench, subscriber, 2, None).await;
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert_eq!(covered(&bench, subscriber).await, ["1", "2", "3"]);
}

async fn a_step_that_was_judged_by_other_rules_is_ignored(bench: Bench) {
    send_named(&bench, &["1", "2"]).await;
    let subscriber = bench.backfilled("s", START).await;
    let (mut step, events) = bench.store().backfill(subscriber, 2).await.unwrap().unwrap();
    step.matched = events.iter().map(|event| (event.seq, Route::alone(subscriber, Some(1)))).collect();
    let update =
        SubscriberUpdate { definition: Some("{\"order\":1}".to_owned()), ..SubscriberUpdate::default() };
    bench.update(subscriber, update).await;
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert!(covered(&bench, subscriber).await.is_empty());
    finish(&bench, subscriber, 2, None).await;
    assert_eq!(covered(&bench, subscriber).await, ["1", "2"]);
}

async fn a_restart_in_the_middle_goes_on(mut bench: Bench) {
    send_named(&bench, &["1", "2", "3", "4", "5"]).await;
    let subscriber = bench.backfilled("s", START).await;
    let abandoned = bench.store().backfill(subscriber, 2).await.unwrap();
    assert!(abandoned.is_some());
    bench.reopen().await;
    step(&bench, subscriber, 2, Some(1)).await;
    bench.reopen().await;
    assert!(is_backfilling(&bench, subscriber).await);
    bench.send([draft("live").saying("live").lane(subscriber, 1)]).await;
    finish(&bench, subscriber, 2, Some(1)).await;
    bench.reopen().await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2", "3", "4", "5", "live"]);
}

async fn an_empty_store_is_done_at_once(bench: Bench) {
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").lane(subscriber, 1)]).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "nobody has looked yet");
    finish(&bench, subscriber, 10, Some(1)).await;
    assert_eq!(drain(&bench, subscriber).await.len(), 1);
}

async fn live_events_of_lanes_wait_behind_it(bench: Bench) {
    send_named(&bench, &["1", "2"]).await;
    let subscriber = bench.backfilled("s", START).await;
    let live = |name: &str, lane| draft(name).saying(name.to_owned()).lane(subscriber, lane);
    let drafts = [live("live1", 1), live("live2", 2), live("live3", 2)];
    let committed = bench.send_into(room(9, &[subscriber]), drafts).await;
    assert!(committed.jobs.is_empty() && committed.spilled.is_empty(), "they wait");
    assert!(bench.claim_all(subscriber).await.is_empty());
    step(&bench, subscriber, 1, Some(1)).await;
    assert_eq!(drain(&bench, subscriber).await, ["1"], "lane 1 may hold older ones yet");
    finish(&bench, subscriber, 1, Some(1)).await;
    let order = drain(&bench, subscriber).await;
    let lane = |names: [&str; 2]| {
        let of_lane = order.iter().map(String::as_str).filter(|name| names.contains(name));
        assert_eq!(of_lane.collect::<Vec<_>>(), names, "of {order:?}");
    };
    lane(["2", "live1"]);
    lane(["live2", "live3"]);
}

async fn live_events_outside_lanes_do_not_wait(bench: Bench) {
    send_named(&bench, &["1"]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").saying("live").to(subscriber)]).await;
    assert_eq!(drain(&bench, subscriber).await, ["live"]);
    finish(&bench, subscriber, 1, None).await;
    assert_eq!(drain(&bench, subscriber).await, ["1"]);
}

async fn past_events_of_a_lane_go_on_while_it_runs(mut bench: Bench) {
    send_named(&bench, &["1", "2", "3"]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").saying("live").lane(subscriber, 1)]).await;
    step(&bench, subscriber, 2, Some(1)).await;
    let one = bench.claim_one(subscriber).await;
    bench.finish(&one, Next::RetryAt(bench.later(1_000))).await;
    step(&bench, subscriber, 2, Some(1)).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "a failing head holds its lane");
    bench.pass(1_000);
    assert_eq!(drain(&bench, subscriber).await, ["1", "2", "3", "live"]);
}

async fn a_retry_does_not_pass_it(bench: Bench) {
    send_named(&bench, &["1", "2"]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").saying("live").lane(subscriber, 1)]).await;
    let live = bench.row(subscriber, "live").await;
    assert_eq!(bench.retry(live.no).await, RetryOutcome::Queued);
    bench.audit().await;
    assert!(bench.claim_all(subscriber).await.is_empty());
    finish(&bench, subscriber, 1, Some(1)).await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2", "live"]);
}

async fn a_retry_of_a_past_event_keeps_the_order(bench: Bench) {
    send_named(&bench, &["1", "2", "3"]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").saying("live").lane(subscriber, 1)]).await;
    step(&bench, subscriber, 1, Some(1)).await;
    let one = bench.claim_one(subscriber).await;
    bench.exhaust(&one).await;
    assert_eq!(bench.retry(one.delivery).await, RetryOutcome::Due { subscriber });
    bench.audit().await;
    step(&bench, subscriber, 1, Some(1)).await;
    finish(&bench, subscriber, 1, Some(1)).await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2", "3", "live"]);
}

async fn deleting_the_subscriber_ends_it(mut bench: Bench) {
    send_named(&bench, &["1", "2"]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("live").lane(subscriber, 1)]).await;
    let (mut step, events) = bench.store().backfill(subscriber, 1).await.unwrap().unwrap();
    step.matched = vec![(events[0].seq, Route::alone(step.subscriber, Some(1)))];
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    assert!(bench.store().backfill(subscriber, 1).await.unwrap().is_none());
    let committed = bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert!(committed.backfilled.is_empty());
    bench.reopen().await;
    let rows = bench.rows(subscriber).await;
    assert_eq!(rows.iter().map(|row| row.status).collect::<Vec<_>>(), [Status::Cancelled], "the live one");
}
