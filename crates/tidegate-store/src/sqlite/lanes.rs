//! Lanes: of the unfinished deliveries of a lane, at most one is due or claimed, and it is the oldest.
//!
//! Lanes are rows, not memory. Whoever ends, postpones or gives back the one whose turn it was, or brings an older
//! one, asks here whose turn it is now, in the same transaction. So at most one of a lane is ever in flight, a
//! failing head holds its own lane only, and a crash needs no repair. One exception: what is in flight is not called
//! back, even if a manual retry puts an older one before it; that one goes as soon as the attempt has a result.
//!
//! A delivery's place in its lane is its event's number, a replay's is its own: both come from one counter, so a replay
//! stands behind what was accepted before it was asked for and before what was accepted after.
//!
//! Behind a backfill new deliveries wait as a whole. Folds need not: as long as it runs, it brings the live events too, each in
//! its turn (see `commit.rs`), so whatever closes is followed by later events only.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::id::{DeliveryNo, Lane, Seq, SubscriberNo};
use tidegate_core::limits::STEP_ASIDE_MAX;
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::deliveries::{self, CLAIMED, set_due};

/// How far the backfills that are under way have come.
pub(super) type Backfilling = BTreeMap<SubscriberNo, Seq>;

/// A delivery that waits in its lane.
struct Waiting {
    id: DeliveryNo,
    place: Seq,
    due_at: Timestamp,
    /// Nothing older can come, whatever a backfill brings.
    is_next: bool,
}

pub(super) const IS_BUSY: &str =
    "SELECT 1 FROM deliveries WHERE subscriber = ?1 AND lane = ?2 AND status < 3 LIMIT 1";

/// New deliveries of an ordered subscriber queue behind its backfill as a whole, unless they are folds that it has a part
/// in, and behind all others of their lane.
pub(super) fn must_wait(
    context: &Context<'_>,
    subscriber: SubscriberNo,
    lane: Lane,
    is_fold: bool,
) -> rusqlite::Result<bool> {
    Ok((!is_fold && context.backfilling.contains_key(&subscriber))
        || context.conn.prepare_cached(IS_BUSY)?.exists([subscriber, lane])?)
}

/// Lets the one go whose turn it is now, if it is not going already: to memory if there is room, else it is due in
/// the store.
pub(super) fn let_next_go(
    context: &mut Context<'_>,
    subscriber: SubscriberNo,
    lane: Lane,
) -> rusqlite::Result<()> {
    let now = context.group.now;
    let Some(next) = next(context.conn, &context.backfilling, subscriber, lane)? else { return Ok(()) };
    if next.due_at > now {
        set_due(context.conn, next.id, next.due_at)?;
        context.out.postponed.push((subscriber, next.due_at));
    } else if context.room.take(subscriber, 0) {
        deliveries::claim(context, next.id)?;
    } else {
        set_due(context.conn, next.id, now)?;
        context.spilled.insert(subscriber);
    }
    Ok(())
}

/// The same without a group: it becomes due. Says which, if any.
pub(super) fn make_next_due(
    conn: &Connection,
    backfilling: &Backfilling,
    subscriber: SubscriberNo,
    lane: Lane,
    now: Timestamp,
) -> rusqlite::Result<Option<DeliveryNo>> {
    let Some(next) = next(conn, backfilling, subscriber, lane)? else { return Ok(None) };
    set_due(conn, next.id, next.due_at.max(now))?;
    Ok(Some(next.id))
}

/// Heads that have failed so often and wait for another try, the longest overdue first.
pub(super) const FAILED_HEADS: &str = "SELECT id, lane FROM deliveries
    WHERE subscriber = ?1 AND status = 0 AND lane IS NOT NULL AND tries >= ?2 ORDER BY due_at, id LIMIT ?3";

/// Heads that have failed so often step aside, and those behind them go. A head in somebody's hands does so when it fails
/// again, and so do those beyond the limit.
pub(super) fn let_pass(
    conn: &Connection,
    backfilling: &Backfilling,
    subscriber: SubscriberNo,
    failures: u32,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let heads = conn
        .prepare_cached(FAILED_HEADS)?
        .query_map(params![subscriber, failures, STEP_ASIDE_MAX as i64], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<Vec<(DeliveryNo, Lane)>>>()?;
    for (head, lane) in heads {
        step_aside(conn, head)?;
        make_next_due(conn, backfilling, subscriber, lane, now)?;
    }
    Ok(())
}

/// A delivery that failed too often leaves its lane to those behind it.
pub(super) fn step_aside(conn: &Connection, delivery: DeliveryNo) -> rusqlite::Result<()> {
    let sql = "UPDATE deliveries SET lane = NULL, out_of_order = 1 WHERE id = ?1";
    conn.prepare_cached(sql)?.execute([delivery])?;
    Ok(())
}

/// Lanes in which all wait. One walk through the index of the subscriber's unfinished deliveries: there may be a
/// million lanes, and a question for each would hold up everybody's commits for seconds.
pub(super) const IDLE: &str = "SELECT lane FROM deliveries
    WHERE subscriber = ?1 AND lane IS NOT NULL AND status < 3 GROUP BY lane HAVING min(status) = 2";

/// After a backfill, nobody goes in lanes that only live events entered: the oldest becomes due.
pub(super) fn open_all(context: &Context<'_>, subscriber: SubscriberNo) -> rusqlite::Result<()> {
    let idle = context
        .conn
        .prepare_cached(IDLE)?
        .query_map([subscriber], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<Lane>>>()?;
    for lane in idle {
        make_next_due(context.conn, &context.backfilling, subscriber, lane, context.group.now)?;
    }
    Ok(())
}

pub(super) const GOING: &str = "SELECT id, max(event, abs(replay)), status FROM deliveries
    WHERE subscriber = ?1 AND lane = ?2 AND status < 3 AND status < 2 LIMIT 1";
pub(super) const OLDEST_WAITING: &str = "SELECT id, max(event, abs(replay)), due_at, fold IS NOT NULL AND replay <= 0 FROM deliveries
    WHERE subscriber = ?1 AND lane = ?2 AND status < 3 AND status = 2 ORDER BY max(event, abs(replay)), id LIMIT 1";

/// Whose turn it is, if it waits: the oldest, unless one is in flight or a backfill may still bring an older one.
/// A younger one that is due steps back for it and keeps its time.
fn next(
    conn: &Connection,
    backfilling: &Backfilling,
    subscriber: SubscriberNo,
    lane: Lane,
) -> rusqlite::Result<Option<Waiting>> {
    let waiting = conn
        .prepare_cached(OLDEST_WAITING)?
        .query_row([subscriber, lane], |row| {
            let (id, place, is_next) = (row.get(0)?, row.get(1)?, row.get(3)?);
            Ok(Waiting { id, place, due_at: Timestamp::from_ms(row.get(2)?), is_next })
        })
        .optional()?;
    let may_go = |next: &Waiting| {
        next.is_next || backfilling.get(&subscriber).is_none_or(|after| next.place <= *after)
    };
    let Some(waiting) = waiting.filter(may_go) else { return Ok(None) };
    let going: Option<(DeliveryNo, Seq, i64)> = conn
        .prepare_cached(GOING)?
        .query_row([subscriber, lane], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match going {
        Some((_, _, CLAIMED)) => Ok(None),
        Some((id, place, _)) if (place, id) < (waiting.place, waiting.id) => Ok(None),
        Some((id, ..)) => {
            conn.prepare_cached("UPDATE deliveries SET status = 2 WHERE id = ?1")?.execute([id])?;
            Ok(Some(waiting))
        }
        None => Ok(Some(waiting)),
    }
}
