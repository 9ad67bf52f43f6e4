//! What is known of an object, and what happened to objects.

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::history::unpack;
use tidegate_core::observe::state::{Change, ObjectRow};

use super::{events, objects};
use crate::EventRow;
use crate::history::{ChangeFilter, Changes, Reading, Told};

pub(super) const ROWS: &str = "SELECT until, no, changes FROM object_changes
    WHERE state = ?1 AND until >= ?2 AND (until, no) <= (?3, ?4) ORDER BY until DESC, no DESC";

/// An object in each of these states in which it was seen.
pub(super) fn object(
    conn: &Connection,
    states: &[MetricNo],
    name: &str,
) -> rusqlite::Result<Vec<(MetricNo, Told<ObjectRow>)>> {
    let mut found = Vec::new();
    for state in states {
        if let Some(row) = objects::find(conn, *state, name)? {
            let event = event_id(conn, row.event)?;
            found.push((*state, (row, event)));
        }
    }
    Ok(found)
}

/// Changes of objects, the latest first.
pub(super) fn changes(conn: &Connection, filter: &ChangeFilter) -> rusqlite::Result<Changes> {
    let mut reading = Reading::new(filter);
    let (until, no) = reading.begin();
    let mut statement = conn.prepare_cached(ROWS)?;
    let mut rows = statement.query(params![filter.state, filter.until_min(), until, no])?;
    while let Some(row) = rows.next()? {
        let packed = row.get_ref(2)?.as_blob()?;
        if !reading.row(row.get(0)?, row.get(1)?, packed).map_err(objects::torn)? {
            break;
        }
    }
    let (items, next) = reading.end();
    let told = items.into_iter().map(|change| {
        let event = event_id(conn, change.event)?;
        Ok((change, event))
    });
    Ok(Changes { items: told.collect::<rusqlite::Result<_>>()?, next })
}

pub(super) const ALL: &str = "SELECT changes FROM object_changes WHERE state = ?1";

/// Goes over everything that happened to the objects of a state, for as long as `each` wants more; if it is followed, with the
/// events that are kept.
pub(super) fn each(
    conn: &Connection,
    state: MetricNo,
    is_followed: bool,
    mut each: impl FnMut(&Change, Option<&EventRow>) -> bool,
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(ALL)?;
    let mut rows = statement.query([state])?;
    while let Some(row) = rows.next()? {
        let changes = unpack(state, row.get_ref(0)?.as_blob()?).map_err(objects::torn)?;
        for change in &changes {
            let event = if is_followed { event(conn, change.event)? } else { None };
            if !each(change, event.as_ref()) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn event(conn: &Connection, event: Seq) -> rusqlite::Result<Option<EventRow>> {
    let sql = format!("SELECT {} FROM events WHERE seq = ?1", events::COLUMNS);
    conn.prepare_cached(&sql)?.query_row([event], events::event_row).optional()
}

fn event_id(conn: &Connection, event: Seq) -> rusqlite::Result<Option<String>> {
    let mut statement = conn.prepare_cached("SELECT id FROM events WHERE seq = ?1")?;
    statement.query_row([event], |row| row.get(0)).optional()
}
