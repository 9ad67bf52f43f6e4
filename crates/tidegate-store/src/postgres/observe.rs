//! Observing: events behind a mark are read, and what they add is written in the transaction that moves the mark.
//!
//! Each life has its own mark and its own events, which it commits in the order of their numbers: so whatever lies
//! between the mark and an event of the same life is there to be read. Two processes that add to the same metric take
//! turns: whoever adds holds the metrics' rows, taken in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::id::{Incarnation, MetricNo, ProjectNo, Seq};
use tidegate_core::observe::Delta;
use tidegate_core::time::Timestamp;

use super::connect::root_cause;
use super::db::{Asked, Conn, Fault};
use super::{PostgresStore, events, postings, replicas, rollups, states};
use crate::rewind::Known;
use crate::sabotage::{self, Line};
use crate::{Advance, Error, Flush, Mark, Result, Slice};

/// How often a flush is tried that others stood in the way of.
const TRIES_MAX: u32 = 6;

pub(super) async fn marks(conn: &Conn, own: Incarnation) -> Asked<Vec<Mark>> {
    let sql = "SELECT m.incarnation, m.seq, m.at, r.incarnation IS NULL FROM marks m
        LEFT JOIN replicas r USING (incarnation)
        WHERE m.incarnation = $1 OR r.incarnation IS NULL ORDER BY m.incarnation";
    let rows = conn.rows(sql, &[&own]).await?;
    let mark = |row: &tokio_postgres::Row| Mark {
        of: row.get(0),
        seq: row.get(1),
        at: Timestamp::from_ms(row.get(2)),
        is_orphan: row.get(3),
    };
    Ok(rows.iter().map(mark).collect())
}

/// A life that has written nothing since its mark was set has nothing behind it. What it wrote at the very time of its mark may be.
pub(super) async fn until(conn: &Conn, now: Timestamp) -> Asked<Timestamp> {
    let sql = "SELECT min(m.at) FROM marks m LEFT JOIN replicas r USING (incarnation)
        WHERE r.incarnation IS NULL OR r.at >= m.at";
    let at: Option<i64> = conn.only(sql, &[]).await?.get(0);
    Ok(at.map_or(now, |at| Timestamp::from_ms(at).min(now)))
}

fn unobserved_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns}, project FROM events
         WHERE seq > $1 AND seq <= $2 AND incarnation = $3 ORDER BY seq LIMIT $4"
    )
}

/// The events behind a mark. Numbers that others have used are passed over too, as soon as nothing of this life can come
/// any more that has a lower one: else its mark would stay behind for as long as it writes nothing.
pub(super) async fn slice(
    store: &PostgresStore,
    of: Incarnation,
    after: Seq,
    limit: usize,
    bytes: usize,
) -> Result<Slice> {
    let conn = store.pool.lend().await?;
    let slice = unobserved(&conn, of, (after, Seq::MAX), limit, bytes).await?;
    if !slice.is_end || !slice.events.is_empty() || of != store.shared.incarnation() {
        return Ok(slice);
    }
    let writer = store.writer.lock().await;
    if !writer.is_quiet() {
        return Ok(slice);
    }
    let last = last_drawn(&conn).await?;
    drop(writer);
    let mut slice = unobserved(&conn, of, (after, last), limit, bytes).await?;
    if slice.is_end && slice.events.is_empty() {
        slice.through = last.max(after);
    }
    Ok(slice)
}

/// Writes a flush; whole again, when somebody stood in its way.
pub(super) async fn flush(store: &PostgresStore, flush: Arc<Flush>, now: Timestamp) -> Result<()> {
    let (mut tries, known) = (1, store.shared.seen.known());
    loop {
        let again = Arc::clone(&flush);
        let work = store.pool.transact(move |conn| {
            Box::pin(async move {
                observe(conn, &again, known, now).await?;
                replicas::stamp(conn, now).await
            })
        });
        match work.await {
            Err(Fault::Database(error)) if tries < TRIES_MAX && stood_in_the_way(&error) => {
                tracing::warn!(error = root_cause(&error), "what events add is written again");
                tries += 1;
            }
            result => return Ok(result?),
        }
    }
}

