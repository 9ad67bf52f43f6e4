//! Events: appended, looked up, listed. Never changed.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::event::{Event, Fingerprint, lookup_range};
use tidegate_core::fold::Member;
use tidegate_core::id::{Lane, ProjectNo, Seq, SubscriberNo};
use tidegate_core::limits::{BACKFILL_REST_MAX, PAGE_ROWS_SCANNED_MAX, STEP_BYTES_MAX};
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::dedupe::Dedupe;
use crate::{BackfillStep, EventFilter, EventRow, Page, RoutedUnit, Stretch, UnitStatus, fingerprint_from};

/// Whether a unit is there already, and if so, how it compares.
pub(super) fn known(
    context: &Context<'_>,
    dedupe: &Dedupe,
    project: ProjectNo,
    routed: &RoutedUnit,
) -> rusqlite::Result<Option<UnitStatus>> {
    for (event, key) in routed.unit.events.iter().zip(&routed.keys) {
        for seq in dedupe.events_of(context.conn, &context.delta, *key)? {
            match same_id(context.conn, seq, project, event)? {
                None => {}
                // Whichever of its events it is: the others may have gone before it.
                Some(print) if print == Some(routed.unit.fingerprint) => {
                    return Ok(Some(UnitStatus::Duplicate));
                }
                Some(_) => return Ok(Some(UnitStatus::Conflict)),
            }
        }
    }
    Ok(None)
}

pub(super) const SAME_ID: &str =
    "SELECT fingerprint FROM events WHERE seq = ?1 AND project = ?2 AND source = ?3 AND id = ?4";

/// The fingerprint of event `seq`, if it really has this source and id: a shared key alone proves nothing.
fn same_id(
    conn: &Connection,
    seq: Seq,
    project: ProjectNo,
    event: &Event,
) -> rusqlite::Result<Option<Option<Fingerprint>>> {
    conn.prepare_cached(SAME_ID)?
        .query_row(params![seq, project, event.source, event.id], |row| {
            Ok(fingerprint_from(row.get_ref(0)?.as_blob()?))
        })
        .optional()
}

pub(super) const INSERT: &str = "INSERT INTO events
    (seq, project, incarnation, version, day, accepted_at, time, source, id, type, subject, fingerprint, body, fold,
        fold_prev)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

pub(super) fn insert(
    context: &mut Context<'_>,
    project: ProjectNo,
    seq: Seq,
    event: &Event,
    fingerprint: &Fingerprint,
    member: Option<Member>,
) -> rusqlite::Result<()> {
    let now = context.group.now;
    context.statements.insert_event.execute(params![
        seq,
        project,
        context.incarnation,
        context.group.version,
        now.day(),
        now.as_ms(),
        event.time.as_ms(),
        event.source,
        event.id,
        event.type_name,
        event.subject,
        fingerprint.as_slice(),
        &event.body[..],
        member.map(|member| member.window),
        member.and_then(|member| member.prev),
    ])?;
    Ok(())
}

pub(super) const COLUMNS: &str = "seq, version, accepted_at, time, id, source, type, subject, body";

pub(super) fn event_row(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        seq: row.get(0)?,
        version: row.get(1)?,
        accepted_at: Timestamp::from_ms(row.get(2)?),
        time: Timestamp::from_ms(row.get(3)?),
        id: row.get(4)?,
        source: row.get(5)?,
        type_name: row.get(6)?,
        subject: row.get(7)?,
        body: Bytes::copy_from_slice(row.get_ref(8)?.as_blob()?),
    })
}

/// The events with this id, one per source.
pub(super) fn by_id(
    conn: &Connection,
    dedupe: &Mutex<Dedupe>,
    project: ProjectNo,
    id: &str,
) -> rusqlite::Result<Vec<EventRow>> {
    let candidates = dedupe
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .events_within(conn, &lookup_range(project, id))?;
    let sql = format!("SELECT {COLUMNS} FROM events WHERE seq = ?1 AND project = ?2 AND id = ?3");
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = Vec::new();
    for seq in candidates {
        found.extend(statement.query_row(params![seq, project, id], event_row).optional()?);
    }
    Ok(found)
}

