//! Counting again: every observed event of a type, and what was counted of it, in one read transaction.

use rusqlite::{Connection, params};
use tidegate_core::id::MetricNo;

use super::{backfills, events, keeping, rollups};
use crate::{Recount, Recounted, Recounter};

pub(super) fn events_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns} FROM events WHERE project = ?1 AND type = ?2 AND seq <= (SELECT max(seq) FROM marks)
            AND source = ?3 AND time >= ?4 AND time < ?5 ORDER BY seq"
    )
}
pub(super) const OBJECTS: &str = "SELECT value, count(*) FROM objects WHERE state = ?1 GROUP BY value";

pub(super) fn recount(
    conn: &Connection,
    of: &Recount,
    mut recounter: Box<dyn Recounter>,
) -> rusqlite::Result<Recounted> {
    recounter.begin(backfills::of_type(conn, of)?);
    let mut statement = conn.prepare_cached(&events_sql())?;
    let mut rows = statement.query(params![of.project, of.type_name, of.service, of.range.0, of.range.1])?;
    while let Some(row) = rows.next()? {
        if !recounter.event(&events::event_row(row)?) {
            break;
        }
    }
    let buckets = of.buckets();
    let read = |metric: &MetricNo| Ok((*metric, rollups::read(conn, *metric, &buckets)?));
    let mut rollups = of.metrics.iter().map(read).collect::<rusqlite::Result<Vec<_>>>()?;
    let mut objects = Vec::new();
    for state in &of.states {
        rollups.push((*state, rollups::read(conn, *state, &[Recount::WEEKS])?));
        let mut statement = conn.prepare_cached(OBJECTS)?;
        let rows = statement.query_map([state], |row| Ok((*state, row.get(0)?, row.get(1)?)))?;
        objects.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    let kept_since = keeping::kept_since(conn, &of.name())?;
    Ok(Recounted { recounter, kept_since, rollups, objects })
}
