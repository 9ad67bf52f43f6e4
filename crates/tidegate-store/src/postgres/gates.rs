//! Gates. One that was deleted leaves an empty row, so that whoever reads only changes hears of it.

use tidegate_core::id::{GateNo, ProjectNo, Version};
use tidegate_core::limits::GATES_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::configuration::count;
use super::db::{Asked, Conn};
use super::quarantine::storable;
use crate::configuration::{gate_in_use, gate_of, gate_unknown};
use crate::{Error, GateRow};

/// Makes a gate, or makes it anew; says which it is and whether it was new.
pub(super) async fn put(
    conn: &Conn,
    (project, name): (ProjectNo, &str),
    definition: &str,
    version: Version,
    now: Timestamp,
) -> Asked<(GateNo, bool)> {
    let is_new = !is_there(conn, project, name).await?;
    let all = "SELECT count(*) FROM gates WHERE project = $1 AND definition IS NOT NULL";
    if is_new && count(conn, all, project).await? >= GATES_PER_PROJECT_MAX {
        return Err(Error::Quota(format!("a project has at most {GATES_PER_PROJECT_MAX} gates")).into());
    }
    let row = conn
        .only(
            "INSERT INTO gates (project, name, created_at, updated_at, version, definition)
             VALUES ($1, $2, $3, $3, $4, $5)
             ON CONFLICT (project, name) DO UPDATE SET updated_at = excluded.updated_at,
                created_at = CASE WHEN gates.definition IS NULL THEN excluded.created_at ELSE gates.created_at END,
                version = excluded.version, definition = excluded.definition
             RETURNING no",
            &[&project, &name, &now.as_ms(), &version, &definition],
        )
        .await?;
    Ok((row.get(0), is_new))
}

/// Ends a gate, unless a subscriber still passes it.
pub(super) async fn delete(
    conn: &Conn,
    (project, name): (ProjectNo, &str),
    version: Version,
    now: Timestamp,
) -> Asked<i64> {
    if let Some(user) = user(conn, project, name).await? {
        return Err(gate_in_use(name, &user).into());
    }
    let changed = conn
        .execute(
            "UPDATE gates SET definition = NULL, version = $3, updated_at = $4
             WHERE project = $1 AND name = $2 AND definition IS NOT NULL",
            &[&project, &storable(name), &version, &now.as_ms()],
        )
        .await?;
    if changed == 0 { Err(Error::NotFound.into()) } else { Ok(project) }
}

/// Ends all gates of a project that has no subscribers left.
pub(super) async fn delete_all(
    conn: &Conn,
    project: ProjectNo,
    version: Version,
    now: Timestamp,
) -> Asked<()> {
    conn.execute(
        "UPDATE gates SET definition = NULL, version = $2, updated_at = $3
         WHERE project = $1 AND definition IS NOT NULL",
        &[&project, &version, &now.as_ms()],
    )
    .await?;
    Ok(())
}

/// Refuses a subscriber whose gate is not there.
pub(super) async fn check(conn: &Conn, project: ProjectNo, definition: &str) -> Asked<()> {
    match gate_of(definition) {
        Some(name) if !is_there(conn, project, &name).await? => Err(gate_unknown(&name).into()),
        _ => Ok(()),
    }
}

async fn is_there(conn: &Conn, project: ProjectNo, name: &str) -> Asked<bool> {
    let living = "SELECT 1 FROM gates WHERE project = $1 AND name = $2 AND definition IS NOT NULL";
    conn.exists(living, &[&project, &storable(name)]).await
}

/// A subscriber that passes a gate. Looked for where something that is called so is mentioned at all.
async fn user(conn: &Conn, project: ProjectNo, name: &str) -> Asked<Option<String>> {
    let sql = "SELECT id, definition FROM subscribers
        WHERE project = $1 AND deleted_at IS NULL AND strpos(definition, $2) > 0 ORDER BY no";
    let rows = conn.rows(sql, &[&project, &storable(name)]).await?;
    let found = rows.iter().find(|row| gate_of(row.get(1)).as_deref() == Some(name));
    Ok(found.map(|row| row.get(0)))
}

pub(super) async fn load(conn: &Conn, since: Version) -> Asked<Vec<GateRow>> {
    let sql = "SELECT no, project, name, created_at, updated_at, definition FROM gates WHERE version > $1 ORDER BY no";
    Ok(conn.rows(sql, &[&since]).await?.iter().map(gate_row).collect())
}

fn gate_row(row: &Row) -> GateRow {
    GateRow {
        no: row.get(0),
        project: row.get(1),
        name: row.get(2),
        created_at: Timestamp::from_ms(row.get(3)),
        updated_at: Timestamp::from_ms(row.get(4)),
        definition: row.get(5),
    }
}
