//! Observing: events behind the mark are read, and what they add is written in the transaction that moves the mark.

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tidegate_core::id::{ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::observe::Delta;
use tidegate_core::time::Timestamp;

use super::remembered::Remembered;
use super::{Writer, db, events, failed, postings, rollups, stamp, states};
use crate::sabotage::{self, Line};
use crate::{Advance, Error, Flush, Mark, Result, Slice};

pub(super) fn marks(conn: &Connection) -> rusqlite::Result<Vec<Mark>> {
    let mark = |row: &rusqlite::Row<'_>| {
        let at = Timestamp::from_ms(row.get(2)?);
        Ok(Mark { of: row.get(0)?, seq: row.get(1)?, at, is_orphan: false })
    };
    conn.prepare_cached("SELECT incarnation, seq, at FROM marks")?.query_map([], mark)?.collect()
}

/// Now, if there is nothing behind the mark.
pub(super) fn until(conn: &Connection, now: Timestamp) -> rusqlite::Result<Timestamp> {
    let sql = "SELECT at, EXISTS (SELECT 1 FROM events e WHERE e.seq > marks.seq) FROM marks";
    let (at, is_more): (i64, bool) =
        conn.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(if is_more { Timestamp::from_ms(at) } else { now })
}

/// The events behind a mark. Only the one who commits draws numbers, in order: nothing comes before what is there.
pub(super) fn unobserved(
    conn: &Connection,
    after: Seq,
    limit: usize,
    bytes: usize,
) -> rusqlite::Result<Slice> {
    let mut statement = conn.prepare_cached(&events::after_sql())?;
    let mut rows = statement.query(params![after, limit.min(PAGE_ROWS_SCANNED_MAX) as i64])?;
    let mut slice = Slice { through: after, ..Slice::default() };
    let mut taken = 0;
    while let Some(row) = rows.next()? {
        if taken >= bytes {
            return Ok(slice);
        }
        let event = events::event_row(row)?;
        taken += event.body.len();
        (slice.through, slice.at) = (event.seq, Some(event.accepted_at));
        slice.events.push((row.get::<_, ProjectNo>(9)?, event));
    }
    slice.is_end = slice.events.len() < limit.min(PAGE_ROWS_SCANNED_MAX);
    Ok(slice)
}

/// What a flush writes, and what is remembered after it.
pub(super) struct Ready {
    states: states::Changed,
    sums: [rollups::Sums; 2],
    pub(super) known: Remembered,
}

impl Ready {
    /// Reads what there is and adds to it, without writing anything yet.
    pub(super) fn make(conn: &Connection, mut known: Remembered, delta: &Delta) -> rusqlite::Result<Self> {
        let (states, counted) = states::prepare(conn, &delta.sights)?;
        let sums = rollups::Sums::prepare(conn, &mut known, delta)?;
        let of_states = rollups::Sums::prepare(conn, &mut known, &counted.into_delta())?;
        Ok(Self { states, sums: [sums, of_states], known })
    }

    pub(super) fn write(&self, tx: &Connection) -> rusqlite::Result<()> {
        self.states.write(tx)?;
        self.sums.iter().try_for_each(|sums| sums.write(tx))
    }
}

/// Counts a flush. `ready` is absent where somebody wrote since it was made: then it is made here.
pub(super) fn observe(
    writer: &mut Writer,
    flush: &Flush,
    ready: Option<Ready>,
    now: Timestamp,
) -> Result<()> {
    if !flush.delta.sights.is_empty() {
        db::widen_cache(&writer.conn).map_err(failed)?;
    }
    let tx = Transaction::new_unchecked(&writer.conn, TransactionBehavior::Immediate).map_err(failed)?;
    if !advance(&tx, flush, now).map_err(failed)? {
        return Err(Error::Conflict("these events have been observed by somebody else".to_owned()));
    }
    let ready = match ready {
        Some(ready) => ready,
        None => Ready::make(&tx, Remembered::default(), &flush.delta).map_err(failed)?,
    };
    ready.write(&tx).map_err(failed)?;
    postings::add(&tx, postings::rest(&flush.delta.postings)).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    writer.remembered.put(ready.known);
    Ok(())
}

/// Whether the mark was where it should be.
fn advance(tx: &Transaction<'_>, flush: &Flush, now: Timestamp) -> rusqlite::Result<bool> {
    if sabotage::is(Line::Watermark) {
        return Ok(true);
    }
    let moved = match flush.advance {
        Advance::Mark { of, after, through, at } => {
            let sql = "UPDATE marks SET seq = ?3, at = max(at, ?4) WHERE incarnation = ?1 AND seq = ?2";
            tx.prepare_cached(sql)?.execute(params![of, after, through, at.as_ms()])?
        }
        Advance::Backfill { no, after, through, looked, is_last } => {
            let sql = "UPDATE backfills SET after = ?3, looked = looked + ?4, finished_at = ?5
                WHERE no = ?1 AND after = ?2 AND finished_at IS NULL";
            let finished = is_last.then_some(now.as_ms());
            tx.prepare_cached(sql)?.execute(params![no, after, through, looked, finished])?
        }
    };
    Ok(moved > 0)
}
