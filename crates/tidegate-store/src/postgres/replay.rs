//! Replays: an event sent once more, as a delivery of its own.
//!
//! A replay is marked, has an id of its own and stands in its lane behind whatever waits there. The delivery that it
//! repeats stays as it is.

use std::collections::BTreeMap;

use tidegate_core::fold::Book;
use tidegate_core::id::{DeliveryKey, DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo};
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::folds::{self, Folding, Reach};
use super::lanes::{self, Lanes};
use super::write::DRAW;
use super::{configuration, sweep};
use crate::{Error, Replay};

/// Makes the replays of one event, in the order of their routes.
pub(super) async fn replay(
    conn: &Conn,
    space: i32,
    replay: &Replay,
    now: Timestamp,
) -> Asked<Vec<DeliveryKey>> {
    let current = configuration::hold(conn, space).await?;
    if replay.version != current {
        return Err(Error::Stale { routed: replay.version, current }.into());
    }
    let mut reach = Reach::default();
    replay.routes.iter().for_each(|route| reach.add(replay.project, route, true));
    let wanted: Vec<(Seq, Route)> = replay.routes.iter().map(|route| (replay.event, route.clone())).collect();
    let locked = reach.locks().into_iter().chain(lanes_of(&wanted)).collect();
    let (book, _) = reach.load(conn, space, &lanes::locks(&locked), false).await?;
    let (folded, alone) = folds::parted(&wanted);
    let made = insert(conn, space, replay.project, &alone, now).await?;
    let carriers = send(conn, space, replay.project, &book, &folded, now).await?;
    if made.len() + carriers.len() < wanted.len() {
        return Err(Error::NotFound.into());
    }
    let (mut made, mut carriers) = (made.into_iter().map(|(no, _)| no), carriers.into_iter());
    let next = |route: &Route| if route.fold.is_some() { carriers.next() } else { made.next() };
    let numbers: Vec<DeliveryNo> = replay.routes.iter().filter_map(next).collect();
    // One that joined a fold goes with a delivery that was there before.
    let rows = conn.rows("SELECT id, nonce FROM deliveries WHERE id = ANY($1)", &[&numbers]).await?;
    let nonces: BTreeMap<DeliveryNo, i32> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let key = |no| DeliveryKey { no, nonce: nonces.get(&no).copied().unwrap_or_default().cast_unsigned() };
    Ok(numbers.into_iter().map(key).collect())
}

/// Replays to subscribers that fold go at once, in the form of folds.
async fn send(
    conn: &Conn,
    space: i32,
    project: ProjectNo,
    book: &Book,
    wanted: &[(Seq, &Route)],
    now: Timestamp,
) -> Asked<Vec<DeliveryNo>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let stretch = BTreeMap::new();
    let mut folding = Folding::new(book, now, usize::MAX, &stretch);
    let carriers = folding.send_past(conn, space, project, wanted).await?;
    folding.settle_alone(conn, now).await?;
    Ok(carriers)
}

/// The lanes that replays will stand in, to be locked first.
pub(super) fn lanes_of(wanted: &[(Seq, Route)]) -> Lanes {
    wanted.iter().filter_map(|(_, route)| Some((route.subscriber, route.lane?))).collect()
}

const INSERT: &str =
    "INSERT INTO deliveries (id, project, subscriber, event, replay, lane, status, due_at, created_at,
        nonce)
    SELECT $1 + i.place, $2, i.subscriber, i.event, $1 + i.place, i.lane, CASE WHEN i.lane IS NULL THEN 0 ELSE 2 END, $3, $3, $7
    FROM unnest($4::bigint[], $5::bigint[], $6::bigint[]) WITH ORDINALITY AS i(event, subscriber, lane, place)
    JOIN events e ON e.seq = i.event AND e.project = $2
    RETURNING id, subscriber";

/// Creates replays: due, or waiting for their turn in their lanes, which are locked. Passes over events that are gone.
/// Says which it made, in order, and for whom.
pub(super) async fn insert(
    conn: &Conn,
    space: i32,
    project: ProjectNo,
    wanted: &[(Seq, &Route)],
    now: Timestamp,
) -> Asked<Vec<(DeliveryNo, SubscriberNo)>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    sweep::hold_past(conn, space).await?;
    let block: i64 = conn.only(DRAW, &[]).await?.get(0);
    let events: Vec<Seq> = wanted.iter().map(|(event, _)| *event).collect();
    let subscribers: Vec<SubscriberNo> = wanted.iter().map(|(_, route)| route.subscriber).collect();
    let lanes: Vec<Option<Lane>> = wanted.iter().map(|(_, route)| route.lane).collect();
    let rows = conn
        .rows(INSERT, &[&block, &project, &now.as_ms(), &events, &subscribers, &lanes, &conn.nonce()])
        .await?;
    let mut made: Vec<(DeliveryNo, SubscriberNo)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    made.sort_unstable();
    let touched = wanted.iter().filter_map(|(_, route)| Some((route.subscriber, route.lane?))).collect();
    lanes::make_next_due(conn, &touched, now).await?;
    Ok(made)
}
