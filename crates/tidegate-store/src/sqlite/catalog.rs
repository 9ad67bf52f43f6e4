//! Declared types of events. What was taken back leaves an empty row, so that whoever reads only changes hears of it;
//! what a type was at each version stays, so that an event is observed by the rules of its day.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tidegate_core::id::{ProjectNo, Seq, Version};
use tidegate_core::limits::CATALOG_TYPES_PER_PROJECT_MAX;
use tidegate_core::observe::{Spec, Switches};
use tidegate_core::time::Timestamp;

use super::configuration::count;
use super::{failed, keeping, metrics};
use crate::{Error, Result, TypeRow, TypeVersion, observe};

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// What a type is declared to be.
pub(super) struct Declaration<'a> {
    pub(super) definition: &'a str,
    pub(super) metrics: &'a [Spec],
    /// How long its events are kept, if not as long as others.
    pub(super) keep_ms: Option<i64>,
    /// The last number that was drawn.
    pub(super) last: Seq,
}

/// Declares a type; says whether it was new.
pub(super) fn put(
    tx: &Transaction<'_>,
    name: Name<'_>,
    declared: &Declaration<'_>,
    version: Version,
    now: Timestamp,
) -> Result<bool> {
    let (project, service, type_name) = name;
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
    write(tx, name, declared, version, now).map_err(failed)?;
    Ok(is_new)
}

fn write(
    tx: &Transaction<'_>,
    name: Name<'_>,
    declared: &Declaration<'_>,
    version: Version,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let (project, service, type_name) = name;
    let counted = metrics::register(tx, name, declared.metrics, declared.last, now)?;
    metrics::release(tx, name, &counted, now)?;
    keeping::set(tx, name, declared.keep_ms)?;
    let counted = observe::written(&counted);
    tx.execute(
        "INSERT INTO catalog (project, service, type, created_at, updated_at, version, definition, metrics)
         VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7)
         ON CONFLICT (project, service, type) DO UPDATE SET updated_at = excluded.updated_at,
            created_at = CASE WHEN definition IS NULL THEN excluded.created_at ELSE created_at END,
            version = excluded.version, definition = excluded.definition, metrics = excluded.metrics",
        params![project, service, type_name, now.as_ms(), version, declared.definition, counted],
    )?;
    tx.execute(
        "INSERT INTO catalog_versions VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![project, service, type_name, version, declared.definition, counted],
    )?;
    Ok(())
}

pub(super) fn delete(tx: &Transaction<'_>, name: Name<'_>, version: Version, now: Timestamp) -> Result<i64> {
    let (project, service, type_name) = name;
    metrics::release(tx, name, &[], now).map_err(failed)?;
    keeping::set(tx, name, None).map_err(failed)?;
    let changed = tx
        .execute(
            "UPDATE catalog SET definition = NULL, metrics = '[]', version = ?4, updated_at = ?5
             WHERE project = ?1 AND service = ?2 AND type = ?3 AND definition IS NOT NULL",
            params![project, service, type_name, version, now.as_ms()],
        )
        .map_err(failed)?;
    if changed == 0 {
        return Err(Error::NotFound);
    }
    remember_deleted(tx, version).map_err(failed)?;
    Ok(project)
}

/// Takes back everything that a project declared.
pub(super) fn delete_all(
    tx: &Transaction<'_>,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Result<()> {
    metrics::end_all(tx, project, now).map_err(failed)?;
    keeping::unset_all(tx, project).map_err(failed)?;
    tx.execute(
        "UPDATE catalog SET definition = NULL, metrics = '[]', version = ?2, updated_at = ?3
         WHERE project = ?1 AND definition IS NOT NULL",
        params![project, version, now.as_ms()],
    )
    .map_err(failed)?;
    remember_deleted(tx, version).map_err(failed)
}

/// Remembers what the installation switches off from a version on.
pub(super) fn switch(tx: &Transaction<'_>, switches: Switches, version: Version) -> Result<i64> {
    tx.execute(
        "INSERT INTO catalog_versions VALUES (?1, '', '', ?2, ?3, '[]')",
        params![observe::INSTALLATION, version, observe::written_switches(switches)],
    )
    .map_err(failed)?;
    Ok(observe::INSTALLATION)
}

fn remember_deleted(tx: &Transaction<'_>, version: Version) -> rusqlite::Result<()> {
    let sql = "INSERT INTO catalog_versions SELECT project, service, type, version, NULL, '[]' FROM catalog
        WHERE version = ?1 AND definition IS NULL";
    tx.execute(sql, [version])?;
    Ok(())
}

pub(super) fn load(conn: &Connection, since: Version) -> rusqlite::Result<Vec<TypeRow>> {
    conn.prepare_cached(
        "SELECT project, service, type, created_at, updated_at, definition, metrics FROM catalog
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
        metrics: observe::read(&row.get::<_, String>(6)?),
    })
}

pub(super) const VERSIONS: &str = "SELECT project, service, type, version, definition, metrics
    FROM catalog_versions WHERE version > ?1 ORDER BY version, project, service, type";

pub(super) fn versions(conn: &Connection, since: Version) -> rusqlite::Result<Vec<TypeVersion>> {
    let version = |row: &Row<'_>| {
        Ok(TypeVersion {
            project: row.get(0)?,
            service: row.get(1)?,
            type_name: row.get(2)?,
            version: row.get(3)?,
            definition: row.get(4)?,
            metrics: observe::read(&row.get::<_, String>(5)?),
        })
    };
    conn.prepare_cached(VERSIONS)?.query_map([since], version)?.collect()
}
