//! Which events have which value: written per slice and segment, read segment by segment.

use tidegate_core::id::Seq;
use tidegate_core::observe::{Posting, posting};

use super::db::{Asked, Conn};
use super::open::BLOCK_BITS;

/// A segment has the numbers of two to the power of this many groups.
const SEGMENT_BITS: u32 = BLOCK_BITS + 10;

fn segment(event: Seq) -> i64 {
    event >> SEGMENT_BITS
}

/// `postings` are sorted by index and value, so that neighbours are written one after the other.
pub(super) async fn add(conn: &Conn, postings: &[Posting]) -> Asked<()> {
    if postings.is_empty() {
        return Ok(());
    }
    let (mut segments, mut metrics, mut values): (Vec<i64>, Vec<i64>, Vec<&[u8]>) = Default::default();
    let (mut firsts, mut counts, mut lists): (Vec<Seq>, Vec<i64>, Vec<Vec<u8>>) = Default::default();
    for Posting { index, value, events } in postings {
        for events in events.chunk_by(|a, b| segment(*a) == segment(*b)) {
            let (first, rest) = posting::pack(events);
            segments.push(segment(first));
            metrics.push(*index);
            values.push(value);
            firsts.push(first);
            counts.push(events.len() as i64);
            lists.push(rest);
        }
    }
    conn.execute(
        "INSERT INTO postings (segment, metric, value, first, count, events)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[])",
        &[&segments, &metrics, &values, &firsts, &counts, &lists],
    )
    .await?;
    Ok(())
}
