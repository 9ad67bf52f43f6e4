//! Rollups: packed cells, one row for many keys of a bucket.

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::{Cell, Delta, Gain, Grain, Key, page};

use super::remembered::Remembered;
use crate::{Buckets, Rollups};

/// The key of whatever has no number of its own.
const OTHER: KeyNo = 0;

/// Adds to the cells that are there.
pub(super) fn add(tx: &Connection, known: &mut Remembered, delta: &Delta) -> rusqlite::Result<()> {
    Sums::prepare(tx, known, delta)?.write(tx)
}

/// Metric, length of the bucket, bucket and page.
type Place = (MetricNo, i64, i64, u32);

/// What cells come to when something is added to them.
pub(super) struct Sums {
    keys: Vec<(MetricNo, Key, KeyNo)>,
    /// How many keys a metric has after that.
    counts: Vec<(MetricNo, u32)>,
    pages: Vec<(Place, Vec<u8>)>,
}

pub(super) const PAGE: &str =
    "SELECT cells FROM rollups WHERE metric = ?1 AND grain = ?2 AND bucket = ?3 AND page = ?4";
const PUT_PAGE: &str = "INSERT INTO rollups (metric, grain, bucket, page, cells) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (metric, grain, bucket, page) DO UPDATE SET cells = excluded.cells";
const PUT_KEY: &str = "INSERT INTO rollup_keys (metric, key, no) VALUES (?1, ?2, ?3)";

impl Sums {
    /// Reads what is there, and writes nothing yet.
    pub(super) fn prepare(
        conn: &Connection,
        known: &mut Remembered,
        delta: &Delta,
    ) -> rusqlite::Result<Self> {
        let mut sums = Self { keys: Vec::new(), counts: Vec::new(), pages: Vec::new() };
        for gain in &delta.gains {
            let numbers = sums.number(conn, known, &delta.keys, gain)?;
            let number = |place: u32| numbers[place as usize].unwrap_or(OTHER);
            gain.each_page(number, |grain, bucket, page, cells| {
                sums.add_to_page(conn, (gain.metric, grain.code(), bucket, page), cells)
            })?;
        }
        Ok(sums)
    }

    fn add_to_page(&mut self, conn: &Connection, at: Place, cells: &[(KeyNo, Cell)]) -> rusqlite::Result<()> {
        let mut read = conn.prepare_cached(PAGE)?;
        let mut rows = read.query(params![at.0, at.1, at.2, at.3])?;
        let merged = match rows.next()? {
            Some(row) => page::merge(Some(row.get_ref(0)?.as_blob()?), cells),
            None => page::merge(None, cells),
        };
        let merged = merged.map_err(|torn| rusqlite::Error::ToSqlConversionFailure(Box::new(torn)))?;
        self.pages.push((at, merged));
        Ok(())
    }

    /// The numbers of the keys that a metric gains, by their places; new ones get theirs for as long as there are any.
    fn number(
        &mut self,
        conn: &Connection,
        known: &mut Remembered,
        keys: &[Key],
        gain: &Gain,
    ) -> rusqlite::Result<Vec<Option<KeyNo>>> {
        let metric = gain.metric;
        let mut stored = conn.prepare_cached(KEY)?;
        let mut numbers = vec![None; keys.len()];
        let mut left = None;
        for (_, place, _) in &gain.cells {
            let (place, key) = (*place as usize, &keys[*place as usize]);
            if numbers[place].is_some() {
                continue;
            }
            if let Some(no) = known.keys.get(metric, key) {
                numbers[place] = Some(*no);
                continue;
            }
            let no: Option<KeyNo> = stored.query_row(params![metric, key], |row| row.get(0)).optional()?;
            let no = match no {
                Some(no) => no,
                None => {
                    let (count, max) = match left {
                        Some(left) => left,
                        None => counts(conn, metric)?,
                    };
                    left = Some((count + u32::from(count < max), max));
                    if count < max {
                        self.keys.push((metric, Key::clone(key), count + 1));
                    }
                    if count < max { count + 1 } else { OTHER }
                }
            };
            numbers[place] = Some(no);
            if no != OTHER {
                known.keys.put(metric, Key::clone(key), no);
            }
        }
        self.counts.extend(left.map(|(keys, _)| (metric, keys)));
        Ok(numbers)
    }

    pub(super) fn write(&self, tx: &Connection) -> rusqlite::Result<()> {
        let mut put = tx.prepare_cached(PUT_KEY)?;
        for (metric, key, no) in &self.keys {
            put.execute(params![metric, key, no])?;
        }
        for (metric, keys) in &self.counts {
            tx.prepare_cached("UPDATE metrics SET keys = ?2 WHERE no = ?1")?
                .execute(params![metric, keys])?;
        }
        let mut put = tx.prepare_cached(PUT_PAGE)?;
        for ((metric, grain, bucket, page), cells) in &self.pages {
            put.execute(params![metric, grain, bucket, page, cells])?;
        }
        Ok(())
    }
}

const KEY: &str = "SELECT no FROM rollup_keys WHERE metric = ?1 AND key = ?2";

/// How many numbers a metric has given to keys, and how many it may: those that came back count for nothing.
fn counts(conn: &Connection, metric: MetricNo) -> rusqlite::Result<(u32, u32)> {
    let sql = "SELECT keys, keys_max + keys_back FROM metrics WHERE no = ?1";
    let found =
        conn.prepare_cached(sql)?.query_row([metric], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.unwrap_or((0, 0)))
}

pub(super) const KEYS: &str = "SELECT no, key FROM rollup_keys WHERE metric = ?1";
pub(super) const PAGES: &str = "SELECT bucket, cells FROM rollups
    WHERE metric = ?1 AND grain = ?2 AND bucket >= ?3 AND bucket < ?4 ORDER BY bucket, page";

pub(super) fn read(conn: &Connection, metric: MetricNo, buckets: &[Buckets]) -> rusqlite::Result<Rollups> {
    let key = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, std::sync::Arc::from(row.get_ref(1)?.as_str()?)));
    let keys = conn.prepare_cached(KEYS)?.query_map([metric], key)?.collect::<rusqlite::Result<_>>()?;
    let mut pages: Vec<(Grain, i64, Vec<u8>)> = Vec::new();
    let mut statement = conn.prepare_cached(PAGES)?;
    for Buckets { grain, from, to } in buckets {
        let mut rows = statement.query(params![metric, grain.code(), from, to])?;
        while let Some(row) = rows.next()? {
            pages.push((*grain, row.get(0)?, row.get(1)?));
        }
    }
    Ok(Rollups { keys, pages })
}
