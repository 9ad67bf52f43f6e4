//! Objects in their rows: many to one, in order of ids, each row reaching up to where the next begins.

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::id::MetricNo;
use tidegate_core::observe::objects::{self, Page};
use tidegate_core::observe::page::Torn;
use tidegate_core::observe::state::ObjectRow;

pub(super) const PAGE: &str =
    "SELECT no, packed FROM objects WHERE state = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1";
pub(super) const NEXT: &str = "SELECT min(first) FROM objects WHERE state = ?1 AND first > ?2";
pub(super) const PAGES: &str = "SELECT packed FROM objects WHERE state = ?1
    AND first >= coalesce((SELECT max(first) FROM objects WHERE state = ?1 AND first <= ?2), '') ORDER BY first";
const INSERT: &str = "INSERT INTO objects (state, first, packed) VALUES (?1, ?2, ?3)";
const UPDATE: &str = "UPDATE objects SET packed = ?2 WHERE no = ?1";
const DELETE: &str = "DELETE FROM objects WHERE no = ?1";

/// What becomes of some rows: each by its number, if it has one, and the pages that take its place.
pub(super) struct Rows {
    state: MetricNo,
    rows: Vec<(Option<i64>, Vec<Page>)>,
}

/// Changes some objects, which come in order and each once: what `each` makes of an object takes its place.
pub(super) fn change(
    tx: &Connection,
    state: MetricNo,
    touched: &[&str],
    each: impl FnMut(Option<ObjectRow>) -> Option<ObjectRow>,
) -> rusqlite::Result<()> {
    prepare(tx, state, touched, each)?.write(tx)
}

/// The same, without writing it yet.
pub(super) fn prepare(
    conn: &Connection,
    state: MetricNo,
    mut touched: &[&str],
    mut each: impl FnMut(Option<ObjectRow>) -> Option<ObjectRow>,
) -> rusqlite::Result<Rows> {
    let (mut next, mut page) = (conn.prepare_cached(NEXT)?, conn.prepare_cached(PAGE)?);
    let mut rows = Vec::new();
    while let Some(first) = touched.first() {
        let next: Option<String> = next.query_row(params![state, first], |row| row.get(0))?;
        let here = next.map_or(touched.len(), |next| touched.partition_point(|name| **name < *next));
        let (now, later) = touched.split_at(here);
        let changed = |row: &rusqlite::Row<'_>| {
            let packed = row.get_ref(1)?.as_blob()?;
            Ok((Some(row.get(0)?), update(packed, now, &mut each)?))
        };
        let changed = match page.query_row(params![state, first], changed).optional()? {
            Some(changed) => changed,
            None => (None, update(objects::BLANK, now, &mut each)?),
        };
        rows.push(changed);
        touched = later;
    }
    Ok(Rows { state, rows })
}

fn update(
    packed: &[u8],
    touched: &[&str],
    each: impl FnMut(Option<ObjectRow>) -> Option<ObjectRow>,
) -> rusqlite::Result<Vec<Page>> {
    objects::update(packed, touched.iter().copied(), each).map_err(torn)
}

impl Rows {
    pub(super) fn write(&self, tx: &Connection) -> rusqlite::Result<()> {
        let mut update = tx.prepare_cached(UPDATE)?;
        let mut insert = tx.prepare_cached(INSERT)?;
        for (no, pages) in &self.rows {
            // A row stays responsible for everything from its beginning on, whatever its first object is now.
            let mut pages = pages.iter();
            match (no, pages.next()) {
                (Some(no), Some(page)) => update.execute(params![no, page.bytes])?,
                (Some(no), None) => tx.prepare_cached(DELETE)?.execute([no])?,
                (None, Some(page)) => insert.execute(params![self.state, "", page.bytes])?,
                (None, None) => 0,
            };
            for page in pages {
                insert.execute(params![self.state, page.first, page.bytes])?;
            }
        }
        Ok(())
    }
}

/// What is known of one object.
pub(super) fn find(conn: &Connection, state: MetricNo, name: &str) -> rusqlite::Result<Option<ObjectRow>> {
    let read = |row: &rusqlite::Row<'_>| {
        for object in objects::objects(row.get_ref(1)?.as_blob()?).map_err(torn)? {
            let (found, object) = object.map_err(torn)?;
            if found == name {
                return Ok(Some(object));
            }
        }
        Ok(None)
    };
    let found = conn.prepare_cached(PAGE)?.query_row(params![state, name], read).optional()?;
    Ok(found.flatten())
}

/// Goes over the objects behind one, in order, for as long as `each` wants more.
pub(super) fn walk(
    conn: &Connection,
    state: MetricNo,
    after: &str,
    mut each: impl FnMut(&str, ObjectRow) -> bool,
) -> rusqlite::Result<()> {
    let mut pages = conn.prepare_cached(PAGES)?;
    let mut rows = pages.query(params![state, after])?;
    while let Some(row) = rows.next()? {
        for object in objects::objects(row.get_ref(0)?.as_blob()?).map_err(torn)? {
            let (name, object) = object.map_err(torn)?;
            if name > after && !each(name, object) {
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(super) fn torn(torn: Torn) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(torn))
}
