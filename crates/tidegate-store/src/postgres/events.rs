//! Events: appended, looked up, listed. Never changed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ring::digest;
use tidegate_core::event::Event;
use tidegate_core::id::{Lane, ProjectNo, Seq, SubscriberNo, Version};
use tidegate_core::limits::{BACKFILL_REST_MAX, PAGE_ROWS_SCANNED_MAX, STEP_BYTES_MAX};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::open::BLOCK_BITS;
use crate::{BackfillStep, EventFilter, EventRow, Page, Stretch};

/// What an event's id is looked up by: one key per project, id and source; the high half is of the project and the id
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) high: i64,
    pub(super) low: i64,
}

impl Key {
    pub(super) fn of(project: ProjectNo, event: &Event) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&project.to_le_bytes());
        context.update(event.id.as_bytes());
        let high = half(&context.clone().finish());
        // Neither contains this byte, so no two pairs look the same.
        context.update(&[0]);
        context.update(event.source.as_bytes());
        Self { high, low: half(&context.finish()) }
    }
}

/// What an id is looked up by, for tests that stand in its way.
#[cfg(feature = "conformance")]
pub fn key_of(project: ProjectNo, event: &Event) -> (i64, i64) {
    let key = Key::of(project, event);
    (key.high, key.low)
}

fn half(hash: &digest::Digest) -> i64 {
    i64::from_le_bytes(hash.as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"))
}

fn high(project: ProjectNo, id: &str) -> i64 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&project.to_le_bytes());
    context.update(id.as_bytes());
    half(&context.finish())
}

pub(super) const COLUMNS: &str = "seq, version, accepted_at, time, id, source, type, subject, body";

/// A text that is kept as bytes.
pub(super) fn text(row: &Row, column: usize) -> String {
    String::from_utf8_lossy(row.get(column)).into_owned()
}

pub(super) fn event_row(row: &Row) -> EventRow {
    EventRow {
        seq: row.get(0),
        version: row.get(1),
        accepted_at: Timestamp::from_ms(row.get(2)),
        time: Timestamp::from_ms(row.get(3)),
        id: text(row, 4),
        source: text(row, 5),
        type_name: text(row, 6),
        subject: row.get::<_, Option<&[u8]>>(7).map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        body: Bytes::copy_from_slice(row.get(8)),
    }
}

/// The events with this id, one per source.
pub(super) async fn by_id(conn: &Conn, project: ProjectNo, id: &str) -> Asked<Vec<EventRow>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM events WHERE seq = ANY(ARRAY(SELECT event FROM dedupe WHERE key_high = $1))
            AND project = $2 AND id = $3 ORDER BY seq"
    );
    Ok(conn
        .rows(&sql, &[&high(project, id), &project, &id.as_bytes()])
        .await?
        .iter()
        .map(event_row)
        .collect())
}

/// One event, if it is still there.
pub(super) async fn by_seqs(conn: &Conn, seqs: &[Seq]) -> Asked<Vec<EventRow>> {
    let sql = format!("SELECT {COLUMNS} FROM events WHERE seq = ANY($1) ORDER BY seq");
    Ok(conn.rows(&sql, &[&seqs]).await?.iter().map(event_row).collect())
}

/// Those of these events that are a project's and still there.
pub(super) async fn by_seqs_of(
    conn: &Conn,
    project: ProjectNo,
    seqs: &[Seq],
) -> Asked<BTreeMap<Seq, EventRow>> {
    let sql = format!("SELECT {COLUMNS} FROM events WHERE seq = ANY($1) AND project = $2");
    let rows = conn.rows(&sql, &[&seqs, &project]).await?;
    Ok(rows.iter().map(|row| (row.get(0), event_row(row))).collect())
}

/// Without a type the rows of all projects are looked at, and counted: a project with few events in a large store must
/// not make one page walk through everybody's.
pub(super) fn list_sql(filter: &EventFilter) -> String {
    let narrow = if filter.type_name.is_some() { "project = $2 AND type = $3" } else { "$3::bytea IS NULL" };
    let wanted = "project = $2 AND ($5::bytea IS NULL OR source = $5) AND ($6::bytea IS NULL OR subject = $6)
        AND time >= $7 AND time < $8";
    format!("SELECT {COLUMNS}, ({wanted}) FROM events WHERE {narrow} AND seq < $1 ORDER BY seq DESC LIMIT $4")
}

