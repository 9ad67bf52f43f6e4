//! The catalog: declared types are part of the configuration, upserts that say whether something was new.

use tidegate_core::catalog::Mode;
use tidegate_core::limits::CATALOG_TYPES_PER_PROJECT_MAX;

use super::bench::{Bench, PROJECT};
use super::{Case, named};
use crate::{Change, Error, TypeRow};

pub(super) fn cases() -> Vec<Case> {
    named!["catalog":
        types_come_change_and_go,
        types_are_read_incrementally,
        a_project_has_so_many_types,
        a_type_of_nobody_is_not_found,
        a_project_is_open_or_strict,
        types_go_with_their_project,
    ]
}

fn put(project: i64, type_name: &str, definition: &str) -> Change {
    Change::PutType {
        project,
        service: "shop".to_owned(),
        type_name: type_name.to_owned(),
        definition: definition.to_owned(),
        metrics: Vec::new(),
        keep_ms: None,
    }
}

fn delete(project: i64, type_name: &str) -> Change {
    Change::DeleteType { project, service: "shop".to_owned(), type_name: type_name.to_owned() }
}

async fn types(bench: &Bench, since: i64) -> Vec<TypeRow> {
    bench.store().configuration(since).await.expect("the configuration can be read").types
}

fn brief(types: &[TypeRow]) -> Vec<(i64, &str, Option<&str>)> {
    types.iter().map(|row| (row.project, row.type_name.as_str(), row.definition.as_deref())).collect()
}

async fn types_come_change_and_go(mut bench: Bench) {
    let start = bench.now;
    let first = bench.change(put(PROJECT, "a", "{\"n\":1}")).await;
    assert!(first.created);
    bench.pass(5);
    let second = bench.change(put(PROJECT, "a", "{\"n\":2}")).await;
    assert!(!second.created && second.version > first.version);
    let known = types(&bench, 0).await;
    let expected = TypeRow {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "a".to_owned(),
        created_at: start,
        updated_at: bench.now,
        definition: Some("{\"n\":2}".to_owned()),
        metrics: Vec::new(),
    };
    assert_eq!(known, [expected]);
    bench.change(delete(PROJECT, "a")).await;
    assert!(types(&bench, 0).await[0].definition.is_none());
    assert!(matches!(bench.try_change(delete(PROJECT, "a")).await, Err(Error::NotFound)));
    bench.pass(5);
    assert!(bench.change(put(PROJECT, "a", "{}")).await.created, "it is new again");
    bench.reopen().await;
    assert_eq!(types(&bench, 0).await[0].created_at, bench.now);
}

async fn types_are_read_incrementally(bench: Bench) {
    let a = bench.change(put(PROJECT, "a", "1")).await.version;
    let b = bench.change(put(PROJECT, "b", "2")).await.version;
    assert_eq!(brief(&types(&bench, a).await), [(PROJECT, "b", Some("2"))]);
    bench.change(delete(PROJECT, "a")).await;
    assert_eq!(brief(&types(&bench, b).await), [(PROJECT, "a", None)]);
}

async fn a_project_has_so_many_types(bench: Bench) {
    for n in 0..CATALOG_TYPES_PER_PROJECT_MAX {
        bench.change(put(PROJECT, &format!("t{n}"), "{}")).await;
    }
    assert!(matches!(bench.try_change(put(PROJECT, "more", "{}")).await, Err(Error::Conflict(_))));
    bench.change(put(PROJECT, "t0", "{}")).await;
    bench.change(delete(PROJECT, "t0")).await;
    bench.change(put(PROJECT, "more", "{}")).await;
}

async fn a_type_of_nobody_is_not_found(bench: Bench) {
    assert!(matches!(bench.try_change(put(99, "a", "{}")).await, Err(Error::NotFound)));
    bench.change(put(PROJECT, "a", "{}")).await;
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    assert!(matches!(bench.try_change(delete(other, "a")).await, Err(Error::NotFound)));
}

async fn a_project_is_open_or_strict(mut bench: Bench) {
    let no = bench.change(Change::CreateProject { id: "p".to_owned(), catalog: Mode::Strict }).await.no;
    bench.reopen().await;
    let modes =
        |projects: &[crate::ProjectRow]| -> Vec<Mode> { projects.iter().map(|row| row.catalog).collect() };
    let configuration = bench.store().configuration(0).await.unwrap();
    assert_eq!(modes(&configuration.projects), [Mode::Open, Mode::Strict]);
    bench.change(Change::UpdateProject { no, catalog: Mode::Open }).await;
    bench.change(Change::UpdateProject { no: PROJECT, catalog: Mode::Strict }).await;
    let configuration = bench.store().configuration(0).await.unwrap();
    assert_eq!(modes(&configuration.projects), [Mode::Strict, Mode::Open]);
    let nobody = Change::UpdateProject { no: 99, catalog: Mode::Open };
    assert!(matches!(bench.try_change(nobody).await, Err(Error::NotFound)));
}

async fn types_go_with_their_project(bench: Bench) {
    let no = bench.change(Change::CreateProject { id: "p".to_owned(), catalog: Mode::Open }).await.no;
    let version = bench.change(put(no, "a", "{}")).await.version;
    bench.change(Change::DeleteProject { no }).await;
    assert_eq!(brief(&types(&bench, version).await), [(no, "a", None)]);
}
