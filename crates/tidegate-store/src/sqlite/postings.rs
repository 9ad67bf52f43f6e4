//! Which events have which value: written per slice and segment, read segment by segment.

use std::collections::BTreeMap;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::limits::PAGE_ROWS_SCANNED_MAX;
use tidegate_core::observe::value::Stretch;
use tidegate_core::observe::{Posting, posting};

use super::{Writer, events, failed};
use crate::{EventRow, Page, Result, Search, ValueFilter, observe};

/// A segment has two to the power of this many numbers: events and their deliveries share them.
const SEGMENT_BITS: u32 = 17;

/// Lists that are written at once at most: more would keep those waiting for too long who send events.
const PART: usize = 4_000;
/// A flush that did not come to its end is counted again from where it began, in slices that may end elsewhere. The first
/// event of a list is the first with its value since then: so it takes the place of the list that was written before.
const INSERT: &str = "INSERT OR REPLACE INTO postings (segment, metric, value, first, count, events)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

fn segment(event: Seq) -> i64 {
    event >> SEGMENT_BITS
}

/// The first and the last number of a segment.
pub(super) fn bounds(segment: i64) -> (Seq, Seq) {
    (segment << SEGMENT_BITS, ((segment + 1) << SEGMENT_BITS) - 1)
}

/// How many parts of these are written before the flush itself is.
pub(super) fn parts(postings: &[Posting]) -> usize {
    postings.len() / PART
}

/// Writes a part.
pub(super) fn write(writer: &mut Writer, postings: &[Posting], part: usize) -> Result<()> {
    let tx = Transaction::new_unchecked(&writer.conn, TransactionBehavior::Immediate).map_err(failed)?;
    add(&tx, postings.chunks(PART).nth(part).unwrap_or_default()).map_err(failed)?;
    tx.commit().map_err(failed)
}

/// What is left for the flush itself.
pub(super) fn rest(postings: &[Posting]) -> &[Posting] {
    &postings[parts(postings) * PART..]
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

/// Segments that a search looks into for one page.
const SEGMENTS_MAX: usize = 512;

pub(super) const SEGMENT_BEFORE: &str = "SELECT max(segment) FROM postings WHERE segment <= ?1";
pub(super) const LEAF: &str = "SELECT first, events FROM postings
    WHERE segment = ?1 AND metric = ?2 AND value >= ?3 AND value < ?4";

/// A page of what a search finds, newest first: segment after segment, in each the sets of all its leaves.
pub(super) fn search(
    conn: &Connection,
    project: ProjectNo,
    search: &Search,
) -> rusqlite::Result<Page<EventRow>> {
    let mut before = search.filter.before.unwrap_or(Seq::MAX);
    let mut page = Page { items: Vec::new(), next: None };
    let (mut looked, mut segments) = (0, 0);
    let mut next = segment_up_to(conn, segment(before.saturating_sub(1)))?;
    while let Some(here) = next {
        let found = found_in(conn, here, search)?;
        let older = found.partition_point(|event| *event < before);
        for event in found[..older].iter().rev().copied() {
            if page.items.len() == search.filter.limit || looked == PAGE_ROWS_SCANNED_MAX {
                page.next = Some(before);
                return Ok(page);
            }
            (before, looked) = (event, looked + 1);
            let row = events::by_seq_of(conn, project, event)?;
            page.items.extend(row.filter(|row| search.filter.admits(row)));
        }
        before = before.min(here << SEGMENT_BITS);
        segments += 1;
        next = segment_up_to(conn, here - 1)?;
        if segments == SEGMENTS_MAX && next.is_some() {
            page.next = Some(before);
            return Ok(page);
        }
    }
    Ok(page)
}

pub(super) const LISTS: &str = "SELECT value, first, events FROM postings WHERE segment = ?1 AND metric = ?2";

/// What indexes have of these events, which are sorted.
pub(super) fn listed(
    conn: &Connection,
    indexes: &[MetricNo],
    events: &[Seq],
) -> rusqlite::Result<Vec<Posting>> {
    let mut found = Vec::new();
    let mut statement = conn.prepare_cached(LISTS)?;
    for some in events.chunk_by(|a, b| segment(*a) == segment(*b)) {
        for index in indexes {
            let mut rows = statement.query(params![segment(some[0]), index])?;
            while let Some(row) = rows.next()? {
                let mut list = Vec::new();
                posting::unpack(row.get(1)?, row.get_ref(2)?.as_blob()?, &mut list);
                found.extend(observe::listed(*index, row.get_ref(0)?.as_blob()?, list, some));
            }
        }
    }
    Ok(found)
}

fn segment_up_to(conn: &Connection, last: i64) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached(SEGMENT_BEFORE)?.query_row([last], |row| row.get(0))
}

fn found_in(conn: &Connection, segment: i64, search: &Search) -> rusqlite::Result<Vec<Seq>> {
    let mut failure = None;
    let found = search.plan.evaluate(&mut |leaf| {
        events_of(conn, segment, search.of(leaf), &leaf.stretches).unwrap_or_else(|error| {
            failure = Some(error);
            Vec::new()
        })
    });
    failure.map_or(Ok(found), Err)
}

fn events_of(
    conn: &Connection,
    segment: i64,
    indexes: &[MetricNo],
    stretches: &[Stretch],
) -> rusqlite::Result<Vec<Seq>> {
    let mut statement = conn.prepare_cached(LEAF)?;
    let mut events = Vec::new();
    for (index, Stretch { from, to }) in
        indexes.iter().flat_map(|index| stretches.iter().map(move |s| (index, s)))
    {
        let mut rows = statement.query(params![segment, index, from, to])?;
        while let Some(row) = rows.next()? {
            posting::unpack(row.get(0)?, row.get_ref(1)?.as_blob()?, &mut events);
        }
    }
    Ok(events)
}

pub(super) const VALUES: &str = "SELECT value, sum(count) FROM postings
    WHERE segment = ?1 AND metric = ?2 AND value >= ?3 AND value < ?4 GROUP BY value ORDER BY value LIMIT ?5";

/// Each segment tells its first values: whatever is among the first of all is among the first of each that has it.
pub(super) fn values(conn: &Connection, filter: &ValueFilter) -> rusqlite::Result<Vec<(Vec<u8>, u64)>> {
    let mut counts: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut statement = conn.prepare_cached(VALUES)?;
    let mut next = segment_up_to(conn, i64::MAX)?;
    for _ in 0..SEGMENTS_MAX {
        let Some(here) = next else { break };
        for index in &filter.indexes {
            for (from, to) in filter.left() {
                let mut rows = statement.query(params![here, index, from, to, filter.limit as i64])?;
                while let Some(row) = rows.next()? {
                    *counts.entry(row.get(0)?).or_default() += row.get::<_, u64>(1)?;
                }
            }
        }
        while counts.len() > filter.limit {
            counts.pop_last();
        }
        next = segment_up_to(conn, here - 1)?;
    }
    Ok(counts.into_iter().collect())
}
