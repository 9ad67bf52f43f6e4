//! Which events have which value: written per slice and segment, read segment by segment.

use std::collections::BTreeMap;

use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::observe::search::Leaf;
use tidegate_core::observe::{Posting, posting};

use super::db::{Asked, Conn};
use super::events;
use super::open::BLOCK_BITS;
use crate::{EventRow, Page, Search, ValueFilter, observe};

/// A segment has the numbers of two to the power of this many groups.
const SEGMENT_BITS: u32 = BLOCK_BITS + 10;

fn segment(event: Seq) -> i64 {
    event >> SEGMENT_BITS
}

/// The first and the last number of a segment.
pub(super) fn bounds(segment: i64) -> (Seq, Seq) {
    (segment << SEGMENT_BITS, ((segment + 1) << SEGMENT_BITS) - 1)
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

/// What indexes have of these events, which are sorted.
pub(super) async fn listed(conn: &Conn, indexes: &[MetricNo], events: &[Seq]) -> Asked<Vec<Posting>> {
    let sql = "SELECT metric, value, first, events FROM postings
        WHERE segment = $1 AND metric = ANY($2) AND first <= $3";
    let mut found = Vec::new();
    for some in events.chunk_by(|a, b| segment(*a) == segment(*b)) {
        let (here, last) = (segment(some[0]), some[some.len() - 1]);
        for row in conn.rows(sql, &[&here, &indexes, &last]).await? {
            let mut list = Vec::new();
            posting::unpack(row.get(2), row.get(3), &mut list);
            found.extend(observe::listed(row.get(0), row.get(1), list, some));
        }
    }
    Ok(found)
}

/// Segments that a search looks into for one page.
const SEGMENTS_MAX: usize = 1_024;
/// How many events one question brings.
const ROWS_PER_QUESTION: usize = 200;

const SEGMENTS: &str = "WITH RECURSIVE s(no) AS (
        SELECT max(segment) FROM postings WHERE segment <= $1
        UNION ALL SELECT (SELECT max(segment) FROM postings WHERE segment < s.no) FROM s WHERE s.no IS NOT NULL)
    SELECT no FROM s WHERE no IS NOT NULL LIMIT $2";
const LEAF: &str = "SELECT first, events FROM postings
    WHERE segment = ANY($1) AND metric = ANY($2) AND value >= $3 AND value < $4";

/// A page of what a search finds, newest first: one segment, then more and more at a time, in each the sets of all its
/// leaves.
pub(super) async fn search(conn: &Conn, project: ProjectNo, search: &Search) -> Asked<Page<EventRow>> {
    let mut before = search.filter.before.unwrap_or(Seq::MAX);
    let mut page = Page { items: Vec::new(), next: None };
    let (mut looked, mut passed, mut last, mut step) = (0, 0, segment(before.saturating_sub(1)), 1);
    loop {
        let segments = conn.rows(SEGMENTS, &[&last, &(step as i64)]).await?;
        let segments: Vec<i64> = segments.iter().map(|row| row.get(0)).collect();
        let Some(oldest) = segments.last().copied() else { return Ok(page) };
        let found = found_in(conn, &segments, search).await?;
        let found: Vec<Seq> = found.into_iter().rev().filter(|event| *event < before).collect();
        for some in found.chunks(ROWS_PER_QUESTION) {
            let rows = events::by_seqs_of(conn, project, some).await?;
            for event in some {
                if page.items.len() == search.filter.limit || looked == PAGE_ROWS_SCANNED_MAX {
                    page.next = Some(before);
                    return Ok(page);
                }
                (before, looked) = (*event, looked + 1);
                let row = rows.get(event).filter(|row| search.filter.admits(row));
                page.items.extend(row.cloned());
            }
        }
        (before, last) = (before.min(oldest << SEGMENT_BITS), oldest - 1);
        passed += segments.len();
        if passed >= SEGMENTS_MAX {
            page.next = Some(before);
            return Ok(page);
        }
        step = (step * 4).min(SEGMENTS_MAX / 4);
    }
}

async fn found_in(conn: &Conn, segments: &[i64], search: &Search) -> Asked<Vec<Seq>> {
    let mut leaves: BTreeMap<&Leaf, Vec<Seq>> = BTreeMap::new();
    for leaf in search.plan.leaves() {
        if leaves.contains_key(leaf) {
            continue;
        }
        let mut events = Vec::new();
        for stretch in &leaf.stretches {
            let values: super::db::Values<'_> = &[&segments, &search.of(leaf), &stretch.from, &stretch.to];
            for row in conn.rows(LEAF, values).await? {
                posting::unpack(row.get(0), row.get(1), &mut events);
            }
        }
        leaves.insert(leaf, events);
    }
    Ok(search.plan.evaluate(&mut |leaf| leaves.get(leaf).cloned().unwrap_or_default()))
}

const VALUES: &str = "SELECT value, sum(count)::bigint FROM postings
    WHERE segment = ANY($1) AND metric = ANY($2) AND value >= $3 AND value < $4
    GROUP BY value ORDER BY value LIMIT $5";

/// The first values, and how many events have each.
pub(super) async fn values(conn: &Conn, filter: &ValueFilter) -> Asked<Vec<(Vec<u8>, u64)>> {
    let segments = conn.rows(SEGMENTS, &[&i64::MAX, &(SEGMENTS_MAX as i64)]).await?;
    let segments: Vec<i64> = segments.iter().map(|row| row.get(0)).collect();
    let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for (from, to) in filter.left() {
        let values: super::db::Values<'_> = &[&segments, &filter.indexes, &from, to, &(filter.limit as i64)];
        for row in conn.rows(VALUES, values).await? {
            *counts.entry(row.get(0)).or_default() += row.get::<_, i64>(1).unsigned_abs();
        }
    }
    Ok(counts.into_iter().take(filter.limit).collect())
}
