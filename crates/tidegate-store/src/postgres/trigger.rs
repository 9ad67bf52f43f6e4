//! Trigger: what waits for a later try becomes due.

use std::collections::BTreeSet;

use tidegate_core::id::{ProjectNo, SubscriberNo};
use tidegate_core::limits::TRIGGER_DELIVERIES_MAX;
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use crate::Triggered;

/// Subscriber after subscriber, in no order of theirs, so that it ends with the limit; those due first become due first.
/// A lane's head keeps its place, since only heads are due at all. What a process is claiming at this instant is passed
/// over: it is on its way.
const MAKE_DUE: &str = "UPDATE deliveries SET due_at = $2 WHERE id = ANY(ARRAY(
        SELECT d.id FROM subscribers s CROSS JOIN LATERAL
            (SELECT id FROM deliveries WHERE subscriber = s.no AND shelf = 0 AND due_at > $2
             ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED) d
        WHERE s.project = $1 AND s.active AND s.deleted_at IS NULL LIMIT $3))
    RETURNING subscriber";

pub(super) async fn trigger(conn: &Conn, project: ProjectNo, now: Timestamp) -> Asked<Triggered> {
    let rows = conn.rows(MAKE_DUE, &[&project, &now.as_ms(), &(TRIGGER_DELIVERIES_MAX as i64)]).await?;
    let subscribers: BTreeSet<SubscriberNo> = rows.iter().map(|row| row.get(0)).collect();
    Ok(Triggered {
        deliveries: rows.len(),
        subscribers: subscribers.into_iter().collect(),
        is_complete: rows.len() < TRIGGER_DELIVERIES_MAX,
    })
}
