//! The trace of an event: its deliveries, and the rules of its day.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;

use super::bench::{Bench, PROJECT, draft};
use super::{Case, named};
use crate::{Change, NewSubscriber, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["trace":
        a_trace_shows_every_delivery,
        rules_are_those_in_force_when_it_was_accepted,
        rules_are_those_of_its_project,
    ]
}

async fn seq(bench: &Bench, id: &str) -> i64 {
    bench.store().event(PROJECT, id.to_owned()).await.unwrap()[0].seq
}

async fn a_trace_shows_every_delivery(bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    bench.subscriber("c").await;
    bench.send([draft("1").to(a).to(b), draft("2").to(a)]).await;
    bench.deliver(&bench.claim_one(b).await).await;
    let trace = bench.store().trace(PROJECT, seq(&bench, "1").await).await.unwrap();
    let told: Vec<_> = trace.deliveries.iter().map(|row| (row.subscriber, row.status)).collect();
    assert_eq!(told, [(a, Status::Pending), (b, Status::Delivered)]);
    assert_eq!(trace.rules.len(), 3, "who did not want it is told too");
    let nothing = bench.store().trace(PROJECT, 1_000_000).await.unwrap();
    assert!(nothing.deliveries.is_empty() && nothing.rules.is_empty());
}

async fn rules(bench: &Bench, event: &str) -> Vec<(String, Option<String>)> {
    let trace = bench.store().trace(PROJECT, seq(bench, event).await).await.unwrap();
    trace.rules.into_iter().map(|rule| (rule.subscriber_id, rule.definition)).collect()
}

async fn rules_are_those_in_force_when_it_was_accepted(bench: Bench) {
    let named = |id: &str, definition: &str| (id.to_owned(), Some(definition.to_owned()));
    bench.send([draft("0")]).await;
    let a = bench.subscriber("a").await;
    bench.send([draft("1")]).await;
    let definition = Some("v2".to_owned());
    bench.update(a, SubscriberUpdate { definition, ..Default::default() }).await;
    bench.send([draft("2")]).await;
    bench.pause(a).await;
    let b = bench.subscriber("b").await;
    bench.send([draft("3")]).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: b }).await;
    bench.send([draft("4")]).await;
    assert_eq!(rules(&bench, "0").await, [("a".to_owned(), None)], "it did not exist yet");
    assert_eq!(rules(&bench, "1").await, [named("a", "{\"name\":\"a\"}")]);
    assert_eq!(rules(&bench, "2").await, [named("a", "v2")]);
    assert_eq!(rules(&bench, "3").await, [named("a", "v2"), named("b", "{\"name\":\"b\"}")]);
    assert_eq!(rules(&bench, "4").await, [named("a", "v2")], "b was gone");
}

async fn rules_are_those_of_its_project(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let theirs = NewSubscriber { project: other, ..super::bench::new_subscriber("theirs") };
    bench.change(Change::CreateSubscriber(theirs)).await;
    bench.subscriber("mine").await;
    bench.send([draft("1")]).await;
    let told = rules(&bench, "1").await;
    assert_eq!(told.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["mine"]);
}
