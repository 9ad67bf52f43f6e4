//! The large quotas, at their real size: all rows but the last come from one statement, because ten thousand changes
//! one by one would double the time of the conformance suite. Small quotas are tested there.

use std::sync::PoisonError;

use tidegate_core::catalog::Mode;
use tidegate_core::limits::{PROJECTS_MAX, SUBSCRIBERS_PER_PROJECT_MAX};

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::conformance::bench::{PROJECT, new_subscriber};
use crate::sqlite::SqliteStore;
use crate::{Change, Error, NewSubscriber, Store};

/// Runs `insert`, which reads the numbers from 1 to `count` as `n`.
fn fill(store: &SqliteStore, count: usize, insert: &str) {
    let numbers =
        format!("WITH numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})");
    let writer = store.writer.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(writer.conn.execute(&format!("{numbers} {insert}"), []), Ok(count));
}

async fn is_full(store: &SqliteStore, change: &Change, limit: usize) {
    match store.change(change.clone(), NOW).await {
        Err(Error::Quota(text)) => assert!(text.contains(&limit.to_string()), "{text}"),
        other => panic!("{change:?} is one too many, but: {other:?}"),
    }
}

#[tokio::test]
async fn a_project_has_so_many_subscribers() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let first = store.change(Change::CreateSubscriber(new_subscriber("first")), NOW).await.unwrap().no;
    fill(
        &store,
        SUBSCRIBERS_PER_PROJECT_MAX - 2,
        "INSERT INTO subscribers (project, id, created_at, created_version, version, active, definition, secret)
         SELECT 1, 's' || n, 0, 1, 1, 1, '{}', x'00' FROM numbers",
    );
    store.change(Change::CreateSubscriber(new_subscriber("last")), NOW).await.unwrap();
    let more = Change::CreateSubscriber(new_subscriber("more"));
    is_full(&store, &more, SUBSCRIBERS_PER_PROJECT_MAX).await;
    let other = Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open };
    let project = store.change(other, NOW).await.unwrap().no;
    let theirs = NewSubscriber { project, ..new_subscriber("more") };
    store.change(Change::CreateSubscriber(theirs), NOW).await.expect("another project has room");
    store.change(Change::DeleteSubscriber { project: PROJECT, no: first }, NOW).await.unwrap();
    store.change(more, NOW).await.expect("there is room again");
}

#[tokio::test]
async fn an_installation_has_so_many_projects() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let project = |id: &str| Change::CreateProject { id: id.to_owned(), catalog: Mode::Open };
    // One is there from the beginning.
    let first = store.change(project("first"), NOW).await.unwrap().no;
    fill(
        &store,
        PROJECTS_MAX - 3,
        "INSERT INTO projects (id, catalog, created_at) SELECT 'p' || n, 'open', 0 FROM numbers",
    );
    store.change(project("last"), NOW).await.unwrap();
    is_full(&store, &project("more"), PROJECTS_MAX).await;
    store.change(Change::DeleteProject { no: first }, NOW).await.unwrap();
    store.change(project("more"), NOW).await.expect("there is room again");
}
