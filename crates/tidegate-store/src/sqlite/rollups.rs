//! Rollups: packed cells, one row for many keys of a bucket.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::{Cell, Grain, Key, Rise, page};

use crate::{Buckets, Rollups};

/// The key of whatever has no number of its own.
const OTHER: KeyNo = 0;

/// Adds to the cells that are there. `rises` are sorted by metric, grain, bucket and key.
pub(super) fn add(tx: &Connection, rises: &[Rise]) -> rusqlite::Result<()> {
    for of_metric in rises.chunk_by(|a, b| a.metric == b.metric) {
        let numbers = number(tx, of_metric)?;
        for bucket in of_metric.chunk_by(|a, b| (a.grain, a.bucket) == (b.grain, b.bucket)) {
            let first = &bucket[0];
            let number = |rise: &Rise| numbers.get(&rise.key).copied().unwrap_or(OTHER);
            let mut cells: Vec<(KeyNo, &Cell)> =
                bucket.iter().map(|rise| (number(rise), &rise.cell)).collect();
            cells.sort_by_key(|(no, _)| *no);
            for page in cells.chunk_by(|a, b| first.page(a.0) == first.page(b.0)) {
                add_to_page(tx, first, page)?;
            }
        }
    }
    Ok(())
}

pub(super) const PAGE: &str =
    "SELECT cells FROM rollups WHERE metric = ?1 AND grain = ?2 AND bucket = ?3 AND page = ?4";
const PUT_PAGE: &str = "INSERT INTO rollups (metric, grain, bucket, page, cells) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (metric, grain, bucket, page) DO UPDATE SET cells = excluded.cells";

fn add_to_page(tx: &Connection, at: &Rise, cells: &[(KeyNo, &Cell)]) -> rusqlite::Result<()> {
    let no = at.page(cells[0].0);
    let (metric, grain, bucket) = (at.metric, at.grain.code(), at.bucket);
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

/// The numbers of the keys of one metric's rises; new ones get theirs for as long as there are any.
fn number<'r>(tx: &Connection, rises: &'r [Rise]) -> rusqlite::Result<BTreeMap<&'r Key, KeyNo>> {
    let metric = rises[0].metric;
    let mut known = tx.prepare_cached(KEY)?;
    let mut numbers = BTreeMap::new();
    let mut left = None;
    for rise in rises {
        if numbers.contains_key(&rise.key) {
            continue;
        }
        let no: Option<KeyNo> = known.query_row(params![metric, rise.key], |row| row.get(0)).optional()?;
        let no = match no {
            Some(no) => no,
            None => {
                let (keys, max) = match left {
                    Some(left) => left,
                    None => counts(tx, metric)?,
                };
                left = Some((keys + u32::from(keys < max), max));
                new_key(tx, metric, &rise.key, keys, max)?
            }
        };
        numbers.insert(&rise.key, no);
    }
    if let Some((keys, _)) = left {
        tx.prepare_cached("UPDATE metrics SET keys = ?2 WHERE no = ?1")?.execute(params![metric, keys])?;
    }
    Ok(numbers)
}

/// How many keys a metric has, and how many it may have.
fn counts(tx: &Connection, metric: MetricNo) -> rusqlite::Result<(u32, u32)> {
    let sql = "SELECT keys, keys_max FROM metrics WHERE no = ?1";
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
