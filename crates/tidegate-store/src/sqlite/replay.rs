//! Replays: an event sent once more, as a delivery of its own.
//!
//! A replay is marked, has an id of its own and stands in its lane behind whatever waits there. The delivery that it
//! repeats stays as it is.

use rusqlite::{Connection, params};
use tidegate_core::id::{DeliveryNo, Incarnation, ProjectNo, Seq};
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::lanes::Backfilling;
use super::{Writer, deliveries, failed, lanes, stamp};
use crate::{Error, Replay, Result};

/// Makes the replays of one event, in the order of their routes.
pub(super) fn replay(writer: &mut Writer, replay: &Replay, now: Timestamp) -> Result<Vec<DeliveryNo>> {
    if replay.version != writer.version {
        return Err(Error::Stale { routed: replay.version, current: writer.version });
    }
    let tx = writer.conn.transaction().map_err(failed)?;
    let mut made = Vec::with_capacity(replay.routes.len());
    for (route, no) in replay.routes.iter().zip(writer.next_no..) {
        if !insert(&tx, &writer.backfilling, no, (replay.project, replay.event), route, now)
            .map_err(failed)?
        {
            return Err(Error::NotFound);
        }
        made.push(no);
    }
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    writer.next_no += made.len() as i64;
    Ok(made)
}

/// Creates one replay: due, or waiting for its turn in its lane. Does nothing when its event is gone.
pub(super) fn insert(
    conn: &Connection,
    backfilling: &Backfilling,
    no: DeliveryNo,
    (project, event): (ProjectNo, Seq),
    route: &Route,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let mut known = conn.prepare_cached("SELECT 1 FROM events WHERE seq = ?1 AND project = ?2")?;
    if !known.exists([event, project])? {
        return Ok(false);
    }
    let Route { subscriber, lane } = *route;
    let status = if lane.is_some() { deliveries::WAITING } else { deliveries::DUE };
    let holder = None::<Incarnation>;
    let values = params![no, project, subscriber, event, lane, status, now.as_ms(), 0, holder, 1, no];
    conn.prepare_cached(deliveries::INSERT)?.execute(values)?;
    if let Some(lane) = lane {
        lanes::make_next_due(conn, backfilling, subscriber, lane, now)?;
    }
    Ok(true)
}
