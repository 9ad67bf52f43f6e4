//! What has just gathered is not read back from the file; what a life before wrote is.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::Connection;
use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms};
use tidegate_core::payload::Payload;
use tidegate_core::route::Route;
use tidegate_core::time::Span;

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::conformance::bench::{draft, new_subscriber, room, submission};
use crate::sqlite::SqliteStore;
use crate::{Bundled, Change, Group, Store};

const EVENTS: u32 = 3;

/// A window that closed as its last event came.
async fn closed_window(store: &SqliteStore) -> Job {
    let subscriber = store.change(Change::CreateSubscriber(new_subscriber("s")), NOW).await.unwrap().no;
    let version = store.configuration(i64::MAX).await.unwrap().version;
    let terms = Arc::new(Terms {
        mode: Mode::Window { window: Span::from_ms(60_000) },
        max_events: EVENTS,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    });
    let drafts = (0..EVENTS).map(|n| {
        let fold = Appending { key: Key::from_text("k"), terms: Arc::clone(&terms), cancels: Vec::new() };
        let mut draft = draft(n.to_string());
        draft.routes.push(Route::folded(subscriber, None, fold));
        draft
    });
    let (submissions, room) = (vec![submission(drafts)], room(1, &[subscriber]));
    let group = Group { submissions, now: NOW, version, room, ..Group::default() };
    let jobs = store.commit(Arc::new(group)).await.unwrap().jobs;
    jobs[0].clone()
}

async fn bodies(store: &SqliteStore, job: &Job) -> Vec<Bytes> {
    match store.bundle(job.fold.unwrap(), job.key(), usize::MAX).await.unwrap() {
        Some(Bundled::Whole(bundle)) => bundle.events,
        other => panic!("not whole: {other:?}"),
    }
}

#[tokio::test]
async fn a_delivery_is_made_of_what_has_just_come_and_after_a_restart_of_the_file() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let job = closed_window(&store).await;
    let sent = bodies(&store, &job).await;
    assert_eq!(sent.len(), EVENTS as usize);
    // Nobody writes there; it tells the two apart.
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    conn.execute("UPDATE events SET body = CAST('of the file' AS BLOB)", []).unwrap();
    assert_eq!(bodies(&store, &job).await, sent, "read back although it is at hand");
    drop((conn, store));
    let again = open(&dir).unwrap();
    assert_eq!(bodies(&again, &job).await, vec![Bytes::from_static(b"of the file"); EVENTS as usize]);
}
