//! Lists: what was asked for, newest first, and nothing of anybody else (P10).

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::retry::Next;

use super::bench::{Bench, PROJECT, START, draft, new_subscriber};
use super::{Case, named};
use crate::{Backlog, Change, DeliveryFilter, EventFilter, NewSubscriber};

pub(super) fn cases() -> Vec<Case> {
    named!["listing":
        events_are_filtered_by_every_field,
        events_are_listed_newest_first_and_whole,
        deliveries_are_filtered_by_status_and_subscriber,
        lists_show_nothing_of_another_project,
        the_backlog_counts_what_waits,
    ]
}

async fn found(bench: &Bench, filter: EventFilter) -> Vec<String> {
    let filter = EventFilter { limit: 100, ..filter };
    bench.store().events(PROJECT, filter).await.unwrap().items.into_iter().map(|row| row.id).collect()
}

async fn events_are_filtered_by_every_field(bench: Bench) {
    let at = |ms: i64| tidegate_core::time::Timestamp::from_ms(START.as_ms() + ms);
    let mut all = vec![
        draft("1").kind("a.b"),
        draft("2").kind("a.c").from("depot"),
        draft("3").kind("a.b").from("depot"),
        draft("4").kind("A.B"),
    ];
    for (n, event) in all.iter_mut().enumerate() {
        event.time = at(n as i64 * 10);
        event.subject = (n % 2 == 1).then(|| format!("o/{n}"));
    }
    bench.send(all).await;
    let none = EventFilter::default;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(found(&bench, none()).await, ["4", "3", "2", "1"]);
    assert_eq!(found(&bench, EventFilter { type_name: some("a.b"), ..none() }).await, ["3", "1"]);
    assert_eq!(found(&bench, EventFilter { type_name: some("a"), ..none() }).await, [""; 0]);
    assert_eq!(found(&bench, EventFilter { source: some("depot"), ..none() }).await, ["3", "2"]);
    assert_eq!(found(&bench, EventFilter { subject: some("o/3"), ..none() }).await, ["4"]);
    assert_eq!(found(&bench, EventFilter { from: Some(at(10)), ..none() }).await, ["4", "3", "2"]);
    assert_eq!(found(&bench, EventFilter { to: Some(at(10)), ..none() }).await, ["1"], "exclusive");
    let both = EventFilter { type_name: some("a.b"), source: some("depot"), from: Some(at(20)), ..none() };
    assert_eq!(found(&bench, both).await, ["3"]);
}

async fn events_are_listed_newest_first_and_whole(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let mut event = draft("1").saying("body").to(subscriber);
    event.subject = Some("o/1".to_owned());
    event.time = tidegate_core::time::Timestamp::from_ms(-5);
    bench.pass(3);
    bench.send([event]).await;
    let rows = bench.events(PROJECT).await;
    let [row] = &rows[..] else { panic!("one event") };
    assert_eq!((row.id.as_str(), row.source.as_str(), row.type_name.as_str()), ("1", "shop", "order.paid"));
    assert_eq!((row.subject.as_deref(), &row.body[..]), (Some("o/1"), &b"body"[..]));
    assert_eq!((row.time.as_ms(), row.accepted_at, row.version), (-5, bench.now, bench.version().await));
    assert_eq!(bench.store().event(PROJECT, "1".to_owned()).await.unwrap(), rows);
    bench.send([draft("2")]).await;
    assert_eq!(found(&bench, EventFilter::default()).await, ["2", "1"]);
    let before = EventFilter { before: Some(bench.events(PROJECT).await[1].seq), ..Default::default() };
    assert_eq!(found(&bench, before).await, ["1"], "events are found by the position a page gives");
}

async fn listed(bench: &Bench, filter: DeliveryFilter) -> Vec<String> {
    let filter = DeliveryFilter { limit: 100, ..filter };
    let page = bench.store().deliveries(PROJECT, filter).await.unwrap();
    page.items.into_iter().map(|row| format!("{}/{}", row.subscriber_id, row.events[0])).collect()
}

