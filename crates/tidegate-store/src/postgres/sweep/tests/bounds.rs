//! How much is moved while everybody waits, and what whoever reads or writes meanwhile finds.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms as FoldTerms};
use tidegate_core::id::{MetricNo, SubscriberNo};
use tidegate_core::observe::Posting;
use tidegate_core::observe::state::{Change as ObjectChange, ObjectRow};
use tidegate_core::payload::Payload;
use tidegate_core::route::Route;
use tidegate_core::time::Span;
use tokio_postgres::SimpleQueryMessage;

use super::super::periods::{KEPT as KEPT_OF_PERIOD, MOVED_MAX, members_sql};
use super::{BITS, DELIVERIES, EVENTS, KEPT, Place, put_type, round, swept, terms};
use crate::conformance::Harness;
use crate::conformance::bench::{Bench, PROJECT, draft};
use crate::postgres::db::Pool;
use crate::postgres::events::horizon_tag;
use crate::postgres::sweep::Step;
use crate::postgres::{Periods, open::BLOCK_BITS};
use crate::{BackfillRow, Change, EventRow, Recount, Recounter, Store, Sweep, Swept};

async fn bench(place: &Arc<Place>) -> Bench {
    Bench::new(Arc::clone(place) as Arc<dyn Harness>).await
}

fn folded(subscriber: SubscriberNo) -> Route {
    let mode = Mode::Window { window: Span::from_ms(10 * EVENTS) };
    let terms = FoldTerms {
        mode,
        max_events: u32::MAX,
        max_bytes: u32::MAX,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    };
    let appending = Appending { key: Key::from_text("{}"), terms: Arc::new(terms), cancels: Vec::new() };
    Route::folded(subscriber, None, appending)
}

/// Few events outlive their period, but each is in several windows.
#[tokio::test]
async fn members_of_which_too_many_are_needed_stay_where_they_are() {
    let place = Place::new();
    let mut bench = bench(&place).await;
    let subscribers = [bench.subscriber("a").await, bench.subscriber("b").await];
    let several = |n: usize| {
        let mut several = draft(format!("e{n}"));
        several.routes = subscribers.map(folded).to_vec();
        several
    };
    bench.send((0..=MOVED_MAX / 2).map(several)).await;
    bench.pass(EVENTS);
    assert_eq!(swept(&bench).await, 0);
    assert_eq!(place.count(KEPT).await, MOVED_MAX as i64 / 2 + 1);
    let (all, moved) = ("SELECT count(*) FROM members", "SELECT count(*) FROM members_kept");
    assert_eq!((place.count(all).await, place.count(moved).await), (MOVED_MAX as i64 + 2, 0));
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscribers[0] }).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscribers[1] }).await;
    bench.pass(DELIVERIES);
    swept(&bench).await;
    assert_eq!((place.count(KEPT).await, place.count(all).await), (0, 0));
}

#[tokio::test]
async fn what_is_moved_is_found_by_its_number() {
    let place = Place::new();
    let bench = bench(&place).await;
    bench.send([draft("1")]).await;
    let session = place.session().await;
    let members = members_sql("members_kept", "m.*");
    for (sql, values, index) in [
        (KEPT_OF_PERIOD.to_owned(), "1, 2, 3", "events_kept_pkey"),
        (members, "'{1,2,3}'", "members_kept_pkey"),
    ] {
        // Tables that nobody has filled are small enough to be read whole.
        let client = session.bare_client();
        client.batch_execute(&format!("SET enable_seqscan = off; PREPARE pinned AS {sql}")).await.unwrap();
        let told =
            client.simple_query(&format!("EXPLAIN (COSTS OFF) EXECUTE pinned({values})")).await.unwrap();
        client.batch_execute("DEALLOCATE pinned").await.unwrap();
        let lines = told.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let plan = lines.collect::<Vec<_>>().join("\n");
        assert!(plan.contains(index) && plan.contains("Index Cond"), "{plan}");
    }
}

