//! The plans of the hot statements: each finds its rows by the index that was made for it, and arrays are unfolded without
//! a copy. The words of a plan differ between versions of the server, so what is pinned is the indexes, not the text.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::time::Timestamp;
use tokio_postgres::SimpleQueryMessage;

use super::connect::Target;
use super::db::Conn;
use super::{Periods, PostgresStore, Terms, admit, deliveries, events, held, lanes, read, remove, submit};
use crate::{DeliveryFilter, EventFilter};

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

/// What an ordinary group is made of.
const OF_EVERY_GROUP: [&str; 7] = [
    "new ids",
    "ids",
    "events in",
    "deliveries in",
    "deliveries in, with lanes",
    "finish",
    "finish, some in vain",
];

/// Statements, the indexes by which they find what they need, and by which columns where an index could be walked by fewer.
fn statements() -> Vec<(&'static str, String, &'static [&'static str])> {
    let typed = EventFilter { type_name: Some(String::new()), ..Default::default() };
    let of_one = DeliveryFilter { subscriber: Some(1), ..Default::default() };
    vec![
        ("new ids", submit::TAKE_NEW_IDS.to_owned(), &[]),
        ("ids", submit::take_ids(), &[]),
        ("who has an id", admit::HOLDERS.to_owned(), &["dedupe_pkey", "(key_low = i.low)"]),
        ("events in", submit::INSERT_EVENTS.to_owned(), &["dedupe_pkey", "(key_low = i.low)"]),
        ("deliveries in", submit::insert_plain(), &["dedupe_pkey", "(key_low = i.low)"]),
        ("deliveries in, with lanes", submit::insert_laned(), &["dedupe_pkey", "deliveries_lane"]),
        ("finish", deliveries::finishing(false), &["deliveries_pkey", "(id = i.id)"]),
        ("finish, some in vain", deliveries::finishing(true), &["deliveries_pkey", "(id = i.id)"]),
        (
            "claims of a life",
            held::CLAIMS.to_owned(),
            &["deliveries_claimed", "deliveries_pkey", "(holder = $1)"],
        ),
        ("refill", deliveries::refill_sql(), &["deliveries_due"]),
        ("first due", deliveries::FIRST_DUE.to_owned(), &["deliveries_due"]),
        ("lanes: whose turn it is", lanes::TURNS.to_owned(), &["deliveries_lane", "(lane = l.lane)"]),
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
    PostgresStore::open(&url, terms, NOW).await.unwrap();
    let conn = Conn::open(&Target::parse(&url).unwrap()).await.unwrap();
    (url, conn)
}

/// The plan that serves whatever the values are.
async fn plan(conn: &Conn, sql: &str) -> String {
    let client = conn.client();
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
