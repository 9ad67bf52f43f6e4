//! Which events have which value: written per slice and segment, read segment by segment.

use rusqlite::{Transaction, params};
use tidegate_core::id::Seq;
use tidegate_core::observe::{Posting, posting};

/// A segment has two to the power of this many numbers: events and their deliveries share them.
const SEGMENT_BITS: u32 = 17;

const INSERT: &str = "INSERT INTO postings (segment, metric, value, first, count, events)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

fn segment(event: Seq) -> i64 {
    event >> SEGMENT_BITS
}

/// `postings` are sorted by index and value, so that neighbours are written one after the other.
pub(super) fn add(tx: &Transaction<'_>, postings: &[Posting]) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(INSERT)?;
    for Posting { index, value, events } in postings {
        for events in events.chunk_by(|a, b| segment(*a) == segment(*b)) {
            let (first, rest) = posting::pack(events);
            insert.execute(params![segment(first), index, &value[..], first, events.len() as i64, rest])?;
        }
    }
    Ok(())
}