fn wish(text: &Option<String>) -> Option<&[u8]> {
    text.as_deref().map(str::as_bytes)
}

/// How many rows one question brings; a page asks as often as it must, and stops when it is full.
const ROWS_PER_QUESTION: usize = 200;

/// A page of events, newest first. Looks at a bounded number of rows; a rare hit may need several pages.
pub(super) async fn list(conn: &Conn, project: ProjectNo, filter: &EventFilter) -> Asked<Page<EventRow>> {
    let sql = list_sql(filter);
    let mut page = Page { items: Vec::new(), next: None };
    let (mut before, mut scanned) = (filter.before.unwrap_or(Seq::MAX), 0);
    let from = filter.from.map_or(i64::MIN, Timestamp::as_ms);
    let to = filter.to.map_or(i64::MAX, Timestamp::as_ms);
    let (source, subject) = (wish(&filter.source), wish(&filter.subject));
    while scanned < PAGE_ROWS_SCANNED_MAX {
        let limit = ROWS_PER_QUESTION.min(PAGE_ROWS_SCANNED_MAX - scanned) as i64;
        let rows = conn
            .rows(&sql, &[&before, &project, &wish(&filter.type_name), &limit, &source, &subject, &from, &to])
            .await?;
        for row in &rows {
            if page.items.len() == filter.limit {
                return Ok(page);
            }
            scanned += 1;
            if row.get::<_, Option<bool>>(9) == Some(true) {
                page.items.push(event_row(row));
            }
            before = row.get(0);
            page.next = Some(before);
        }
        if (rows.len() as i64) < limit {
            page.next = None;
            break;
        }
    }
    Ok(page)
}

/// Before it draws numbers, a group takes a lock that tells from where on: see [`horizon`].
pub(super) fn horizon_tag(space: i32) -> i64 {
    // The block numbers below it have 44 bits.
    (i64::from(space) & 0x7_ffff) << 44
}

/// No event at or below this number can come any more. A group that is under way holds a lock on the last number that
/// was drawn before its own; the sequence is read before the locks, so whoever is not among them draws a higher one.
/// It has its own statement: what it excludes must be visible to the next one.
pub(super) async fn horizon(conn: &Conn, space: i32) -> Asked<Seq> {
    let last: i64 = conn.only("SELECT last_value FROM numbers", &[]).await?.get(0);
    let (tag, mask) = (horizon_tag(space), (1_i64 << 44) - 1);
    let row = conn
        .only(
            "SELECT min(held & $2) FROM (SELECT (classid::bigint << 32) | objid::bigint AS held FROM pg_locks
                WHERE locktype = 'advisory' AND objsubid = 1
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) l
             WHERE held & ~$2 = $1",
            &[&tag, &mask],
        )
        .await?;
    let held: Option<i64> = row.get(0);
    let block = held.map_or(last, |held| held.min(last));
    Ok(((block + 1) << BLOCK_BITS) - 1)
}

/// The newest number under which no event can come any more.
pub(super) async fn newest(conn: &Conn, space: i32) -> Asked<Seq> {
    let horizon = horizon(conn, space).await?;
    let sql = "SELECT seq FROM events WHERE seq <= $1 ORDER BY seq DESC LIMIT 1";
    Ok(conn.row(sql, &[&horizon]).await?.map_or(0, |row| row.get(0)))
}

pub(super) fn after_sql() -> String {
    format!("SELECT {COLUMNS}, project FROM events WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3")
}

/// The events after a mark, as far as no lower number can still come.
pub(super) async fn after(
    conn: &Conn,
    space: i32,
    project: ProjectNo,
    after: Seq,
    limit: usize,
    bytes: usize,
) -> Asked<Stretch> {
    let horizon = horizon(conn, space).await?;
    let mut stretch = Stretch { events: Vec::new(), through: after, is_end: false };
    let (mut passed, mut taken) = (0, 0);
    while passed < PAGE_ROWS_SCANNED_MAX {
        let count = ROWS_PER_QUESTION.min(PAGE_ROWS_SCANNED_MAX - passed);
        let rows = conn.rows(&after_sql(), &[&stretch.through, &horizon, &(count as i64)]).await?;
        for row in &rows {
            if stretch.events.len() == limit || taken >= bytes {
                return Ok(stretch);
            }
            passed += 1;
            stretch.through = row.get(0);
            if row.get::<_, ProjectNo>(9) == project {
                let event = event_row(row);
                taken += event.body.len();
                stretch.events.push(event);
            }
        }
        if rows.len() < count {
            stretch.is_end = true;
            break;
        }
    }
    Ok(stretch)
}

