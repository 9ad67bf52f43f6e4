//! Lanes: of the unfinished deliveries of a lane, at most one is due or claimed, and it is the oldest.
//!
//! Lanes are rows, not memory, as in the embedded store. Whoever changes whose turn it is holds the lane's lock until its
//! transaction ends, whichever process it is, and takes the locks it needs in order, all at once. Many lanes share a
//! lock: a server has room for a limited number of them, and a group may touch thousands of lanes.
//!
//! A delivery's place in its lane is its event's number, a replay's or a fold's is its own: both come from one sequence. A group
//! that goes in one statement draws its numbers before it waits for the lane's lock, so two requests that are under way at the
//! same time may swap places. Whatever is sent after an answer draws a higher number. Behind a backfill new deliveries wait as a
//! whole, but for folds, whose live events it brings too, each in its turn.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::{DeliveryNo, Lane, Seq, SubscriberNo};
use tidegate_core::limits::STEP_ASIDE_MAX;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::deliveries::{self, CLAIMED};
use super::write::Context;
use crate::Finished;
use crate::sabotage::{self, Line};

/// Lanes of subscribers, in order.
pub(super) type Lanes = BTreeSet<(SubscriberNo, Lane)>;

/// Locks for all lanes there are. The numbers below are of other things, see `open.rs`.
const LOCKS: u64 = 512;
const FIRST_LOCK: i32 = 1_000;

pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock($1, lane) FROM unnest($2::int[]) AS lane";

/// The locks of these lanes, in the order they are taken.
pub(super) fn locks(lanes: &Lanes) -> Vec<i32> {
    let lock = |(subscriber, lane): &(SubscriberNo, Lane)| {
        let mixed = (subscriber ^ lane.rotate_left(17)).unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        FIRST_LOCK + i32::try_from((mixed >> 32) % LOCKS).unwrap_or(0)
    };
    if sabotage::is(Line::Sorted) {
        return lanes.iter().map(lock).collect();
    }
    let sorted: BTreeSet<i32> = lanes.iter().map(lock).collect();
    sorted.into_iter().collect()
}

/// Holds these lanes until the transaction ends.
pub(super) async fn lock(conn: &Conn, space: i32, lanes: &Lanes) -> Asked<()> {
    if !lanes.is_empty() {
        conn.execute(LOCK, &[&space, &locks(lanes)]).await?;
    }
    Ok(())
}

/// Those of all lanes there are.
pub(super) fn all_locks() -> Vec<i32> {
    (0..LOCKS).map(|lock| FIRST_LOCK + i32::try_from(lock).unwrap_or(0)).collect()
}

/// Whose turn it is in each lane: the oldest that waits, and the one that goes.
pub(super) const TURNS: &str = "SELECT l.subscriber, l.lane, w.id, w.place, w.due_at, g.id, g.place, g.status,
        CASE WHEN w.is_fold THEN NULL ELSE s.backfill_after END
    FROM unnest($1::bigint[], $2::bigint[]) AS l(subscriber, lane)
    JOIN subscribers s ON s.no = l.subscriber
    CROSS JOIN LATERAL (SELECT d.id, greatest(d.event, abs(d.replay)) AS place, d.due_at,
            d.fold IS NOT NULL AND d.replay <= 0 AS is_fold FROM deliveries d
        WHERE d.subscriber = l.subscriber AND d.lane = l.lane AND d.lane IS NOT NULL AND d.shelf < 3 AND d.shelf = 2
        ORDER BY greatest(d.event, abs(d.replay)), d.id LIMIT 1) w
    LEFT JOIN LATERAL (SELECT d.id, greatest(d.event, abs(d.replay)) AS place, d.status FROM deliveries d
        WHERE d.subscriber = l.subscriber AND d.lane = l.lane AND d.lane IS NOT NULL AND d.shelf < 3 AND d.shelf < 2
        LIMIT 1) g ON TRUE";

