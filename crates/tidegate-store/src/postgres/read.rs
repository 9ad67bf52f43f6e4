//! Deliveries as people look at them: listed, opened, traced, counted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tidegate_core::attempt::{Attempt, ErrorClass};
use tidegate_core::delivery::Status;
use tidegate_core::id::{DeliveryKey, DeliveryNo, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::limits::{DELIVERY_EVENTS_LISTED_MAX as LISTED, PAGE_ROWS_SCANNED_MAX};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::deliveries::Record;
use super::{events, windows};
use crate::{AttemptRow, Backlog, DeliveryFilter, DeliveryRow, FoldRow, Page, StorePart, Trace, TraceRule};

/// `held` and nearly every `cancelled` follow from the subscriber; see the schema.
const STATUS: &str = "CASE WHEN d.status = 3 THEN 'delivered' WHEN d.status = 4 THEN 'exhausted'
        WHEN d.status = 5 THEN 'expired' WHEN d.status = 6 THEN 'cancelled' WHEN d.status = 1 THEN 'sending'
        WHEN s.deleted_at IS NOT NULL THEN 'cancelled' WHEN NOT s.active THEN 'held'
        WHEN d.attempts > 0 THEN 'retrying' ELSE 'pending' END";

/// What is held has the reason of its subscriber.
fn columns() -> String {
    format!(
        "d.id, d.subscriber, s.id, {STATUS}, d.attempts, d.due_at, d.created_at, d.finished_at,
            CASE WHEN {STATUS} = 'held' THEN s.inactive_reason ELSE d.reason END, d.lane, d.replay > 0, d.event, d.fold,
            d.out_of_order, d.nonce"
    )
}

/// Deliveries with the ids of their events, which are looked up together: of a fold, `at_most` those that joined last.
async fn delivery_rows(conn: &Conn, rows: &[Row], at_most: usize) -> Asked<Vec<DeliveryRow>> {
    let numbers: Vec<DeliveryNo> = rows.iter().map(|row| row.get(0)).collect();
    let events: Vec<Seq> = rows.iter().map(|row| row.get(11)).collect();
    let folds: Vec<Option<WindowNo>> = rows.iter().map(|row| row.get(12)).collect();
    let mut ids = event_ids(conn, &numbers, &events, &folds, at_most).await?;
    let folds: Vec<WindowNo> = folds.into_iter().flatten().collect();
    let mut folds = windows::rows(conn, &folds).await?;
    let told = rows.iter().map(|row| {
        let fold = row.get::<_, Option<WindowNo>>(12).and_then(|window| folds.remove(&window));
        delivery_row(row, fold, ids.remove(&row.get(0)).unwrap_or_default())
    });
    Ok(told.collect())
}

fn delivery_row(row: &Row, fold: Option<FoldRow>, events: Vec<String>) -> DeliveryRow {
    DeliveryRow {
        no: row.get(0),
        nonce: row.get::<_, i32>(14).cast_unsigned(),
        subscriber: row.get(1),
        subscriber_id: row.get(2),
        status: Status::parse(row.get(3)).unwrap_or(Status::Pending),
        attempts: row.get::<_, i32>(4).cast_unsigned(),
        due_at: Timestamp::from_ms(row.get(5)),
        created_at: Timestamp::from_ms(row.get(6)),
        finished_at: row.get::<_, Option<i64>>(7).map(Timestamp::from_ms),
        reason: row.get(8),
        lane: row.get(9),
        behind: None,
        replay: row.get(10),
        out_of_order: row.get(13),
        fold,
        events,
    }
}

/// Without those of events that retention has removed.
const EVENT_IDS: &str = "SELECT c.delivery, e.id FROM
        (SELECT delivery, event FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS i(delivery, event, fold)
            WHERE fold IS NULL
         UNION ALL SELECT i.delivery, m.event FROM unnest($1::bigint[], $3::bigint[]) AS i(delivery, fold)
            CROSS JOIN LATERAL (SELECT event FROM members WHERE \"window\" = i.fold
                ORDER BY event DESC LIMIT $4) m) c
    JOIN events e ON e.seq = c.event ORDER BY c.delivery, c.event";

async fn event_ids(
    conn: &Conn,
    deliveries: &[DeliveryNo],
    first: &[Seq],
    folds: &[Option<WindowNo>],
    at_most: usize,
) -> Asked<BTreeMap<DeliveryNo, Vec<String>>> {
    let mut ids: BTreeMap<DeliveryNo, Vec<String>> = BTreeMap::new();
    if !deliveries.is_empty() {
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        for row in conn.rows(EVENT_IDS, &[&deliveries, &first, &folds, &at_most]).await? {
            ids.entry(row.get(0)).or_default().push(events::text(&row, 1));
        }
    }
    Ok(ids)
}

/// Where no index serves the question the rows of all projects are looked at, as with events.
fn narrow(filter: &DeliveryFilter) -> &'static str {
    match (filter.subscriber, filter.status) {
        (Some(_), _) => "d.subscriber = $3 AND $2::bigint IS NOT NULL",
        (None, Some(Status::Exhausted)) => "d.project = $2 AND d.shelf = 4 AND $3::bigint IS NULL",
        (None, _) => "$3::bigint IS NULL AND $2::bigint IS NOT NULL",
    }
}

