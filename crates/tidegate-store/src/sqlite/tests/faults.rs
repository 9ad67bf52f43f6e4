//! When the disk fails: nothing is acknowledged that is not there, nothing that is there is forgotten, and it works
//! again without a restart (P1, P9). COMMIT is made to fail through the writer's `end`, a full disk by a limit on the
//! number of pages.

use std::sync::{Arc, MutexGuard, PoisonError};

use rusqlite::{Transaction, ffi};
use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::fold::ClosedBy;
use tidegate_core::retry::Next;

use super::telling::folded;
use super::{NOW, open};
use crate::UnitStatus::{Accepted, Conflict, Duplicate};
use crate::conformance::Scratch;
use crate::conformance::bench::{Draft, PROJECT, draft, finished, new_subscriber, room, submission};
use crate::sqlite::{Calls, SqliteStore, Writer, audit};
use crate::{
    Change, Committed, DeliveryFilter, EndWindows, Error, EventFilter, Group, Refill, Result, Room, Store,
    UnitStatus, WindowsEnd,
};

fn writer(store: &SqliteStore) -> MutexGuard<'_, Writer> {
    store.writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io_error() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None)
}

/// The disk says no, and means it.
fn lose(tx: Transaction<'_>) -> rusqlite::Result<()> {
    tx.rollback()?;
    Err(io_error())
}

/// The disk says no after it has done it.
fn hide(tx: Transaction<'_>) -> rusqlite::Result<()> {
    tx.commit()?;
    Err(io_error())
}

async fn commit(store: &SqliteStore, group: Group) -> Result<Committed> {
    let version = store.configuration(i64::MAX).await?.version;
    store.commit(Arc::new(Group { now: NOW, version, ..group })).await
}

async fn send(store: &SqliteStore, room: Room, drafts: Vec<Draft>) -> Result<Committed> {
    commit(store, Group { submissions: vec![submission(drafts)], room, ..Group::default() }).await
}

fn statuses(committed: &Committed) -> &[UnitStatus] {
    committed.submissions[0].as_ref().unwrap()
}

async fn events(store: &SqliteStore) -> Vec<String> {
    let filter = EventFilter { limit: 100_000, ..Default::default() };
    let mut ids: Vec<String> =
        store.events(PROJECT, filter).await.unwrap().items.into_iter().map(|row| row.id).collect();
    ids.reverse();
    ids
}

async fn subscriber(store: &SqliteStore) -> i64 {
    store.change(Change::CreateSubscriber(new_subscriber("s")), NOW).await.unwrap().no
}

fn unavailable(result: &Result<Committed>) {
    assert!(matches!(result, Err(Error::Unavailable(_))), "{result:?}");
}

fn is_sound(dir: &Scratch) {
    assert_eq!(audit(dir.path()).unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_full_disk_refuses_loses_nothing_and_recovers() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    let named = |n: usize| vec![draft(format!("e{n}")).saying(vec![b'x'; 20_000]).to(to)];
    send(&store, Room::default(), named(0)).await.unwrap();
    let pages: i64 = writer(&store).conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    let limit = format!("PRAGMA max_page_count = {}", pages + 12);
    writer(&store).conn.query_row(&limit, [], |_| Ok(())).unwrap();
    let mut accepted = vec!["e0".to_owned()];
    let mut full = 0;
    for n in 1..6 {
        match send(&store, room(9, &[to]), named(n)).await {
            Ok(_) => accepted.push(format!("e{n}")),
            Err(error) => {
                assert!(matches!(&error, Error::Unavailable(text) if text.contains("full")), "{error}");
                full += 1;
                // The limit belongs to the connection, which is opened anew: set it again, as a full disk stays full.
                writer(&store).recover().unwrap();
                writer(&store).conn.query_row(&limit, [], |_| Ok(())).unwrap();
            }
        }
    }
    assert!(full > 1 && accepted.len() > 1, "{full} refused, {accepted:?} accepted");
    assert_eq!(events(&store).await, accepted, "what was refused is not there, what was accepted is");
    is_sound(&dir);
    writer(&store).conn.query_row("PRAGMA max_page_count = 1000000", [], |_| Ok(())).unwrap();
    let again: Vec<Draft> = (0..6).flat_map(named).collect();
    let committed = send(&store, Room::default(), again).await.unwrap();
    let expected: Vec<UnitStatus> =
        (0..6).map(|n| if accepted.contains(&format!("e{n}")) { Duplicate } else { Accepted }).collect();
    assert_eq!(statuses(&committed), expected);
    is_sound(&dir);
}

#[tokio::test]
async fn a_commit_that_failed_is_refused_and_may_be_repeated() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    writer(&store).end = lose;
    unavailable(&send(&store, room(9, &[to]), vec![draft("1").to(to)]).await);
    assert!(events(&store).await.is_empty());
    writer(&store).end = |tx| tx.commit();
    let committed =
        send(&store, room(9, &[to]), vec![draft("1").to(to), draft("1").saying("x")]).await.unwrap();
    assert_eq!(statuses(&committed), [Accepted, Conflict]);
    assert_eq!(committed.jobs.len(), 1, "nothing of the lost group is handed over");
    is_sound(&dir);
}

