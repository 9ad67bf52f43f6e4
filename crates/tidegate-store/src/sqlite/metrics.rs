//! Metrics: numbered when a type is declared, ended when nobody declares them any more.

use rusqlite::{OptionalExtension, Transaction, params};
use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::observe::{Kind, Spec};
use tidegate_core::time::Timestamp;

use crate::Metric;
use crate::observe::{Living, dropped, fate, read};

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// Gives the metrics that a type declares their numbers. The first of all begins with what is accepted from now on:
/// nobody has to look through everything that came before.
pub(super) fn register(
    tx: &Transaction<'_>,
    name: Name<'_>,
    specs: &[Spec],
    last: Seq,
    now: Timestamp,
) -> rusqlite::Result<Vec<Metric>> {
    let living = living(tx, name)?;
    if !specs.is_empty() && !tx.prepare("SELECT 1 FROM metrics WHERE ended_at IS NULL")?.exists([])? {
        tx.execute("UPDATE marks SET seq = ?1, at = ?2 WHERE seq < ?1", params![last, now.as_ms()])?;
    }
    specs.iter().map(|spec| register_one(tx, name, spec, &living, now)).collect()
}

fn register_one(
    tx: &Transaction<'_>,
    (project, service, type_name): Name<'_>,
    spec: &Spec,
    living: &[Living],
    now: Timestamp,
) -> rusqlite::Result<Metric> {
    let (kept, replaced) = fate(spec, living);
    let no = match kept {
        Some(no) => {
            let same = "UPDATE metrics SET keys_max = ?2, keep_ms = ?3 WHERE no = ?1";
            tx.execute(same, params![no, spec.keys_max, spec.keep_ms])?;
            no
        }
        None => {
            end(tx, &replaced.into_iter().collect::<Vec<_>>(), now)?;
            let type_name = if spec.kind.is_shared() { "" } else { type_name };
            let Spec { kind, name, shape, keys_max, keep_ms } = spec;
            tx.execute(
                "INSERT INTO metrics (project, service, type, kind, name, shape, keys_max, keep_ms, since)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    project,
                    service,
                    type_name,
                    kind.code(),
                    name,
                    shape,
                    keys_max,
                    keep_ms,
                    now.as_ms()
                ],
            )?;
            tx.last_insert_rowid()
        }
    };
    Ok((spec.kind, spec.name.clone(), no))
}

/// Those of a type, and those that its service shares.
fn living(tx: &Transaction<'_>, (project, service, type_name): Name<'_>) -> rusqlite::Result<Vec<Living>> {
    let sql = "SELECT no, kind, name, shape FROM metrics
        WHERE project = ?1 AND service = ?2 AND type IN ('', ?3) AND ended_at IS NULL AND rebuilds IS NULL";
    let mut statement = tx.prepare(sql)?;
    let mut rows = statement.query(params![project, service, type_name])?;
    let mut living = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(kind) = Kind::from_code(row.get(1)?) else { continue };
        living.push(Living { no: row.get(0)?, kind, name: row.get(2)?, shape: row.get(3)? });
    }
    Ok(living)
}

/// Ends what a type declared and nobody declares any more.
pub(super) fn release(
    tx: &Transaction<'_>,
    (project, service, type_name): Name<'_>,
    new: &[Metric],
    now: Timestamp,
) -> rusqlite::Result<()> {
    let old = "SELECT metrics FROM catalog WHERE project = ?1 AND service = ?2 AND type = ?3";
    let old: Option<String> =
        tx.query_row(old, params![project, service, type_name], |row| row.get(0)).optional()?;
    let Some(old) = old else { return Ok(()) };
    let others = "SELECT metrics FROM catalog
        WHERE project = ?1 AND service = ?2 AND type <> ?3 AND definition IS NOT NULL";
    let mut statement = tx.prepare(others)?;
    let others: Vec<String> = statement
        .query_map(params![project, service, type_name], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let others: Vec<Metric> = others.iter().flat_map(|text| read(text)).collect();
    end(tx, &dropped(&read(&old), new, &others), now)
}

/// Ends all of a project.
pub(super) fn end_all(tx: &Transaction<'_>, project: ProjectNo, now: Timestamp) -> rusqlite::Result<()> {
    let sql = format!("UPDATE metrics SET {ENDED} WHERE project = ?1 AND ended_at IS NULL");
    tx.execute(&sql, params![project, now.as_ms()])?;
    Ok(())
}

/// Events that come from now on are not counted; those that are there may have to be.
const ENDED: &str = "ended_at = ?2, ended_no = (SELECT coalesce(max(seq), 0) FROM events)";

pub(super) fn end(tx: &Transaction<'_>, metrics: &[MetricNo], now: Timestamp) -> rusqlite::Result<()> {
    for no in metrics {
        let sql = format!("UPDATE metrics SET {ENDED} WHERE no = ?1 AND ended_at IS NULL");
        tx.execute(&sql, params![no, now.as_ms()])?;
    }
    Ok(())
}
