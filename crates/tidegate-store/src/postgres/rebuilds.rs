//! States that are counted anew: how such a backfill begins, what it looks at, and how it ends. See `crate::rebuild`.

use tidegate_core::id::{MetricNo, Version};
use tidegate_core::limits::{REBUILD_LAST_MAX, SLICE_BYTES_MAX};
use tidegate_core::observe::counting;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn, Values};
use super::{backfills, configuration, keeping, metrics, observe, sweep};
use crate::observe::{INSTALLATION, read, read_switches, written};
use crate::rebuild::{self, Known, Stopped, Then, Wanted, is_rebuilt};
use crate::{BackfillRow, Error, LastStep, Metric, NewBackfill, Rebuild};

/// Which states of a service can be counted anew. Where nobody asks for any, nothing is looked at.
pub(super) async fn decide(conn: &Conn, space: i32, new: &NewBackfill) -> Asked<(Wanted, Known)> {
    if !new.metrics.iter().any(|(kind, ..)| is_rebuilt(*kind)) {
        return Ok((Wanted::default(), Known::default()));
    }
    // What retention is about to remove is gone, and known to be, before this goes on; the rest stays.
    sweep::hold_past(conn, space).await?;
    let service: Values<'_> = &[&new.project, &new.service];
    let mut known = Known::default();
    let rows = conn.rows(DECLARED, service).await?;
    let declared = |row: &Row| (row.get(0), row.get(1), counting(Some(row.get(1)), read(row.get(2))));
    known.declared = rows.iter().map(declared).collect();
    known.versions = versions(conn, new).await?;
    let oldest = "SELECT version FROM events
        WHERE project = $1 AND type = $2 AND source = $3 ORDER BY seq LIMIT 1";
    for (name, ..) in &known.declared {
        let values: Values<'_> = &[&new.project, &name.as_bytes(), &new.service.as_bytes()];
        let version = conn.row(oldest, values).await?.map(|row| row.get::<_, Version>(0));
        known.oldest.extend(version.map(|version| (name.clone(), version)));
    }
    let own = "SELECT type, swept_until FROM event_terms
        WHERE project = $1 AND source = $2 AND swept_until IS NOT NULL";
    let own = conn.rows(own, &[&new.project, &new.service.as_bytes()]).await?;
    let own = own.iter().map(|row| (String::from_utf8_lossy(row.get(0)).into_owned(), row.get(1)));
    known.swept = (own.collect(), keeping::swept_until(conn).await?);
    let living = "SELECT no, since, rebuilds FROM metrics
        WHERE project = $1 AND service = $2 AND ended_at IS NULL";
    for row in conn.rows(living, service).await? {
        known.since.insert(row.get(0), row.get(1));
        known.under_way.extend(row.get::<_, Option<MetricNo>>(2));
    }
    let done = "SELECT rebuild FROM backfills
        WHERE project = $1 AND service = $2 AND rebuild <> '' AND finished_at IS NOT NULL";
    known.done = conn.rows(done, service).await?.iter().map(|row| Rebuild::read(row.get(0))).collect();
    Ok((known.decide(&new.metrics), known))
}

/// What the types of a service were and counted for, oldest first.
pub(super) async fn versions(conn: &Conn, new: &NewBackfill) -> Asked<Vec<Then>> {
    let sql = "SELECT type, version, metrics, definition FROM catalog_versions
        WHERE project = $1 AND service = $2 ORDER BY version";
    let rows = conn.rows(sql, &[&new.project, &new.service]).await?;
    let version = |row: &Row| {
        let metrics = counting(row.get(3), read(row.get(2)));
        Then { of: row.get(0), since: row.get(1), metrics, definition: row.get(3) }
    };
    let versions = rows.iter().map(version).collect();
    let sql = "SELECT version, definition FROM catalog_versions WHERE project = $1 ORDER BY version";
    let rows = conn.rows(sql, &[&INSTALLATION]).await?;
    let switches: Vec<_> = rows.iter().map(|row| (row.get(0), read_switches(row.get(1)))).collect();
    Ok(rebuild::switched(versions, &switches))
}

const DECLARED: &str = "SELECT type, definition, metrics FROM catalog
    WHERE project = $1 AND service = $2 AND definition IS NOT NULL";

/// Gives numbers to what will be counted anew.
pub(super) async fn begin(conn: &Conn, (wanted, known): (&Wanted, &Known)) -> Asked<(Vec<Metric>, Rebuild)> {
    let insert = "INSERT INTO metrics
            (project, service, type, kind, name, shape, keys_max, keep_ms, since, rebuilds)
        SELECT project, service, type, kind, name, shape, keys_max, keep_ms, $2, no FROM metrics WHERE no = $1
        RETURNING no";
    let (mut made, mut replaced) = (Vec::new(), Vec::new());
    for (kind, name, old) in &wanted.metrics {
        let since = known.swept_until(*old).map_or(0, |until| until + 1);
        let new: MetricNo = conn.only(insert, &[old, &since]).await?.get(0);
        made.push((*kind, name.clone(), new));
        replaced.push((*old, new));
    }
    Ok((made, Rebuild { types: wanted.types.clone(), replaced }))
}

