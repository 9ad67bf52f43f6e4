//! How long the events of a type are kept, where its declaration says so; and since when events are all there.

use std::time::Duration;

use tidegate_core::id::ProjectNo;
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use crate::TypeName;

/// Project, service and type.
type Name<'a> = (ProjectNo, &'a str, &'a str);

/// When the newest event happened of those that are gone, or was accepted if that was later; types with terms of their own
/// aside.
const SWEPT_UNTIL: &str = "swept_until";
/// What outlived its period has been looked at up to here; absent when all of it has.
const KEPT_WALKED: &str = "kept_walked";
/// For how many milliseconds nothing is swept, because a clock jumped.
const SWEEP_WAIT: &str = "sweep_wait_ms";

/// Gives a type's events a term of their own, or takes it back.
pub(super) async fn set(conn: &Conn, name: Name<'_>, keep_ms: Option<i64>) -> Asked<()> {
    let (project, source, kind) = (name.0, name.1.as_bytes(), name.2.as_bytes());
    let Some(keep_ms) = keep_ms else {
        let gone =
            "DELETE FROM event_terms WHERE project = $1 AND source = $2 AND type = $3 RETURNING swept_until";
        return match conn.row(gone, &[&project, &source, &kind]).await? {
            Some(row) => walk_again(conn, row.get(0)).await,
            None => Ok(()),
        };
    };
    let put = "INSERT INTO event_terms (project, source, type, keep_ms, swept_until)
        SELECT $1, $2, $3, $4, (SELECT value FROM swept WHERE name = $5)
        ON CONFLICT (project, source, type) DO UPDATE SET keep_ms = excluded.keep_ms";
    conn.execute(put, &[&project, &source, &kind, &keep_ms, &SWEPT_UNTIL]).await?;
    Ok(())
}

/// Takes back all of a project.
pub(super) async fn unset_all(conn: &Conn, project: ProjectNo) -> Asked<()> {
    let gone = "DELETE FROM event_terms WHERE project = $1 RETURNING swept_until";
    let gone = conn.rows(gone, &[&project]).await?;
    match gone.iter().map(|row| row.get::<_, Option<i64>>(0)).max() {
        Some(newest) => walk_again(conn, newest).await,
        None => Ok(()),
    }
}

/// Sets for how long nothing is swept, if that is given, and says for how long it is.
pub(super) async fn sweep_wait(conn: &Conn, set: Option<Duration>) -> Asked<Duration> {
    if let Some(wait) = set {
        set_number(conn, SWEEP_WAIT, i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)).await?;
    }
    Ok(Duration::from_millis(number(conn, SWEEP_WAIT).await?.unwrap_or(0).unsigned_abs()))
}

/// Events that had a term of their own have none any more, and may lie where the others have been looked at.
async fn walk_again(conn: &Conn, swept_until: Option<i64>) -> Asked<()> {
    raise_swept_until(conn, swept_until).await?;
    conn.execute("DELETE FROM periods_kept", &[]).await?;
    set_number(conn, KEPT_WALKED, 0).await
}

/// Where to go on with what outlived its period; the number stays until this transaction ends.
pub(super) async fn kept_walked(conn: &Conn) -> Asked<Option<i64>> {
    let row = conn.row("SELECT value FROM swept WHERE name = $1 FOR UPDATE", &[&KEPT_WALKED]).await?;
    Ok(row.map(|row| row.get(0)))
}

pub(super) async fn set_kept_walked(conn: &Conn, walked: Option<i64>) -> Asked<()> {
    if let Some(walked) = walked {
        return set_number(conn, KEPT_WALKED, walked).await;
    }
    conn.execute("DELETE FROM swept WHERE name = $1", &[&KEPT_WALKED]).await?;
    Ok(())
}

pub(super) async fn raise_swept_until(conn: &Conn, swept_until: Option<i64>) -> Asked<()> {
    let Some(value) = swept_until else { return Ok(()) };
    let sql = "INSERT INTO swept VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET value = greatest(swept.value, excluded.value)";
    conn.execute(sql, &[&SWEPT_UNTIL, &value]).await?;
    Ok(())
}

/// See [`SWEPT_UNTIL`].
pub(super) async fn swept_until(conn: &Conn) -> Asked<Option<i64>> {
    number(conn, SWEPT_UNTIL).await
}

/// Events of a type that happened, or were accepted, later than this are all there.
pub(super) async fn kept_since(conn: &Conn, of: &TypeName) -> Asked<Option<Timestamp>> {
    let own = "SELECT swept_until FROM event_terms WHERE project = $1 AND source = $2 AND type = $3";
    let own = conn.row(own, &[&of.project, &of.service.as_bytes(), &of.type_name.as_bytes()]).await?;
    let swept_until = match own {
        Some(row) => row.get(0),
        None => number(conn, SWEPT_UNTIL).await?,
    };
    Ok(swept_until.map(Timestamp::from_ms))
}

pub(super) async fn number(conn: &Conn, name: &str) -> Asked<Option<i64>> {
    let row = conn.row("SELECT value FROM swept WHERE name = $1", &[&name]).await?;
    Ok(row.map(|row| row.get(0)))
}

pub(super) async fn set_number(conn: &Conn, name: &str, value: i64) -> Asked<()> {
    let sql = "INSERT INTO swept VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    conn.execute(sql, &[&name, &value]).await?;
    Ok(())
}
