//! Declared types of events. What was taken back leaves an empty row, so that whoever reads only changes hears of it.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tidegate_core::id::{ProjectNo, Version};
use tidegate_core::limits::CATALOG_TYPES_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;

use super::configuration::count;
use super::failed;
use crate::{Error, Result, TypeRow};

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// Declares a type; says whether it was new.
pub(super) fn put(
    tx: &Transaction<'_>,
    (project, service, type_name): Name<'_>,
    definition: &str,
    version: Version,
    now: Timestamp,
) -> Result<bool> {
    let living =
        "SELECT 1 FROM catalog WHERE project = ?1 AND service = ?2 AND type = ?3 AND definition IS NOT NULL";
    let found = tx.query_row(living, params![project, service, type_name], |_| Ok(())).optional();
    let is_new = found.map_err(failed)?.is_none();
    let all = "SELECT count(*) FROM catalog WHERE project = ?1 AND definition IS NOT NULL";
    if is_new && count(tx, all, project)? >= CATALOG_TYPES_PER_PROJECT_MAX {
        return Err(Error::Conflict(format!(
            "a project declares at most {CATALOG_TYPES_PER_PROJECT_MAX} types: delete unused ones"
        )));
    }
    tx.execute(
        "INSERT INTO catalog (project, service, type, created_at, updated_at, version, definition)
         VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)
         ON CONFLICT (project, service, type) DO UPDATE SET updated_at = excluded.updated_at,
            created_at = CASE WHEN definition IS NULL THEN excluded.created_at ELSE created_at END,
            version = excluded.version, definition = excluded.definition",
        params![project, service, type_name, now.as_ms(), version, definition],
    )
    .map_err(failed)?;
    Ok(is_new)
}

pub(super) fn delete(
    tx: &Transaction<'_>,
    (project, service, type_name): Name<'_>,
    version: Version,
    now: Timestamp,
) -> Result<i64> {
    let changed = tx
        .execute(
            "UPDATE catalog SET definition = NULL, version = ?4, updated_at = ?5
             WHERE project = ?1 AND service = ?2 AND type = ?3 AND definition IS NOT NULL",
            params![project, service, type_name, version, now.as_ms()],
        )
        .map_err(failed)?;
    if changed == 0 { Err(Error::NotFound) } else { Ok(project) }
}

/// Takes back everything that a project declared.
pub(super) fn delete_all(
    tx: &Transaction<'_>,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Result<()> {
    tx.execute(
        "UPDATE catalog SET definition = NULL, version = ?2, updated_at = ?3
         WHERE project = ?1 AND definition IS NOT NULL",
        params![project, version, now.as_ms()],
    )
    .map_err(failed)?;
    Ok(())
}

pub(super) fn load(conn: &Connection, since: Version) -> rusqlite::Result<Vec<TypeRow>> {
    conn.prepare_cached(
        "SELECT project, service, type, created_at, updated_at, definition FROM catalog
         WHERE version > ?1 ORDER BY project, service, type",
    )?
    .query_map([since], type_row)?
    .collect()
}

fn type_row(row: &Row<'_>) -> rusqlite::Result<TypeRow> {
    Ok(TypeRow {
        project: row.get(0)?,
        service: row.get(1)?,
        type_name: row.get(2)?,
        created_at: Timestamp::from_ms(row.get(3)?),
        updated_at: Timestamp::from_ms(row.get(4)?),
        definition: row.get(5)?,
    })
}