/// The rows are looked at one after the other, until the page is full or enough of them have been.
pub(super) fn list_sql(filter: &DeliveryFilter) -> String {
    format!(
        "SELECT {} FROM (SELECT * FROM deliveries d WHERE {} AND d.id < $1 ORDER BY d.id DESC LIMIT $4) d
            JOIN subscribers s ON s.no = d.subscriber
         WHERE d.project = $2 AND ($5::text IS NULL OR {STATUS} = $5 OR $7 AND d.status = 1) ORDER BY d.id DESC LIMIT $6",
        columns(),
        narrow(filter)
    )
}

/// Where such a look ends, if there is more than it reaches.
pub(super) fn list_end_sql(filter: &DeliveryFilter) -> String {
    format!(
        "SELECT d.id FROM deliveries d WHERE {} AND d.id < $1 ORDER BY d.id DESC OFFSET $4 LIMIT 1",
        narrow(filter)
    )
}

/// A page of deliveries, newest first. Looks at a bounded number of rows; a rare hit may need several pages.
pub(super) async fn list(
    conn: &Conn,
    project: ProjectNo,
    filter: &DeliveryFilter,
) -> Asked<Page<DeliveryRow>> {
    let before = filter.before.unwrap_or(DeliveryNo::MAX);
    let looked = PAGE_ROWS_SCANNED_MAX as i64;
    let status = filter.status.map(Status::name);
    let more = filter.limit as i64 + 1;
    let values: super::db::Values<'_> =
        &[&before, &project, &filter.subscriber, &looked, &status, &more, &filter.in_hand];
    let mut rows = conn.rows(&list_sql(filter), values).await?;
    let next = if rows.len() > filter.limit {
        rows.truncate(filter.limit);
        rows.last().map(|row| row.get(0))
    } else {
        let values: super::db::Values<'_> = &[&before, &project, &filter.subscriber, &(looked - 1)];
        conn.row(&list_end_sql(filter), values).await?.map(|row| row.get(0))
    };
    Ok(Page { items: delivery_rows(conn, &rows, LISTED).await?, next })
}

const ATTEMPTS: &str = "SELECT n, at, status, error, record FROM attempts WHERE delivery = $1
    UNION ALL SELECT attempts, finished_at, NULL, NULL, record FROM deliveries WHERE id = $1 AND record IS NOT NULL
    ORDER BY n";

pub(super) async fn one(
    conn: &Conn,
    project: ProjectNo,
    no: DeliveryNo,
) -> Asked<Option<(DeliveryRow, Vec<AttemptRow>)>> {
    let Some(mut delivery) = found(conn, project, vec![no], usize::MAX).await?.pop() else { return Ok(None) };
    delivery.behind = behind(conn, &delivery).await?;
    let attempts = conn.rows(ATTEMPTS, &[&no]).await?.iter().map(attempt_row).collect();
    Ok(Some((delivery, attempts)))
}

