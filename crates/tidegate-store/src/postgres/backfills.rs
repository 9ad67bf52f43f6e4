//! Backfills of metrics: what was accepted before a type declared them is counted, step by step.

use tidegate_core::id::{BackfillNo, ProjectNo};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::{configuration, events};
use crate::{BackfillRow, Metric, NewBackfill, Page, Recount, Slice, observe};

const COLUMNS: &str =
    "no, project, service, type, metrics, definition, \"begin\", after, until, looked, started_at,
    finished_at";

fn backfill_row(row: &Row) -> BackfillRow {
    BackfillRow {
        no: row.get(0),
        project: row.get(1),
        service: row.get(2),
        type_name: row.get(3),
        metrics: observe::read(row.get(4)),
        definition: row.get(5),
        begin: row.get(6),
        after: row.get(7),
        until: row.get(8),
        looked: row.get::<_, i64>(9).unsigned_abs(),
        started_at: Timestamp::from_ms(row.get(10)),
        finished_at: row.get::<_, Option<i64>>(11).map(Timestamp::from_ms),
    }
}

/// Nothing is accepted by an older configuration once this one is held: all events that the backfill is about are there.
pub(super) async fn start(conn: &Conn, space: i32, new: &NewBackfill, now: Timestamp) -> Asked<BackfillRow> {
    configuration::hold_alone(conn, space).await?;
    let name: super::db::Values<'_> = &[&new.project, &new.service, &new.type_name];
    let before = "SELECT metrics FROM backfills WHERE project = $1 AND service = $2 AND type = $3";
    let before = conn.rows(before, name).await?;
    let before: Vec<Metric> = before.iter().flat_map(|row| observe::read(row.get(0))).collect();
    let metrics = observe::written(&observe::not_yet(new.metrics.clone(), &before)?);
    let sql = format!(
        "INSERT INTO backfills (project, service, type, metrics, definition, \"begin\", after, until, started_at)
         SELECT $1, $2, $3, $4, $5, first, first, greatest(first, last), $7 FROM
            (SELECT coalesce(min(seq) - 1, min(last)) AS first, min(last) AS last
                FROM (SELECT ((last_value + 1) << 20) - 1 AS last FROM numbers) n
                LEFT JOIN events ON project = $1 AND type = $6) b
         RETURNING {COLUMNS}"
    );
    let (definition, kind) = (&new.definition, new.type_name.as_bytes());
    let values: super::db::Values<'_> =
        &[&new.project, &new.service, &new.type_name, &metrics, definition, &kind, &now.as_ms()];
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

pub(super) async fn running(conn: &Conn) -> Asked<Vec<BackfillRow>> {
    let sql = format!("SELECT {COLUMNS} FROM backfills WHERE finished_at IS NULL ORDER BY no DESC");
    Ok(conn.rows(&sql, &[]).await?.iter().map(backfill_row).collect())
}

/// Those of one type.
pub(super) async fn of_type(conn: &Conn, of: &Recount) -> Asked<Vec<BackfillRow>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM backfills WHERE project = $1 AND service = $2 AND type = $3 ORDER BY no DESC"
    );
    let rows = conn.rows(&sql, &[&of.project, &of.service, &of.type_name]).await?;
    Ok(rows.iter().map(backfill_row).collect())
}

pub(super) async fn unbackfilled(conn: &Conn, of: &BackfillRow, limit: usize, bytes: usize) -> Asked<Slice> {
    let limit = limit.min(PAGE_ROWS_SCANNED_MAX);
    let columns = events::COLUMNS;
    let sql = format!(
        "SELECT {columns} FROM events WHERE project = $1 AND type = $2 AND seq > $3 AND seq <= $4
         ORDER BY seq LIMIT $5"
    );
    let kind = of.type_name.as_bytes();
    let rows = conn.rows(&sql, &[&of.project, &kind, &of.after, &of.until, &(limit as i64)]).await?;
    let mut slice = Slice { through: of.after, is_end: rows.len() < limit, ..Slice::default() };
    let mut taken = 0;
    for row in &rows {
        if taken >= bytes {
            slice.is_end = false;
            break;
        }
        let event = events::event_row(row);
        taken += event.body.len();
        (slice.through, slice.at) = (event.seq, Some(event.accepted_at));
        if event.source == of.service {
            slice.events.push((of.project, event));
        }
    }
    Ok(slice)
}
