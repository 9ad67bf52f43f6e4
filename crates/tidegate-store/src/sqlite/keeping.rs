//! How long the events of a type are kept, where its declaration says so; and since when events are all there.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use tidegate_core::id::ProjectNo;
use tidegate_core::jumps;
use tidegate_core::time::Timestamp;

use crate::TypeName;

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// When the newest event happened of those that are gone, or was accepted if that was later; types with terms of their own
/// aside.
const SWEPT_UNTIL: &str = "swept_until";
/// Events up to here are gone, or overdue, or of types with terms of their own.
const WALKED: &str = "events_walked";

/// For how many milliseconds nothing is swept, because a clock jumped.
const SWEEP_WAIT: &str = "sweep_wait_ms";

/// Sets for how long nothing is swept, if that is given, and says for how long it is.
pub(super) fn sweep_wait(conn: &Connection, set: Option<Duration>) -> rusqlite::Result<Duration> {
    if let Some(wait) = set {
        set_number(conn, SWEEP_WAIT, i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))?;
    }
    Ok(Duration::from_millis(number(conn, SWEEP_WAIT)?.unwrap_or(0).unsigned_abs()))
}

/// A process starts. This comes before the first write that carries its time: after that, the next one can not see that its clock
/// and the latest time were far apart.
pub(super) fn wait_at_start(conn: &Connection, now: Timestamp, latest: Timestamp) -> rusqlite::Result<()> {
    let wait = jumps::wait_at_start(now, latest);
    if wait > sweep_wait(conn, None)? {
        sweep_wait(conn, Some(wait))?;
    }
    Ok(())
}

/// Gives a type's events a term of their own, or takes it back.
pub(super) fn set(tx: &Transaction<'_>, name: Name<'_>, keep_ms: Option<i64>) -> rusqlite::Result<()> {
    let (project, service, type_name) = name;
    let Some(keep_ms) = keep_ms else {
        let gone =
            "DELETE FROM event_terms WHERE project = ?1 AND source = ?2 AND type = ?3 RETURNING swept_until";
        let gone = tx.query_row(gone, params![project, service, type_name], |row| row.get(0)).optional()?;
        return gone.map_or(Ok(()), |swept_until| walk_again(tx, swept_until));
    };
    let put =
        "INSERT INTO event_terms (project, source, type, keep_ms, swept_until) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (project, source, type) DO UPDATE SET keep_ms = excluded.keep_ms";
    let swept_until = number(tx, SWEPT_UNTIL)?;
    tx.execute(put, params![project, service, type_name, keep_ms, swept_until])?;
    Ok(())
}

/// Takes back all of a project.
pub(super) fn unset_all(tx: &Transaction<'_>, project: ProjectNo) -> rusqlite::Result<()> {
    let newest = "SELECT count(*), max(swept_until) FROM event_terms WHERE project = ?1";
    let (count, newest): (i64, _) = tx.query_row(newest, [project], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if count > 0 {
        tx.execute("DELETE FROM event_terms WHERE project = ?1", [project])?;
        walk_again(tx, newest)?;
    }
    Ok(())
}

/// Events that had a term of their own have none any more, and may lie behind where the others have been looked at.
fn walk_again(tx: &Transaction<'_>, swept_until: Option<i64>) -> rusqlite::Result<()> {
    raise_swept_until(tx, swept_until)?;
    set_walked(tx, 0)
}

pub(super) fn walked(conn: &Connection) -> rusqlite::Result<i64> {
    Ok(number(conn, WALKED)?.unwrap_or(0))
}

pub(super) fn set_walked(conn: &Connection, walked: i64) -> rusqlite::Result<()> {
    set_number(conn, WALKED, walked)
}

pub(super) fn raise_swept_until(conn: &Connection, swept_until: Option<i64>) -> rusqlite::Result<()> {
    let Some(new) = swept_until.max(number(conn, SWEPT_UNTIL)?) else { return Ok(()) };
    set_number(conn, SWEPT_UNTIL, new)
}

/// See [`SWEPT_UNTIL`].
pub(super) fn swept_until(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    number(conn, SWEPT_UNTIL)
}

/// Events of a type that happened, or were accepted, later than this are all there.
pub(super) fn kept_since(conn: &Connection, of: &TypeName) -> rusqlite::Result<Option<Timestamp>> {
    let own = "SELECT swept_until FROM event_terms WHERE project = ?1 AND source = ?2 AND type = ?3";
    let own: Option<Option<i64>> = conn
        .prepare_cached(own)?
        .query_row(params![of.project, of.service, of.type_name], |row| row.get(0))
        .optional()?;
    let swept_until = own.map_or_else(|| number(conn, SWEPT_UNTIL), Ok)?;
    Ok(swept_until.map(Timestamp::from_ms))
}

pub(super) fn number(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

pub(super) fn set_number(conn: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute(params![name, value])?;
    Ok(())
}