/// A delivery that waits in its lane and whose turn it is.
struct Next {
    subscriber: SubscriberNo,
    id: DeliveryNo,
    due_at: Timestamp,
    /// A younger one that is due and steps back for it.
    instead_of: Option<DeliveryNo>,
}

/// Whose turn it is, where it waits: the oldest, unless one is in flight or a backfill may still bring an older one.
async fn next(conn: &Conn, lanes: &Lanes) -> Asked<Vec<Next>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let (subscribers, names): (Vec<SubscriberNo>, Vec<Lane>) = lanes.iter().copied().unzip();
    let rows = conn.rows(TURNS, &[&subscribers, &names]).await?;
    let found: Vec<Next> = rows.iter().filter_map(turn).collect();
    step_back(conn, found).await
}

fn turn(row: &Row) -> Option<Next> {
    let (id, place): (DeliveryNo, Seq) = (row.get(2), row.get(3));
    let backfilled: Option<Seq> = row.get(8);
    if backfilled.is_some_and(|after| place > after) {
        return None;
    }
    let going: Option<(DeliveryNo, Seq, i16)> =
        row.get::<_, Option<DeliveryNo>>(5).map(|id| (id, row.get(6), row.get(7)));
    let instead_of = match going {
        Some((_, _, CLAIMED)) => return None,
        Some((other, its, _)) if (its, other) < (place, id) => return None,
        Some((other, ..)) => Some(other),
        None => None,
    };
    Some(Next { subscriber: row.get(0), id, due_at: Timestamp::from_ms(row.get(4)), instead_of })
}

/// A younger one steps back and keeps its time, unless somebody has claimed it meanwhile: then it goes first.
async fn step_back(conn: &Conn, mut found: Vec<Next>) -> Asked<Vec<Next>> {
    let younger: Vec<DeliveryNo> = found.iter().filter_map(|next| next.instead_of).collect();
    if younger.is_empty() {
        return Ok(found);
    }
    let sql = "UPDATE deliveries SET status = 2 WHERE id = ANY($1) AND status = 0 RETURNING id";
    let rows = conn.rows(sql, &[&younger]).await?;
    let stepped: BTreeSet<DeliveryNo> = rows.iter().map(|row| row.get(0)).collect();
    found.retain(|next| next.instead_of.is_none_or(|other| stepped.contains(&other)));
    Ok(found)
}

async fn set_due(conn: &Conn, due: &[(DeliveryNo, Timestamp)]) -> Asked<()> {
    if due.is_empty() {
        return Ok(());
    }
    let mut ordered = due.to_vec();
    ordered.sort_unstable();
    let (ids, times): (Vec<DeliveryNo>, Vec<i64>) = ordered.iter().map(|(id, at)| (*id, at.as_ms())).unzip();
    let sql = format!(
        "UPDATE deliveries d SET status = 0, due_at = ($1::bigint[])[{}] WHERE d.id = ANY($2::bigint[])",
        deliveries::PLACE
    );
    conn.execute(&sql, &[&times, &ids]).await?;
    Ok(())
}

/// Lets those go whose turn it is now: to memory if there is room, else they are due in the store.
pub(super) async fn let_next_go(context: &mut Context<'_>, lanes: &Lanes) -> Asked<()> {
    let now = context.group.now;
    let (mut due, mut claimed) = (Vec::new(), Vec::new());
    for next in next(context.conn, lanes).await? {
        if next.due_at > now {
            due.push((next.id, next.due_at));
            context.out.postponed.push((next.subscriber, next.due_at));
        } else if context.room.take(next.subscriber, 0) {
            claimed.push(next.id);
        } else {
            due.push((next.id, now));
            context.spilled.insert(next.subscriber);
        }
    }
    set_due(context.conn, &due).await?;
    deliveries::claim(context, &claimed).await
}