/// Without a type the rows of all projects are looked at, and counted: a project with few events in a large store must
/// not make one page walk through everybody's.
pub(super) fn list_sql(filter: &EventFilter) -> String {
    let narrow = if filter.type_name.is_some() { "project = ?2 AND type = ?3" } else { "?3 IS NULL" };
    format!("SELECT {COLUMNS}, project FROM events WHERE {narrow} AND seq < ?1 ORDER BY seq DESC LIMIT ?4")
}

/// A page of events, newest first. Looks at a bounded number of rows; a rare hit may need several pages.
pub(super) fn list(
    conn: &Connection,
    project: ProjectNo,
    filter: &EventFilter,
) -> rusqlite::Result<Page<EventRow>> {
    let mut statement = conn.prepare_cached(&list_sql(filter))?;
    let before = filter.before.unwrap_or(Seq::MAX);
    let mut rows =
        statement.query(params![before, project, filter.type_name, PAGE_ROWS_SCANNED_MAX as i64])?;
    let mut page = Page { items: Vec::new(), next: None };
    let mut scanned = 0;
    while let Some(row) = rows.next()? {
        let seq: Seq = row.get(0)?;
        if page.items.len() == filter.limit {
            return Ok(page);
        }
        scanned += 1;
        if row.get::<_, ProjectNo>(9)? == project && wanted(row, filter)? {
            page.items.push(event_row(row)?);
        }
        page.next = Some(seq);
    }
    if scanned < PAGE_ROWS_SCANNED_MAX {
        page.next = None;
    }
    Ok(page)
}

fn wanted(row: &Row<'_>, filter: &EventFilter) -> rusqlite::Result<bool> {
    let time = Timestamp::from_ms(row.get(3)?);
    if filter.from.is_some_and(|from| time < from) || filter.to.is_some_and(|to| time >= to) {
        return Ok(false);
    }
    if let Some(source) = &filter.source
        && row.get_ref(5)?.as_str()? != source
    {
        return Ok(false);
    }
    match &filter.subject {
        None => Ok(true),
        Some(subject) => Ok(row.get_ref(7)?.as_str_or_null()? == Some(subject)),
    }
}

pub(super) const NEWEST: &str = "SELECT coalesce(max(seq), 0) FROM events";

pub(super) fn newest(conn: &Connection) -> rusqlite::Result<Seq> {
    conn.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))
}

pub(super) fn after_sql() -> String {
    format!("SELECT {COLUMNS}, project FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2")
}

/// The events after a mark. There is one writer, so a number that is read is followed by higher ones only.
pub(super) fn after(
    conn: &Connection,
    project: ProjectNo,
    after: Seq,
    limit: usize,
    bytes: usize,
) -> rusqlite::Result<Stretch> {
    let mut statement = conn.prepare_cached(&after_sql())?;
    let mut rows = statement.query(params![after, PAGE_ROWS_SCANNED_MAX as i64])?;
    let mut stretch = Stretch { events: Vec::new(), through: after, is_end: false };
    let (mut passed, mut taken) = (0, 0);
    while let Some(row) = rows.next()? {
        if stretch.events.len() == limit || taken >= bytes {
            return Ok(stretch);
        }
        passed += 1;
        stretch.through = row.get(0)?;
        if row.get::<_, ProjectNo>(9)? == project {
            let event = event_row(row)?;
            taken += event.body.len();
            stretch.events.push(event);
        }
    }
    stretch.is_end = passed < PAGE_ROWS_SCANNED_MAX;
    Ok(stretch)
}

/// One event, if it is still there.
pub(super) fn by_seq(conn: &Connection, seq: Seq) -> rusqlite::Result<Option<EventRow>> {
    let sql = format!("SELECT {COLUMNS} FROM events WHERE seq = ?1");
    conn.prepare_cached(&sql)?.query_row([seq], event_row).optional()
}

/// One event of a project, if it is still there.
pub(super) fn by_seq_of(
    conn: &Connection,
    project: ProjectNo,
    seq: Seq,
) -> rusqlite::Result<Option<EventRow>> {
    let sql = format!("SELECT {COLUMNS} FROM events WHERE seq = ?1 AND project = ?2");
    conn.prepare_cached(&sql)?.query_row([seq, project], event_row).optional()
}

