//! Quarantined units: written by the group commit, listed, released, discarded.
//!
//! A unit that is repeated finds its row and stores nothing. Looking is bounded: rows passed over are counted.

use rusqlite::{Connection, Row, params};
use tidegate_core::catalog::{Finding, Reason, pack, unpack};
use tidegate_core::event::{Fingerprint, Unit};
use tidegate_core::id::{ProjectNo, QuarantineNo};
use tidegate_core::limits::{PAGE_ROWS_SCANNED_MAX, REQUEST_BYTES_MAX};
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::{Writer, stamp};
use crate::{Page, Picked, QuarantineFilter, QuarantineRow, UnitStatus, fingerprint_from};

pub(super) const INSERT: &str = "INSERT INTO quarantine
    (project, id, source, fingerprint, type, reason, detail, at, unit)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT (project, id, source, fingerprint) DO NOTHING";

pub(super) fn insert(
    context: &Context<'_>,
    project: ProjectNo,
    unit: &Unit,
    finding: &Finding,
) -> rusqlite::Result<UnitStatus> {
    let Some(event) = unit.events.first() else { return Ok(UnitStatus::Quarantined(finding.reason)) };
    context.conn.prepare_cached(INSERT)?.execute(params![
        project,
        event.id,
        event.source,
        unit.fingerprint.as_slice(),
        event.type_name,
        finding.reason.name(),
        finding.detail,
        context.group.now.as_ms(),
        pack(unit),
    ])?;
    Ok(UnitStatus::Quarantined(finding.reason))
}

/// Takes a unit out, unless its id is taken by other content. `None` means that it is to be accepted now. If it was
/// taken out before, its number may be another one's by now, whose print is another.
pub(super) fn release(
    context: &Context<'_>,
    project: ProjectNo,
    (no, print): (QuarantineNo, &Fingerprint),
    known: Option<UnitStatus>,
) -> rusqlite::Result<Option<UnitStatus>> {
    if known == Some(UnitStatus::Conflict) {
        return Ok(known);
    }
    let removed = context
        .conn
        .prepare_cached("DELETE FROM quarantine WHERE no = ?1 AND project = ?2 AND fingerprint = ?3")?
        .execute(params![no, project, print])?;
    Ok(if removed == 0 && known.is_none() { Some(UnitStatus::Gone) } else { known })
}

const COLUMNS: &str = "no, id, source, type, reason, detail, at, fingerprint, unit";

pub(super) fn list_sql() -> String {
    format!("SELECT {COLUMNS} FROM quarantine WHERE project = ?1 AND no < ?2 ORDER BY no DESC LIMIT ?3")
}

pub(super) fn pick_sql() -> String {
    format!("SELECT {COLUMNS} FROM quarantine WHERE project = ?1 AND no > ?2 ORDER BY no LIMIT ?3")
}

pub(super) fn named_sql() -> String {
    format!("SELECT {COLUMNS} FROM quarantine WHERE project = ?1 AND no > ?2 AND id = ?3")
}

fn quarantine_row(row: &Row<'_>) -> rusqlite::Result<QuarantineRow> {
    Ok(QuarantineRow {
        no: row.get(0)?,
        id: row.get(1)?,
        source: row.get(2)?,
        type_name: row.get(3)?,
        reason: Reason::parse(row.get_ref(4)?.as_str()?).unwrap_or(Reason::SchemaViolation),
        detail: row.get(5)?,
        at: Timestamp::from_ms(row.get(6)?),
        unit: None,
    })
}

fn is_wanted(row: &Row<'_>, filter: &QuarantineFilter) -> rusqlite::Result<bool> {
    let same = |column: usize, wanted: Option<&str>| -> rusqlite::Result<bool> {
        match wanted {
            None => Ok(true),
            Some(wanted) => Ok(row.get_ref(column)?.as_str()? == wanted),
        }
    };
    Ok(same(2, filter.source.as_deref())?
        && same(3, filter.type_name.as_deref())?
        && same(4, filter.reason.map(Reason::name))?)
}

