//! Declared types of events. What was taken back leaves an empty row, so that whoever reads only changes hears of it.

use tidegate_core::id::{ProjectNo, Version};
use tidegate_core::limits::CATALOG_TYPES_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::configuration::count;
use super::db::{Asked, Conn};
use super::quarantine::storable;
use crate::{Error, TypeRow};

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// Declares a type; says whether it was new.
pub(super) async fn put(
    conn: &Conn,
    (project, service, type_name): Name<'_>,
    definition: &str,
    version: Version,
    now: Timestamp,
) -> Asked<bool> {
    let living =
        "SELECT 1 FROM catalog WHERE project = $1 AND service = $2 AND type = $3 AND definition IS NOT NULL";
    let is_new = !conn.exists(living, &[&project, &service, &type_name]).await?;
    let all = "SELECT count(*) FROM catalog WHERE project = $1 AND definition IS NOT NULL";
    if is_new && count(conn, all, project).await? >= CATALOG_TYPES_PER_PROJECT_MAX {
        return Err(Error::Conflict(format!(
            "a project declares at most {CATALOG_TYPES_PER_PROJECT_MAX} types: delete unused ones"
        ))
        .into());
    }
    conn.execute(
        "INSERT INTO catalog (project, service, type, created_at, updated_at, version, definition)
         VALUES ($1, $2, $3, $4, $4, $5, $6)
         ON CONFLICT (project, service, type) DO UPDATE SET updated_at = excluded.updated_at,
            created_at = CASE WHEN catalog.definition IS NULL THEN excluded.created_at ELSE catalog.created_at END,
            version = excluded.version, definition = excluded.definition",
        &[&project, &service, &type_name, &now.as_ms(), &version, &definition],
    )
    .await?;
    Ok(is_new)
}

pub(super) async fn delete(
    conn: &Conn,
    (project, service, type_name): Name<'_>,
    version: Version,
    now: Timestamp,
) -> Asked<i64> {
    let changed = conn
        .execute(
            "UPDATE catalog SET definition = NULL, version = $4, updated_at = $5
             WHERE project = $1 AND service = $2 AND type = $3 AND definition IS NOT NULL",
            &[&project, &storable(service), &storable(type_name), &version, &now.as_ms()],
        )
        .await?;
    if changed == 0 { Err(Error::NotFound.into()) } else { Ok(project) }
}

/// Takes back everything that a project declared.
pub(super) async fn delete_all(
    conn: &Conn,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Asked<()> {
    conn.execute(
        "UPDATE catalog SET definition = NULL, version = $2, updated_at = $3
         WHERE project = $1 AND definition IS NOT NULL",
        &[&project, &version, &now.as_ms()],
    )
    .await?;
    Ok(())
}

pub(super) async fn load(conn: &Conn, since: Version) -> Asked<Vec<TypeRow>> {
    let sql = "SELECT project, service, type, created_at, updated_at, definition FROM catalog
        WHERE version > $1 ORDER BY project, service, type";
    Ok(conn.rows(sql, &[&since]).await?.iter().map(type_row).collect())
}

fn type_row(row: &Row) -> TypeRow {
    TypeRow {
        project: row.get(0),
        service: row.get(1),
        type_name: row.get(2),
        created_at: Timestamp::from_ms(row.get(3)),
        updated_at: Timestamp::from_ms(row.get(4)),
        definition: row.get(5),
    }
}
