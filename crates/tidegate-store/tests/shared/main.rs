//! What only a store that many processes share must promise: nobody acts for the dead, nothing is passed over because it
//! was committed late, and a commit whose answer was lost is looked for, not guessed. On a real PostgreSQL, with
//! several stores open on one schema, each as a process of its own would have it.

mod cancelled;
mod cut;
mod folds;
mod grounds;
mod held;
mod late;
mod limits;
mod midnight;
mod repeats;
mod rewind;
#[path = "../harness/schema.rs"]
mod schema;
mod silent;
mod stepping;
mod suspects;
mod twins;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cut::Proxy;
use schema::Schema;
use tidegate_core::event::{Event, Fingerprinter, Unit, lookup_key};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::schedule::Stance;
use tidegate_core::time::Timestamp;
use tidegate_store::conformance::finished;
use tidegate_store::postgres::connect::{Session, Target};
use tidegate_store::postgres::{Periods, PostgresStore, Terms};
use tidegate_store::{
    Admission, Beat, Change, Committed, Configuration, Error, Group, Load, NewSubscriber, Refill, Room,
    RoutedUnit, Store, Submission, UnitStatus,
};
use tokio_postgres::Client;

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

fn unit(id: &str, routes: Vec<Route>) -> RoutedUnit {
    let mut print = Fingerprinter::default();
    print.field(Some(id.as_bytes()));
    let event = Event {
        id: id.to_owned(),
        source: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        subject: None,
        time: NOW,
        body: Bytes::from(format!("{{\"id\":\"{id}\"}}")),
    };
    RoutedUnit {
        keys: vec![lookup_key(1, &event.source, &event.id)],
        unit: Unit { events: vec![event], fingerprint: print.finish() },
        routes: vec![routes],
        admission: Admission::Granted,
    }
}

async fn group(store: &PostgresStore, ids: &[&str], routes: &[Route]) -> Group {
    let version = store.configuration(0).await.unwrap().version;
    let units = ids.iter().map(|id| unit(id, routes.to_vec())).collect();
    let mut room = Room::new(1 << 20);
    routes.iter().for_each(|route| room.set(route.subscriber, 1_000));
    Group { now: NOW, version, submissions: vec![Submission { project: 1, units }], room, ..Group::default() }
}

async fn send(store: &PostgresStore, ids: &[&str], routes: &[Route]) -> Committed {
    store.commit(Arc::new(group(store, ids, routes).await)).await.expect("the group can be written")
}

fn statuses(committed: &Committed) -> Vec<UnitStatus> {
    committed.submissions.iter().flat_map(|answer| answer.as_ref().unwrap().clone()).collect()
}

async fn subscriber(store: &PostgresStore) -> i64 {
    store.change(new_subscriber("s"), NOW).await.unwrap().no
}

fn new_subscriber(id: &str) -> Change {
    Change::CreateSubscriber(NewSubscriber {
        project: 1,
        id: id.to_owned(),
        definition: "{}".to_owned(),
        secret: Vec::new(),
        destination: None,
        active: true,
        unverified: false,
        backfill_from: None,
    })
}

/// What a reader that follows the events has seen when it has come to the end.
async fn follow(store: &PostgresStore, from: &mut i64, seen: &mut Vec<String>) {
    loop {
        let stretch = store.events_after(1, *from, 100, 1 << 20).await.unwrap();
        seen.extend(stretch.events.into_iter().map(|event| event.id));
        *from = stretch.through;
        if stretch.is_end {
            return;
        }
    }
}

/// Waits until somebody waits for a lock, which is when a group is stuck half-way. Inside a transaction the answer would
/// never change.
async fn until_somebody_waits(client: &Client) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tidegate'";
    while client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
}

/// Waits until somebody waits for what `other` has locked.
async fn until_somebody_waits_for(other: &Client, client: &Client) {
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))";
    while client.query_one(sql, &[&pid]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
}

async fn connect(schema: &Schema) -> Session {
    Target::parse(schema.url()).unwrap().connect().await.expect("the server can be reached")
}