/// The next events a backfill looks at, and the step that would cover them. Passes over a bounded number of rows: a
/// step that brings few events, or none, may not be the last.
pub(super) async fn backfill(
    conn: &Conn,
    space: i32,
    subscriber: SubscriberNo,
    limit: usize,
) -> Asked<Option<(BackfillStep, Vec<EventRow>)>> {
    let marks = conn
        .row(
            "SELECT project, backfill_after, backfill_until, created_version, backfill_from, version FROM subscribers
             WHERE no = $1 AND backfill_after IS NOT NULL AND deleted_at IS NULL",
            &[&subscriber],
        )
        .await?;
    let Some(row) = marks else { return Ok(None) };
    let (project, after, until): (ProjectNo, Seq, Seq) = (row.get(0), row.get(1), row.get(2));
    let (since, from, version): (Version, i64, Version) = (row.get(3), row.get(4), row.get(5));
    // Among live events that were left to it, one with a lower number may still come.
    let settled = horizon(conn, space).await?.clamp(after, until.max(after));
    let (through, mut events) = scan(conn, project, after, settled, limit).await?;
    events.retain(|event| event.accepted_at.as_ms() >= from || event.version >= since);
    let passed = conn.rows(WAITING_BETWEEN, &[&subscriber, &after, &through]).await?;
    let passed: BTreeSet<Lane> = passed.iter().map(|row| row.get(0)).collect();
    Ok(Some((
        BackfillStep {
            subscriber,
            project,
            after,
            through,
            until,
            since,
            version,
            matched: Vec::new(),
            passed,
            judge: None,
        },
        events,
    )))
}

/// Lanes with a delivery that waits and whose place is its own number: a replay that a step goes past.
pub(super) const WAITING_BETWEEN: &str = "SELECT DISTINCT lane FROM deliveries
    WHERE subscriber = $1 AND id > $2 AND id <= $3 AND lane IS NOT NULL AND shelf = 2";

/// A step of a backfill with what came since it was prepared, if it is the next one and that is so little that it is the last.
/// Whoever leaves it more holds the lock of a lane: with all of them held, this is the whole truth.
pub(super) async fn last_step(conn: &Conn, step: &BackfillStep) -> Asked<Option<BackfillStep>> {
    let marks = conn
        .row(
            "SELECT backfill_until, backfill_from FROM subscribers
             WHERE no = $1 AND backfill_after = $2 AND version <= $3 AND deleted_at IS NULL",
            &[&step.subscriber, &step.after, &step.version],
        )
        .await?;
    let Some(row) = marks else { return Ok(None) };
    let (until, from): (Seq, i64) = (row.get(0), row.get(1));
    if until <= step.through {
        return Ok(Some(step.clone()));
    }
    if step.judge.is_none() {
        return Ok(None);
    }
    let (through, mut events) = scan(conn, step.project, step.through, until, BACKFILL_REST_MAX).await?;
    events.retain(|event| event.accepted_at.as_ms() >= from || event.version >= step.since);
    Ok(if through < until { None } else { step.with_rest(until, events) })
}

/// A project's events between two marks, oldest first, and how far they reach. Passes over a bounded number of rows, and
/// takes a bounded number of bytes.
pub(super) async fn scan(
    conn: &Conn,
    project: ProjectNo,
    after: Seq,
    until: Seq,
    limit: usize,
) -> Asked<(Seq, Vec<EventRow>)> {
    let mut events = Vec::new();
    let (mut passed, mut taken, mut through) = (0, 0, after);
    while passed < PAGE_ROWS_SCANNED_MAX {
        let count = ROWS_PER_QUESTION.min(PAGE_ROWS_SCANNED_MAX - passed);
        let rows = conn.rows(&after_sql(), &[&through, &until, &(count as i64)]).await?;
        for row in &rows {
            if events.len() == limit || taken >= STEP_BYTES_MAX {
                return Ok((through, events));
            }
            passed += 1;
            through = row.get(0);
            if row.get::<_, ProjectNo>(9) == project {
                let event = event_row(row);
                taken += event.body.len();
                events.push(event);
            }
        }
        if rows.len() < count {
            return Ok((until, events));
        }
    }
    Ok((through, events))
}
