//! Backfills of metrics: what was accepted before a type declared them is counted, step by step.

use rusqlite::{Connection, Row, Transaction, params};
use tidegate_core::id::{BackfillNo, ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::time::Timestamp;

use super::{Writer, events, failed, stamp};
use crate::{BackfillRow, Metric, NewBackfill, Page, Recount, Result, Slice, observe};

const COLUMNS: &str =
    "no, project, service, type, metrics, definition, begin, after, until, looked, started_at,
    finished_at";

fn row(row: &Row<'_>) -> rusqlite::Result<BackfillRow> {
    Ok(BackfillRow {
        no: row.get(0)?,
        project: row.get(1)?,
        service: row.get(2)?,
        type_name: row.get(3)?,
        metrics: observe::read(&row.get::<_, String>(4)?),
        definition: row.get(5)?,
        begin: row.get(6)?,
        after: row.get(7)?,
        until: row.get(8)?,
        looked: row.get(9)?,
        started_at: Timestamp::from_ms(row.get(10)?),
        finished_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
    })
}

pub(super) fn start(writer: &mut Writer, new: &NewBackfill, now: Timestamp) -> Result<BackfillRow> {
    let until = writer.next_no - 1;
    let tx = writer.conn.transaction().map_err(failed)?;
    let metrics = observe::not_yet(new.metrics.clone(), &before(&tx, new).map_err(failed)?)?;
    let started = insert(&tx, new, &metrics, until, now).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok(started)
}

/// What has been asked for already of this type.
fn before(tx: &Transaction<'_>, new: &NewBackfill) -> rusqlite::Result<Vec<Metric>> {
    let sql = "SELECT metrics FROM backfills WHERE project = ?1 AND service = ?2 AND type = ?3";
    let mut statement = tx.prepare(sql)?;
    let lists = statement
        .query_map(params![new.project, new.service, new.type_name], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(lists.iter().flat_map(|list| observe::read(list)).collect())
}

fn insert(
    tx: &Transaction<'_>,
    new: &NewBackfill,
    metrics: &[Metric],
    until: Seq,
    now: Timestamp,
) -> rusqlite::Result<BackfillRow> {
    let sql = format!(
        "INSERT INTO backfills (project, service, type, metrics, definition, begin, after, until, started_at)
         SELECT ?1, ?2, ?3, ?4, ?5, first, first, max(first, ?6), ?7 FROM
            (SELECT coalesce(min(seq) - 1, ?6) AS first FROM events WHERE project = ?1 AND type = ?3)
         RETURNING {COLUMNS}"
    );
    let metrics = observe::written(metrics);
    let values =
        params![new.project, new.service, new.type_name, metrics, new.definition, until, now.as_ms()];
    tx.query_row(&sql, values, row)
}

pub(super) fn list(
    conn: &Connection,
    project: ProjectNo,
    before: Option<BackfillNo>,
    limit: usize,
) -> rusqlite::Result<Page<BackfillRow>> {
    let sql =
        format!("SELECT {COLUMNS} FROM backfills WHERE project = ?1 AND no < ?2 ORDER BY no DESC LIMIT ?3");
    let values = params![project, before.unwrap_or(BackfillNo::MAX), limit as i64 + 1];
    let mut items =
        conn.prepare_cached(&sql)?.query_map(values, row)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let is_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|row| row.no).filter(|_| is_more);
    Ok(Page { items, next })
}

pub(super) fn running(conn: &Connection) -> rusqlite::Result<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE finished_at IS NULL ORDER BY no DESC");
    conn.prepare_cached(&sql)?.query_map([], row)?.collect()
}

/// Those of one type.
pub(super) fn of_type(conn: &Connection, of: &Recount) -> rusqlite::Result<Vec<BackfillRow>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM backfills WHERE project = ?1 AND service = ?2 AND type = ?3 ORDER BY no DESC"
    );
    conn.prepare_cached(&sql)?.query_map(params![of.project, of.service, of.type_name], row)?.collect()
}

pub(super) fn unbackfilled_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns} FROM events WHERE project = ?1 AND type = ?2 AND seq > ?3 AND seq <= ?4
         ORDER BY seq LIMIT ?5"
    )
}

pub(super) fn unbackfilled(
    conn: &Connection,
    of: &BackfillRow,
    limit: usize,
    bytes: usize,
) -> rusqlite::Result<Slice> {
    let limit = limit.min(PAGE_ROWS_SCANNED_MAX);
    let mut statement = conn.prepare_cached(&unbackfilled_sql())?;
    let mut rows = statement.query(params![of.project, of.type_name, of.after, of.until, limit as i64])?;
    let mut slice = Slice { through: of.after, ..Slice::default() };
    let (mut taken, mut passed) = (0, 0);
    while let Some(row) = rows.next()? {
        if taken >= bytes {
            return Ok(slice);
        }
        passed += 1;
        let event = events::event_row(row)?;
        taken += event.body.len();
        (slice.through, slice.at) = (event.seq, Some(event.accepted_at));
        if event.source == of.service {
            slice.events.push((of.project, event));
        }
    }
    slice.is_end = passed < limit;
    Ok(slice)
}
