//! Declared types of events. What was taken back leaves an empty row, so that whoever reads only changes hears of it;
//! what a type was at each version stays, so that an event is observed by the rules of its day.

use tidegate_core::id::{ProjectNo, Seq, Version};
use tidegate_core::limits::CATALOG_TYPES_PER_PROJECT_MAX;
use tidegate_core::observe::{Spec, Switches};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::configuration::count;
use super::db::{Asked, Conn};
use super::quarantine::storable;
use super::{keeping, metrics};
use crate::{Error, TypeRow, TypeVersion, observe};

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
pub(super) async fn put(
    conn: &Conn,
    name: Name<'_>,
    declared: &Declaration<'_>,
    version: Version,
    now: Timestamp,
) -> Asked<bool> {
    let (project, service, type_name) = name;
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
    let counted = metrics::register(conn, name, declared.metrics, declared.last, now).await?;
    metrics::release(conn, name, &counted, now).await?;
    keeping::set(conn, name, declared.keep_ms).await?;
    let counted = observe::written(&counted);
    conn.execute(
        "INSERT INTO catalog (project, service, type, created_at, updated_at, version, definition, metrics)
         VALUES ($1, $2, $3, $4, $4, $5, $6, $7)
         ON CONFLICT (project, service, type) DO UPDATE SET updated_at = excluded.updated_at,
            created_at = CASE WHEN catalog.definition IS NULL THEN excluded.created_at ELSE catalog.created_at END,
            version = excluded.version, definition = excluded.definition, metrics = excluded.metrics",
        &[&project, &service, &type_name, &now.as_ms(), &version, &declared.definition, &counted],
    )
    .await?;
    conn.execute(
        "INSERT INTO catalog_versions VALUES ($1, $2, $3, $4, $5, $6)",
        &[&project, &service, &type_name, &version, &declared.definition, &counted],
    )
    .await?;
    Ok(is_new)
}

pub(super) async fn delete(conn: &Conn, name: Name<'_>, version: Version, now: Timestamp) -> Asked<i64> {
    let (project, service, type_name) = name;
    metrics::release(conn, name, &[], now).await?;
    keeping::set(conn, name, None).await?;
    let changed = conn
        .execute(
            "UPDATE catalog SET definition = NULL, metrics = '[]', version = $4, updated_at = $5
             WHERE project = $1 AND service = $2 AND type = $3 AND definition IS NOT NULL",
            &[&project, &storable(service), &storable(type_name), &version, &now.as_ms()],
        )
        .await?;
    if changed == 0 {
        return Err(Error::NotFound.into());
    }
    remember_deleted(conn, version).await?;
    Ok(project)
}

/// Takes back everything that a project declared.
pub(super) async fn delete_all(
    conn: &Conn,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Asked<()> {
    metrics::end_all(conn, project, now).await?;
    keeping::unset_all(conn, project).await?;
    conn.execute(
        "UPDATE catalog SET definition = NULL, metrics = '[]', version = $2, updated_at = $3
         WHERE project = $1 AND definition IS NOT NULL",
        &[&project, &version, &now.as_ms()],
    )
    .await?;
    remember_deleted(conn, version).await
}

/// Remembers what the installation switches off from a version on.
pub(super) async fn switch(conn: &Conn, switches: Switches, version: Version) -> Asked<i64> {
    conn.execute(
        "INSERT INTO catalog_versions VALUES ($1, '', '', $2, $3, '[]')",
        &[&observe::INSTALLATION, &version, &observe::written_switches(switches)],
    )
    .await?;
    Ok(observe::INSTALLATION)
}

async fn remember_deleted(conn: &Conn, version: Version) -> Asked<()> {
    let sql = "INSERT INTO catalog_versions SELECT project, service, type, version, NULL, '[]' FROM catalog
        WHERE version = $1 AND definition IS NULL";
    conn.execute(sql, &[&version]).await?;
    Ok(())
}

pub(super) async fn load(conn: &Conn, since: Version) -> Asked<Vec<TypeRow>> {
    let sql = "SELECT project, service, type, created_at, updated_at, definition, metrics FROM catalog
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
        metrics: observe::read(row.get(6)),
    }
}

pub(super) async fn versions(conn: &Conn, since: Version) -> Asked<Vec<TypeVersion>> {
    let sql = "SELECT project, service, type, version, definition, metrics FROM catalog_versions
        WHERE version > $1 ORDER BY version, project, service, type";
    let version = |row: &Row| TypeVersion {
        project: row.get(0),
        service: row.get(1),
        type_name: row.get(2),
        version: row.get(3),
        definition: row.get(4),
        metrics: observe::read(row.get(5)),
    };
    Ok(conn.rows(sql, &[&since]).await?.iter().map(version).collect())
}
