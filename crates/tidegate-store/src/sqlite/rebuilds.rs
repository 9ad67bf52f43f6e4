//! States that are counted anew: how such a backfill begins, what it looks at, and how it ends. See `crate::rebuild`.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tidegate_core::id::{MetricNo, Version};
use tidegate_core::limits::{REBUILD_LAST_MAX, SLICE_BYTES_MAX};
use tidegate_core::observe::counting;
use tidegate_core::time::Timestamp;

use super::observe::Ready;
use super::{Writer, backfills, failed, keeping, metrics, postings, stamp};
use crate::observe::{INSTALLATION, read, read_switches, written};
use crate::rebuild::{self, Known, Stopped, Then, Wanted, is_rebuilt};
use crate::{BackfillRow, Error, LastStep, Metric, NewBackfill, Rebuild, Result};

/// Which states of a service can be counted anew. Where nobody asks for any, nothing is looked at.
pub(super) fn decide(tx: &Transaction<'_>, new: &NewBackfill) -> rusqlite::Result<(Wanted, Known)> {
    if !new.metrics.iter().any(|(kind, ..)| is_rebuilt(*kind)) {
        return Ok((Wanted::default(), Known::default()));
    }
    let service = params![new.project, new.service];
    let mut known = Known::default();
    let declared = "SELECT type, definition, metrics FROM catalog
        WHERE project = ?1 AND service = ?2 AND definition IS NOT NULL";
    let mut statement = tx.prepare(declared)?;
    let mut rows = statement.query(service)?;
    while let Some(row) = rows.next()? {
        let (definition, metrics): (String, _) = (row.get(1)?, read(row.get_ref(2)?.as_str()?));
        let metrics = counting(Some(&definition), metrics);
        known.declared.push((row.get(0)?, definition, metrics));
    }
    known.versions = versions(tx, new)?;
    let oldest = "SELECT version FROM events
        WHERE project = ?1 AND type = ?2 AND source = ?3 ORDER BY seq LIMIT 1";
    let mut statement = tx.prepare(oldest)?;
    for (name, ..) in &known.declared {
        let values = params![new.project, name, new.service];
        let version: Option<Version> = statement.query_row(values, |row| row.get(0)).optional()?;
        known.oldest.extend(version.map(|version| (name.clone(), version)));
    }
    let own = "SELECT type, swept_until FROM event_terms
        WHERE project = ?1 AND source = ?2 AND swept_until IS NOT NULL";
    let mut statement = tx.prepare(own)?;
    let own = statement.query_map(service, |row| Ok((row.get(0)?, row.get(1)?)))?;
    known.swept = (own.collect::<rusqlite::Result<_>>()?, keeping::swept_until(tx)?);
    let living = "SELECT no, since, rebuilds FROM metrics
        WHERE project = ?1 AND service = ?2 AND ended_at IS NULL";
    let mut statement = tx.prepare(living)?;
    let mut rows = statement.query(service)?;
    while let Some(row) = rows.next()? {
        known.since.insert(row.get(0)?, row.get(1)?);
        known.under_way.extend(row.get::<_, Option<MetricNo>>(2)?);
    }
    let done = "SELECT rebuild FROM backfills
        WHERE project = ?1 AND service = ?2 AND rebuild <> '' AND finished_at IS NOT NULL";
    let mut statement = tx.prepare(done)?;
    let done = statement.query_map(service, |row| Ok(Rebuild::read(row.get_ref(0)?.as_str()?)))?;
    known.done = done.collect::<rusqlite::Result<_>>()?;
    Ok((known.decide(&new.metrics), known))
}

/// What the types of a service were and counted for, oldest first.
pub(super) fn versions(tx: &Transaction<'_>, new: &NewBackfill) -> rusqlite::Result<Vec<Then>> {
    let sql = "SELECT type, version, metrics, definition FROM catalog_versions
        WHERE project = ?1 AND service = ?2 ORDER BY version";
    let mut statement = tx.prepare(sql)?;
    let versions = statement.query_map(params![new.project, new.service], |row| {
        let (metrics, definition): (_, Option<String>) = (read(row.get_ref(2)?.as_str()?), row.get(3)?);
        let metrics = counting(definition.as_deref(), metrics);
        Ok(Then { of: row.get(0)?, since: row.get(1)?, metrics, definition })
    })?;
    let versions = versions.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT version, definition FROM catalog_versions WHERE project = ?1 ORDER BY version";
    let mut statement = tx.prepare(sql)?;
    let switches = statement
        .query_map([INSTALLATION], |row| Ok((row.get(0)?, read_switches(row.get_ref(1)?.as_str()?))))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(rebuild::switched(versions, &switches))
}

/// Gives numbers to what will be counted anew.
pub(super) fn begin(
    tx: &Transaction<'_>,
    (wanted, known): (&Wanted, &Known),
) -> rusqlite::Result<(Vec<Metric>, Rebuild)> {
    let insert = "INSERT INTO metrics
            (project, service, type, kind, name, shape, keys_max, keep_ms, since, rebuilds)
        SELECT project, service, type, kind, name, shape, keys_max, keep_ms, ?2, no FROM metrics WHERE no = ?1";
    let (mut made, mut replaced) = (Vec::new(), Vec::new());
    for (kind, name, old) in &wanted.metrics {
        let since = known.swept_until(*old).map_or(0, |until| until + 1);
        tx.execute(insert, [*old, since])?;
        let new = tx.last_insert_rowid();
        made.push((*kind, name.clone(), new));
        replaced.push((*old, new));
    }
    Ok((made, Rebuild { types: wanted.types.clone(), replaced }))
}

