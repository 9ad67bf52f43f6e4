//! The plans of the hot statements: each finds its rows by the index that was made for it, and arrays are unfolded without
//! a copy. The words of a plan differ between versions of the server, so what is pinned is the indexes, not the text.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::time::Timestamp;
use tokio_postgres::SimpleQueryMessage;

use super::super::connect::Target;
use super::super::db::Conn;
use super::super::{
    Periods, PostgresStore, Terms, admit, deliveries, events, held, history, lanes, read, remove, submit,
};
use super::{Planning, ROWS};
use crate::{DeliveryFilter, EventFilter};

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

/// What an ordinary group is made of.
const OF_EVERY_GROUP: [&str; 7] = [
    "new ids",
    "new events",
    "new deliveries",
    "ids",
    "events in",
    "deliveries in",
    "deliveries in, with lanes",
];

/// Statements, the indexes by which they find what they need, and by which columns where an index could be walked by fewer.
fn statements() -> Vec<(&'static str, String, &'static [&'static str])> {
    let typed = EventFilter { type_name: Some(String::new()), ..Default::default() };
    let of_one = DeliveryFilter { subscriber: Some(1), ..Default::default() };
    vec![
        ("new ids", submit::TAKE_NEW_IDS.to_owned(), &[]),
        ("new events", submit::INSERT_NEW_EVENTS.to_owned(), &[]),
        ("new deliveries", submit::INSERT_NEW_DELIVERIES.to_owned(), &[]),
        ("ids", submit::take_ids(), &[]),
        ("who has an id", admit::HOLDERS.to_owned(), &["dedupe_pkey", "(key_low = i.low)"]),
        (
            "who has an id, and whether it is ours",
            admit::HOLDERS_AND_OURS.to_owned(),
            &["dedupe_pkey", "(key_low = i.low)", "(seq = d"],
        ),
        ("events in", submit::insert_events(), &["dedupe_pkey", "(key_low = i.low)"]),
        ("deliveries in", submit::insert_plain(), &["dedupe_pkey", "(key_low = i.low)"]),
        ("deliveries in, with lanes", submit::insert_laned(), &["dedupe_pkey", "deliveries_lane"]),
        ("finish", deliveries::delivered(), &["deliveries_pkey", "(id = ANY ($2))"]),
        ("finish, some in vain", deliveries::finished_somehow(), &["deliveries_pkey", "(id = ANY ($2))"]),
        ("bytes to send again", deliveries::FREEZE.to_owned(), &["deliveries_pkey", "(id = i.id)"]),
        (
            "claims of a life",
            held::CLAIMS.to_owned(),
            &["deliveries_claimed", "deliveries_pkey", "(holder = $1)"],
        ),
        ("refill", deliveries::refill_sql(), &["deliveries_due"]),
        ("first due", deliveries::FIRST_DUE.to_owned(), &["deliveries_due"]),
        ("lanes: whose turn it is", lanes::TURNS.to_owned(), &["deliveries_lane", "(lane = l.lane)"]),
        ("lanes: heads that failed", lanes::FAILED_HEADS.to_owned(), &["deliveries_due"]),
        ("objects: what happened", history::ROWS.to_owned(), &["object_changes_until", "(state = $1)"]),
        ("events", events::list_sql(&EventFilter::default()), &["events_kept_pkey"]),
        ("events of a type", events::list_sql(&typed), &["events_kept_project_type_seq_idx"]),
        ("events after a mark", events::after_sql(), &["events_kept_pkey"]),
        ("deliveries of a subscriber", read::list_sql(&of_one), &["deliveries_subscriber"]),
    ]
}

/// A schema of its own, and a session in it with the settings of every session.
async fn open() -> (String, Conn) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = std::env::var("TIDEGATE_TEST_POSTGRES")
        .expect("set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run `cargo xtask test`");
    let joint = if server.contains('?') { '&' } else { '?' };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let url = format!("{server}{joint}schema=plans{}_{count}", std::process::id());
    let terms = Terms { name: "test".to_owned(), periods: Periods::default(), salt: b"salt".to_vec() };
    PostgresStore::open(&url, terms, Some(NOW)).await.unwrap();
    let conn = Conn::open(&Target::parse(&url).unwrap()).await.unwrap();
    (url, conn)
}

/// The plan that serves whatever the values are.
async fn plan(conn: &Conn, sql: &str) -> String {
    let client = conn.bare_client();
    client.batch_execute(&format!("PREPARE pinned AS {sql}")).await.expect("the statement is valid");
    let numbers = sql.split('$').skip(1).map(|rest| {
        let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        rest[..digits].parse::<usize>().unwrap_or_default()
    });
    let values = vec!["NULL"; numbers.max().unwrap_or_default()].join(", ");
    let told = client.simple_query(&format!("EXPLAIN (COSTS OFF) EXECUTE pinned({values})")).await.unwrap();
    client.batch_execute("DEALLOCATE pinned").await.unwrap();
    let lines = told.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn hot_statements_go_by_their_indexes() {
    let (url, conn) = open().await;
    for (name, sql, indexes) in statements() {
        let plan = plan(&conn, &sql).await;
        let conditions: Vec<&str> = plan.lines().filter(|line| line.contains("Index Cond:")).collect();
        for index in indexes {
            let is_column = conditions.iter().any(|line| line.contains(index));
            let is_used = is_column || plan.contains(&format!(" using {index} on "));
            assert!(is_used, "{name} does not go by {index}:\n{plan}");
        }
        for walk in ["Seq Scan on deliveries", "Seq Scan on events", "Seq Scan on dedupe", "hashed SubPlan"] {
            assert!(!plan.contains(walk), "{name} walks through everything:\n{plan}");
        }
        let is_unfolded = plan.contains("ProjectSet") && !plan.contains("Function Scan");
        assert!(!OF_EVERY_GROUP.contains(&name) || is_unfolded, "{name} keeps copies of its arrays:\n{plan}");
    }
    drop(conn);
    remove(&url).await.unwrap();
}

#[test]
fn plans_are_made_anew_as_tables_grow() {
    let mut planning = Planning::default();
    let due: Vec<usize> = (0..10_000).filter(|_| planning.is_due(1)).collect();
    assert_eq!(due, [256, 768, 1_792, 3_840, 7_936]);
    let rare = (0..10 * ROWS.end()).filter(|_| planning.is_due(1)).count();
    assert!((10..20).contains(&rare), "{rare}");
}

/// Why that is needed, and that it suffices.
#[tokio::test]
async fn a_plan_for_an_empty_table_is_not_kept() {
    let (url, conn) = open().await;
    let client = conn.bare_client();
    client.batch_execute("VACUUM ANALYZE deliveries").await.unwrap();
    let by_number = " using deliveries_pkey on ";
    let sql = deliveries::delivered();
    assert!(
        !plan(&conn, &sql).await.contains(by_number),
        "a server that knows better: is all this still needed?"
    );
    let rows = "INSERT INTO deliveries (id, project, subscriber, event, replay, due_at, created_at, status)
        SELECT n, 1, 1, n, 0, 0, 0, 3 FROM generate_series(1, 256) n";
    client.batch_execute(rows).await.unwrap();
    let plan = plan(&conn, &sql).await;
    assert!(plan.contains(by_number), "{plan}");
    drop(conn);
    remove(&url).await.unwrap();
}