/// Whoever goes or will go first in a lane: one that is due or claimed, else the oldest that waits.
pub(super) const FIRST_OF_LANE: &str =
    "SELECT id, nonce FROM deliveries WHERE id = (SELECT id FROM deliveries
    WHERE subscriber = $1 AND lane = $2 AND lane IS NOT NULL AND shelf < 3
    ORDER BY shelf, greatest(event, abs(replay)), id LIMIT 1)";

async fn behind(conn: &Conn, row: &DeliveryRow) -> Asked<Option<DeliveryKey>> {
    let Some(lane) = row.waiting_lane() else { return Ok(None) };
    let first = conn.rows(FIRST_OF_LANE, &[&row.subscriber, &lane]).await?;
    let key = |first: &Row| DeliveryKey { no: first.get(0), nonce: first.get::<_, i32>(1).cast_unsigned() };
    Ok(first.first().map(key).filter(|first| first.no != row.no))
}

/// Those of these deliveries that are the project's.
pub(super) async fn among(
    conn: &Conn,
    project: ProjectNo,
    numbers: Vec<DeliveryNo>,
) -> Asked<Vec<DeliveryRow>> {
    found(conn, project, numbers, LISTED).await
}

async fn found(
    conn: &Conn,
    project: ProjectNo,
    numbers: Vec<DeliveryNo>,
    at_most: usize,
) -> Asked<Vec<DeliveryRow>> {
    let sql = format!(
        "SELECT {} FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
         WHERE d.id = ANY($1) AND d.project = $2 ORDER BY d.id",
        columns()
    );
    delivery_rows(conn, &conn.rows(&sql, &[&numbers, &project]).await?, at_most).await
}

fn attempt_row(row: &Row) -> AttemptRow {
    let record: Option<Record<'_>> = serde_json::from_slice(row.get(4)).ok();
    let columns = (row.get(1), row.get::<_, Option<i32>>(2).and_then(|status| u16::try_from(status).ok()));
    let (at, status) = record.as_ref().and_then(|record| record.began).unwrap_or(columns);
    let attempt = Attempt {
        at: Timestamp::from_ms(at),
        status,
        error: row.get::<_, Option<&str>>(3).and_then(ErrorClass::parse),
        detail: record.as_ref().map(|record| record.detail.to_string()).unwrap_or_default(),
        phases: record.as_ref().map(|record| record.phases).unwrap_or_default(),
        response: record.and_then(|record| record.response).map(Cow::into_owned),
    };
    AttemptRow { n: row.get::<_, i32>(0).cast_unsigned(), attempt }
}

