//! A run of look-up keys on disk: sorted, packed into pages, written once and never changed.
//!
//! A row per key would cost as much as the event's own row. So a few hundred keys with their events make one row, which
//! fills one leaf of the table; the first key of every page stays in memory, and a look-up reads one row.

use std::ops::RangeInclusive;

use rusqlite::{Connection, params};
use tidegate_core::id::Seq;

use super::filter::Filter;

/// A key and its event, eight bytes each, little end first.
const PAIR_BYTES: usize = 16;
/// Pairs in a page: 4 032 bytes, of the 4 061 that SQLite keeps in one leaf.
pub(super) const PAGE_PAIRS: usize = 252;
/// Bits of a page's number that count within its run.
const PAGE_BITS: u32 = 20;

pub(super) const LOOK_UP: &str = "SELECT pairs FROM dedupe WHERE page BETWEEN ?1 AND ?2";

/// What memory keeps of a run.
pub(super) struct Run {
    pub(super) no: i64,
    pub(super) filter: Filter,
    /// The first key of every page.
    pub(super) firsts: Vec<i64>,
}

impl Run {
    /// Every run that was completed, oldest first.
    pub(super) fn load_all(conn: &Connection) -> rusqlite::Result<Vec<Self>> {
        let mut statement = conn.prepare("SELECT run, filter, firsts FROM dedupe_runs ORDER BY run")?;
        let runs = statement.query_map([], |row| {
            let firsts = row.get_ref(2)?.as_blob()?.as_chunks::<8>().0;
            Ok(Self {
                no: row.get(0)?,
                filter: Filter::from_bytes(row.get_ref(1)?.as_blob()?),
                firsts: firsts.iter().map(|first| i64::from_le_bytes(*first)).collect(),
            })
        })?;
        runs.collect()
    }

    /// Declares the run complete: it holds the keys of every event up to `through` that no older run holds.
    pub(super) fn complete(&self, conn: &Connection, through: Seq) -> rusqlite::Result<()> {
        let firsts: Vec<u8> = self.firsts.iter().flat_map(|first| first.to_le_bytes()).collect();
        conn.prepare_cached(
            "INSERT INTO dedupe_runs (run, through, filter, firsts) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![self.no, through, self.filter.to_bytes(), firsts])?;
        Ok(())
    }

    /// Adds the events of all keys in the range.
    pub(super) fn look_up(
        &self,
        conn: &Connection,
        keys: &RangeInclusive<i64>,
        found: &mut Vec<Seq>,
    ) -> rusqlite::Result<()> {
        // The page before the first that begins inside may end inside.
        let begin = self.firsts.partition_point(|first| first < keys.start()).saturating_sub(1);
        let end = self.firsts.partition_point(|first| first <= keys.end());
        if begin >= end {
            return Ok(());
        }
        let mut statement = conn.prepare_cached(LOOK_UP)?;
        let mut rows = statement.query([page_no(self.no, begin), page_no(self.no, end - 1)])?;
        while let Some(row) = rows.next()? {
            let pairs = unpack(row.get_ref(0)?.as_blob()?);
            found.extend(pairs.filter(|(key, _)| keys.contains(key)).map(|(_, seq)| seq));
        }
        Ok(())
    }
}

/// Writes one page. A run that was cut short by the end of a process is written anew under its number.
pub(super) fn write_page(
    conn: &Connection,
    run: i64,
    index: usize,
    pairs: &[(i64, Seq)],
) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO dedupe (page, pairs) VALUES (?1, ?2)")?
        .execute(params![page_no(run, index), pack(pairs)])?;
    Ok(())
}

/// Removes some pages of a run that nobody asks any more; says how many.
pub(super) fn remove_pages(conn: &Connection, run: i64, limit: i64) -> rusqlite::Result<i64> {
    let removed = conn
        .prepare_cached(
            "DELETE FROM dedupe WHERE page IN (SELECT page FROM dedupe WHERE page >= ?1 AND page < ?2 LIMIT ?3)",
        )?
        .execute(params![page_no(run, 0), page_no(run + 1, 0), limit])?;
    Ok(removed as i64)
}

fn page_no(run: i64, index: usize) -> i64 {
    (run << PAGE_BITS) | index as i64
}

fn pack(pairs: &[(i64, Seq)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pairs.len() * PAIR_BYTES);
    for (key, seq) in pairs {
        bytes.extend_from_slice(&key.to_le_bytes());
        bytes.extend_from_slice(&seq.to_le_bytes());
    }
    bytes
}

fn unpack(bytes: &[u8]) -> impl Iterator<Item = (i64, Seq)> {
    let numbers = bytes.as_chunks::<8>().0.as_chunks::<2>().0;
    numbers.iter().map(|[key, seq]| (i64::from_le_bytes(*key), i64::from_le_bytes(*seq)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of these keys in a table of its own; the event of the n-th key is n.
    fn run_of(conn: &Connection, keys: impl IntoIterator<Item = i64>) -> Run {
        conn.execute_batch("CREATE TABLE dedupe (page INTEGER PRIMARY KEY, pairs BLOB NOT NULL)").unwrap();
        let mut pairs: Vec<(i64, Seq)> = keys.into_iter().zip(0..).collect();
        pairs.sort_unstable();
        let pages = pairs.chunks(PAGE_PAIRS);
        for (index, page) in pages.clone().enumerate() {
            write_page(conn, 3, index, page).unwrap();
        }
        Run {
            no: 3,
            filter: Filter::of(pairs.iter().map(|(key, _)| *key)),
            firsts: pages.map(|page| page[0].0).collect(),
        }
    }

    fn found(run: &Run, conn: &Connection, keys: RangeInclusive<i64>) -> Vec<Seq> {
        let mut found = Vec::new();
        run.look_up(conn, &keys, &mut found).unwrap();
        found
    }

    #[test]
    fn every_key_is_found_wherever_its_page_begins() {
        let conn = Connection::open_in_memory().unwrap();
        let run = run_of(&conn, (0..1_000).map(|n| n * 10 - 5_000));
        for n in 0..1_000 {
            let key = n * 10 - 5_000;
            assert_eq!(found(&run, &conn, key..=key), [n]);
            assert!(found(&run, &conn, key + 1..=key + 1).is_empty());
        }
        assert_eq!(found(&run, &conn, i64::MIN..=i64::MAX).len(), 1_000);
    }

    #[test]
    fn the_first_and_the_last_key_there_can_be_are_found() {
        let conn = Connection::open_in_memory().unwrap();
        let run = run_of(&conn, [i64::MIN, 0, i64::MAX]);
        for (key, event) in [(i64::MIN, 0), (0, 1), (i64::MAX, 2)] {
            assert_eq!(found(&run, &conn, key..=key), [event]);
        }
    }

    #[test]
    fn one_key_of_many_events_may_fill_several_pages() {
        let conn = Connection::open_in_memory().unwrap();
        let run = run_of(&conn, [1, 9].into_iter().chain(std::iter::repeat_n(5, 700)));
        assert_eq!(found(&run, &conn, 5..=5).len(), 700);
        assert_eq!(found(&run, &conn, 9..=9), [1]);
    }
}
