//! Deliveries as people look at them: listed, opened, traced, counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::attempt::{Attempt, ErrorClass, Phases};
use tidegate_core::delivery::Status;
use tidegate_core::fold::Book;
use tidegate_core::id::{DeliveryKey, DeliveryNo, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::limits::{DELIVERY_EVENTS_LISTED_MAX as LISTED, PAGE_ROWS_SCANNED_MAX};
use tidegate_core::time::Timestamp;

use super::windows;
use crate::{AttemptRow, Backlog, DeliveryFilter, DeliveryRow, FoldRow, Page, Trace, TraceRule};

const SELECT: &str =
    "SELECT d.id, d.subscriber, s.id, d.status, d.attempts, d.due_at, d.created_at, d.finished_at,
        d.reason, d.lane, s.active, s.deleted_at IS NOT NULL, d.event, d.project, d.late, s.inactive_reason,
        d.replay > 0, d.fold, d.out_of_order, d.nonce
    FROM deliveries d JOIN subscribers s ON s.no = d.subscriber";

/// `at_most` so many ids of its events: a list of large folds is not to read every one of their members.
fn delivery_row(conn: &Connection, row: &Row<'_>, at_most: usize) -> rusqlite::Result<DeliveryRow> {
    let no = row.get(0)?;
    let status = status(row)?;
    // What is held has the reason of its subscriber.
    let reason = if status == Status::Held { 15 } else { 8 };
    Ok(DeliveryRow {
        no,
        nonce: row.get(19)?,
        subscriber: row.get(1)?,
        subscriber_id: row.get(2)?,
        status,
        attempts: row.get(4)?,
        due_at: Timestamp::from_ms(row.get(5)?),
        created_at: Timestamp::from_ms(row.get(6)?),
        finished_at: row.get::<_, Option<i64>>(7)?.map(Timestamp::from_ms),
        reason: row.get(reason)?,
        lane: row.get(9)?,
        behind: None,
        replay: row.get(16)?,
        out_of_order: row.get(18)?,
        fold: fold(conn, row.get(17)?)?,
        events: event_ids(conn, row.get(12)?, row.get(17)?, at_most)?,
    })
}

/// `held` and nearly every `cancelled` follow from the subscriber; see the schema.
fn status(row: &Row<'_>) -> rusqlite::Result<Status> {
    let (status, attempts): (i64, u32) = (row.get(3)?, row.get(4)?);
    let (active, deleted): (bool, bool) = (row.get(10)?, row.get(11)?);
    Ok(match status {
        3 => Status::Delivered,
        4 => Status::Exhausted,
        5 => Status::Expired,
        6 => Status::Cancelled,
        1 => Status::Sending,
        _ if deleted => Status::Cancelled,
        _ if !active => Status::Held,
        _ if attempts > 0 => Status::Retrying,
        _ => Status::Pending,
    })
}

fn event_ids(
    conn: &Connection,
    first: Seq,
    fold: Option<WindowNo>,
    at_most: usize,
) -> rusqlite::Result<Vec<String>> {
    let carried = match fold {
        Some(window) => windows::events(conn, window, at_most)?,
        None => vec![first],
    };
    carried.into_iter().filter_map(|event| event_id(conn, event).transpose()).collect()
}

fn fold(conn: &Connection, window: Option<WindowNo>) -> rusqlite::Result<Option<FoldRow>> {
    window.map_or(Ok(None), |window| windows::row(conn, window))
}

/// Absent when retention has removed the event.
fn event_id(conn: &Connection, seq: Seq) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT id FROM events WHERE seq = ?1")?.query_row([seq], |row| row.get(0)).optional()
}

/// Where no index serves the question the rows of all projects are looked at, and counted, as with events.
pub(super) fn list_sql(filter: &DeliveryFilter) -> String {
    let narrow = match (filter.subscriber, filter.status) {
        (Some(_), _) => "d.subscriber = ?3",
        (None, Some(Status::Exhausted)) => "d.project = ?2 AND d.status = 4 AND ?3 IS NULL",
        (None, _) => "?3 IS NULL",
    };
    format!("{SELECT} WHERE {narrow} AND d.id < ?1 ORDER BY d.id DESC LIMIT ?4")
}

/// A page of deliveries, newest first. Looks at a bounded number of rows; a rare hit may need several pages.
pub(super) fn list(
    conn: &Connection,
    project: ProjectNo,
    filter: &DeliveryFilter,
) -> rusqlite::Result<Page<DeliveryRow>> {
    let mut statement = conn.prepare_cached(&list_sql(filter))?;
    let before = filter.before.unwrap_or(DeliveryNo::MAX);
    let mut rows =
        statement.query(params![before, project, filter.subscriber, PAGE_ROWS_SCANNED_MAX as i64])?;
    let mut page = Page { items: Vec::new(), next: None };
    let mut scanned = 0;
    while let Some(row) = rows.next()? {
        if page.items.len() == filter.limit {
            return Ok(page);
        }
        scanned += 1;
        let found = status(row)?;
        let is_meant = |wanted| wanted == found || (filter.in_hand && found == Status::Sending);
        if row.get::<_, ProjectNo>(13)? == project && filter.status.is_none_or(is_meant) {
            page.items.push(delivery_row(conn, row, LISTED)?);
        }
        page.next = Some(row.get(0)?);
    }
    if scanned < PAGE_ROWS_SCANNED_MAX {
        page.next = None;
    }
    Ok(page)
}

