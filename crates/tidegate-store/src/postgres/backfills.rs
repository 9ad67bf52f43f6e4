//! Backfills of metrics: what was accepted before a type declared them is counted, step by step.

use tidegate_core::id::{BackfillNo, ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::{configuration, events, rebuilds};
use crate::observe::Covered;
use crate::{BackfillRow, Error, NewBackfill, Page, Rebuild, Recount, Slice, observe, rebuild};

const COLUMNS: &str =
    "no, project, service, type, metrics, definition, \"begin\", after, until, looked, started_at,
    finished_at, rebuild";

fn backfill_row(row: &Row) -> BackfillRow {
    let (metrics, version, behind) = observe::read_covered(row.get(4));
    BackfillRow {
        no: row.get(0),
        project: row.get(1),
        service: row.get(2),
        type_name: row.get(3),
        metrics,
        definition: row.get(5),
        begin: row.get(6),
        after: row.get(7),
        until: row.get(8),
        looked: row.get::<_, i64>(9).unsigned_abs(),
        started_at: Timestamp::from_ms(row.get(10)),
        finished_at: row.get::<_, Option<i64>>(11).map(Timestamp::from_ms),
        stopped: Rebuild::read_stopped(row.get(12)),
        rebuild: Rebuild::read(row.get(12)),
        version,
        behind,
    }
}

/// Nothing is accepted by an older configuration once this one is held: all events that the backfill is about are there.
pub(super) async fn start(conn: &Conn, space: i32, new: &NewBackfill, now: Timestamp) -> Asked<BackfillRow> {
    configuration::hold_alone(conn, space).await?;
    let name: super::db::Values<'_> = &[&new.project, &new.service, &new.type_name];
    let before = "SELECT metrics FROM backfills WHERE project = $1 AND service = $2 AND type = $3";
    let before = conn.rows(before, name).await?;
    let before: Vec<Covered> = before.iter().map(|row| observe::read_covered(row.get(0))).collect();
    let mut versions = rebuilds::versions(conn, new).await?;
    versions.retain(|then| then.of == new.type_name);
    let version = configuration::version(conn).await?;
    let mut counted = observe::not_yet(&new.metrics, &before, &versions, version);
    let (anew, known) = rebuilds::decide(conn, space, new).await?;
    observe::some_left(&counted.0, &anew)?;
    let (made, rebuild) = rebuilds::begin(conn, (&anew, &known)).await?;
    counted.0.extend(made);
    // States are told of by other types too.
    let of = if rebuild.is_empty() { "project = $1 AND type = $6" } else { "$6::bytea IS NOT NULL" };
    let sql = format!(
        "INSERT INTO backfills (project, service, type, metrics, definition, \"begin\", after, until, started_at, rebuild)
         SELECT $1, $2, $3, $4, $5, first, first, greatest(first, last), $7, $8 FROM
            (SELECT coalesce((SELECT min(seq) - 1 FROM events WHERE {of}), last) AS first, last
                FROM (SELECT ((last_value + 1) << 20) - 1 AS last FROM numbers) n) b
         RETURNING {COLUMNS}"
    );
    let (metrics, rebuild) = (observe::written_covered(&counted), rebuild.written());
    let (definition, kind) = (&new.definition, new.type_name.as_bytes());
    let values: super::db::Values<'_> =
        &[&new.project, &new.service, &new.type_name, &metrics, definition, &kind, &now.as_ms(), &rebuild];
    Ok(backfill_row(&conn.only(&sql, values).await?))
}

pub(super) async fn list(
    conn: &Conn,
    project: ProjectNo,
    before: Option<BackfillNo>,
    limit: usize,
) -> Asked<Page<BackfillRow>> {
    let sql =
        format!("SELECT {COLUMNS} FROM backfills WHERE project = $1 AND no < $2 ORDER BY no DESC LIMIT $3");
    let rows = conn.rows(&sql, &[&project, &before.unwrap_or(BackfillNo::MAX), &(limit as i64 + 1)]).await?;
    let mut items: Vec<BackfillRow> = rows.iter().map(backfill_row).collect();
    let is_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|row| row.no).filter(|_| is_more);
    Ok(Page { items, next })
}

pub(super) async fn stop(
    conn: &Conn,
    space: i32,
    (project, no): (ProjectNo, BackfillNo),
    now: Timestamp,
) -> Asked<BackfillRow> {
    configuration::hold_alone(conn, space).await?;
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE project = $1 AND no = $2");
    let found = conn.row(&sql, &[&project, &no]).await?.ok_or(Error::NotFound)?;
    let found = backfill_row(&found);
    rebuild::check_stop(&found)?;
    rebuilds::stop(conn, &found, rebuild::ASKED, now).await?;
    Ok(backfill_row(&conn.only(&sql, &[&project, &no]).await?))
}

pub(super) async fn running(conn: &Conn) -> Asked<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE finished_at IS NULL ORDER BY no DESC");
    Ok(conn.rows(&sql, &[]).await?.iter().map(backfill_row).collect())
}

/// Those of one service.
pub(super) async fn of_service(conn: &Conn, of: &Recount) -> Asked<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE project = $1 AND service = $2 ORDER BY no DESC");
    let rows = conn.rows(&sql, &[&of.project, &of.service]).await?;
    Ok(rows.iter().map(backfill_row).collect())
}

/// Where it ends is asked before the types, and these before their events: whatever an event was judged by is known then.
pub(super) async fn unbackfilled(
    conn: &Conn,
    space: i32,
    of: &BackfillRow,
    limit: usize,
    bytes: usize,
) -> Asked<Slice> {
    let until = if of.rebuild.is_empty() { of.until } else { events::horizon(conn, space).await? };
    let until = until.max(of.after);
    let types = rebuilds::types(conn, of).await?;
    let limit = (limit.min(PAGE_ROWS_SCANNED_MAX) / types.len()).max(1);
    let bytes = bytes / types.len();
    let mut slices = Vec::with_capacity(types.len());
    for type_name in &types {
        slices.push(of_one_type(conn, of, type_name, until, (limit, bytes)).await?);
    }
    Ok(rebuild::merged(slices, until))
}

async fn of_one_type(
    conn: &Conn,
    of: &BackfillRow,
    type_name: &str,
    until: Seq,
    (limit, bytes): (usize, usize),
) -> Asked<Slice> {
    let columns = events::COLUMNS;
    let sql = format!(
        "SELECT {columns} FROM events WHERE project = $1 AND type = $2 AND seq > $3 AND seq <= $4
         ORDER BY seq LIMIT $5"
    );
    let kind = type_name.as_bytes();
    let rows = conn.rows(&sql, &[&of.project, &kind, &of.after, &until, &(limit as i64)]).await?;
    let mut slice = Slice { through: of.after, is_end: rows.len() < limit, ..Slice::default() };
    let mut taken = 0;
    for (passed, row) in rows.iter().enumerate() {
        if passed > 0 && taken >= bytes {
            slice.is_end = false;
            break;
        }
        let event = events::event_row(row);
        taken += event.body.len();
        slice.through = event.seq;
        if event.source == of.service {
            slice.events.push((of.project, event));
        }
    }
    Ok(slice)
}
