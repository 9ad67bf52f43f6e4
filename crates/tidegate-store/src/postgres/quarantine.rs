//! Quarantined units: written by the group commit, listed, released, discarded.
//!
//! A unit that is repeated finds its row and stores nothing. Looking is bounded: rows passed over are counted.

use std::borrow::Cow;

use tidegate_core::catalog::{Finding, Reason, pack, unpack};
use tidegate_core::event::Unit;
use tidegate_core::id::{ProjectNo, QuarantineNo};
use tidegate_core::limits::{PAGE_ROWS_SCANNED_MAX, REQUEST_BYTES_MAX};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::write::Context;
use crate::{Page, Picked, QuarantineFilter, QuarantineRow, UnitStatus, fingerprint_from};

const INSERT: &str =
    "INSERT INTO quarantine (project, id, source, fingerprint, type, reason, detail, at, unit)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (project, id, source, fingerprint) DO NOTHING";

pub(super) async fn insert(
    context: &mut Context<'_>,
    project: ProjectNo,
    unit: &Unit,
    finding: &Finding,
) -> Asked<UnitStatus> {
    let Some(event) = unit.events.first() else { return Ok(UnitStatus::Quarantined(finding.reason)) };
    let values: super::db::Values<'_> = &[
        &project,
        &storable(&event.id),
        &storable(&event.source),
        &unit.fingerprint.as_slice(),
        &storable(&event.type_name),
        &finding.reason.name(),
        &storable(&finding.detail),
        &context.group.now.as_ms(),
        &pack(unit),
    ];
    context.conn.execute(INSERT, values).await?;
    Ok(UnitStatus::Quarantined(finding.reason))
}

/// Texts of the database have no NUL; one that quotes what somebody sent may, or one that somebody asks for.
pub(super) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// A wish that may be absent.
fn wish(text: Option<&String>) -> Option<Cow<'_, str>> {
    text.map(|text| storable(text))
}

/// Takes a unit out, unless its id is taken by other content. `None` means that it is to be accepted now.
pub(super) async fn release(
    context: &mut Context<'_>,
    project: ProjectNo,
    no: QuarantineNo,
    known: Option<UnitStatus>,
) -> Asked<Option<UnitStatus>> {
    if known == Some(UnitStatus::Conflict) {
        return Ok(known);
    }
    let delete = "DELETE FROM quarantine WHERE no = $1 AND project = $2";
    let removed = context.conn.execute(delete, &[&no, &project]).await?;
    Ok(if removed == 0 && known.is_none() { Some(UnitStatus::Gone) } else { known })
}

const COLUMNS: &str = "no, id, source, type, reason, detail, at";
const WANTED: &str = "($4::text IS NULL OR source = $4) AND ($5::text IS NULL OR type = $5) AND ($6::text IS NULL OR reason = $6)";

fn quarantine_row(row: &Row) -> QuarantineRow {
    QuarantineRow {
        no: row.get(0),
        id: row.get(1),
        source: row.get(2),
        type_name: row.get(3),
        reason: Reason::parse(row.get(4)).unwrap_or(Reason::SchemaViolation),
        detail: row.get(5),
        at: Timestamp::from_ms(row.get(6)),
        unit: None,
    }
}

/// The rows are looked at one after the other, until the page is full or enough of them have been.
pub(super) fn list_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM (SELECT * FROM quarantine WHERE project = $1 AND no < $2 ORDER BY no DESC LIMIT $3) q
         WHERE {WANTED} ORDER BY no DESC LIMIT $7"
    )
}

/// Where such a look ends, if there is more than it reaches.
const LIST_END: &str =
    "SELECT no FROM quarantine WHERE project = $1 AND no < $2 ORDER BY no DESC OFFSET $3 LIMIT 1";