pub(super) fn backfill_sql() -> String {
    format!("SELECT {COLUMNS}, project FROM events WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3")
}

/// The next events a backfill looks at, and the step that would cover them. Passes over a bounded number of rows: a
/// step that brings few events, or none, may not be the last.
pub(super) fn backfill(
    conn: &Connection,
    subscriber: SubscriberNo,
    limit: usize,
) -> rusqlite::Result<Option<(BackfillStep, Vec<EventRow>)>> {
    let marks = conn
        .prepare_cached(
            "SELECT project, backfill_after, backfill_until, created_version, backfill_from, version FROM subscribers
             WHERE no = ?1 AND backfill_after IS NOT NULL AND deleted_at IS NULL",
        )?
        .query_row([subscriber], |row| {
            let (project, after, until) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((project, after, until, row.get(3)?, row.get::<_, i64>(4)?, row.get(5)?))
        })
        .optional()?;
    let Some((project, after, until, since, from, version)) = marks else { return Ok(None) };
    let (through, mut events) = scan(conn, project, after, until, limit)?;
    events.retain(|event| event.accepted_at.as_ms() >= from || event.version >= since);
    let mut waiting = conn.prepare_cached(WAITING_BETWEEN)?;
    let passed = waiting.query_map([subscriber, after, through], |row| row.get(0))?;
    let passed = passed.collect::<rusqlite::Result<BTreeSet<Lane>>>()?;
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
pub(super) const WAITING_BETWEEN: &str = "SELECT lane FROM deliveries
    WHERE subscriber = ?1 AND id > ?2 AND id <= ?3 AND lane IS NOT NULL AND status = 2";

/// A step of a backfill with what came since it was prepared, if that is so little that it is the last step.
pub(super) fn last_step(conn: &Connection, step: &BackfillStep) -> rusqlite::Result<Option<BackfillStep>> {
    let (until, from): (Seq, i64) = conn
        .prepare_cached("SELECT backfill_until, backfill_from FROM subscribers WHERE no = ?1")?
        .query_row([step.subscriber], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if until <= step.through {
        return Ok(Some(step.clone()));
    }
    if step.judge.is_none() {
        return Ok(None);
    }
    let (through, mut events) = scan(conn, step.project, step.through, until, BACKFILL_REST_MAX)?;
    events.retain(|event| event.accepted_at.as_ms() >= from || event.version >= step.since);
    Ok(if through < until { None } else { step.with_rest(until, events) })
}

/// A project's events between two marks, oldest first, and how far they reach. Passes over a bounded number of rows, and
/// takes a bounded number of bytes.
pub(super) fn scan(
    conn: &Connection,
    project: ProjectNo,
    after: Seq,
    until: Seq,
    limit: usize,
) -> rusqlite::Result<(Seq, Vec<EventRow>)> {
    let mut events = Vec::new();
    let (mut passed, mut taken, mut through) = (0, 0, after);
    let mut statement = conn.prepare_cached(&backfill_sql())?;
    let mut rows = statement.query(params![after, until, PAGE_ROWS_SCANNED_MAX as i64])?;
    while let Some(row) = rows.next()? {
        if events.len() == limit || taken >= STEP_BYTES_MAX {
            return Ok((through, events));
        }
        passed += 1;
        through = row.get(0)?;
        if row.get::<_, ProjectNo>(9)? == project {
            let event = event_row(row)?;
            taken += event.body.len();
            events.push(event);
        }
    }
    Ok((if passed < PAGE_ROWS_SCANNED_MAX { until } else { through }, events))
}

/// How large an event of a project is, if it is still kept.
pub(super) fn size(conn: &Connection, project: ProjectNo, seq: Seq) -> rusqlite::Result<Option<usize>> {
    conn.prepare_cached("SELECT length(body) FROM events WHERE seq = ?1 AND project = ?2")?
        .query_row([seq, project], |row| row.get(0))
        .optional()
}
