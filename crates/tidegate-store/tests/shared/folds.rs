//! Windows that several processes add to, seal and close at the same time: each event is in exactly one, nothing joins what
//! has left, and nobody is stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms};
use tidegate_core::id::{Lane, SubscriberNo};
use tidegate_core::payload::Payload;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::{Span, Timestamp};
use tidegate_store::conformance::finished;
use tidegate_store::postgres::{PostgresStore, audit};
use tidegate_store::{
    Bundled, Claim, Committed, DeliveryFilter, EndWindows, Group, Refill, Room, Seal, Store, WindowFilter,
    WindowsEnd,
};

use super::schema::Schema;
use super::{NOW, connect, deadlocks, expire, group, statuses, subscriber};

const WRITERS: usize = 8;
const GROUPS: usize = 40;
const EVENTS: usize = 6;

pub(crate) fn terms(window_ms: u64, max_events: u32) -> Terms {
    let mode = Mode::Window { window: Span::from_ms(window_ms) };
    Terms {
        mode,
        max_events,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    }
}

pub(crate) fn into(subscriber: SubscriberNo, key: &str, lane: Option<Lane>, terms: &Terms) -> Route {
    let appending =
        Appending { key: Key::from_text(key), terms: Arc::new(terms.clone()), cancels: Vec::new() };
    Route::folded(subscriber, lane, appending)
}

pub(crate) fn later(ms: u64) -> Timestamp {
    NOW.plus(Duration::from_millis(ms))
}

pub(crate) async fn commit(store: &PostgresStore, group: Group) -> Committed {
    store.commit(Arc::new(group)).await.expect("the group can be written")
}

/// The ids that a folded delivery carries.
pub(crate) async fn carried(store: &PostgresStore, job: &Job) -> Vec<String> {
    let bundled = store.bundle(job.fold.expect("it is a fold"), job.key(), usize::MAX).await.unwrap();
    let Some(Bundled::Whole(bundle)) = bundled else { panic!("it has closed") };
    let id = |body: &bytes::Bytes| {
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        event["id"].as_str().unwrap().to_owned()
    };
    bundle.events.iter().map(id).collect()
}

pub(crate) async fn seal(store: &PostgresStore, job: &Job) -> bool {
    let claim = Claim::of(job);
    let seals = vec![Seal { project: 1, window: job.fold.expect("it is a fold"), claim }];
    commit(store, Group { now: NOW, seals, ..Group::default() }).await.unsealed.is_empty()
}

pub(crate) async fn claim(store: &PostgresStore, subscriber: SubscriberNo, now: Timestamp) -> Vec<Job> {
    let refills = vec![Refill { subscriber, jobs: 100 }];
    commit(store, Group { now, refills, room: Room::new(1 << 20), ..Group::default() }).await.jobs
}

async fn deliver(store: &PostgresStore, job: &Job, now: Timestamp) {
    let results = vec![finished(job, Next::Delivered, now)];
    assert_eq!(commit(store, Group { now, results, ..Group::default() }).await.stale, 0);
}

/// Whose turn it is at `writer` in its `n`th group: all write to one busy slot, and to some that few of them share.
fn routes(subscriber: SubscriberNo, terms: &Terms, writer: usize, n: usize, is_laned: bool) -> Vec<Route> {
    let key = match n % 3 {
        0 => "busy".to_owned(),
        1 => format!("{}", n % 5),
        _ => format!("{}", (writer + n) % 4),
    };
    let lane = is_laned.then_some(key.len() as Lane + 1);
    vec![into(subscriber, &key, lane, terms)]
}

