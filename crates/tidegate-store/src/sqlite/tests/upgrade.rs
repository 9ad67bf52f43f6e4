//! Opening a file of an older schema: whatever gathered there is delivered, each event once.
//!
//! The file is written by this version and brought into the tables of that schema row by row, which is how that version kept
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms};
use tidegate_core::id::{Lane, SubscriberNo};
use tidegate_core::payload::Payload;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::{Span, Timestamp};

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::conformance::bench::{Draft, claim, draft, finished, new_subscriber, submission};
use crate::sqlite::open::MIGRATIONS;
use crate::sqlite::{SqliteStore, audit};
use crate::{Bundled, Change, Group, Refill, Room, Seal, Store};

/// The schemas before an event's own row said which window it joined.
const BEFORE_MEMBERS_MOVED: usize = 9;
const WINDOW_MS: u64 = 60_000;

/// Where an event goes: a subscriber, a key and perhaps a lane.
type Target = (SubscriberNo, &'static str, Option<Lane>);

fn folded(id: &str, to: &[Target]) -> Draft {
    let mut draft = draft(id);
    for (subscriber, key, lane) in to {
        let terms = Terms {
            mode: Mode::Window { window: Span::from_ms(WINDOW_MS) },
            max_events: 4,
            max_bytes: 1 << 20,
            leading: false,
            adaptive: false,
            cancel_on: CancelOn::Never,
            payload: Payload::Full,
        };
        let appending = Appending { key: Key::from_text(key), terms: Arc::new(terms), cancels: Vec::new() };
        draft.routes.push(Route::folded(*subscriber, *lane, appending));
    }
    draft
}

async fn commit(store: &SqliteStore, group: Group) -> crate::Committed {
    let version = store.configuration(i64::MAX).await.unwrap().version;
    store.commit(Arc::new(Group { version, ..group })).await.unwrap()
}

async fn send(store: &SqliteStore, now: Timestamp, id: &str, to: &[Target]) {
    let submissions = vec![submission([folded(id, to)])];
    commit(store, Group { submissions, now, ..Group::default() }).await;
}

async fn subscriber(store: &SqliteStore, id: &str) -> SubscriberNo {
    store.change(Change::CreateSubscriber(new_subscriber(id)), NOW).await.unwrap().no
}

/// The same file as `BEFORE_MEMBERS_MOVED` schemas keep it.
fn brought_back(new: &Scratch, old: &Scratch) {
    std::fs::create_dir_all(old.path()).unwrap();
    let conn = Connection::open(old.path().join("tidegate.db")).unwrap();
    MIGRATIONS[..BEFORE_MEMBERS_MOVED]
        .iter()
        .for_each(|migration| conn.execute_batch(migration.sql).unwrap());
    conn.execute_batch(&format!("PRAGMA user_version = {BEFORE_MEMBERS_MOVED}")).unwrap();
    let path = new.path().join("tidegate.db");
    conn.execute("ATTACH ?1 AS new", [path.to_str().unwrap()]).unwrap();
    let list = |sql: &str, of: &[&str]| -> Vec<String> {
        let mut statement = conn.prepare(sql).unwrap();
        let names = statement.query_map(rusqlite::params_from_iter(of), |row| row.get(0)).unwrap();
        names.collect::<rusqlite::Result<_>>().unwrap()
    };
    let tables = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    for table in list(tables, &[]) {
        let columns = list("SELECT name FROM pragma_table_info(?1, 'main')", &[&table]).join(", ");
        let copy = format!(
            "DELETE FROM main.{table}; INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}"
        );
        conn.execute_batch(&copy).unwrap();
    }
    // That version knew nothing of these marks, and only counted its migrations.
    let marks = "DELETE FROM main.meta WHERE name IN ('windows_told', 'schema_needs'); DETACH new";
    conn.execute_batch(marks).unwrap();
    let count = |sql| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM pragma_table_info('events') WHERE name = 'fold'"), 0);
    assert!(count("SELECT count(*) FROM members") > 0);
}

async fn ids(store: &SqliteStore, job: &Job) -> Vec<String> {
    let Some(Bundled::Whole(bundle)) = store.bundle(job.fold.unwrap(), job.key(), usize::MAX).await.unwrap()
    else {
        panic!("delivery {} carries nothing", job.delivery)
    };
    let id = |body: &bytes::Bytes| {
        let event: serde_json::Value = serde_json::from_slice(body).unwrap();
        event["id"].as_str().unwrap().to_owned()
    };
    bundle.events.iter().map(id).collect()
}

/// Sends everything; says what each subscriber got, delivery by delivery.
async fn drain(
    store: &SqliteStore,
    to: &[SubscriberNo],
    now: Timestamp,
) -> BTreeMap<SubscriberNo, Vec<String>> {
    let mut got: BTreeMap<SubscriberNo, Vec<String>> = BTreeMap::new();
    loop {
        let refills = to.iter().map(|subscriber| Refill { subscriber: *subscriber, jobs: 100 }).collect();
        let room = Room::new(1 << 20);
        let jobs = commit(store, Group { refills, room, close: 1_000, now, ..Group::default() }).await.jobs;
        if jobs.is_empty() && store.close_due().await.unwrap().is_none() {
            return got;
        }
        for job in jobs {
            let seal = Seal { project: job.project, window: job.fold.unwrap(), claim: claim(&job) };
            let sealed = commit(store, Group { seals: vec![seal], now, ..Group::default() }).await;
            assert!(sealed.unsealed.is_empty());
            got.entry(job.subscriber).or_default().push(ids(store, &job).await.join(" "));
            let results = vec![finished(&job, Next::Delivered, now)];
            commit(store, Group { results, now, ..Group::default() }).await;
        }
    }
}

#[tokio::test]
async fn windows_of_the_schema_before_are_delivered_whole_and_once() {
    let (new, old) = (Scratch::new(), Scratch::new());
    let store = open(&new).unwrap();
    let (free, laned) = (subscriber(&store, "free").await, subscriber(&store, "laned").await);
    let a: [Target; 2] = [(free, "a", None), (laned, "a", Some(7))];
    let b: [Target; 2] = [(free, "b", None), (laned, "b", Some(8))];
    for (n, to) in [&a, &a, &b, &a, &a, &b, &a].into_iter().enumerate() {
        send(&store, NOW, &n.to_string(), to).await;
    }
    // They close; those of the lanes can still be joined.
    let later = NOW.plus(Duration::from_millis(WINDOW_MS));
    commit(&store, Group { close: 1_000, now: later, ..Group::default() }).await;
    send(&store, later, "7", &a).await;
    let open_before = store.book.lock().unwrap().len();
    drop(store);
    brought_back(&new, &old);

    let store = open(&old).unwrap();
    assert_eq!(store.book.lock().unwrap().len(), open_before, "it knows every window that can be joined");
    send(&store, later, "8", &b).await;
    send(&store, later, "9", &a).await;
    let end = later.plus(Duration::from_millis(2 * WINDOW_MS));
    let got = drain(&store, &[free, laned], end).await;
    drop(store);
    for (subscriber, carried) in &got {
        let mut events: Vec<&str> = carried.iter().flat_map(|ids| ids.split(' ')).collect();
        events.sort_unstable();
        assert_eq!(events, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "{subscriber}: {carried:?}");
    }
    assert_eq!(got.len(), 2);
    assert!(
        got[&free].contains(&"0 1 3 4".to_owned()) && got[&laned].contains(&"0 1 3 4".to_owned()),
        "{got:?}"
    );
    assert!(got[&laned].contains(&"2 5 8".to_owned()), "what waits in a lane was joined: {got:?}");
    assert!(audit(old.path()).unwrap().is_empty());
}
