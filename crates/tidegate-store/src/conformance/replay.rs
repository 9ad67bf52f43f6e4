//! Replay: a new delivery of an old event, marked, under an id of its own, behind what waits in its lane.

use tidegate_core::delivery::Status;
use tidegate_core::id::{DeliveryNo, Lane, SubscriberNo};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;

use super::bench::{Bench, PROJECT, START, bodies, draft};
use super::{Case, named};
use crate::{Change, Error, Group, Replay};

pub(super) fn cases() -> Vec<Case> {
    named!["replay":
        it_is_a_delivery_of_its_own,
        it_is_made_as_often_as_it_is_asked_for,
        its_numbers_are_not_used_again,
        an_old_route_is_refused,
        what_is_unknown_or_foreign_is_not_found,
        in_a_lane_it_goes_behind_what_waits,
        in_a_lane_what_comes_later_goes_behind_it,
        in_a_lane_it_waits_for_a_backfill,
        a_failed_one_is_retried_in_its_place,
        a_trace_tells_of_it,
    ]
}

async fn again(bench: &Bench, subscriber: SubscriberNo, event: &str, lane: Option<Lane>) -> DeliveryNo {
    let [row] = &bench.store().event(PROJECT, event.to_owned()).await.unwrap()[..] else {
        panic!("one event is called {event}");
    };
    let routes = vec![Route::alone(subscriber, lane)];
    let replay = Replay { project: PROJECT, event: row.seq, routes, version: bench.version().await };
    let made = bench.store().replay(replay, bench.now).await.expect("it can be replayed");
    bench.audit().await;
    made[0].no
}

async fn send_in_lane(bench: &Bench, subscriber: SubscriberNo, names: &[&str]) {
    for name in names {
        bench.send([draft(*name).saying((*name).to_owned()).lane(subscriber, 7)]).await;
    }
}

/// Delivers one after the other; says in which order.
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

async fn it_is_a_delivery_of_its_own(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let first = bench.claim_one(subscriber).await;
    assert!(!first.replay);
    bench.deliver(&first).await;
    bench.pass(5_000);
    let no = again(&bench, subscriber, "1", None).await;
    assert_ne!(no, first.delivery);
    bench.reopen().await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.delivery, job.replay, job.body.clone()), (no, true, first.body.clone()));
    assert_eq!((job.event, job.accepted_at), (first.event, START));
    bench.deliver(&job).await;
    let rows = bench.rows(subscriber).await;
    let told: Vec<_> = rows.iter().map(|row| (row.no, row.replay, row.status, row.created_at)).collect();
    let expected =
        [(first.delivery, false, Status::Delivered, START), (no, true, Status::Delivered, bench.now)];
    assert_eq!(told, expected, "the first one stays as it was");
}

async fn it_is_made_as_often_as_it_is_asked_for(bench: Bench) {
    let (one, other) = (bench.subscriber("one").await, bench.subscriber("other").await);
    bench.send([draft("1").to(one)]).await;
    let seq = bench.events(PROJECT).await[0].seq;
    for _ in 0..2 {
        let routes = [one, other].map(|subscriber| Route::alone(subscriber, None)).to_vec();
        let replay = Replay { project: PROJECT, event: seq, routes, version: bench.version().await };
        assert_eq!(bench.store().replay(replay, bench.now).await.unwrap().len(), 2);
    }
    assert_eq!(bench.claim_all(one).await.len(), 3);
    assert_eq!(bench.claim_all(other).await.len(), 2, "it need not have had it before");
}

async fn its_numbers_are_not_used_again(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let replayed = again(&bench, subscriber, "1", None).await;
    bench.send([draft("2").to(subscriber)]).await;
    assert!(bench.row(subscriber, "2").await.no > replayed);
    let replayed = again(&bench, subscriber, "2", None).await;
    bench.reopen().await;
    bench.send([draft("3").to(subscriber)]).await;
    assert!(bench.row(subscriber, "3").await.no > replayed);
}

async fn an_old_route_is_refused(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1")]).await;
    let version = bench.version().await;
    bench.pause(subscriber).await;
    let event = bench.events(PROJECT).await[0].seq;
    let replay = Replay { project: PROJECT, event, routes: vec![Route::alone(subscriber, None)], version };
    let refused = bench.store().replay(replay, bench.now).await;
    assert!(matches!(refused, Err(Error::Stale { routed, current }) if routed < current), "{refused:?}");
    assert!(bench.rows(subscriber).await.is_empty());
}

async fn what_is_unknown_or_foreign_is_not_found(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let other =
        bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Default::default() }).await.no;
    bench.send([draft("theirs").of(other)]).await;
    let theirs = bench.events(other).await[0].seq;
    for event in [theirs, theirs + 100] {
        let routes = vec![Route::alone(subscriber, None)];
        let replay = Replay { project: PROJECT, event, routes, version: bench.version().await };
        let refused = bench.store().replay(replay, bench.now).await;
        assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
    }
}

async fn in_a_lane_it_goes_behind_what_waits(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    send_in_lane(&bench, subscriber, &["1"]).await;
    assert_eq!(drain(&bench, subscriber).await, ["1"]);
    send_in_lane(&bench, subscriber, &["2", "3"]).await;
    again(&bench, subscriber, "1", Some(7)).await;
    assert_eq!(drain(&bench, subscriber).await, ["2", "3", "1"]);
}

async fn in_a_lane_what_comes_later_goes_behind_it(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    send_in_lane(&bench, subscriber, &["1", "2"]).await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2"]);
    again(&bench, subscriber, "2", Some(7)).await;
    again(&bench, subscriber, "1", Some(7)).await;
    send_in_lane(&bench, subscriber, &["3"]).await;
    bench.audit().await;
    assert_eq!(drain(&bench, subscriber).await, ["2", "1", "3"], "in the order they were asked for");
}

async fn in_a_lane_it_waits_for_a_backfill(bench: Bench) {
    for name in ["1", "2"] {
        bench.send([draft(name).saying(name)]).await;
    }
    let subscriber = bench.backfilled("s", START).await;
    again(&bench, subscriber, "1", Some(7)).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "the backfill may still bring something older");
    let (mut step, events) = bench.store().backfill(subscriber, 10).await.unwrap().unwrap();
    step.matched = events.iter().map(|event| (event.seq, Route::alone(step.subscriber, Some(7)))).collect();
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    bench.audit().await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2", "1"]);
}

async fn a_failed_one_is_retried_in_its_place(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    send_in_lane(&bench, subscriber, &["1"]).await;
    assert_eq!(drain(&bench, subscriber).await, ["1"]);
    let no = again(&bench, subscriber, "1", Some(7)).await;
    send_in_lane(&bench, subscriber, &["2"]).await;
    let job = bench.claim_one(subscriber).await;
    bench.finish(&job, Next::RetryAt(bench.later(1_000))).await;
    bench.audit().await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "it holds its lane");
    bench.pass(1_000);
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.delivery, job.replay), (no, true));
    bench.exhaust(&job).await;
    bench.retry(no).await;
    bench.audit().await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2"]);
}

async fn a_trace_tells_of_it(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let no = again(&bench, subscriber, "1", None).await;
    let event = bench.events(PROJECT).await[0].seq;
    let trace = bench.store().trace(PROJECT, event).await.unwrap();
    let told: Vec<_> = trace.deliveries.iter().map(|row| (row.no, row.replay)).collect();
    assert_eq!(told, [(event + 1, false), (no, true)]);
}