/// One process: sends its events, closes what is due and what is full, while others do the same.
async fn write(store: Arc<PostgresStore>, writer: usize, subscriber: SubscriberNo, is_laned: bool) -> usize {
    let terms = terms(50, 17);
    let mut sent = 0;
    for n in 0..GROUPS {
        let ids: Vec<String> = (0..EVENTS).map(|place| format!("{writer}-{n}-{place}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        // Each event to another slot, in another order at each process.
        let mut all = group(&store, &ids, &[]).await;
        for (place, unit) in all.submissions[0].units.iter_mut().enumerate() {
            unit.routes = vec![routes(subscriber, &terms, writer, n + place, is_laned)];
        }
        all.now = later(n as u64 * 7);
        all.close = if n % 2 == 0 { 5 } else { 0 };
        sent += statuses(&commit(&store, all).await).len();
    }
    sent
}

/// Every event that was accepted is in exactly one window, counted, and carried by one delivery.
async fn check(schema: &Schema, store: &PostgresStore, subscriber: SubscriberNo, sent: usize) {
    let end = EndWindows {
        subscriber: None,
        key: None,
        limit: 10_000,
        end: WindowsEnd::Close(tidegate_core::fold::ClosedBy::Flush),
    };
    store.end_windows(1, end, later(100_000)).await.unwrap();
    let filter = WindowFilter { limit: 10, ..Default::default() };
    assert!(store.windows(1, filter).await.unwrap().items.is_empty());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let jobs = claim(store, subscriber, later(100_000)).await;
        if jobs.is_empty() {
            break;
        }
        for job in &jobs {
            assert!(seal(store, job).await);
            for id in carried(store, job).await {
                *seen.entry(id).or_default() += 1;
            }
            deliver(store, job, later(100_000)).await;
        }
    }
    assert!(seen.values().all(|times| *times == 1), "in one delivery each: {seen:?}");
    assert_eq!(seen.len(), sent, "none is lost");
    let violations = audit(schema.url()).await.unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
}

async fn race(is_laned: bool) {
    let schema = Schema::new();
    let mut stores = Vec::new();
    for _ in 0..WRITERS {
        stores.push(Arc::new(schema.open(schema.url(), NOW).await));
    }
    let subscriber = subscriber(&stores[0]).await;
    let before = deadlocks(&schema).await;
    let writers: Vec<_> = stores
        .iter()
        .enumerate()
        .map(|(writer, store)| tokio::spawn(write(Arc::clone(store), writer, subscriber, is_laned)))
        .collect();
    let mut sent = 0;
    for writer in writers {
        sent += writer.await.unwrap();
    }
    assert_eq!(sent, WRITERS * GROUPS * EVENTS);
    assert_eq!(deadlocks(&schema).await, before);
    check(&schema, &stores[0], subscriber, sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_fill_the_same_windows_and_each_event_is_in_one() {
    race(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_fill_the_same_windows_of_lanes() {
    race(true).await;
}

const KEYS: usize = 150;

/// Adds one event to each window, by a clock that says that none is due.
async fn add_to_all(store: Arc<PostgresStore>, round: usize, subscriber: SubscriberNo) -> usize {
    for first in (0..KEYS).step_by(10) {
        let ids: Vec<String> = (first..first + 10).map(|key| format!("{round}-{key}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let mut all = group(&store, &ids, &[]).await;
        for (place, unit) in all.submissions[0].units.iter_mut().enumerate() {
            unit.routes =
                vec![vec![into(subscriber, &format!("{}", first + place), None, &terms(50, 1_000))]];
        }
        commit(&store, all).await;
    }
    KEYS
}

/// Closes a few at a time until there are no more.
async fn close_all(store: Arc<PostgresStore>) -> usize {
    let mut closed = 0;
    loop {
        let committed = commit(&store, Group { now: later(60), close: 7, ..Group::default() }).await;
        closed += committed.closed.len();
        if committed.closed.is_empty() && committed.close_due.is_none() {
            return closed;
        }
    }
}

/// Windows are due for some processes while others, whose clocks are behind, add to them.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_closes_once_whoever_closes_it_and_whoever_adds() {
    let schema = Schema::new();
    let mut stores = Vec::new();
    for _ in 0..WRITERS {
        stores.push(Arc::new(schema.open(schema.url(), NOW).await));
    }
    let subscriber = subscriber(&stores[0]).await;
    let before = deadlocks(&schema).await;
    let mut sent = add_to_all(Arc::clone(&stores[0]), 0, subscriber).await;
    let adders: Vec<_> = (1..=3)
        .map(|round| tokio::spawn(add_to_all(Arc::clone(&stores[round]), round, subscriber)))
        .collect();
    let closers: Vec<_> =
        stores[4..].iter().map(|store| tokio::spawn(close_all(Arc::clone(store)))).collect();
    for adder in adders {
        sent += adder.await.unwrap();
    }
    let mut closed = 0;
    for closer in closers {
        closed += closer.await.unwrap();
    }
    closed += close_all(Arc::clone(&stores[0])).await;
    assert_eq!(deadlocks(&schema).await, before);
    let violations = audit(schema.url()).await.unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
    let filter = DeliveryFilter { limit: 10_000, ..Default::default() };
    assert_eq!(stores[0].deliveries(1, filter).await.unwrap().items.len(), closed, "each is one delivery");
    check(&schema, &stores[0], subscriber, sent).await;
}

/// One sends what waits in a lane, over and over, while others add to it: nothing joins what has been read.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_joins_what_one_process_sends_while_others_add() {
    let schema = Schema::new();
    let mut opened = Vec::new();
    for _ in 0..4 {
        opened.push(Arc::new(schema.open(schema.url(), NOW).await));
    }
    let sender = opened.remove(0);
    let subscriber = subscriber(&sender).await;
    let before = deadlocks(&schema).await;
    let adders: Vec<_> = opened
        .iter()
        .enumerate()
        .map(|(adder, store)| tokio::spawn(add(Arc::clone(store), adder, subscriber)))
        .collect();
    let mut seen = BTreeSet::new();
    let mut deliveries = 0;
    loop {
        let is_over = adders.iter().all(tokio::task::JoinHandle::is_finished);
        let now = later(if is_over { 100_000 } else { 10_000 });
        commit(&sender, Group { now, close: 10, ..Group::default() }).await;
        let jobs = claim(&sender, subscriber, now).await;
        if jobs.is_empty() && is_over {
            break;
        }
        for job in &jobs {
            assert!(seal(&sender, job).await);
            let first = carried(&sender, job).await;
            tokio::task::yield_now().await;
            assert_eq!(carried(&sender, job).await, first, "what was read once stays");
            assert!(first.iter().all(|id| seen.insert(id.clone())), "never twice");
            deliver(&sender, job, now).await;
            assert_eq!(carried(&sender, job).await, first);
            deliveries += 1;
        }
    }
    let mut sent = 0;
    for adder in adders {
        sent += adder.await.unwrap();
    }
    assert_eq!(seen.len(), sent, "none is lost");
    assert!(deliveries > 5, "it was sent while they added: {deliveries}");
    assert_eq!(deadlocks(&schema).await, before);
    let violations = audit(schema.url()).await.unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
}

async fn add(store: Arc<PostgresStore>, adder: usize, subscriber: SubscriberNo) -> usize {
    let route = into(subscriber, "one", Some(7), &terms(10, 1_000));
    for n in 0..120 {
        let ids = [format!("{adder}-{n}-a"), format!("{adder}-{n}-b")];
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        commit(&store, group(&store, &ids, std::slice::from_ref(&route)).await).await;
    }
    240
}

/// A process dies with windows that gather, that wait in a lane, and that it had in hand.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_goes_on_with_the_windows_of_the_dead() {
    let schema = Schema::new();
    let (dead, alive) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let subscriber = subscriber(&alive).await;
    let (plain, laned) = (terms(1_000, 100), terms(10, 100));
    let into_lane = |key: &str| into(subscriber, key, Some(7), &laned);
    commit(&dead, group(&dead, &["gathering"], &[into(subscriber, "a", None, &plain)]).await).await;
    commit(&dead, group(&dead, &["held"], &[into_lane("b")]).await).await;
    let mut room = Room::new(1 << 20);
    room.set(subscriber, 10);
    let held = commit(&dead, Group { now: later(10), close: 10, room, ..Group::default() }).await.jobs;
    assert_eq!(held.len(), 1, "it has one in hand");
    let waiting = Group { now: later(20), ..group(&dead, &["waiting"], &[into_lane("c")]).await };
    commit(&dead, waiting).await;
    commit(&dead, Group { now: later(40), close: 10, ..Group::default() }).await;
    assert_eq!(alive.close_due().await.unwrap(), Some(later(1_000)), "anybody sees when");
    expire(&schema, dead.incarnation()).await;
    assert_eq!(alive.take_over(dead.incarnation(), later(50)).await.unwrap().due, 1);
    // What had not left takes what comes, whoever closed it.
    let more = Group { now: later(60), ..group(&alive, &["more"], &[into_lane("b")]).await };
    commit(&alive, more).await;
    let closed = commit(&alive, Group { now: later(1_000), close: 10, ..Group::default() }).await;
    assert_eq!((closed.closed.len(), closed.close_due), (1, None));
    let claim_of_dead = Claim::of(&held[0]);
    let seals = vec![Seal { project: 1, window: held[0].fold.unwrap(), claim: claim_of_dead }];
    let refused =
        dead.commit(Arc::new(Group { now: later(1_000), seals: seals.clone(), ..Group::default() })).await;
    assert!(matches!(refused, Err(tidegate_store::Error::Fenced)), "{refused:?}");
    let unsealed = commit(&alive, Group { now: later(1_000), seals, ..Group::default() }).await.unsealed;
    assert_eq!(unsealed, [claim_of_dead], "a claim of another life seals nothing");
    let mut seen = Vec::new();
    loop {
        let jobs = claim(&alive, subscriber, later(2_000)).await;
        if jobs.is_empty() {
            break;
        }
        for job in &jobs {
            assert!(seal(&alive, job).await);
            seen.push(carried(&alive, job).await.join(" "));
            deliver(&alive, job, later(2_000)).await;
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, ["gathering", "held more", "waiting"]);
    let violations = audit(schema.url()).await.unwrap();
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Whoever stands still with windows in hand is not waited for, nor looked at all the time.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_has_in_hand_is_left_to_it() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    let subscriber = subscriber(&store).await;
    for id in ["1", "2"] {
        let route = into(subscriber, id, None, &terms(10, 10));
        commit(&store, group(&store, &[id], &[route]).await).await;
    }
    let other = connect(&schema).await;
    other.client.batch_execute("BEGIN; SELECT 1 FROM windows ORDER BY no LIMIT 1 FOR UPDATE").await.unwrap();
    let close = || Group { now: later(20), close: 10, ..Group::default() };
    assert_eq!(commit(&store, close()).await.closed.len(), 1, "the other one");
    let committed = commit(&store, close()).await;
    assert!(committed.closed.is_empty());
    assert!(committed.close_due.is_some_and(|at| at > later(20)), "{:?}", committed.close_due);
    other.client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(commit(&store, close()).await.closed.len(), 1);
}

/// The limit holds, nearly, for all processes together.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_windows_is_one_for_all() {
    let schema = Schema::new();
    let stores = [schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await];
    let subscriber = subscriber(&stores[0]).await;
    stores.iter().for_each(|store| store.limit_windows(10));
    let mut closed = 0;
    for n in 0..60 {
        let store = &stores[n % 2];
        let route = into(subscriber, &format!("{n}"), None, &terms(60_000, 10));
        closed += commit(store, group(store, &[&format!("{n}")], &[route]).await).await.closed.len();
    }
    let filter = WindowFilter { limit: 100, ..Default::default() };
    assert_eq!(stores[0].windows(1, filter).await.unwrap().items.len(), 10);
    assert_eq!(closed, 50, "the oldest have closed early");
}