/// Takes an id inside the transaction that `client` is in.
async fn hold(client: &Client, event: &Event) {
    let (high, low) = tidegate_store::postgres::key_of(1, event);
    let sql = "INSERT INTO dedupe (key_high, key_low, event, fingerprint) VALUES ($1, $2, 0, '')";
    client.execute(sql, &[&high, &low]).await.unwrap();
}

/// Lets the beat of a life be overdue.
async fn expire(schema: &Schema, incarnation: i64) {
    let session = connect(schema).await;
    session.client.execute("UPDATE beats SET at = 0 WHERE incarnation = $1", &[&incarnation]).await.unwrap();
}

/// How often the server had to break a circle.
async fn deadlocks(schema: &Schema) -> i64 {
    let session = connect(schema).await;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    session.client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_never_passes_over_what_commits_late() {
    let schema = Schema::new();
    let stores = [
        schema.open(schema.url(), NOW).await,
        schema.open(schema.url(), NOW).await,
        schema.open(schema.url(), NOW).await,
    ];
    let stores = stores.map(Arc::new);
    let (mut from, mut seen) = (0, Vec::new());
    let (session, looker) = (connect(&schema).await, connect(&schema).await);
    for round in 0..4 {
        // Somebody else's transaction holds an id that the first store's group needs: it is stuck, with its numbers drawn.
        let late = format!("late-{round}");
        session.client.batch_execute("BEGIN").await.unwrap();
        hold(&session.client, &unit(&late, Vec::new()).unit.events[0]).await;
        let stuck = {
            let (store, late) = (Arc::clone(&stores[0]), late.clone());
            tokio::spawn(async move { send(&store, &[&late], &[]).await })
        };
        until_somebody_waits(&looker.client).await;
        for (index, store) in stores[1..].iter().enumerate() {
            assert_eq!(
                statuses(&send(store, &[&format!("quick-{round}-{index}")], &[]).await),
                [UnitStatus::Accepted]
            );
        }
        follow(&stores[2], &mut from, &mut seen).await;
        assert!(!seen.contains(&late));
        session.client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(statuses(&stuck.await.unwrap()), [UnitStatus::Accepted]);
    }
    follow(&stores[1], &mut from, &mut seen).await;
    seen.sort_unstable();
    let mut expected: Vec<String> = (0..4)
        .flat_map(|round| [format!("late-{round}"), format!("quick-{round}-0"), format!("quick-{round}-1")])
        .collect();
    expected.sort_unstable();
    assert_eq!(seen, expected, "each once, whenever it was committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_dead_held_is_taken_over_and_they_can_not_change_it() {
    let schema = Schema::new();
    let (dead, alive) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = Route::alone(subscriber(&alive).await, None);
    let held = send(&dead, &["1", "2"], std::slice::from_ref(&to)).await.jobs;
    assert_eq!(held.len(), 2);
    let found = alive.take_over(dead.incarnation(), NOW).await.unwrap();
    assert_eq!(found.due, 0, "its beat is fresh");
    expire(&schema, dead.incarnation()).await;
    let beat = alive.beat(Load::default()).await.unwrap();
    assert_eq!((beat.expired.as_slice(), beat.rank()), (&[dead.incarnation()][..], Some(0)));
    assert_eq!(beat.replicas[0].groups, 0);
    assert_eq!(alive.take_over(dead.incarnation(), NOW).await.unwrap().due, 2);
    assert_eq!(alive.take_over(dead.incarnation(), NOW).await.unwrap().due, 0, "once");
    let refills = vec![Refill { subscriber: to.subscriber, jobs: 10 }];
    let taken = Group { now: NOW, refills, room: Room::new(1 << 20), ..Group::default() };
    let taken = alive.commit(Arc::new(taken)).await.unwrap().jobs;
    assert_eq!(taken.len(), 2);
    assert_eq!(alive.beat(Load::default()).await.unwrap().replicas[0].groups, 1);
    // It comes back: neither its results nor new events of its old life count.
    let results = held.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    let stale = Group { now: NOW, results, ..Group::default() };
    assert!(matches!(dead.commit(Arc::new(stale)).await, Err(Error::Fenced)));
    let late = group(&dead, &["3"], std::slice::from_ref(&to)).await;
    assert!(matches!(dead.commit(Arc::new(late)).await, Err(Error::Fenced)));
    assert!(matches!(dead.beat(Load::default()).await, Err(Error::Fenced)));
    assert!(alive.event(1, "3".to_owned()).await.unwrap().is_empty());
    dead.join(NOW).await.unwrap();
    // What arrives from one has arrived for all.
    let later = NOW.plus(Duration::from_secs(1));
    assert!(!dead.has_delivered(to.subscriber, NOW).await.unwrap());
    let results = vec![finished(&taken[0], Next::Delivered, later)];
    alive.commit(Arc::new(Group { now: later, results, ..Group::default() })).await.unwrap();
    assert!(dead.has_delivered(to.subscriber, NOW).await.unwrap());
    assert!(!dead.has_delivered(to.subscriber, later).await.unwrap());
    assert_eq!(statuses(&send(&dead, &["3"], std::slice::from_ref(&to)).await), [UnitStatus::Accepted]);
    assert_eq!(alive.beat(Load::default()).await.unwrap().replicas.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_says_about_limits_reaches_the_others() {
    let schema = Schema::new();
    let (one, two) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let of_one = |beat: Beat| {
        beat.replicas.into_iter().find(|replica| replica.incarnation == one.incarnation()).unwrap()
    };
    let heard = async || of_one(two.beat(Load::default()).await.unwrap()).load.stance;
    assert_eq!(heard().await, Some(Stance::default()), "it has just come");
    let busy = Some(vec![3, 1 << 40]);
    for said in
        [Stance { divides: 7, busy, is_leaving: false }, Stance { divides: 0, busy: None, is_leaving: true }]
    {
        let load = Load { obeys: 5, stance: Some(said.clone()), ..Load::default() };
        let own = one.beat(load).await.unwrap();
        assert_eq!(of_one(own).fellow().obeys, 5);
        assert_eq!(heard().await, Some(said));
    }
    // A version that does not know the columns.
    let older = format!(
        "UPDATE beats SET divides = NULL, busy = NULL, leaving = NULL WHERE incarnation = {}",
        one.incarnation()
    );
    connect(&schema).await.client.batch_execute(&older).await.unwrap();
    assert_eq!(heard().await, None);
}

/// What a process held may be cancelled by another one at the very moment in which it is taken over.
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_ended_meanwhile_is_not_taken_over() {
    let schema = Schema::new();
    let (dead, alive) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = Route::alone(subscriber(&alive).await, None);
    let held = send(&dead, &["1", "2"], std::slice::from_ref(&to)).await.jobs;
    expire(&schema, dead.incarnation()).await;
    let (other, looker) = (connect(&schema).await, connect(&schema).await);
    let cancel = format!(
        "BEGIN; UPDATE deliveries SET status = 6, incarnation = NULL, holder = NULL WHERE id = {}",
        held[0].delivery
    );
    other.client.batch_execute(&cancel).await.unwrap();
    let expired = dead.incarnation();
    let taking = tokio::spawn(async move { alive.take_over(expired, NOW).await.unwrap() });
    until_somebody_waits_for(&other.client, &looker.client).await;
    other.client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(taking.await.unwrap().due, 1, "the other one");
    let status = "SELECT status FROM deliveries WHERE id = $1";
    let row = looker.client.query_one(status, &[&held[0].delivery]).await.unwrap();
    assert_eq!(row.get::<_, i16>(0), 6, "it was told to be cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_ends_in_good_order_leaves_nothing_behind() {
    let schema = Schema::new();
    let (one, two) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = Route::alone(subscriber(&one).await, Some(7));
    assert_eq!(
        send(&one, &["1", "2"], std::slice::from_ref(&to)).await.jobs.len(),
        1,
        "one of a lane at a time"
    );
    one.leave(NOW).await.unwrap();
    assert_eq!(two.due().await.unwrap(), [(to.subscriber, NOW)], "at once, without waiting for a beat");
    assert_eq!(two.beat(Load::default()).await.unwrap().replicas.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_adopted() {
    let schema = Schema::new();
    let other = schema.open(schema.url(), NOW).await;
    let to = Route::alone(subscriber(&other).await, None);
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    assert_eq!(statuses(&send(&store, &["0"], std::slice::from_ref(&to)).await), [UnitStatus::Accepted]);
    let group = group(&store, &["1", "0", "2"], std::slice::from_ref(&to)).await;
    proxy.cut_at_next_group(true);
    let committed = store.commit(Arc::new(group)).await.unwrap();
    assert!(proxy.has_cut(), "the answer was lost");
    assert_eq!(statuses(&committed), [UnitStatus::Accepted, UnitStatus::Duplicate, UnitStatus::Accepted]);
    assert_eq!(committed.jobs.len(), 2, "what it claimed is handed over all the same");
    let results = committed.jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    let done = store.commit(Arc::new(Group { now: NOW, results, ..Group::default() })).await.unwrap();
    assert_eq!(done.stale, 0);
}

/// While it is found out what became of a group, the way may be cut again: what it claimed is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_adopted_although_the_way_is_cut_again() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    let to = Route::alone(subscriber(&store).await, None);
    send(&store, &["0"], std::slice::from_ref(&to)).await;
    let group = group(&store, &["1", "2"], std::slice::from_ref(&to)).await;
    proxy.cut_at_next_group_and_again();
    let committed = store.commit(Arc::new(group)).await;
    assert!(proxy.has_cut(), "twice");
    // Whether it is told now or with the next group, somebody has the deliveries in hand.
    let mut jobs = committed.map(|committed| committed.jobs).unwrap_or_default();
    jobs.extend(store.commit(Arc::new(Group { now: NOW, ..Group::default() })).await.unwrap().jobs);
    assert_eq!(jobs.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_refused_and_leaves_nothing() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    send(&store, &["0"], &[]).await;
    let group = group(&store, &["1"], &[]).await;
    proxy.cut_at_next_group(false);
    let refused = store.commit(Arc::new(group)).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(proxy.has_cut());
    assert!(store.event(1, "1".to_owned()).await.unwrap().is_empty());
    assert_eq!(statuses(&send(&store, &["1"], &[]).await), [UnitStatus::Accepted]);
}

/// The same ids, in opposite order, by two processes again and again: taken in order they never wait in a circle.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_events_at_two_processes_are_accepted_once_and_nobody_is_stuck() {
    let schema = Schema::new();
    let stores = [schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await].map(Arc::new);
    let before = deadlocks(&schema).await;
    let mut accepted = 0;
    for round in 0..30 {
        let ids: Vec<String> = (0..40).map(|n| format!("{round}-{n}")).collect();
        let tasks = [false, true].map(|is_reversed| {
            let (store, mut ids) = (Arc::clone(&stores[usize::from(is_reversed)]), ids.clone());
            if is_reversed {
                ids.reverse();
            }
            tokio::spawn(async move {
                let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                statuses(&send(&store, &ids, &[]).await)
            })
        });
        for task in tasks {
            accepted += task.await.unwrap().iter().filter(|status| **status == UnitStatus::Accepted).count();
        }
    }
    assert_eq!(accepted, 30 * 40, "each once");
    assert_eq!(deadlocks(&schema).await, before);
}

/// A configuration that was answered binds the next event at every process.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_at_one_binds_the_next_event_at_all() {
    let schema = Schema::new();
    let (one, two) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let routed = group(&two, &["1"], &[]).await;
    subscriber(&one).await;
    let moved = two.configuration(0).await.unwrap().version;
    let refused = two.commit(Arc::new(routed)).await;
    assert!(matches!(refused, Err(Error::Stale { current, .. }) if current == moved), "{refused:?}");
    assert_eq!(statuses(&send(&two, &["1"], &[]).await), [UnitStatus::Accepted]);
}

/// All go by the database's clock from the first row on, and a time that only a wrong clock can have written leads nobody.
#[tokio::test(flavor = "multi_thread")]
async fn time_begins_with_the_databases_clock() {
    let schema = Schema::new();
    let terms = || Terms { name: "test".to_owned(), periods: Periods::default(), salt: b"salt".to_vec() };
    let session = connect(&schema).await;
    let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let theirs = session.client.query_one(now, &[]).await.unwrap().get::<_, i64>(0);
    let hour = Duration::from_hours(1);
    // A millisecond: the database's clock is finer than what is kept of it.
    let is_now = |at: i64| (theirs - 1..theirs + 600_000).contains(&at);

    let store = PostgresStore::open(schema.url(), terms(), None).await.unwrap();
    let began = store.beat(Load::default()).await.unwrap().replicas[0].began_at;
    assert!(is_now(store.latest().as_ms()) && is_now(began.as_ms()), "{} {began}", store.latest());

    let ahead = store.latest().plus(hour / 2);
    store.trigger(1, ahead).await.unwrap();
    let next = PostgresStore::open(schema.url(), terms(), None).await.unwrap();
    assert_eq!(next.latest(), ahead, "it goes on where the others are");
    store.trigger(1, ahead.plus(hour * 24)).await.unwrap();
    let next = PostgresStore::open(schema.url(), terms(), None).await.unwrap();
    assert!(is_now(next.latest().as_ms()), "{}", next.latest());
}

/// Somebody may make a project at that moment: a number that was drawn for it is never drawn again.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_leaves_the_numbers_of_projects_alone() {
    let schema = Schema::new();
    let first = schema.open(schema.url(), NOW).await;
    let session = connect(&schema).await;
    let drawn = async || -> i64 {
        let sql = "SELECT last_value FROM projects_no_seq";
        session.client.query_one(sql, &[]).await.unwrap().get(0)
    };
    assert_eq!(drawn().await, 1, "the first project has it");
    drop((first, schema.open(schema.url(), NOW).await));
    assert_eq!(drawn().await, 1);
}

/// A process of the version before may start, or start again, beside one that has brought the schema further.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_used_if_it_says_that_this_version_will_do() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    let session = connect(&schema).await;
    let numbers = async || -> Vec<i32> {
        let rows = session.client.query("SELECT number FROM migrations ORDER BY 1", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let ours = numbers().await;
    let newest = *ours.last().unwrap();
    // As versions wrote it that did not look at the names of the files.
    let counted =
        "UPDATE migrations m SET number = n FROM (SELECT number, row_number() OVER (ORDER BY number) AS n
        FROM migrations) c WHERE c.number = m.number";
    session.client.batch_execute("ALTER TABLE migrations DROP CONSTRAINT migrations_pkey").await.unwrap();
    session.client.batch_execute(counted).await.unwrap();
    session.client.batch_execute("ALTER TABLE migrations DROP COLUMN needs").await.unwrap();
    assert_eq!(numbers().await.last(), Some(&i32::try_from(ours.len()).unwrap()));
    drop(schema.open(schema.url(), NOW).await);
    assert_eq!(numbers().await, ours, "each has its file's number again");

    let later = "INSERT INTO migrations (number, needs) VALUES ($1, $2)";
    session.client.execute(later, &[&(newest + 1), &newest]).await.unwrap();
    let beside = schema.open(schema.url(), NOW).await;
    assert_eq!(statuses(&send(&beside, &["1"], &[]).await), [UnitStatus::Accepted]);
    session.client.execute(later, &[&(newest + 2), &(newest + 1)]).await.unwrap();
    let terms = Terms { name: "test".to_owned(), periods: Periods::default(), salt: b"salt".to_vec() };
    let refused = PostgresStore::open(schema.url(), terms, Some(NOW)).await.err().expect("it is too new");
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("run the newer version")), "{refused}");
    assert_eq!(statuses(&send(&store, &["2"], &[]).await), [UnitStatus::Accepted], "who runs goes on");
}

/// What is answered as accepted is on disk, or nothing is accepted at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_before_the_disk_does_is_refused() {
    let schema = Schema::new();
    let url = format!("{}&options=-c%20synchronous_commit%3Doff", schema.url());
    let terms = Terms { name: "test".to_owned(), periods: Periods::default(), salt: b"salt".to_vec() };
    let refused = PostgresStore::open(&url, terms, Some(NOW)).await.err().expect("it is refused");
    assert!(matches!(&refused, Error::Unusable(why) if why.contains("synchronous_commit")), "{refused}");
}
