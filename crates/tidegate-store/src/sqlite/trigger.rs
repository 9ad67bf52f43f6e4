//! Trigger: what waits for a later try becomes due.

use rusqlite::{Connection, params};
use tidegate_core::id::{ProjectNo, SubscriberNo};
use tidegate_core::limits::TRIGGER_DELIVERIES_MAX;
use tidegate_core::time::Timestamp;

use super::{Writer, stamp};
use crate::Triggered;

/// Those due first become due first; a lane's head keeps its place, since only heads are due at all.
pub(super) const MAKE_DUE: &str = "UPDATE deliveries SET due_at = ?2 WHERE id IN
    (SELECT id FROM deliveries WHERE subscriber = ?1 AND status = 0 AND due_at > ?2 ORDER BY due_at, id LIMIT ?3)";

pub(super) fn trigger(
    writer: &mut Writer,
    project: ProjectNo,
    now: Timestamp,
) -> rusqlite::Result<Triggered> {
    let tx = writer.conn.transaction()?;
    let mut triggered = Triggered::default();
    for subscriber in active(&tx, project)? {
        let left = TRIGGER_DELIVERIES_MAX - triggered.deliveries;
        if left == 0 {
            break;
        }
        let count = tx.prepare_cached(MAKE_DUE)?.execute(params![subscriber, now.as_ms(), left as i64])?;
        if count > 0 {
            triggered.deliveries += count;
            triggered.subscribers.push(subscriber);
        }
    }
    triggered.is_complete = triggered.deliveries < TRIGGER_DELIVERIES_MAX;
    stamp(&tx, now)?;
    tx.commit()?;
    Ok(triggered)
}

fn active(conn: &Connection, project: ProjectNo) -> rusqlite::Result<Vec<SubscriberNo>> {
    conn.prepare_cached(
        "SELECT no FROM subscribers WHERE project = ?1 AND active AND deleted_at IS NULL ORDER BY no",
    )?
    .query_map([project], |row| row.get(0))?
    .collect()
}
