//! Counting again: every observed event of a type, and what was counted of it, in one read transaction.

use rusqlite::{Connection, params};
use tidegate_core::id::Seq;

use super::{backfills, events, history, keeping, objects, postings, rollups};
use crate::observe::LISTED_EVENTS;
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
    recounter.begin(backfills::of_service(conn, of)?);
    let mut statement = conn.prepare_cached(&events_sql())?;
    let mut rows = statement.query(params![of.project, of.type_name, of.service, of.range.0, of.range.1])?;
    let mut seen: Vec<Seq> = Vec::new();
    while let Some(row) = rows.next()? {
        let event = events::event_row(row)?;
        if !recounter.event(&event) {
            break;
        }
        seen.push(event.seq);
        if seen.len() == LISTED_EVENTS {
            recounter.listed(postings::listed(conn, &of.indexes, &seen)?);
            seen.clear();
        }
    }
    recounter.listed(postings::listed(conn, &of.indexes, &seen)?);
    let mut rollups = Vec::new();
    for metric in &of.metrics {
        rollups.push((*metric, rollups::read(conn, *metric, &of.buckets())?));
    }
    for state in &of.states {
        rollups.push((*state, rollups::read(conn, *state, &of.buckets_of_states())?));
        objects::walk(conn, *state, "", |id, known| recounter.object(*state, id, &known))?;
        let is_followed = of.followed.contains(state);
        history::each(conn, *state, is_followed, |change, event| recounter.change(change, event))?;
    }
    let kept_since = keeping::kept_since(conn, &of.name())?;
    Ok(Recounted { recounter, kept_since, rollups })
}