/// What was made with an event or later, and what carries it among others.
pub(super) fn trace_sql() -> String {
    format!(
        "SELECT {} FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
         WHERE d.project = $2 AND d.id = ANY(ARRAY(SELECT id FROM deliveries WHERE event = $1
            UNION SELECT w.delivery FROM members m JOIN windows w ON w.no = m.\"window\" WHERE m.event = $1)) ORDER BY d.id",
        columns()
    )
}

pub(super) const RULES: &str =
    "SELECT s.no, s.id, v.definition, coalesce(s.backfill_after < e.seq, FALSE) FROM subscribers s
    JOIN events e ON e.seq = $1 AND e.project = s.project
    LEFT JOIN subscriber_versions v ON v.project = s.project AND v.subscriber = s.no AND v.version =
        (SELECT max(w.version) FROM subscriber_versions w
         WHERE w.project = s.project AND w.subscriber = s.no AND w.version <= e.version)
    WHERE s.project = $2 AND (s.deleted_at IS NULL OR s.created_version <= e.version)
        AND (v.version IS NULL OR v.definition IS NOT NULL) ORDER BY s.no";

/// All of it is as of one instant, or an event that is brought to its window meanwhile would be nowhere.
pub(super) async fn trace(conn: &Conn, project: ProjectNo, event: Seq) -> Asked<Trace> {
    conn.tell("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    let deliveries = conn.rows(&trace_sql(), &[&event, &project]).await?;
    let rules = conn.rows(RULES, &[&event, &project]).await?;
    let rule = |row: &Row| TraceRule {
        subscriber: row.get(0),
        subscriber_id: row.get(1),
        definition: row.get(2),
        is_behind: row.get(3),
    };
    let mut deliveries = delivery_rows(conn, &deliveries, LISTED).await?;
    for delivery in &mut deliveries {
        delivery.behind = behind(conn, delivery).await?;
    }
    Ok(Trace {
        deliveries,
        windows: windows::joined(conn, event).await?,
        rules: rules.iter().map(rule).collect(),
    })
}

pub(super) const WAITING: &str = "SELECT s.no, s.active,
        (SELECT count(*) FROM deliveries d WHERE d.subscriber = s.no AND d.shelf = 0)
        + (SELECT count(*) FROM deliveries d WHERE d.subscriber = s.no AND d.lane IS NOT NULL AND d.shelf < 3
            AND d.shelf = 2)
    FROM subscribers s WHERE s.deleted_at IS NULL ORDER BY s.no";

pub(super) const EXHAUSTED: &str =
    "SELECT subscriber, count(*) FROM deliveries WHERE shelf = 4 GROUP BY subscriber";

/// Per subscriber that is not deleted; what is exhausted counts also for those that are.
pub(super) async fn backlogs(conn: &Conn) -> Asked<Vec<(SubscriberNo, Backlog)>> {
    let exhausted = conn.rows(EXHAUSTED, &[]).await?;
    let exhausted: BTreeMap<SubscriberNo, u64> =
        exhausted.iter().map(|row| (row.get(0), count(row, 1))).collect();
    let waiting = conn.rows(WAITING, &[]).await?;
    let backlog = |row: &Row| {
        let (no, waiting) = (row.get(0), count(row, 2));
        let (waiting, held) = if row.get(1) { (waiting, 0) } else { (0, waiting) };
        (no, Backlog { waiting, held, exhausted: exhausted.get(&no).copied().unwrap_or(0) })
    };
    Ok(waiting.iter().map(backlog).collect())
}

fn count(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).unsigned_abs()
}

pub(super) const DEAD_LETTERS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE shelf = 4 LIMIT $1) d";

/// Whether a delivery of a subscriber arrived after a time, the newest looked at first.
pub(super) async fn has_delivered(conn: &Conn, subscriber: SubscriberNo, since: Timestamp) -> Asked<bool> {
    let sql = "SELECT 1 FROM deliveries WHERE subscriber = $1 AND status = 3 AND finished_at > $2
        ORDER BY id DESC LIMIT 1";
    conn.exists(sql, &[&subscriber, &since.as_ms()]).await
}

pub(super) async fn dead_letters(conn: &Conn, at_most: u64) -> Asked<u64> {
    let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
    Ok(count(&conn.only(DEAD_LETTERS, &[&at_most]).await?, 0))
}

pub(super) async fn backlog(conn: &Conn) -> Asked<Backlog> {
    let mut backlog = Backlog { exhausted: dead_letters(conn, u64::MAX).await?, ..Backlog::default() };
    for row in conn.rows(WAITING, &[]).await? {
        *(if row.get(1) { &mut backlog.waiting } else { &mut backlog.held }) += count(&row, 2);
    }
    Ok(backlog)
}

/// The tables of each part, by the beginning of their names; the last is the rest.
const PARTS: [(&str, &str); 5] = [
    ("events", "events"),
    ("deliveries", "deliver"),
    ("attempts", "attempts"),
    ("ids", "dedupe"),
    ("rest", ""),
];

const SIZES: &str = "SELECT relname, pg_total_relation_size(oid) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'";

/// With their indexes, and all periods together.
pub(super) async fn sizes(conn: &Conn) -> Asked<Vec<StorePart>> {
    let mut parts = PARTS.map(|(name, _)| StorePart { name, bytes: 0 });
    for row in conn.rows(SIZES, &[]).await? {
        let table: &str = row.get(0);
        let part = PARTS.iter().position(|(_, begin)| table.starts_with(begin)).unwrap_or(PARTS.len() - 1);
        // A table that was dropped meanwhile has no size.
        parts[part].bytes += row.get::<_, Option<i64>>(1).map_or(0, i64::unsigned_abs);
    }
    Ok(parts.into())
}
