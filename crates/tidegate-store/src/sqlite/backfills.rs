//! Backfills of metrics: what was accepted before a type declared them is counted, step by step.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tidegate_core::id::{BackfillNo, ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::time::Timestamp;

use super::{Writer, events, failed, rebuilds, stamp};
use crate::observe::Covered;
use crate::rebuild::Then;
use crate::{BackfillRow, Error, NewBackfill, Page, Rebuild, Recount, Result, Slice, observe, rebuild};

const COLUMNS: &str =
    "no, project, service, type, metrics, definition, begin, after, until, looked, started_at,
    finished_at, rebuild";

fn row(row: &Row<'_>) -> rusqlite::Result<BackfillRow> {
    let (metrics, version, behind) = observe::read_covered(row.get_ref(4)?.as_str()?);
    Ok(BackfillRow {
        no: row.get(0)?,
        project: row.get(1)?,
        service: row.get(2)?,
        type_name: row.get(3)?,
        metrics,
        definition: row.get(5)?,
        begin: row.get(6)?,
        after: row.get(7)?,
        until: row.get(8)?,
        looked: row.get(9)?,
        started_at: Timestamp::from_ms(row.get(10)?),
        finished_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
        stopped: Rebuild::read_stopped(row.get_ref(12)?.as_str()?),
        rebuild: Rebuild::read(row.get_ref(12)?.as_str()?),
        version,
        behind,
    })
}

pub(super) fn start(writer: &mut Writer, new: &NewBackfill, now: Timestamp) -> Result<BackfillRow> {
    let (until, version) = (writer.next_no - 1, writer.version);
    let tx = writer.conn.transaction().map_err(failed)?;
    let (before, mut versions) = before(&tx, new).map_err(failed)?;
    versions.retain(|then| then.of == new.type_name);
    let mut counted = observe::not_yet(&new.metrics, &before, &versions, version);
    let (anew, known) = rebuilds::decide(&tx, new).map_err(failed)?;
    observe::some_left(&counted.0, &anew)?;
    let (made, rebuild) = rebuilds::begin(&tx, (&anew, &known)).map_err(failed)?;
    counted.0.extend(made);
    let started = insert(&tx, new, (&counted, &rebuild), until, now).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok(started)
}

/// What has been asked for already of this type, and what the types of its service were.
fn before(tx: &Transaction<'_>, new: &NewBackfill) -> rusqlite::Result<(Vec<Covered>, Vec<Then>)> {
    let sql = "SELECT metrics FROM backfills WHERE project = ?1 AND service = ?2 AND type = ?3";
    let mut statement = tx.prepare(sql)?;
    let lists = statement
        .query_map(params![new.project, new.service, new.type_name], |row| {
            Ok(observe::read_covered(row.get_ref(0)?.as_str()?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok((lists, rebuilds::versions(tx, new)?))
}

fn insert(
    tx: &Transaction<'_>,
    new: &NewBackfill,
    (covered, rebuild): (&Covered, &Rebuild),
    until: Seq,
    now: Timestamp,
) -> rusqlite::Result<BackfillRow> {
    // States are told of by other types too.
    let of = if rebuild.is_empty() { "project = ?1 AND type = ?3" } else { "TRUE" };
    let sql = format!(
        "INSERT INTO backfills (project, service, type, metrics, definition, begin, after, until, started_at, rebuild)
         SELECT ?1, ?2, ?3, ?4, ?5, first, first, max(first, ?6), ?7, ?8 FROM
            (SELECT coalesce(min(seq) - 1, ?6) AS first FROM events WHERE {of})
         RETURNING {COLUMNS}"
    );
    let (metrics, rebuild) = (observe::written_covered(covered), rebuild.written());
    let NewBackfill { project, service, type_name, definition, .. } = new;
    let values = params![project, service, type_name, metrics, definition, until, now.as_ms(), rebuild];
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

pub(super) fn stop(
    writer: &mut Writer,
    (project, no): (ProjectNo, BackfillNo),
    now: Timestamp,
) -> Result<BackfillRow> {
    let tx = writer.conn.transaction().map_err(failed)?;
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE project = ?1 AND no = ?2");
    let found = tx.query_row(&sql, params![project, no], row).optional().map_err(failed)?;
    let found = found.ok_or(Error::NotFound)?;
    rebuild::check_stop(&found)?;
    rebuilds::stop(&tx, &found, rebuild::ASKED, now).map_err(failed)?;
    let found = tx.query_row(&sql, params![project, no], row).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok(found)
}

pub(super) fn running(conn: &Connection) -> rusqlite::Result<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE finished_at IS NULL ORDER BY no DESC");
    conn.prepare_cached(&sql)?.query_map([], row)?.collect()
}

/// Those of one service.
pub(super) fn of_service(conn: &Connection, of: &Recount) -> rusqlite::Result<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE project = ?1 AND service = ?2 ORDER BY no DESC");
    conn.prepare_cached(&sql)?.query_map(params![of.project, of.service], row)?.collect()
}

pub(super) fn unbackfilled_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns} FROM events WHERE project = ?1 AND type = ?2 AND seq > ?3 AND seq <= ?4
         ORDER BY seq LIMIT ?5"
    )
}

/// Where it ends is read before the types, and these before their events: whatever an event was judged by is known then.
pub(super) fn unbackfilled(
    conn: &Connection,
    of: &BackfillRow,
    limit: usize,
    bytes: usize,
) -> rusqlite::Result<Slice> {
    let until = if of.rebuild.is_empty() {
        of.until
    } else {
        let newest = conn.prepare_cached("SELECT max(seq) FROM events")?;
        { newest }.query_row([], |row| row.get::<_, Option<Seq>>(0))?.unwrap_or(0)
    };
    let until = until.max(of.after);
    let types = rebuilds::types(conn, of)?;
    let limit = (limit.min(PAGE_ROWS_SCANNED_MAX) / types.len()).max(1);
    let bytes = bytes / types.len();
    let slices = types.iter().map(|type_name| of_one_type(conn, of, type_name, until, (limit, bytes)));
    Ok(rebuild::merged(slices.collect::<rusqlite::Result<_>>()?, until))
}

fn of_one_type(
    conn: &Connection,
    of: &BackfillRow,
    type_name: &str,
    until: Seq,
    (limit, bytes): (usize, usize),
) -> rusqlite::Result<Slice> {
    let mut statement = conn.prepare_cached(&unbackfilled_sql())?;
    let mut rows = statement.query(params![of.project, type_name, of.after, until, limit as i64])?;
    let mut slice = Slice { through: of.after, ..Slice::default() };
    let (mut taken, mut passed) = (0, 0);
    while let Some(row) = rows.next()? {
        if passed > 0 && taken >= bytes {
            return Ok(slice);
        }
        passed += 1;
        let event = events::event_row(row)?;
        taken += event.body.len();
        slice.through = event.seq;
        if event.source == of.service {
            slice.events.push((of.project, event));
        }
    }
    slice.is_end = passed < limit;
    Ok(slice)
}