/// A page, newest first.
pub(super) async fn list(
    conn: &Conn,
    project: ProjectNo,
    filter: &QuarantineFilter,
) -> Asked<Page<QuarantineRow>> {
    let before = filter.beyond.unwrap_or(QuarantineNo::MAX);
    let looked = PAGE_ROWS_SCANNED_MAX as i64;
    let reason = filter.reason.map(Reason::name);
    let (source, type_name) = (wish(filter.source.as_ref()), wish(filter.type_name.as_ref()));
    let more = filter.limit as i64 + 1;
    let rows =
        conn.rows(&list_sql(), &[&project, &before, &looked, &source, &type_name, &reason, &more]).await?;
    let mut items: Vec<QuarantineRow> = rows.iter().map(quarantine_row).collect();
    let next = if items.len() > filter.limit {
        items.truncate(filter.limit);
        items.last().map(|row| row.no)
    } else {
        conn.row(LIST_END, &[&project, &before, &(looked - 1)]).await?.map(|row| row.get(0))
    };
    Ok(Page { items, next })
}

/// What a filter looks at, oldest first: the rows of the ids it names, or any.
fn looked_at(filter: &QuarantineFilter) -> String {
    let narrow = if filter.ids.is_empty() { "$7::text[] IS NOT NULL" } else { "id = ANY($7)" };
    format!("(SELECT * FROM quarantine WHERE project = $1 AND no > $2 AND {narrow} ORDER BY no LIMIT $3) q")
}

/// How many of them are wanted, and how far they reach.
pub(super) fn count_sql(filter: &QuarantineFilter) -> String {
    format!("SELECT count(*) FILTER (WHERE {WANTED}), count(*), max(no) FROM {}", looked_at(filter))
}

/// The first of them, with as many units as a request may have bytes, but at least one.
pub(super) fn pick_sql(filter: &QuarantineFilter, with_units: bool) -> String {
    let unit = if with_units { "fingerprint, unit" } else { "''::bytea AS fingerprint, ''::bytea AS unit" };
    format!(
        "SELECT {COLUMNS}, fingerprint, unit FROM (SELECT p.*, row_number() OVER o AS place,
                sum(octet_length(unit)) OVER o AS bytes
            FROM (SELECT {COLUMNS}, {unit} FROM {} WHERE {WANTED} ORDER BY no LIMIT $8) p WINDOW o AS (ORDER BY no)) p
         WHERE place = 1 OR bytes <= $9 ORDER BY no",
        looked_at(filter)
    )
}

/// Gathers what a filter asks for, oldest first, and counts what is beyond its limit.
async fn gather(
    conn: &Conn,
    project: ProjectNo,
    filter: &QuarantineFilter,
    with_units: bool,
) -> Asked<Picked> {
    let (after, looked) = (filter.beyond.unwrap_or(0), PAGE_ROWS_SCANNED_MAX as i64);
    let (reason, limit, bytes) =
        (filter.reason.map(Reason::name), filter.limit as i64, REQUEST_BYTES_MAX as i64);
    let values: super::db::Values<'_> =
        &[&project, &after, &looked, &filter.source, &filter.type_name, &reason, &filter.ids, &limit, &bytes];
    let rows = conn.rows(&pick_sql(filter, with_units), values).await?;
    let units: Vec<QuarantineRow> = rows.iter().map(|row| picked_row(row, with_units)).collect();
    let counts = conn.only(&count_sql(filter), &values[..7]).await?;
    let (wanted, passed, last): (i64, i64, Option<QuarantineNo>) =
        (counts.get(0), counts.get(1), counts.get(2));
    let remaining = wanted.unsigned_abs().saturating_sub(units.len() as u64);
    let next = if remaining > 0 {
        units.last().map(|unit| unit.no)
    } else {
        // There may be more than was looked at: go on from there.
        last.filter(|_| passed == looked && filter.ids.is_empty())
    };
    Ok(Picked { units, remaining, next })
}

fn picked_row(row: &Row, with_units: bool) -> QuarantineRow {
    let mut found = quarantine_row(row);
    if with_units {
        found.unit = fingerprint_from(row.get(7)).and_then(|print| unpack(row.get(8), print));
    }
    found
}

pub(super) async fn pick(conn: &Conn, project: ProjectNo, filter: &QuarantineFilter) -> Asked<Picked> {
    gather(conn, project, filter, true).await
}

pub(super) async fn discard(conn: &Conn, project: ProjectNo, filter: &QuarantineFilter) -> Asked<Picked> {
    let picked = gather(conn, project, filter, false).await?;
    let numbers: Vec<QuarantineNo> = picked.units.iter().map(|unit| unit.no).collect();
    conn.execute("DELETE FROM quarantine WHERE no = ANY($1)", &[&numbers]).await?;
    Ok(picked)
}