async fn deliveries_are_filtered_by_status_and_subscriber(bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let names = ["pending", "delivered", "exhausted", "retrying", "sending"];
    bench.send(names.iter().rev().map(|name| draft(*name).to(a).to(b))).await;
    for subscriber in [a, b] {
        let jobs = bench.refill(subscriber, 4).await.0;
        bench.finish(&jobs[1], Next::RetryAt(bench.later(1))).await;
        bench.exhaust(&jobs[2]).await;
        bench.deliver(&jobs[3]).await;
    }
    for name in names {
        let status = Status::parse(name);
        let of_both = [format!("b/{name}"), format!("a/{name}")];
        assert_eq!(listed(&bench, DeliveryFilter { status, ..Default::default() }).await, of_both);
        let of_a = DeliveryFilter { status, subscriber: Some(a), ..Default::default() };
        assert_eq!(listed(&bench, of_a).await, [format!("a/{name}")]);
    }
    let of_a = DeliveryFilter {
        status: Some(Status::Pending),
        in_hand: true,
        subscriber: Some(a),
        ..Default::default()
    };
    assert_eq!(listed(&bench, of_a).await, ["a/pending", "a/sending"], "and what may be waiting in memory");
    let of_b = DeliveryFilter { subscriber: Some(b), ..Default::default() };
    assert_eq!(listed(&bench, of_b).await, names.map(|name| format!("b/{name}")));
    assert_eq!(listed(&bench, DeliveryFilter::default()).await.len(), 10);
    bench.pause(b).await;
    let held = DeliveryFilter { status: Some(Status::Held), ..Default::default() };
    assert_eq!(listed(&bench, held).await, ["b/pending", "b/retrying"]);
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: a }).await;
    let cancelled = DeliveryFilter { status: Some(Status::Cancelled), ..Default::default() };
    assert_eq!(listed(&bench, cancelled).await, ["a/pending", "a/retrying"]);
}

async fn lists_show_nothing_of_another_project(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let theirs = NewSubscriber { project: other, ..new_subscriber("theirs") };
    bench.change(Change::CreateSubscriber(theirs)).await;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").to(subscriber)]).await;
    bench.exhaust(&bench.refill(subscriber, 1).await.0[0]).await;
    let event = bench.events(PROJECT).await.remove(0);
    assert!(bench.events(other).await.is_empty());
    assert!(bench.store().event(other, event.id).await.unwrap().is_empty());
    for (status, subscriber) in [(None, None), (None, Some(subscriber)), (Some(Status::Exhausted), None)] {
        let filter = DeliveryFilter { status, subscriber, limit: 10, ..Default::default() };
        assert!(bench.store().deliveries(other, filter).await.unwrap().items.is_empty());
    }
    let trace = bench.store().trace(other, event.seq).await.unwrap();
    assert!(trace.deliveries.is_empty() && trace.rules.is_empty());
}

async fn the_backlog_counts_what_waits(mut bench: Bench) {
    let (a, b, gone) =
        (bench.subscriber("a").await, bench.subscriber("b").await, bench.subscriber("g").await);
    assert_eq!(bench.store().backlog().await.unwrap(), Backlog::default());
    bench.send((0..6).map(|n| draft(format!("e{n}")).to(a).lane(b, 1).to(gone))).await;
    let jobs = bench.refill(a, 3).await.0;
    bench.deliver(&jobs[0]).await;
    bench.exhaust(&jobs[1]).await;
    bench.finish(&jobs[2], Next::RetryAt(bench.later(9_000))).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: gone }).await;
    let backlog = bench.store().backlog().await.unwrap();
    assert_eq!(backlog, Backlog { waiting: 4 + 6, held: 0, exhausted: 1 });
    bench.pause(b).await;
    bench.reopen().await;
    assert_eq!(bench.store().backlog().await.unwrap(), Backlog { waiting: 4, held: 6, exhausted: 1 });
    let each = bench.store().backlogs().await.unwrap();
    let sum = each.iter().fold(Backlog::default(), |sum, (_, backlog)| sum.plus(*backlog));
    assert_eq!(sum, Backlog { waiting: 4, held: 6, exhausted: 1 }, "subscriber by subscriber it is the same");
    assert!(each.iter().any(|(_, backlog)| backlog.held == 6 && backlog.waiting == 0));
    assert!(bench.store().sizes().await.unwrap().iter().any(|part| part.bytes > 0));
}