/// Types of which a backfill looks at events.
pub(super) async fn types(conn: &Conn, of: &BackfillRow) -> Asked<Vec<String>> {
    if of.rebuild.is_empty() {
        return Ok(vec![of.type_name.clone()]);
    }
    let sql = "SELECT type, metrics FROM catalog_versions WHERE project = $1 AND service = $2";
    let rows = conn.rows(sql, &[&of.project, &of.service]).await?;
    let versions = rows.iter().map(|row| (row.get(0), read(row.get(1)))).collect();
    let mut types = rebuild::types_of(&of.rebuild, versions);
    if !types.contains(&of.type_name) {
        types.push(of.type_name.clone());
    }
    Ok(types)
}

/// Counts what is left and puts the new numbers in the place of the old ones. No group is under way meanwhile.
pub(super) async fn finish(
    conn: &Conn,
    space: i32,
    of: BackfillRow,
    last: LastStep,
    now: Timestamp,
) -> Asked<bool> {
    configuration::hold_alone(conn, space).await?;
    let is_there = "SELECT 1 FROM backfills
        WHERE no = $1 AND after = $2 AND finished_at IS NULL AND rebuild <> '' FOR UPDATE";
    if !conn.exists(is_there, &[&of.no, &of.after]).await? {
        return Err(Error::Conflict("these events have been observed by somebody else".to_owned()).into());
    }
    let slice = backfills::unbackfilled(conn, space, &of, REBUILD_LAST_MAX, SLICE_BYTES_MAX).await?;
    let Some(delta) = slice.is_end.then(|| last(&slice)).flatten() else { return Ok(false) };
    observe::lock_metrics(conn, &delta).await?;
    observe::write(conn, &delta).await?;
    let version = configuration::after(conn, configuration::version(conn).await?).await?;
    if switch(conn, &of, version, now).await? {
        configuration::set_version(conn, version, now).await?;
    }
    let looked = i64::try_from(slice.events.len()).unwrap_or(i64::MAX);
    let finish = "UPDATE backfills SET after = $2, looked = looked + $3, finished_at = $4 WHERE no = $1";
    conn.execute(finish, &[&of.no, &slice.through, &looked, &now.as_ms()]).await?;
    Ok(true)
}

/// Ends those that can never be finished, so that nothing is kept for them.
pub(super) async fn stop_vain(conn: &Conn, now: Timestamp) -> Asked<()> {
    let running = backfills::running(conn).await?.into_iter().filter(|row| !row.rebuild.is_empty());
    let running: Vec<BackfillRow> = running.collect();
    if running.is_empty() {
        return Ok(());
    }
    let switches = "SELECT definition FROM catalog_versions WHERE project = $1 ORDER BY version DESC LIMIT 1";
    let switches = conn.row(switches, &[&INSTALLATION]).await?;
    let switches = switches.map(|row| read_switches(row.get(0))).unwrap_or_default();
    let living = conn.rows("SELECT no FROM metrics WHERE ended_at IS NULL", &[]).await?;
    let living: Vec<MetricNo> = living.iter().map(|row| row.get(0)).collect();
    for row in running {
        if let Some(why) = row.is_in_vain(switches, &living) {
            stop(conn, &row, why, now).await?;
        }
    }
    Ok(())
}

/// Ends one where it is. The metrics come first, as with whoever adds to them.
pub(super) async fn stop(conn: &Conn, row: &BackfillRow, why: &str, now: Timestamp) -> Asked<()> {
    let Stopped { ended, metrics, rebuild, is_over } = row.stopped(why);
    metrics::end(conn, &ended, now).await?;
    conn.execute("UPDATE metrics SET rebuilds = NULL WHERE no = ANY($1)", &[&ended]).await?;
    let sql = "UPDATE backfills SET metrics = $2, rebuild = $3, finished_at = $4
        WHERE no = $1 AND finished_at IS NULL";
    conn.execute(sql, &[&row.no, &metrics, &rebuild, &is_over.then_some(now.as_ms())]).await?;
    Ok(())
}

/// Lets the types declare the new numbers. What nobody declares any more has no place to be taken.
async fn switch(conn: &Conn, of: &BackfillRow, version: Version, now: Timestamp) -> Asked<bool> {
    for (old, new) in &of.rebuild.replaced {
        let living = "SELECT 1 FROM metrics WHERE no = $1 AND ended_at IS NULL";
        let living = conn.exists(living, &[old]).await?;
        metrics::end(conn, &[if living { *old } else { *new }], now).await?;
        conn.execute("UPDATE metrics SET rebuilds = NULL WHERE no = $1", &[new]).await?;
    }
    let mut has_switched = false;
    for row in conn.rows(DECLARED, &[&of.project, &of.service]).await? {
        let (type_name, definition): (&str, &str) = (row.get(0), row.get(1));
        let Some(metrics) = of.rebuild.renumbered(&read(row.get(2))) else { continue };
        let metrics = written(&metrics);
        conn.execute(
            "UPDATE catalog SET metrics = $4, version = $5 WHERE project = $1 AND service = $2 AND type = $3",
            &[&of.project, &of.service, &type_name, &metrics, &version],
        )
        .await?;
        conn.execute(
            "INSERT INTO catalog_versions VALUES ($1, $2, $3, $4, $5, $6)",
            &[&of.project, &of.service, &type_name, &version, &definition, &metrics],
        )
        .await?;
        has_switched = true;
    }
    Ok(has_switched)
}
