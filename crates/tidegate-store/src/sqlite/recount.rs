//! Counting again: every observed event of a type, and what was counted of it, in one read transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, params};
use tidegate_core::id::MetricNo;

use super::{backfills, events, keeping, objects, rollups};
use crate::{Recount, Recounted, Recounter};

pub(super) fn events_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns} FROM events WHERE project = ?1 AND type = ?2 AND seq <= (SELECT max(seq) FROM marks)
            AND source = ?3 AND time >= ?4 AND time < ?5 ORDER BY seq"
    )
}

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
    let mut in_states = Vec::new();
    for state in &of.states {
        rollups.push((*state, rollups::read(conn, *state, &[Recount::WEEKS])?));
        let mut counts: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        objects::walk(conn, *state, "", |_, object| {
            *counts.entry(object.value).or_default() += 1;
            true
        })?;
        in_states.extend(counts.into_iter().map(|(value, count)| (*state, value.to_string(), count)));
    }
    let kept_since = keeping::kept_since(conn, &of.name())?;
    Ok(Recounted { recounter, kept_since, rollups, objects: in_states })
}