fn one_sql() -> String {
    format!("{SELECT} WHERE d.id = ?1 AND d.project = ?2")
}

pub(super) fn one(
    conn: &Connection,
    project: ProjectNo,
    no: DeliveryNo,
) -> rusqlite::Result<Option<(DeliveryRow, Vec<AttemptRow>)>> {
    let found = conn
        .prepare_cached(&one_sql())?
        .query_row([no, project], |row| delivery_row(conn, row, usize::MAX))
        .optional()?;
    let Some(mut delivery) = found else { return Ok(None) };
    delivery.behind = behind(conn, &delivery)?;
    let attempts = conn
        .prepare_cached(
            "SELECT n, at, status, error, detail, dns_us, connect_us, tls_us, wait_us, total_us, response
             FROM attempts WHERE delivery = ?1 ORDER BY n",
        )?
        .query_map([no], attempt_row)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Some((delivery, attempts)))
}

/// Whoever goes or will go first in a lane: one that is due or claimed, else the oldest that waits.
pub(super) const FIRST_OF_LANE: &str =
    "SELECT id, nonce FROM deliveries WHERE id = (SELECT id FROM deliveries
    WHERE subscriber = ?1 AND lane = ?2 AND status < 3 ORDER BY status, max(event, abs(replay)), id LIMIT 1)";

fn behind(conn: &Connection, row: &DeliveryRow) -> rusqlite::Result<Option<DeliveryKey>> {
    let Some(lane) = row.waiting_lane() else { return Ok(None) };
    let first = conn
        .prepare_cached(FIRST_OF_LANE)?
        .query_row([row.subscriber, lane], |row| Ok(DeliveryKey { no: row.get(0)?, nonce: row.get(1)? }));
    Ok(first.optional()?.filter(|first| first.no != row.no))
}

/// Those of these deliveries that are the project's.
pub(super) fn among(
    conn: &Connection,
    project: ProjectNo,
    mut numbers: Vec<DeliveryNo>,
) -> rusqlite::Result<Vec<DeliveryRow>> {
    numbers.sort_unstable();
    numbers.dedup();
    let mut statement = conn.prepare_cached(&one_sql())?;
    let mut found = Vec::new();
    for no in numbers {
        let row = |row: &Row<'_>| delivery_row(conn, row, LISTED);
        found.extend(statement.query_row([no, project], row).optional()?);
    }
    Ok(found)
}

fn attempt_row(row: &Row<'_>) -> rusqlite::Result<AttemptRow> {
    let error: Option<String> = row.get(3)?;
    let response: Option<String> = row.get(10)?;
    let phases = Phases {
        dns_us: row.get(5)?,
        connect_us: row.get(6)?,
        tls_us: row.get(7)?,
        wait_us: row.get(8)?,
        total_us: row.get(9)?,
    };
    let attempt = Attempt {
        at: Timestamp::from_ms(row.get(1)?),
        status: row.get(2)?,
        error: error.and_then(|name| ErrorClass::parse(&name)),
        detail: row.get(4)?,
        phases,
        response: response.and_then(|text| serde_json::from_str(&text).ok()),
    };
    Ok(AttemptRow { n: row.get(0)?, attempt })
}

/// What was made with an event follows it: its numbers are the next ones.
pub(super) fn following_sql() -> String {
    format!("{SELECT} WHERE d.id > ?1 ORDER BY d.id")
}

/// What was made later, and what carries it among others.
pub(super) fn late_sql() -> String {
    format!(
        "{SELECT} WHERE d.project = ?2 AND ((d.event = ?1 AND d.late = 1)
            OR d.id IN (SELECT w.delivery FROM members m JOIN windows w ON w.no = m.window WHERE m.event = ?1))
        ORDER BY d.id"
    )
}

pub(super) const RULES: &str =
    "SELECT s.no, s.id, v.definition, v.version IS NULL OR v.definition IS NOT NULL,
        coalesce(s.backfill_after < e.seq, 0)
    FROM subscribers s JOIN events e ON e.seq = ?1 AND e.project = s.project
    LEFT JOIN subscriber_versions v ON v.project = s.project AND v.subscriber = s.no AND v.version =
        (SELECT max(w.version) FROM subscriber_versions w
         WHERE w.project = s.project AND w.subscriber = s.no AND w.version <= e.version)
    WHERE s.project = ?2 AND (s.deleted_at IS NULL OR s.created_version <= e.version) ORDER BY s.no";

