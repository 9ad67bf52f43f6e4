//! What only a store in periods promises about retention: that periods are dropped as a whole, in nobody's way, and that
//! nothing is dropped which somebody is about to need. The rest is tested by the conformance suite.

mod bounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms as FoldTerms};
use tidegate_core::id::SubscriberNo;
use tidegate_core::payload::Payload;
use tidegate_core::retention::Retention;
use tidegate_core::route::Route;
use tidegate_core::time::{Span, Timestamp};

use super::periods::MOVED_MAX;
use super::{PAST, RETENTION, Step};
use crate::conformance::Harness;
use crate::conformance::bench::{Bench, PROJECT, draft, statuses};
use crate::postgres::connect::Target;
use crate::postgres::db::{Conn, Pool};
use crate::postgres::{Periods, PostgresStore, Terms, audit, remove, replay};
use crate::{Bundled, Change, Replay, Store, Sweep, Swept, UnitStatus};

/// Of the numbers of a period.
const BITS: u32 = 32;

/// A store in a schema of its own.
struct Place {
    url: String,
}

impl Place {
    fn new() -> Arc<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var("TIDEGATE_TEST_POSTGRES").expect(
            "set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run `cargo xtask test`",
        );
        let schema = format!("sweep{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let joint = if server.contains('?') { '&' } else { '?' };
        Arc::new(Self { url: format!("{server}{joint}schema={schema}") })
    }

    fn target(&self) -> Target {
        Target::parse(&self.url).unwrap()
    }

    /// A session of somebody else.
    async fn session(&self) -> Conn {
        Conn::open(&self.target()).await.unwrap()
    }

    async fn count(&self, sql: &str) -> i64 {
        self.session().await.only(sql, &[]).await.unwrap().get(0)
    }
}

#[async_trait]
impl Harness for Place {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        let periods = Periods { length: Duration::from_secs(1), bits: BITS };
        let terms = Terms { name: "sweep".to_owned(), periods, salt: b"salt".to_vec() };
        remove(&self.url).await.unwrap();
        Arc::new(PostgresStore::open(&self.url, terms, Some(now)).await.unwrap())
    }

    async fn audit(&self) -> Vec<String> {
        audit(&self.url).await.unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let url = self.url.clone();
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(remove(&url))
        });
        // A schema that is left behind does no harm.
        let _ = removing.join();
    }
}

/// In milliseconds, to be passed.
const EVENTS: u64 = 10_000;
const DELIVERIES: u64 = 40_000;

fn terms() -> Retention {
    Retention {
        events: Duration::from_millis(EVENTS),
        deliveries: Duration::from_millis(DELIVERIES),
        undelivered: Duration::from_millis(20_000),
        ..Retention::default()
    }
}

/// A whole round, or the rest of one; says how many events went.
async fn round(store: Arc<dyn Store>, from: Sweep, now: Timestamp) -> u64 {
    let (mut next, mut events) = (Some(from), 0);
    while let Some(sweep) = next {
        let swept = store.sweep(terms(), sweep, 5_000, now).await.expect("the store works");
        events += swept.events;
        next = swept.next;
    }
    events
}

async fn swept(bench: &Bench) -> u64 {
    let events = round(Arc::clone(bench.store()), Sweep::BEGIN, bench.now).await;
    bench.audit().await;
    events
}

/// Periods of events that still have a table, the one that is to come aside.
const TABLES: &str = "SELECT count(DISTINCT tableoid) FROM events WHERE tableoid <> 'events_kept'::regclass";
const KEPT: &str = "SELECT count(*) FROM events_kept";

/// An event that was delivered long ago, in its period or in what has outlived it.
async fn an_old_event(place: &Arc<Place>, outlived: bool) -> (Bench, Job) {
    let mut bench = Bench::new(Arc::clone(place) as Arc<dyn Harness>).await;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.pass(EVENTS);
    if outlived {
        swept(&bench).await;
        assert_eq!(place.count(KEPT).await, 1);
    }
    bench.deliver(&job).await;
    (bench, job)
}