/// A group that is slow to commit has drawn a lower number than one that is done.
#[tokio::test]
async fn what_comes_late_is_not_passed_over() {
    let place = Place::new();
    let mut bench = bench(&place).await;
    put_type(&bench, Some(1_000)).await;
    bench.send([draft("first").kind("kept")]).await;
    let mut slow = place.session().await;
    slow.begin().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock_shared($1 | last_value) FROM numbers";
    slow.execute(lock, &[&horizon_tag(place.target().space())]).await.unwrap();
    let block: i64 = slow.only("SELECT nextval('numbers')", &[]).await.unwrap().get(0);
    bench.send([draft("second").kind("kept")]).await;
    bench.pass(1_000);
    assert_eq!(
        round(Arc::clone(bench.store()), Sweep::BEGIN, bench.now).await,
        1,
        "only what can be the oldest"
    );
    let late = format!(
        "CREATE TEMP TABLE late ON COMMIT DROP AS SELECT * FROM events WHERE id = 'second'::bytea;
         UPDATE late SET seq = {}, id = 'late'::bytea, key_low = key_low + 1;
         INSERT INTO events SELECT * FROM late",
        block << BLOCK_BITS
    );
    slow.bare_client().batch_execute(&late).await.unwrap();
    slow.commit().await.unwrap();
    assert_eq!(bench.events(PROJECT).await.len(), 2);
    assert_eq!(round(Arc::clone(bench.store()), Sweep::BEGIN, bench.now).await, 2);
}

/// Only says which events there were.
#[derive(Default)]
struct Ids(Vec<String>);

impl Recounter for Ids {
    fn begin(&mut self, _: Vec<BackfillRow>) {}

    fn event(&mut self, event: &EventRow) -> bool {
        self.0.push(event.id.clone());
        true
    }

    fn listed(&mut self, _: Vec<Posting>) {}

    fn change(&mut self, _: &ObjectChange, _: Option<&EventRow>) -> bool {
        true
    }

    fn object(&mut self, _: MetricNo, _: &str, _: &ObjectRow) -> bool {
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

async fn recounted(store: Arc<dyn Store>) -> Vec<String> {
    let recount = Recount {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        range: (i64::MIN, i64::MAX),
        metrics: Vec::new(),
        states: Vec::new(),
        followed: Vec::new(),
        indexes: Vec::new(),
    };
    let found = store.recount(recount, Box::<Ids>::default()).await.expect("the store works");
    found.recounter.into_any().downcast::<Ids>().expect("it was lent").0
}

/// It finds what was put back by a detachment that it had to wait for.
#[tokio::test]
async fn whoever_counts_again_sees_a_period_before_or_after_it_is_detached() {
    let place = Place::new();
    let mut bench = bench(&place).await;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("needed").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.pass(EVENTS);
    // Nothing is declared, so nobody will ever observe it: as if it had been.
    let mut conn = place.session().await;
    conn.execute("UPDATE marks SET seq = $1", &[&(job.event + 1)]).await.unwrap();
    conn.begin().await.unwrap();
    let periods = Periods { length: Duration::from_secs(1), bits: BITS };
    let (space, now, out) = (place.target().space(), bench.now, Swept::default());
    let step = Step { conn: &conn, space, periods, terms: terms(), now, limit: 100, out };
    let table = step.tables("events").await.unwrap().remove(0);
    let needed = step.needed(&table).await.unwrap().expect("one is");
    assert!(step.detach_events(&table, needed).await.unwrap());
    let counting = tokio::spawn(recounted(Arc::clone(bench.store())));
    let waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'events'::regclass";
    let watching = Pool::new(place.target()).lend().await.unwrap();
    while !counting.is_finished() && !watching.exists(waits, &[]).await.unwrap() {
        tokio::task::yield_now().await;
    }
    conn.commit().await.unwrap();
    assert_eq!(counting.await.unwrap(), ["needed"]);
}