pub(super) fn trace(
    conn: &Connection,
    book: &Mutex<Book>,
    project: ProjectNo,
    event: Seq,
) -> rusqlite::Result<Trace> {
    let mut trace = Trace::default();
    let mut following = conn.prepare_cached(&following_sql())?;
    let mut rows = following.query([event])?;
    while let Some(row) = rows.next()? {
        let is_with_it = row.get::<_, Seq>(12)? == event && !row.get::<_, bool>(14)?;
        if !is_with_it || row.get::<_, ProjectNo>(13)? != project {
            break;
        }
        trace.deliveries.push(delivery_row(conn, row, LISTED)?);
    }
    let mut late = conn.prepare_cached(&late_sql())?;
    let mut rows = late.query([event, project])?;
    while let Some(row) = rows.next()? {
        trace.deliveries.push(delivery_row(conn, row, LISTED)?);
    }
    for delivery in &mut trace.deliveries {
        delivery.behind = behind(conn, delivery)?;
    }
    trace.windows = windows::joined(conn, event)?;
    windows::update_open(&mut trace.windows, &book.lock().unwrap_or_else(PoisonError::into_inner));
    trace.rules = conn
        .prepare_cached(RULES)?
        .query_map([event, project], |row| {
            let rule = TraceRule {
                subscriber: row.get(0)?,
                subscriber_id: row.get(1)?,
                definition: row.get(2)?,
                is_behind: row.get(4)?,
            };
            Ok((rule, row.get::<_, bool>(3)?))
        })?
        .filter_map(|row| row.map(|(rule, listed)| listed.then_some(rule)).transpose())
        .collect::<rusqlite::Result<_>>()?;
    Ok(trace)
}

pub(super) const COUNT_DUE: &str = "SELECT count(*) FROM deliveries WHERE subscriber = ?1 AND status = 0";
pub(super) const COUNT_WAITING: &str = "SELECT count(*) FROM deliveries WHERE subscriber = ?1 AND lane IS NOT NULL AND status < 3 AND status = 2";
pub(super) const COUNT_EXHAUSTED: &str = "SELECT count(*) FROM deliveries WHERE status = 4";

pub(super) const EXHAUSTED_BY_SUBSCRIBER: &str =
    "SELECT subscriber, count(*) FROM deliveries WHERE status = 4 GROUP BY subscriber";

/// Per subscriber that is not deleted; what is exhausted counts also for those that are.
pub(super) fn backlogs(conn: &Connection) -> rusqlite::Result<Vec<(SubscriberNo, Backlog)>> {
    let mut due = conn.prepare_cached(COUNT_DUE)?;
    let mut laned = conn.prepare_cached(COUNT_WAITING)?;
    let exhausted: BTreeMap<SubscriberNo, u64> = conn
        .prepare_cached(EXHAUSTED_BY_SUBSCRIBER)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut subscribers =
        conn.prepare_cached("SELECT no, active FROM subscribers WHERE deleted_at IS NULL ORDER BY no")?;
    let mut rows = subscribers.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (no, active): (SubscriberNo, bool) = (row.get(0)?, row.get(1)?);
        let waiting: u64 = due.query_row([no], |row| row.get::<_, u64>(0))?
            + laned.query_row([no], |row| row.get::<_, u64>(0))?;
        let (waiting, held) = if active { (waiting, 0) } else { (0, waiting) };
        found.push((no, Backlog { waiting, held, exhausted: exhausted.get(&no).copied().unwrap_or(0) }));
    }
    Ok(found)
}

pub(super) const DEAD_LETTERS: &str =
    "SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE status = 4 LIMIT ?1)";

pub(super) fn dead_letters(conn: &Connection, at_most: u64) -> rusqlite::Result<u64> {
    let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
    conn.prepare_cached(DEAD_LETTERS)?.query_row([at_most], |row| row.get(0))
}

pub(super) fn backlog(conn: &Connection) -> rusqlite::Result<Backlog> {
    let mut backlog = Backlog::default();
    let subscribers = conn
        .prepare_cached("SELECT no, active FROM subscribers WHERE deleted_at IS NULL ORDER BY no")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<(i64, bool)>>>()?;
    let mut due = conn.prepare_cached(COUNT_DUE)?;
    let mut laned = conn.prepare_cached(COUNT_WAITING)?;
    for (no, active) in subscribers {
        let waiting: u64 = due.query_row([no], |row| row.get::<_, u64>(0))?
            + laned.query_row([no], |row| row.get::<_, u64>(0))?;
        *(if active { &mut backlog.waiting } else { &mut backlog.held }) += waiting;
    }
    backlog.exhausted = conn.query_row(COUNT_EXHAUSTED, [], |row| row.get(0))?;
    Ok(backlog)
}