#[tokio::test]
async fn a_commit_that_is_there_is_adopted_whatever_was_reported() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    writer(&store).end = hide;
    let committed = send(&store, room(9, &[to]), vec![draft("1").to(to)]).await.unwrap();
    assert_eq!((statuses(&committed), committed.jobs.len()), (&[Accepted][..], 1));
    let committed = send(&store, Room::default(), vec![draft("1").to(to), draft("2")]).await.unwrap();
    assert_eq!(statuses(&committed), [Duplicate, Accepted]);
    is_sound(&dir);
}

/// A result that is refused as stale proves nothing about the group it came in, though its attempt is on record.
#[tokio::test]
async fn a_lost_commit_is_not_mistaken_for_an_earlier_one() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    let sent = vec![draft("1").to(to), draft("2").to(to)];
    let jobs = send(&store, room(9, &[to]), sent).await.unwrap().jobs;
    let result = |n: usize| finished(&jobs[n], Next::Delivered, NOW);
    commit(&store, Group { results: vec![result(0)], ..Group::default() }).await.unwrap();
    writer(&store).end = lose;
    let group = || Group { results: vec![result(0), result(1)], ..Group::default() };
    unavailable(&commit(&store, group()).await);
    writer(&store).end = |tx| tx.commit();
    assert_eq!(commit(&store, group()).await.unwrap().stale, 1);
    let filter = DeliveryFilter { status: Some(Status::Delivered), limit: 9, ..Default::default() };
    assert_eq!(store.deliveries(PROJECT, filter).await.unwrap().items.len(), 2);
}

/// The worst case: COMMIT reports an error, it is there all the same, and the file can not be asked for a while.
#[tokio::test]
async fn a_commit_found_late_is_adopted_late() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    let path = std::mem::replace(&mut writer(&store).path, dir.path().join("gone"));
    writer(&store).end = hide;
    let sent = vec![draft("1").to(to), draft("2").lane(to, 1), draft("3").lane(to, 1)];
    unavailable(&send(&store, room(1, &[to]), sent.clone()).await);
    writer(&store).end = |tx| tx.commit();
    unavailable(&commit(&store, Group::default()).await);
    assert!(!dir.path().join("gone").exists(), "a file that is gone is not made up");
    writer(&store).path = path;
    let refills = vec![Refill { subscriber: to, jobs: 9 }];
    let group =
        Group { submissions: vec![submission(sent)], refills, room: room(0, &[]), ..Group::default() };
    let committed = commit(&store, group).await.unwrap();
    assert_eq!(statuses(&committed), [Duplicate; 3], "the sender asked again");
    assert_eq!(committed.jobs.len(), 2, "the one claimed then, and the lane's head");
    assert_eq!(committed.spilled, [to]);
    let results = committed.jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    let committed =
        commit(&store, Group { results, room: room(9, &[to]), ..Group::default() }).await.unwrap();
    assert_eq!((committed.stale, committed.jobs.len()), (0, 1), "both claims hold, and the lane goes on");
    is_sound(&dir);
}

#[tokio::test]
async fn a_change_of_unknown_outcome_is_looked_for() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    store.change(Change::CreateProject { id: "p".to_owned(), catalog: Mode::Open }, NOW).await.unwrap();
    // As if the change before had been written, but reported as failed.
    writer(&store).version -= 1;
    writer(&store).is_suspect = true;
    let committed = send(&store, Room::default(), vec![draft("1")]).await.unwrap();
    assert_eq!(statuses(&committed), [Accepted], "the version is that of the file");
}

/// Closing windows by hand, like every other write that is no group: reported as failed, and there all the same.
#[tokio::test]
async fn windows_closed_by_a_write_of_unknown_outcome_are_not_joined() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let to = subscriber(&store).await;
    // Both have the same key.
    let (first, second) = (vec![folded(4, to)], vec![folded(5, to)]);
    send(&store, Room::default(), first).await.unwrap();
    let before = writer(&store).book.lock().unwrap().clone();
    let (end, known) = (WindowsEnd::Close(ClosedBy::Flush), writer(&store).known);
    let all = EndWindows { subscriber: None, key: None, limit: 9, end };
    store.end_windows(PROJECT, all, NOW).await.unwrap();
    *writer(&store).book.lock().unwrap() = before;
    (writer(&store).known, writer(&store).is_suspect) = (known, true);
    send(&store, Room::default(), second).await.unwrap();
    store.end_windows(PROJECT, all, NOW).await.unwrap();
    let filter = DeliveryFilter { limit: 9, ..Default::default() };
    let rows = store.deliveries(PROJECT, filter).await.unwrap().items;
    let events: Vec<&[String]> = rows.iter().map(|row| &row.events[..]).collect();
    assert_eq!(events, [["e5".to_owned()], ["e4".to_owned()]], "each in a window of its own");
    is_sound(&dir);
}

/// A bug of ours in one group must not stop all others.
#[tokio::test]
async fn a_panic_inside_a_group_leaves_the_store_usable() {
    let dir = Scratch::new();
    let store = SqliteStore::open(dir.path(), b"salt", 7, NOW, Calls::Blocking).unwrap();
    let mut broken = submission([draft("1")]);
    broken.units[0].routes.clear();
    unavailable(&commit(&store, Group { submissions: vec![broken], ..Group::default() }).await);
    let committed = send(&store, Room::default(), vec![draft("1")]).await.unwrap();
    assert_eq!(statuses(&committed), [Accepted]);
    is_sound(&dir);
}
