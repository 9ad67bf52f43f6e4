//! Gates. One that was deleted leaves an empty row, so that whoever reads only changes hears of it.
//!
//! Until when a gate was penalised is no part of the configuration: it stands in `meta`, written when it begins or is lifted.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tidegate_core::id::{GateNo, ProjectNo, Version};
use tidegate_core::limits::GATES_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;

use super::configuration::count;
use super::failed;
use crate::configuration::{gate_in_use, gate_of, gate_unknown};
use crate::{Error, GateRow, Result};

/// Makes a gate, or makes it anew; says which it is and whether it was new.
pub(super) fn put(
    tx: &Transaction<'_>,
    (project, name): (ProjectNo, &str),
    definition: &str,
    version: Version,
    now: Timestamp,
) -> Result<(GateNo, bool)> {
    let is_new = !is_there(tx, project, name)?;
    let all = "SELECT count(*) FROM gates WHERE project = ?1 AND definition IS NOT NULL";
    if is_new && count(tx, all, project)? >= GATES_PER_PROJECT_MAX {
        return Err(Error::Quota(format!("a project has at most {GATES_PER_PROJECT_MAX} gates")));
    }
    let no = tx
        .query_row(
            "INSERT INTO gates (project, name, created_at, updated_at, version, definition)
             VALUES (?1, ?2, ?3, ?3, ?4, ?5)
             ON CONFLICT (project, name) DO UPDATE SET updated_at = excluded.updated_at,
                created_at = CASE WHEN definition IS NULL THEN excluded.created_at ELSE created_at END,
                version = excluded.version, definition = excluded.definition
             RETURNING no",
            params![project, name, now.as_ms(), version, definition],
            |row| row.get(0),
        )
        .map_err(failed)?;
    Ok((no, is_new))
}

/// Ends a gate, unless a subscriber still passes it.
pub(super) fn delete(
    tx: &Transaction<'_>,
    (project, name): (ProjectNo, &str),
    version: Version,
    now: Timestamp,
) -> Result<i64> {
    if let Some(user) = user(tx, project, name).map_err(failed)? {
        return Err(gate_in_use(name, &user));
    }
    let changed = tx
        .execute(
            "UPDATE gates SET definition = NULL, version = ?3, updated_at = ?4
             WHERE project = ?1 AND name = ?2 AND definition IS NOT NULL",
            params![project, name, version, now.as_ms()],
        )
        .map_err(failed)?;
    forget_penalties(tx).map_err(failed)?;
    if changed == 0 { Err(Error::NotFound) } else { Ok(project) }
}

/// Ends all gates of a project that has no subscribers left.
pub(super) fn delete_all(
    tx: &Transaction<'_>,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Result<()> {
    tx.execute(
        "UPDATE gates SET definition = NULL, version = ?2, updated_at = ?3
         WHERE project = ?1 AND definition IS NOT NULL",
        params![project, version, now.as_ms()],
    )
    .map_err(failed)?;
    forget_penalties(tx).map_err(failed)
}

/// What the name of a gate's penalty begins with; its number follows.
const PENALTY: &str = "penalty_of_gate_";

/// Keeps until when a gate gives nothing, if it is there.
pub(super) fn keep_penalty(conn: &Connection, gate: GateNo, until: Timestamp) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO meta SELECT ?1 || no, ?3 FROM gates WHERE no = ?2 AND definition IS NOT NULL
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )?
    .execute(params![PENALTY, gate, until.as_ms()])?;
    Ok(())
}

pub(super) fn penalties(conn: &Connection) -> rusqlite::Result<Vec<(GateNo, Timestamp)>> {
    conn.prepare_cached("SELECT no, value FROM gates JOIN meta ON meta.name = ?1 || no ORDER BY no")?
        .query_map([PENALTY], |row| Ok((row.get(0)?, Timestamp::from_ms(row.get(1)?))))?
        .collect()
}

/// Of gates that are gone: one that is made again under their name begins anew.
fn forget_penalties(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    let gone = "DELETE FROM meta WHERE name IN (SELECT ?1 || no FROM gates WHERE definition IS NULL)";
    tx.execute(gone, [PENALTY]).map(drop)
}

/// Refuses a subscriber whose gate is not there.
pub(super) fn check(tx: &Transaction<'_>, project: ProjectNo, definition: &str) -> Result<()> {
    match gate_of(definition) {
        Some(name) if !is_there(tx, project, &name)? => Err(gate_unknown(&name)),
        _ => Ok(()),
    }
}

fn is_there(tx: &Transaction<'_>, project: ProjectNo, name: &str) -> Result<bool> {
    let living = "SELECT 1 FROM gates WHERE project = ?1 AND name = ?2 AND definition IS NOT NULL";
    let found = tx.query_row(living, params![project, name], |_| Ok(())).optional().map_err(failed)?;
    Ok(found.is_some())
}

/// A subscriber that passes a gate. Looked for where something that is called so is mentioned at all.
fn user(tx: &Transaction<'_>, project: ProjectNo, name: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = tx.prepare(
        "SELECT id, definition FROM subscribers
         WHERE project = ?1 AND deleted_at IS NULL AND instr(definition, ?2) > 0 ORDER BY no",
    )?;
    let mut rows = statement.query(params![project, name])?;
    while let Some(row) = rows.next()? {
        if gate_of(row.get_ref(1)?.as_str()?).as_deref() == Some(name) {
            return row.get(0).map(Some);
        }
    }
    Ok(None)
}

pub(super) fn load(conn: &Connection, since: Version) -> rusqlite::Result<Vec<GateRow>> {
    conn.prepare_cached(
        "SELECT no, project, name, created_at, updated_at, definition FROM gates WHERE version > ?1 ORDER BY no",
    )?
    .query_map([since], gate_row)?
    .collect()
}

fn gate_row(row: &Row<'_>) -> rusqlite::Result<GateRow> {
    Ok(GateRow {
        no: row.get(0)?,
        project: row.get(1)?,
        name: row.get(2)?,
        created_at: Timestamp::from_ms(row.get(3)?),
        updated_at: Timestamp::from_ms(row.get(4)?),
        definition: row.get(5)?,
    })
}