/// A page, newest first.
pub(super) fn list(
    conn: &Connection,
    project: ProjectNo,
    filter: &QuarantineFilter,
) -> rusqlite::Result<Page<QuarantineRow>> {
    let mut statement = conn.prepare_cached(&list_sql())?;
    let before = filter.beyond.unwrap_or(QuarantineNo::MAX);
    let mut rows = statement.query(params![project, before, PAGE_ROWS_SCANNED_MAX as i64])?;
    let mut page = Page { items: Vec::new(), next: None };
    let mut scanned = 0;
    while let Some(row) = rows.next()? {
        if page.items.len() == filter.limit {
            return Ok(page);
        }
        scanned += 1;
        if is_wanted(row, filter)? {
            page.items.push(quarantine_row(row)?);
        }
        page.next = Some(row.get(0)?);
    }
    if scanned < PAGE_ROWS_SCANNED_MAX {
        page.next = None;
    }
    Ok(page)
}

/// Gathers what a filter asks for, oldest first, and counts what is beyond its limit.
struct Pick<'f> {
    filter: &'f QuarantineFilter,
    with_units: bool,
    bytes: usize,
    picked: Picked,
}

impl Pick<'_> {
    fn row(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        if !is_wanted(row, self.filter)? {
            return Ok(());
        }
        if self.picked.units.len() == self.filter.limit || self.bytes > REQUEST_BYTES_MAX {
            self.picked.remaining += 1;
            return Ok(());
        }
        let mut found = quarantine_row(row)?;
        if self.with_units {
            let (print, unit) = (row.get_ref(7)?.as_blob()?, row.get_ref(8)?.as_blob()?);
            self.bytes += unit.len();
            if self.bytes > REQUEST_BYTES_MAX && !self.picked.units.is_empty() {
                self.picked.remaining += 1;
                return Ok(());
            }
            found.unit = fingerprint_from(print).and_then(|print| unpack(unit, print));
        }
        self.picked.units.push(found);
        Ok(())
    }
}

fn gather(
    conn: &Connection,
    project: ProjectNo,
    filter: &QuarantineFilter,
    with_units: bool,
) -> rusqlite::Result<Picked> {
    let mut pick = Pick { filter, with_units, bytes: 0, picked: Picked::default() };
    let after = filter.beyond.unwrap_or(0);
    if filter.ids.is_empty() {
        let mut statement = conn.prepare_cached(&pick_sql())?;
        let mut rows = statement.query(params![project, after, PAGE_ROWS_SCANNED_MAX as i64])?;
        let (mut scanned, mut last) = (0, None);
        while let Some(row) = rows.next()? {
            pick.row(row)?;
            scanned += 1;
            last = Some(row.get(0)?);
        }
        // There may be more than was looked at: go on from there.
        pick.picked.next = last.filter(|_| scanned == PAGE_ROWS_SCANNED_MAX);
    } else {
        let numbers = numbers_of(conn, project, filter, after)?;
        let mut statement =
            conn.prepare_cached(&format!("SELECT {COLUMNS} FROM quarantine WHERE no = ?1"))?;
        for no in numbers {
            let mut rows = statement.query([no])?;
            if let Some(row) = rows.next()? {
                pick.row(row)?;
            }
        }
    }
    if pick.picked.remaining > 0 {
        pick.picked.next = pick.picked.units.last().map(|unit| unit.no);
    }
    Ok(pick.picked)
}

/// The rows of the ids that a filter names.
fn numbers_of(
    conn: &Connection,
    project: ProjectNo,
    filter: &QuarantineFilter,
    after: QuarantineNo,
) -> rusqlite::Result<Vec<QuarantineNo>> {
    let mut statement = conn.prepare_cached(&named_sql())?;
    let mut numbers = Vec::new();
    for id in &filter.ids {
        let rows = statement.query_map(params![project, after, id], |row| row.get(0))?;
        for no in rows.take(PAGE_ROWS_SCANNED_MAX.saturating_sub(numbers.len())) {
            numbers.push(no?);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

pub(super) fn pick(
    conn: &Connection,
    project: ProjectNo,
    filter: &QuarantineFilter,
) -> rusqlite::Result<Picked> {
    gather(conn, project, filter, true)
}

pub(super) fn discard(
    writer: &mut Writer,
    project: ProjectNo,
    filter: &QuarantineFilter,
    now: Timestamp,
) -> rusqlite::Result<Picked> {
    let tx = writer.conn.transaction()?;
    let picked = gather(&tx, project, filter, false)?;
    {
        let mut delete = tx.prepare_cached("DELETE FROM quarantine WHERE no = ?1")?;
        for unit in &picked.units {
            delete.execute([unit.no])?;
        }
    }
    stamp(&tx, now)?;
    tx.commit()?;
    Ok(picked)
}