/// The same without a group: they become due. Says which.
pub(super) async fn make_next_due(
    conn: &Conn,
    lanes: &Lanes,
    now: Timestamp,
) -> Asked<BTreeMap<DeliveryNo, SubscriberNo>> {
    let found = next(conn, lanes).await?;
    let due: Vec<(DeliveryNo, Timestamp)> =
        found.iter().map(|next| (next.id, next.due_at.max(now))).collect();
    set_due(conn, &due).await?;
    Ok(found.into_iter().map(|next| (next.id, next.subscriber)).collect())
}

/// Lanes in which all wait. One walk through the index of the subscriber's unfinished deliveries.
const IDLE: &str = "SELECT lane FROM deliveries
    WHERE subscriber = $1 AND lane IS NOT NULL AND shelf < 3 GROUP BY lane HAVING min(shelf) = 2";

/// After a backfill, nobody goes in lanes that only live events entered: the oldest becomes due. All lanes are locked.
pub(super) async fn open_all(conn: &Conn, subscriber: SubscriberNo, now: Timestamp) -> Asked<()> {
    let rows = conn.rows(IDLE, &[&subscriber]).await?;
    let idle: Lanes = rows.iter().map(|row| (subscriber, row.get(0))).collect();
    make_next_due(conn, &idle, now).await?;
    Ok(())
}

/// Deliveries that failed too often leave their lanes to those behind them.
pub(super) async fn step_aside(context: &Context<'_>, heard: &[&Finished]) -> Asked<()> {
    let aside = heard.iter().filter(|finished| finished.steps_aside);
    let mut ids: Vec<DeliveryNo> = aside.map(|finished| finished.claim.delivery).collect();
    if ids.is_empty() {
        return Ok(());
    }
    ids.sort_unstable();
    let sql = "UPDATE deliveries SET lane = NULL, out_of_order = true WHERE id = ANY($1)";
    context.conn.execute(sql, &[&ids]).await?;
    Ok(())
}

/// Heads that have failed so often and wait for another try, the longest overdue first.
pub(super) const FAILED_HEADS: &str = "SELECT id, lane FROM deliveries
    WHERE subscriber = $1 AND shelf = 0 AND lane IS NOT NULL AND tries >= $2 ORDER BY due_at, id LIMIT $3";
const STEP_ASIDE: &str = "UPDATE deliveries SET lane = NULL, out_of_order = true
    WHERE id = ANY($1) AND status = 0 AND lane IS NOT NULL";

/// Heads that have failed so often step aside, and those behind them go. A head in somebody's hands does so when it fails
/// again, and so do those beyond the limit. The configuration is held alone, so no group claims any meanwhile.
pub(super) async fn let_pass(
    conn: &Conn,
    space: i32,
    subscriber: SubscriberNo,
    failures: u32,
    now: Timestamp,
) -> Asked<()> {
    let (failures, limit) = (i32::try_from(failures).unwrap_or(i32::MAX), STEP_ASIDE_MAX as i64);
    let rows = conn.rows(FAILED_HEADS, &[&subscriber, &failures, &limit]).await?;
    let lanes: Lanes = rows.iter().map(|row| (subscriber, row.get(1))).collect();
    lock(conn, space, &lanes).await?;
    let mut heads: Vec<DeliveryNo> = rows.iter().map(|row| row.get(0)).collect();
    heads.sort_unstable();
    conn.execute(STEP_ASIDE, &[&heads]).await?;
    make_next_due(conn, &lanes, now).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_sorted_and_few() {
        let lanes: Lanes = (0..5_000).map(|lane| (lane % 7, lane * 7_919)).collect();
        let locks = locks(&lanes);
        assert!(locks.is_sorted() && locks.len() <= 512 && locks.len() > 400, "{}", locks.len());
        assert!(locks.iter().all(|lock| (FIRST_LOCK..FIRST_LOCK + 512).contains(lock)));
    }
}