/// Types of which a backfill looks at events.
pub(super) fn types(conn: &Connection, of: &BackfillRow) -> rusqlite::Result<Vec<String>> {
    if of.rebuild.is_empty() {
        return Ok(vec![of.type_name.clone()]);
    }
    let sql = "SELECT type, metrics FROM catalog_versions WHERE project = ?1 AND service = ?2";
    let versions = conn
        .prepare_cached(sql)?
        .query_map(params![of.project, of.service], |row| Ok((row.get(0)?, read(row.get_ref(1)?.as_str()?))))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let mut types = rebuild::types_of(&of.rebuild, versions);
    if !types.contains(&of.type_name) {
        types.push(of.type_name.clone());
    }
    Ok(types)
}

/// Counts what is left and puts the new numbers in the place of the old ones.
pub(super) fn finish(writer: &mut Writer, of: &BackfillRow, last: LastStep, now: Timestamp) -> Result<bool> {
    let version = writer.version + 1;
    let tx = Transaction::new_unchecked(&writer.conn, TransactionBehavior::Immediate).map_err(failed)?;
    let is_there =
        "SELECT 1 FROM backfills WHERE no = ?1 AND after = ?2 AND finished_at IS NULL AND rebuild <> ''";
    let is_there = tx.prepare(is_there).and_then(|mut sql| sql.exists([of.no, of.after])).map_err(failed)?;
    if !is_there {
        return Err(Error::Conflict("these events have been observed by somebody else".to_owned()));
    }
    let slice = backfills::unbackfilled(&tx, of, REBUILD_LAST_MAX, SLICE_BYTES_MAX).map_err(failed)?;
    let Some(delta) = slice.is_end.then(|| last(&slice)).flatten() else { return Ok(false) };
    let ready = Ready::make(&tx, writer.remembered.take(), &delta).map_err(failed)?;
    ready.write(&tx).map_err(failed)?;
    postings::add(&tx, &delta.postings).map_err(failed)?;
    let has_switched = switch(&tx, of, version, now).map_err(failed)?;
    let looked = i64::try_from(slice.events.len()).unwrap_or(i64::MAX);
    let finish = "UPDATE backfills SET after = ?2, looked = looked + ?3, finished_at = ?4 WHERE no = ?1";
    tx.execute(finish, params![of.no, slice.through, looked, now.as_ms()]).map_err(failed)?;
    if has_switched {
        tx.execute("UPDATE meta SET value = ?1 WHERE name = 'version'", [version]).map_err(failed)?;
    }
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    writer.remembered.put(ready.known);
    if has_switched {
        writer.version = version;
    }
    Ok(true)
}

/// Ends those that can never be finished, so that nothing is kept for them.
pub(super) fn stop_vain(tx: &Transaction<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let running = backfills::running(tx)?.into_iter().filter(|row| !row.rebuild.is_empty());
    let running: Vec<BackfillRow> = running.collect();
    if running.is_empty() {
        return Ok(());
    }
    let switches = "SELECT definition FROM catalog_versions WHERE project = ?1 ORDER BY version DESC LIMIT 1";
    let switches = tx.query_row(switches, [INSTALLATION], |row| Ok(read_switches(row.get_ref(0)?.as_str()?)));
    let switches = switches.optional()?.unwrap_or_default();
    let mut living = tx.prepare("SELECT no FROM metrics WHERE ended_at IS NULL")?;
    let living: Vec<MetricNo> = living.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for row in running {
        if let Some(why) = row.is_in_vain(switches, &living) {
            stop(tx, &row, why, now)?;
        }
    }
    Ok(())
}

/// Ends one where it is.
pub(super) fn stop(
    tx: &Transaction<'_>,
    row: &BackfillRow,
    why: &str,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let Stopped { ended, metrics, rebuild, is_over } = row.stopped(why);
    metrics::end(tx, &ended, now)?;
    for no in ended {
        tx.execute("UPDATE metrics SET rebuilds = NULL WHERE no = ?1", [no])?;
    }
    let sql = "UPDATE backfills SET metrics = ?2, rebuild = ?3, finished_at = ?4 WHERE no = ?1";
    tx.execute(sql, params![row.no, metrics, rebuild, is_over.then_some(now.as_ms())])?;
    Ok(())
}

/// Lets the types declare the new numbers. What nobody declares any more has no place to be taken.
fn switch(
    tx: &Transaction<'_>,
    of: &BackfillRow,
    version: Version,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    for (old, new) in &of.rebuild.replaced {
        let living = tx.prepare("SELECT 1 FROM metrics WHERE no = ?1 AND ended_at IS NULL")?.exists([old])?;
        metrics::end(tx, &[if living { *old } else { *new }], now)?;
        tx.execute("UPDATE metrics SET rebuilds = NULL WHERE no = ?1", [new])?;
    }
    let sql = "SELECT type, definition, metrics FROM catalog
        WHERE project = ?1 AND service = ?2 AND definition IS NOT NULL";
    let declared = tx
        .prepare(sql)?
        .query_map(params![of.project, of.service], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<Vec<(String, String, String)>>>()?;
    let mut has_switched = false;
    for (type_name, definition, metrics) in declared {
        let Some(metrics) = of.rebuild.renumbered(&read(&metrics)) else { continue };
        let metrics = written(&metrics);
        tx.execute(
            "UPDATE catalog SET metrics = ?4, version = ?5 WHERE project = ?1 AND service = ?2 AND type = ?3",
            params![of.project, of.service, type_name, metrics, version],
        )?;
        tx.execute(
            "INSERT INTO catalog_versions VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![of.project, of.service, type_name, version, definition, metrics],
        )?;
        has_switched = true;
    }
    Ok(has_switched)
}