#[tokio::test]
async fn a_period_is_dropped_and_what_is_needed_stays() {
    let place = Place::new();
    let mut bench = Bench::new(Arc::clone(&place) as Arc<dyn Harness>).await;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1"), draft("2").to(subscriber), draft("3")]).await;
    bench.pass(EVENTS - 1);
    assert_eq!((swept(&bench).await, place.count(TABLES).await), (0, 1));
    bench.pass(1);
    assert_eq!(swept(&bench).await, 2);
    assert_eq!((place.count(TABLES).await, place.count(KEPT).await), (0, 1));
    let again = bench.send([draft("1"), draft("2").to(subscriber)]).await;
    assert_eq!(statuses(&again), [UnitStatus::Accepted, UnitStatus::Duplicate]);
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(swept(&bench).await, 1, "nobody needs it any more");
    assert_eq!(place.count(KEPT).await, 0);
}

#[tokio::test]
async fn of_which_too_much_is_needed_goes_row_by_row() {
    let place = Place::new();
    let mut bench = Bench::new(Arc::clone(&place) as Arc<dyn Harness>).await;
    let subscriber = bench.subscriber("s").await;
    bench.send((0..=MOVED_MAX).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    bench.send([draft("1"), draft("2")]).await;
    bench.pass(EVENTS);
    assert_eq!(swept(&bench).await, 2);
    assert_eq!(
        (place.count(TABLES).await, place.count(KEPT).await),
        (1, 0),
        "the others stay where they are"
    );
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    bench.pass(DELIVERIES);
    assert_eq!(swept(&bench).await, MOVED_MAX as u64 + 1);
    assert_eq!(place.count(TABLES).await, 0);
}

async fn put_type(bench: &Bench, keep_ms: Option<i64>) {
    let (service, type_name) = ("shop".to_owned(), "kept".to_owned());
    let (definition, metrics) = ("{}".to_owned(), Vec::new());
    bench
        .change(Change::PutType { project: PROJECT, service, type_name, definition, metrics, keep_ms })
        .await;
}

#[tokio::test]
async fn of_which_too_much_is_kept_for_longer_is_thinned_once() {
    let place = Place::new();
    let mut bench = Bench::new(Arc::clone(&place) as Arc<dyn Harness>).await;
    let subscriber = bench.subscriber("s").await;
    put_type(&bench, Some(60_000)).await;
    bench.send((0..=MOVED_MAX).map(|n| draft(format!("e{n}")).kind("kept"))).await;
    bench.send([draft("1"), draft("2").to(subscriber)]).await;
    bench.pass(EVENTS);
    let thin = "SELECT count(*) FROM periods_kept WHERE is_thin";
    assert_eq!((swept(&bench).await, place.count(thin).await, place.count(KEPT).await), (1, 1, 0));
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(swept(&bench).await, 1, "what outlived its term is not forgotten");
    bench.pass(60_000 - EVENTS);
    assert_eq!(swept(&bench).await, MOVED_MAX as u64 + 1);
    assert_eq!((place.count(TABLES).await, place.count(thin).await), (0, 0));
}

#[tokio::test]
async fn what_lost_its_term_goes_wherever_it_is() {
    let place = Place::new();
    let mut bench = Bench::new(Arc::clone(&place) as Arc<dyn Harness>).await;
    put_type(&bench, Some(60_000)).await;
    bench.send([draft("1").kind("kept"), draft("2")]).await;
    bench.pass(2_000);
    bench.send((0..=MOVED_MAX).map(|n| draft(format!("e{n}")).kind("kept"))).await;
    bench.pass(EVENTS);
    assert_eq!((swept(&bench).await, place.count(KEPT).await, place.count(TABLES).await), (1, 1, 1));
    put_type(&bench, None).await;
    assert_eq!(swept(&bench).await, MOVED_MAX as u64 + 2);
    assert_eq!((place.count(KEPT).await, place.count(TABLES).await), (0, 0));
}

#[tokio::test]
async fn whoever_reads_for_long_is_not_waited_for() {
    let place = Place::new();
    let (bench, _) = an_old_event(&place, false).await;
    let mut reader = place.session().await;
    reader.begin().await.unwrap();
    reader.rows("SELECT seq FROM events", &[]).await.unwrap();
    assert_eq!(swept(&bench).await, 0, "another time");
    reader.commit().await.unwrap();
    assert_eq!(swept(&bench).await, 1);
}

#[tokio::test]
async fn one_process_sweeps_at_a_time() {
    let place = Place::new();
    let (bench, _) = an_old_event(&place, false).await;
    let mut other = place.session().await;
    other.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock($1, $2)";
    other.execute(lock, &[&place.target().space(), &RETENTION]).await.unwrap();
    let nothing = bench.store().sweep(terms(), Sweep::Events(0), 100, bench.now).await.unwrap();
    assert_eq!(nothing, Swept::default(), "its round is over");
    other.commit().await.unwrap();
    assert_eq!(swept(&bench).await, 1);
}

/// Somebody is about to send an old event again, and has not committed, when retention comes.
async fn is_kept_for_a_replay(outlived: bool) {
    let place = Place::new();
    let (bench, job) = an_old_event(&place, outlived).await;
    let routes = vec![Route::alone(job.subscriber, None)];
    let again = Replay { project: PROJECT, event: job.event, routes, version: bench.version().await };
    let mut other = place.session().await;
    let space = place.target().space();
    other.begin().await.unwrap();
    replay::replay(&other, space, &again, bench.now).await.unwrap();
    // It comes to the period itself, or to what is overdue.
    let from = if outlived { Sweep::Overdue(0) } else { Sweep::Events((job.event >> BITS << BITS) - 1) };
    let sweeping = tokio::spawn(round(Arc::clone(bench.store()), from, bench.now));
    wait_for_retention(&place, space, || sweeping.is_finished()).await;
    other.commit().await.unwrap();
    assert_eq!(sweeping.await.unwrap(), 0);
    bench.audit().await;
    let again = bench.claim_one(job.subscriber).await;
    assert!(again.replay && again.event == job.event);
}

/// Until it stands before the lock of whoever makes deliveries of past events, or before the table, or is done.
async fn wait_for_retention(place: &Place, space: i32, is_done: impl Fn() -> bool) {
    let sql =
        "SELECT 1 FROM pg_locks WHERE NOT granted AND (relation = 'events'::regclass OR locktype = 'advisory'
        AND objid = $1::int::oid AND classid = $2::int::bigint::bit(32)::int::oid)";
    let session = Pool::new(place.target()).lend().await.unwrap();
    while !is_done() && !session.exists(sql, &[&PAST, &space]).await.unwrap() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_period_waits_for_whoever_is_about_to_need_it() {
    is_kept_for_a_replay(false).await;
}

#[tokio::test]
async fn what_outlived_its_period_waits_for_whoever_is_about_to_need_it() {
    is_kept_for_a_replay(true).await;
}

/// Into a window of a lane.
fn into_lane(subscriber: SubscriberNo) -> Route {
    let mode = Mode::Window { window: Span::from_ms(60_000) };
    let terms = FoldTerms {
        mode,
        max_events: 100,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    };
    let appending = Appending { key: Key::from_text("{}"), terms: Arc::new(terms), cancels: Vec::new() };
    Route::folded(subscriber, Some(7), appending)
}

/// Two events that were delivered long ago, of which the second is sent again and waits in a lane, in a fold that takes more.
async fn old_events_and_a_fold(place: &Arc<Place>, outlived: bool) -> (Bench, Vec<Job>) {
    let mut bench = Bench::new(Arc::clone(place) as Arc<dyn Harness>).await;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").to(subscriber)]).await;
    let jobs = bench.claim_all(subscriber).await;
    bench.pass(EVENTS);
    if outlived {
        swept(&bench).await;
    }
    for job in &jobs {
        bench.deliver(job).await;
    }
    let again = replay_of(&bench, &jobs[1]).await;
    bench.store().replay(again, bench.now).await.unwrap();
    (bench, jobs)
}

async fn replay_of(bench: &Bench, job: &Job) -> Replay {
    let routes = vec![into_lane(job.subscriber)];
    Replay { project: PROJECT, event: job.event, routes, version: bench.version().await }
}

/// Nothing is missing from the fold that both have joined.
async fn check_fold(bench: &Bench, subscriber: SubscriberNo) {
    bench.audit().await;
    let job = bench.claim_one(subscriber).await;
    let bundled = bench.store().bundle(job.fold.expect("it is a fold"), job.key(), usize::MAX).await.unwrap();
    let Some(Bundled::Whole(bundle)) = bundled else { panic!("it has closed") };
    assert_eq!(bundle.events.len(), 2);
}

/// It joins a fold that is older than retention's look: only what joined since tells of it.
#[tokio::test]
async fn what_joins_a_fold_while_its_period_is_looked_through_stays() {
    let place = Place::new();
    let (bench, jobs) = old_events_and_a_fold(&place, false).await;
    let mut conn = place.session().await;
    conn.begin().await.unwrap();
    let periods = Periods { length: Duration::from_secs(1), bits: BITS };
    let (space, now, out) = (place.target().space(), bench.now, Swept::default());
    let step = Step { conn: &conn, space, periods, terms: terms(), now, limit: 100, out };
    let table = step.tables("events").await.unwrap().remove(0);
    let needed = step.needed(&table).await.unwrap().expect("few are");
    bench.store().replay(replay_of(&bench, &jobs[0]).await, bench.now).await.unwrap();
    assert!(step.detach_events(&table, needed).await.unwrap());
    conn.commit().await.unwrap();
    check_fold(&bench, jobs[0].subscriber).await;
}

#[tokio::test]
async fn whatever_waits_for_whoever_is_about_to_fold_it() {
    for outlived in [false, true] {
        let place = Place::new();
        let (bench, jobs) = old_events_and_a_fold(&place, outlived).await;
        let (mut other, space) = (place.session().await, place.target().space());
        other.begin().await.unwrap();
        replay::replay(&other, space, &replay_of(&bench, &jobs[0]).await, bench.now).await.unwrap();
        let before = (jobs[0].event >> BITS << BITS) - 1;
        let from = if outlived { Sweep::Overdue(0) } else { Sweep::Events(before) };
        let sweeping = tokio::spawn(round(Arc::clone(bench.store()), from, bench.now));
        wait_for_retention(&place, space, || sweeping.is_finished()).await;
        other.commit().await.unwrap();
        assert_eq!(sweeping.await.unwrap(), 0);
        check_fold(&bench, jobs[0].subscriber).await;
    }
}

/// Members are dropped with their events, and those of events that outlive their period stay.
#[tokio::test]
async fn members_go_with_the_period_of_their_events() {
    let place = Place::new();
    let (mut bench, jobs) = old_events_and_a_fold(&place, false).await;
    let members = "SELECT count(*) FROM members";
    assert_eq!(swept(&bench).await, 1, "the other one is needed");
    let there = "SELECT count(*) FROM pg_class WHERE relname ~ '^members_[0-9]+$' AND relkind = 'r'
        AND relnamespace = current_schema()::regnamespace AND relname < 'members_' || (SELECT period - 1 FROM installation)";
    assert_eq!((place.count(members).await, place.count(there).await), (1, 0));
    let job = bench.claim_one(jobs[0].subscriber).await;
    let seals = vec![crate::Seal {
        project: PROJECT,
        window: job.fold.expect("it is a fold"),
        claim: crate::Claim::of(&job),
    }];
    bench.commit(crate::Group { seals, ..crate::Group::default() }).await;
    bench.deliver(&job).await;
    assert_eq!((swept(&bench).await, place.count(members).await), (1, 0));
    bench.pass(DELIVERIES);
    swept(&bench).await;
    assert_eq!(place.count("SELECT count(*) FROM windows").await, 0);
}
