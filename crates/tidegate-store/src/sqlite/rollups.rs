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
    for gain in &delta.gains {
        let numbers = number(tx, known, &delta.keys, gain)?;
        let number = |place: u32| numbers[place as usize].unwrap_or(OTHER);
        gain.each_page(number, |grain, bucket, page, cells| {
            add_to_page(tx, (gain.metric, grain.code(), bucket, page), cells)
        })?;
    }
    Ok(())
}

pub(super) const PAGE: &str =
    "SELECT cells FROM rollups WHERE metric = ?1 AND grain = ?2 AND bucket = ?3 AND page = ?4";
const PUT_PAGE: &str = "INSERT INTO rollups (metric, grain, bucket, page, cells) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (metric, grain, bucket, page) DO UPDATE SET cells = excluded.cells";

fn add_to_page(
    tx: &Connection,
    (metric, grain, bucket, no): (MetricNo, i64, i64, u32),
    cells: &[(KeyNo, Cell)],
) -> rusqlite::Result<()> {
    let mut read = tx.prepare_cached(PAGE)?;
    let mut rows = read.query(params![metric, grain, bucket, no])?;
    let merged = match rows.next()? {
        Some(row) => page::merge(Some(row.get_ref(0)?.as_blob()?), cells),
        None => page::merge(None, cells),
    };
    let merged = merged.map_err(|torn| rusqlite::Error::ToSqlConversionFailure(Box::new(torn)))?;
    drop(rows);
    tx.prepare_cached(PUT_PAGE)?.execute(params![metric, grain, bucket, no, merged])?;
    Ok(())
}

const KEY: &str = "SELECT no FROM rollup_keys WHERE metric = ?1 AND key = ?2";

/// The numbers of the keys that a metric gains, by their places; new ones get theirs for as long as there are any.
fn number(
    tx: &Connection,
    known: &mut Remembered,
    keys: &[Key],
    gain: &Gain,
) -> rusqlite::Result<Vec<Option<KeyNo>>> {
    let metric = gain.metric;
    let mut stored = tx.prepare_cached(KEY)?;
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
                    None => counts(tx, metric)?,
                };
                left = Some((count + u32::from(count < max), max));
                new_key(tx, metric, key, count, max)?
            }
        };
        numbers[place] = Some(no);
        if no != OTHER {
            known.keys.put(metric, Key::clone(key), no);
        }
    }
    if let Some((keys, _)) = left {
        tx.prepare_cached("UPDATE metrics SET keys = ?2 WHERE no = ?1")?.execute(params![metric, keys])?;
    }
    Ok(numbers)
}

/// How many numbers a metric has given to keys, and how many it may: those that came back count for nothing.
fn counts(tx: &Connection, metric: MetricNo) -> rusqlite::Result<(u32, u32)> {
    let sql = "SELECT keys, keys_max + keys_back FROM metrics WHERE no = ?1";
    let found =
        tx.prepare_cached(sql)?.query_row([metric], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    Ok(found.unwrap_or((0, 0)))
}

fn new_key(tx: &Connection, metric: MetricNo, key: &str, keys: u32, max: u32) -> rusqlite::Result<KeyNo> {
    if keys >= max {
        return Ok(OTHER);
    }
    let insert = "INSERT INTO rollup_keys (metric, key, no) VALUES (?1, ?2, ?3)";
    tx.prepare_cached(insert)?.execute(params![metric, key, keys + 1])?;
    Ok(keys + 1)
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