/// Whether it was a deadlock, a serialization failure or a lock that took too long.
fn stood_in_the_way(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| ["40001", "40P01", "55P03"].contains(&code.code()))
}

/// The events of a life behind a mark, no later than `until`.
async fn unobserved(
    conn: &Conn,
    of: Incarnation,
    (after, until): (Seq, Seq),
    limit: usize,
    bytes: usize,
) -> Asked<Slice> {
    let limit = limit.max(1);
    let rows = conn.rows(&unobserved_sql(), &[&after, &until, &of, &(limit as i64)]).await?;
    let mut slice = Slice { through: after, is_end: rows.len() < limit, ..Slice::default() };
    let mut taken = 0;
    for row in &rows {
        if taken >= bytes {
            slice.is_end = false;
            break;
        }
        let event = events::event_row(row);
        taken += event.body.len();
        (slice.through, slice.at) = (event.seq, Some(event.accepted_at));
        slice.events.push((row.get::<_, ProjectNo>(9), event));
    }
    Ok(slice)
}

/// The last number that anybody has drawn.
async fn last_drawn(conn: &Conn) -> Asked<Seq> {
    Ok(conn.only("SELECT ((last_value + 1) << 20) - 1 FROM numbers", &[]).await?.get(0))
}

async fn observe(conn: &Conn, flush: &Flush, known: Known, now: Timestamp) -> Asked<()> {
    lock_metrics(conn, &flush.delta).await?;
    if !advance(conn, flush, known, now).await? {
        return Err(Error::Conflict("these events have been observed by somebody else".to_owned()).into());
    }
    write(conn, &flush.delta).await
}

/// Whoever calls holds the metrics' rows.
pub(super) async fn write(conn: &Conn, delta: &Delta) -> Asked<()> {
    let changed = states::apply(conn, &delta.sights).await?;
    rollups::add(conn, delta).await?;
    rollups::add(conn, &changed.into_delta()).await?;
    postings::add(conn, &delta.postings).await
}

pub(super) async fn lock_metrics(conn: &Conn, delta: &Delta) -> Asked<()> {
    let gains = delta.gains.iter().map(|gain| gain.metric);
    let sights = delta.sights.iter().flat_map(|sight| [sight.state, sight.transition]);
    let metrics: Vec<MetricNo> = gains.chain(sights).collect::<BTreeSet<_>>().into_iter().collect();
    let sql = "SELECT 1 FROM metrics WHERE no = ANY($1) ORDER BY no FOR NO KEY UPDATE";
    conn.execute(sql, &[&metrics]).await?;
    Ok(())
}

/// Whether the mark was where it should be, and the events are still there that this life wrote.
async fn advance(conn: &Conn, flush: &Flush, known: Known, now: Timestamp) -> Asked<bool> {
    if sabotage::is(Line::Watermark) {
        return Ok(true);
    }
    let moved = match flush.advance {
        Advance::Mark { of, after, through, at } => {
            let sql = "UPDATE marks SET seq = $3, at = greatest(at, $4) WHERE incarnation = $1 AND seq = $2
                AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.incarnation = $1 AND r.written < $5)";
            let written = if of == known.life { known.written } else { 0 };
            conn.execute(sql, &[&of, &after, &through, &at.as_ms(), &written]).await?
        }
        Advance::Backfill { no, after, through, looked, is_last } => {
            let sql = "UPDATE backfills SET after = $3, looked = looked + $4, finished_at = $5
                WHERE no = $1 AND after = $2 AND finished_at IS NULL";
            let (looked, finished) =
                (i64::try_from(looked).unwrap_or(i64::MAX), is_last.then_some(now.as_ms()));
            conn.execute(sql, &[&no, &after, &through, &looked, &finished]).await?
        }
    };
    Ok(moved > 0)
}

/// Ends the mark of a life that has ended, unless somebody else has moved it.
pub(super) async fn end_mark(conn: &Conn, mark: Mark) -> Asked<()> {
    let sql = "DELETE FROM marks WHERE incarnation = $1 AND seq = $2
        AND NOT EXISTS (SELECT 1 FROM replicas r WHERE r.incarnation = $1)";
    conn.execute(sql, &[&mark.of, &mark.seq]).await?;
    Ok(())
}
