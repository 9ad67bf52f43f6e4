//! Metrics: numbered when a type is declared, ended when nobody declares them any more.

use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::observe::{Kind, Spec};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::quarantine::storable;
use crate::Metric;
use crate::observe::{Living, dropped, fate, read};

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// Gives the metrics that a type declares their numbers. The first of all begins with what is accepted from now on:
/// nobody has to look through everything that came before.
pub(super) async fn register(
    conn: &Conn,
    name: Name<'_>,
    specs: &[Spec],
    last: Seq,
    now: Timestamp,
) -> Asked<Vec<Metric>> {
    let living = living(conn, name).await?;
    if !specs.is_empty() && !conn.exists("SELECT 1 FROM metrics WHERE ended_at IS NULL LIMIT 1", &[]).await? {
        let skip = "UPDATE marks SET seq = $1, at = $2 WHERE seq < $1";
        conn.execute(skip, &[&last, &now.as_ms()]).await?;
    }
    let mut metrics = Vec::with_capacity(specs.len());
    for spec in specs {
        metrics.push(register_one(conn, name, spec, &living, now).await?);
    }
    Ok(metrics)
}

async fn register_one(
    conn: &Conn,
    (project, service, type_name): Name<'_>,
    spec: &Spec,
    living: &[Living],
    now: Timestamp,
) -> Asked<Metric> {
    let (kept, replaced) = fate(spec, living);
    let keys_max = i64::from(spec.keys_max);
    let no = match kept {
        Some(no) => {
            let same = "UPDATE metrics SET keys_max = $2, keep_ms = $3 WHERE no = $1";
            conn.execute(same, &[&no, &keys_max, &spec.keep_ms]).await?;
            no
        }
        None => {
            end(conn, &replaced.into_iter().collect::<Vec<_>>(), now).await?;
            let type_name = if spec.kind.is_shared() { "" } else { type_name };
            let insert =
                "INSERT INTO metrics (project, service, type, kind, name, shape, keys_max, keep_ms, since)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING no";
            let Spec { kind, name, shape, keep_ms, .. } = spec;
            let (kind, since) = (kind.code(), now.as_ms());
            let values: super::db::Values<'_> =
                &[&project, &service, &type_name, &kind, name, shape, &keys_max, keep_ms, &since];
            conn.only(insert, values).await?.get(0)
        }
    };
    Ok((spec.kind, spec.name.clone(), no))
}

/// Those of a type, and those that its service shares.
async fn living(conn: &Conn, (project, service, type_name): Name<'_>) -> Asked<Vec<Living>> {
    let sql = "SELECT no, kind, name, shape FROM metrics
        WHERE project = $1 AND service = $2 AND type IN ('', $3) AND ended_at IS NULL AND rebuilds IS NULL";
    let rows = conn.rows(sql, &[&project, &service, &type_name]).await?;
    let living = rows.iter().filter_map(|row| {
        let kind = Kind::from_code(row.get(1))?;
        Some(Living { no: row.get(0), kind, name: row.get(2), shape: row.get(3) })
    });
    Ok(living.collect())
}

/// Ends what a type declared and nobody declares any more.
pub(super) async fn release(
    conn: &Conn,
    (project, service, type_name): Name<'_>,
    new: &[Metric],
    now: Timestamp,
) -> Asked<()> {
    let (service, type_name) = (storable(service), storable(type_name));
    let old = "SELECT metrics FROM catalog WHERE project = $1 AND service = $2 AND type = $3";
    let Some(old) = conn.row(old, &[&project, &service, &type_name]).await? else { return Ok(()) };
    let others = "SELECT metrics FROM catalog
        WHERE project = $1 AND service = $2 AND type <> $3 AND definition IS NOT NULL";
    let others = conn.rows(others, &[&project, &service, &type_name]).await?;
    let others: Vec<Metric> = others.iter().flat_map(|row| read(row.get(0))).collect();
    end(conn, &dropped(&read(old.get(0)), new, &others), now).await
}

/// Ends all of a project.
pub(super) async fn end_all(conn: &Conn, project: ProjectNo, now: Timestamp) -> Asked<()> {
    let sql = format!("UPDATE metrics SET {ENDED} WHERE project = $1 AND ended_at IS NULL");
    conn.execute(&sql, &[&project, &now.as_ms()]).await?;
    Ok(())
}

/// Events that come from now on are not counted; those that are there may have to be.
const ENDED: &str = "ended_at = $2, ended_no = (SELECT ((last_value + 1) << 20) - 1 FROM numbers)";

pub(super) async fn end(conn: &Conn, metrics: &[MetricNo], now: Timestamp) -> Asked<()> {
    if !metrics.is_empty() {
        let sql = format!("UPDATE metrics SET {ENDED} WHERE no = ANY($1) AND ended_at IS NULL");
        conn.execute(&sql, &[&metrics, &now.as_ms()]).await?;
    }
    Ok(())
}
