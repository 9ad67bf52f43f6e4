//! Gates: part of the configuration, upserts that keep their number, and never gone while somebody passes them.

use tidegate_core::catalog::Mode;
use tidegate_core::limits::GATES_PER_PROJECT_MAX;

use super::bench::{Bench, PROJECT, new_subscriber};
use super::{Case, named};
use crate::{Change, Error, GateRow, NewSubscriber, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["gates":
        gates_come_change_and_go,
        gates_are_read_incrementally,
        a_project_has_so_many_gates,
        a_gate_of_nobody_is_not_found,
        a_subscriber_passes_only_gates_that_are_there,
        a_gate_in_use_stays,
        gates_go_with_their_project,
    ]
}

fn put(project: i64, name: &str, definition: &str) -> Change {
    Change::PutGate { project, name: name.to_owned(), definition: definition.to_owned() }
}

fn delete(project: i64, name: &str) -> Change {
    Change::DeleteGate { project, name: name.to_owned() }
}

fn passing(id: &str, gate: &str) -> NewSubscriber {
    NewSubscriber { definition: format!("{{\"gate\":\"{gate}\"}}"), ..new_subscriber(id) }
}

fn redefined(definition: &str) -> SubscriberUpdate {
    SubscriberUpdate { definition: Some(definition.to_owned()), ..SubscriberUpdate::default() }
}

async fn gates(bench: &Bench, since: i64) -> Vec<GateRow> {
    bench.store().configuration(since).await.expect("the configuration can be read").gates
}

fn brief(gates: &[GateRow]) -> Vec<(i64, &str, Option<&str>)> {
    gates.iter().map(|row| (row.project, row.name.as_str(), row.definition.as_deref())).collect()
}

async fn gates_come_change_and_go(mut bench: Bench) {
    let start = bench.now;
    let first = bench.change(put(PROJECT, "a", "1")).await;
    assert!(first.created);
    bench.pass(5);
    let second = bench.change(put(PROJECT, "a", "2")).await;
    assert!(!second.created && second.version > first.version && second.no == first.no);
    let expected = GateRow {
        no: first.no,
        project: PROJECT,
        name: "a".to_owned(),
        created_at: start,
        updated_at: bench.now,
        definition: Some("2".to_owned()),
    };
    assert_eq!(gates(&bench, 0).await, [expected]);
    bench.change(delete(PROJECT, "a")).await;
    assert!(gates(&bench, 0).await[0].definition.is_none());
    assert!(matches!(bench.try_change(delete(PROJECT, "a")).await, Err(Error::NotFound)));
    bench.pass(5);
    let again = bench.change(put(PROJECT, "a", "3")).await;
    assert!(again.created && again.no == first.no, "it is new again, and the same");
    bench.reopen().await;
    assert_eq!(gates(&bench, 0).await[0].created_at, bench.now);
}

async fn gates_are_read_incrementally(bench: Bench) {
    let a = bench.change(put(PROJECT, "a", "1")).await.version;
    let b = bench.change(put(PROJECT, "b", "2")).await.version;
    assert_eq!(brief(&gates(&bench, a).await), [(PROJECT, "b", Some("2"))]);
    bench.change(delete(PROJECT, "a")).await;
    assert_eq!(brief(&gates(&bench, b).await), [(PROJECT, "a", None)]);
}

async fn a_project_has_so_many_gates(bench: Bench) {
    for n in 0..GATES_PER_PROJECT_MAX {
        bench.change(put(PROJECT, &format!("g{n}"), "1")).await;
    }
    assert!(matches!(bench.try_change(put(PROJECT, "more", "1")).await, Err(Error::Quota(_))));
    bench.change(put(PROJECT, "g0", "2")).await;
    bench.change(delete(PROJECT, "g0")).await;
    bench.change(put(PROJECT, "more", "1")).await;
}

async fn a_gate_of_nobody_is_not_found(bench: Bench) {
    assert!(matches!(bench.try_change(put(99, "a", "1")).await, Err(Error::NotFound)));
    bench.change(put(PROJECT, "a", "1")).await;
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    assert!(matches!(bench.try_change(delete(other, "a")).await, Err(Error::NotFound)));
}

async fn a_subscriber_passes_only_gates_that_are_there(bench: Bench) {
    let create = |gate| Change::CreateSubscriber(passing("s", gate));
    assert!(matches!(bench.try_change(create("a")).await, Err(Error::Conflict(_))));
    bench.change(put(PROJECT, "a", "1")).await;
    let no = bench.change(create("a")).await.no;
    let update =
        |definition| Change::UpdateSubscriber { project: PROJECT, no, update: redefined(definition) };
    assert!(matches!(bench.try_change(update("{\"gate\":\"b\"}")).await, Err(Error::Conflict(_))));
    bench.change(update("{\"gate\":\"a\",\"name\":\"other\"}")).await;
    bench.change(update("{}")).await;
    bench.change(delete(PROJECT, "a")).await;
    assert!(matches!(bench.try_change(update("{\"gate\":\"a\"}")).await, Err(Error::Conflict(_))));
}

async fn a_gate_in_use_stays(bench: Bench) {
    for name in ["a", "ab"] {
        bench.change(put(PROJECT, name, "1")).await;
    }
    let no = bench.change(Change::CreateSubscriber(passing("user", "ab"))).await.no;
    bench.pause(no).await;
    match bench.try_change(delete(PROJECT, "ab")).await {
        Err(Error::Conflict(detail)) => assert!(detail.contains("user"), "{detail}"),
        other => panic!("{other:?}"),
    }
    bench.change(delete(PROJECT, "a")).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no }).await;
    bench.change(delete(PROJECT, "ab")).await;
}

async fn gates_go_with_their_project(bench: Bench) {
    let no = bench.change(Change::CreateProject { id: "p".to_owned(), catalog: Mode::Open }).await.no;
    let version = bench.change(put(no, "a", "1")).await.version;
    bench.change(Change::DeleteProject { no }).await;
    assert_eq!(brief(&gates(&bench, version).await), [(no, "a", None)]);
}
