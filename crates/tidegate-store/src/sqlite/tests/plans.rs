//! The plans of the hot queries: each goes by the index that was made for it, and none walks through all deliveries or
//! all events. The golden file shows the plans whole, so that a new one is seen and judged.

use std::fmt::Write;

use rusqlite::Connection;
use tidegate_core::delivery::Status;

use super::{check_golden, open};
use crate::conformance::Scratch;
use crate::sqlite::{
    LAST_NO, dedupe, deliveries, events, folds, history, jobs, lanes, objects, quarantine, read, run, sweep,
    windows, writer,
};
use crate::{DeliveryFilter, EventFilter};

/// Indexes that hold few rows by their nature: walking through one is walking through what is asked for.
const SMALL: [&str; 2] = ["INDEX deliveries_claimed", "INDEX deliveries_exhausted"];

fn queries() -> Vec<(&'static str, String)> {
    let typed = EventFilter { type_name: Some(String::new()), ..Default::default() };
    let of_one = DeliveryFilter { subscriber: Some(1), ..Default::default() };
    let exhausted = DeliveryFilter { status: Some(Status::Exhausted), ..Default::default() };
    let mut queries = vec![
        ("refill", deliveries::refill_sql()),
        ("first due", deliveries::FIRST_DUE.to_owned()),
        ("finish", deliveries::FINISH.to_owned()),
        ("any unfinished", deliveries::ANY_UNFINISHED.to_owned()),
        ("lanes that a backfill goes past", events::WAITING_BETWEEN.to_owned()),
        ("what is left of a fold", windows::KEPT.to_owned()),
        ("lane is busy", lanes::IS_BUSY.to_owned()),
        ("first of a lane", read::FIRST_OF_LANE.to_owned()),
        ("lane: who is going", lanes::GOING.to_owned()),
        ("lane: oldest waiting", lanes::OLDEST_WAITING.to_owned()),
        ("lanes in which all wait", lanes::IDLE.to_owned()),
        ("claims of the last process", writer::CLAIMED.to_owned()),
        ("last number", LAST_NO.to_owned()),
        ("ids: look up", run::LOOK_UP.to_owned()),
        ("ids: mark", dedupe::MARK.to_owned()),
        ("ids: confirm", events::SAME_ID.to_owned()),
        ("ids: younger than the mark", dedupe::YOUNGER.to_owned()),
        ("objects: the row of one", objects::PAGE.to_owned()),
        ("objects: where the next row begins", objects::NEXT.to_owned()),
        ("objects: what happened", history::ROWS.to_owned()),
        ("events", events::list_sql(&EventFilter::default())),
        ("events of a type", events::list_sql(&typed)),
        ("events after a mark", events::after_sql()),
        ("newest event", events::NEWEST.to_owned()),
        ("backfill", events::backfill_sql()),
        ("lanes: heads that failed", lanes::FAILED_HEADS.to_owned()),
        ("jobs: a subscriber's past", jobs::PAST.to_owned()),
        ("jobs: dead letters", jobs::LETTERS.to_owned()),
        ("windows", windows::LIST.to_owned()),
        ("windows: members in a row", windows::IN_A_ROW.to_owned()),
        ("windows: one member", windows::ONE.to_owned()),
        ("windows: one member apart", windows::ONE_APART.to_owned()),
        ("trace: windows", windows::joined_sql()),
        ("windows: members since", folds::SINCE.to_owned()),
        ("deliveries", read::list_sql(&DeliveryFilter::default())),
        ("deliveries of a subscriber", read::list_sql(&of_one)),
        ("deliveries, exhausted", read::list_sql(&exhausted)),
        ("trace: with it", read::following_sql()),
        ("trace: later", read::late_sql()),
        ("trace: rules", read::RULES.to_owned()),
        ("quarantine", quarantine::list_sql()),
        ("quarantine, oldest first", quarantine::pick_sql()),
        ("quarantine by id", quarantine::named_sql()),
        ("quarantine: insert", quarantine::INSERT.to_owned()),
        ("backlog: due", read::COUNT_DUE.to_owned()),
        ("backlog: waiting in lanes", read::COUNT_WAITING.to_owned()),
        ("backlog: exhausted", read::COUNT_EXHAUSTED.to_owned()),
    ];
    queries.extend(of_retention());
    queries
}

fn of_retention() -> Vec<(&'static str, String)> {
    vec![
        ("retention: exhausted", sweep::EXHAUSTED.to_owned()),
        ("retention: held", sweep::HELD.to_owned()),
        ("retention: deliveries", sweep::OLDEST_DELIVERIES.to_owned()),
        ("retention: events", sweep::events::OLDEST_EVENTS.to_owned()),
        ("retention: events of a type", sweep::events::OLDEST_OF_TYPE.to_owned()),
        ("retention: overdue events", sweep::events::OVERDUE.to_owned()),
        ("retention: made with it", sweep::events::FOLLOWING.to_owned()),
        ("retention: made later", sweep::events::LATER.to_owned()),
        ("retention: among others", sweep::events::AMONG_OTHERS.to_owned()),
        ("retention: left to a backfill", sweep::events::LEFT.to_owned()),
        ("retention: oldest bucket", sweep::observed::OLDEST_BUCKET.to_owned()),
        ("retention: buckets", sweep::observed::REMOVE_BUCKETS.to_owned()),
        ("retention: an ended metric's rollups", sweep::observed::REMOVE_OF_METRIC[0].to_owned()),
        ("retention: an ended metric's keys", sweep::observed::REMOVE_OF_METRIC[1].to_owned()),
        ("retention: an ended metric's changes", sweep::observed::REMOVE_OF_METRIC[2].to_owned()),
        ("retention: next segment", sweep::observed::NEXT_SEGMENT.to_owned()),
        ("retention: postings", sweep::observed::REMOVE_POSTINGS.to_owned()),
        ("retention: objects", objects::PAGES.to_owned()),
        ("retention: changes of objects", sweep::observed::REMOVE_CHANGES.to_owned()),
        ("retention: ended windows", sweep::REMOVE_ENDED.to_owned()),
        ("retention: oldest ended window", sweep::OLDEST_ENDED.to_owned()),
    ]
}

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("the query is valid");
    let rows = statement.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>();
    rows.expect("the plan can be read")
}

#[test]
fn hot_queries_go_by_their_indexes() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let writer = store.writer.lock().unwrap();
    let mut text = String::new();
    for (name, sql) in queries() {
        writeln!(text, "{name}").unwrap();
        for step in plan(&writer.conn, &sql) {
            writeln!(text, "    {step}").unwrap();
            let walks = ["SCAN d", "SCAN e"].iter().any(|scan| step.starts_with(scan));
            assert!(!walks || SMALL.iter().any(|index| step.contains(index)), "{name}: {step}");
            // One event has few deliveries, and a project few subscribers: only there is sorting no matter.
            assert!(!step.contains("TEMP B-TREE") || name.starts_with("trace"), "{name}: {step}");
        }
    }
    check_golden("plans.txt", &text);
}
