//! Replays: an event sent once more, as a delivery of its own.
//!
//! A replay is marked, has an id of its own and stands in its lane behind whatever waits there. The delivery that it
//! repeats stays as it is.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use rusqlite::{Connection, params};
use tidegate_core::fold::Draft;
use tidegate_core::id::{DeliveryKey, DeliveryNo, Incarnation, Nonce, ProjectNo, Seq, WindowNo};
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::lanes::Backfilling;
use super::{Writer, deliveries, events, failed, folds, lanes, stamp};
use crate::{Error, Replay, Result};

/// Makes the replays of one event, in the order of their routes.
pub(super) fn replay(writer: &mut Writer, replay: &Replay, now: Timestamp) -> Result<Vec<DeliveryKey>> {
    if replay.version != writer.version {
        return Err(Error::Stale { routed: replay.version, current: writer.version });
    }
    let shared = Arc::clone(&writer.book);
    let mut book = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let stretch = BTreeMap::new();
    let mut draft = Draft::new(&book, now, writer.windows_max, &stretch);
    let tx = writer.conn.transaction().map_err(failed)?;
    let event = (replay.project, replay.event);
    let mut next_no = writer.next_no;
    let mut made = Vec::with_capacity(replay.routes.len());
    for route in &replay.routes {
        let mut draw = || {
            next_no += 1;
            next_no - 1
        };
        let no = match &route.fold {
            None => {
                let no = draw();
                let key = DeliveryKey { no, nonce: writer.nonce };
                insert(&tx, &writer.backfilling, key, event, route, now).map_err(failed)?.then_some(no)
            }
            Some(_) => {
                folded(&tx, &writer.backfilling, &mut draft, event, route, ((writer.nonce, now), &mut draw))
                    .map_err(failed)?
            }
        };
        made.push(key_of(&tx, no.ok_or(Error::NotFound)?).map_err(failed)?);
    }
    let decided = draft.decided();
    folds::write(&tx, &decided, writer.next_no).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    writer.next_no = next_no;
    book.apply(decided);
    Ok(made)
}

/// A replay to a subscriber that folds goes at once, in the form of a fold.
fn folded(
    conn: &Connection,
    backfilling: &Backfilling,
    draft: &mut Draft<'_>,
    (project, event): (ProjectNo, Seq),
    route: &Route,
    (stamp, draw): ((Nonce, Timestamp), &mut dyn FnMut() -> i64),
) -> rusqlite::Result<Option<DeliveryNo>> {
    let Some(bytes) = events::size(conn, project, event)? else { return Ok(None) };
    let Some(arrival) = folds::arrival(project, (event, bytes), route, true) else { return Ok(None) };
    let is_there = folds::is_member(conn, draft, &arrival)?;
    let (closings, carrier) = draft.send_now(&arrival, is_there, draw);
    for closing in &closings {
        deliveries::insert_closed(conn, backfilling, closing, stamp)?;
    }
    Ok(carrier)
}

/// One that joined a fold goes with a delivery that was there before.
fn key_of(conn: &Connection, no: DeliveryNo) -> rusqlite::Result<DeliveryKey> {
    let sql = "SELECT nonce FROM deliveries WHERE id = ?1";
    let nonce = conn.prepare_cached(sql)?.query_row([no], |row| row.get(0))?;
    Ok(DeliveryKey { no, nonce })
}

/// Creates one replay: due, or waiting for its turn in its lane. Does nothing when its event is gone.
pub(super) fn insert(
    conn: &Connection,
    backfilling: &Backfilling,
    key: DeliveryKey,
    (project, event): (ProjectNo, Seq),
    route: &Route,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    if events::size(conn, project, event)?.is_none() {
        return Ok(false);
    }
    let Route { subscriber, lane, .. } = *route;
    let status = if lane.is_some() { deliveries::WAITING } else { deliveries::DUE };
    let (holder, fold) = (None::<Incarnation>, None::<WindowNo>);
    let DeliveryKey { no, nonce } = key;
    conn.prepare_cached(deliveries::INSERT)?.execute(params![
        no,
        project,
        subscriber,
        event,
        lane,
        status,
        now.as_ms(),
        0,
        holder,
        1,
        no,
        fold,
        nonce
    ])?;
    if let Some(lane) = lane {
        lanes::make_next_due(conn, backfilling, subscriber, lane, now)?;
    }
    Ok(true)
}
