//! Detects that a standby was promoted: the server's timeline changes, and the new primary may lack commits of the old one.
//!
//! A closed fold that waits in its lane already has an id, and events may still join it. If it was sent in a lost commit,
//! receivers know that id and must not see it again with other events. So the first session on a new timeline gives every fold
//! that can still be joined a new nonce, before any process claims it. A fold that a process held gets its new nonce when that
//! process is declared dead (`replicas.rs`).

use super::db::{Asked, Conn};
use super::open::LINEAGE;

const READ: &str =
    "SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8), lineage
    FROM pg_control_system(), installation";
const RENAME: &str = "UPDATE deliveries d SET nonce = $1 FROM windows w
    WHERE w.stage = 1 AND d.id = w.delivery AND d.fold = w.no AND d.status <> 1";

/// Call this in every new session before it writes a group.
pub(super) async fn follow(conn: &mut Conn, space: i32) -> Asked<()> {
    match is_known(conn).await {
        Ok(false) => {}
        // Some managed services do not expose the timeline.
        Err(fault) if fault.is_unsupported() => return Ok(()),
        known => return known.map(drop),
    }
    conn.begin().await?;
    conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&space, &LINEAGE]).await?;
    // Another process may have done it in the meantime.
    let row = conn.only(READ, &[]).await?;
    let (there, kept): (String, String) = (row.get(0), row.get(1));
    if there != kept {
        if !kept.is_empty() {
            conn.execute(RENAME, &[&conn.nonce()]).await?;
        }
        conn.execute("UPDATE installation SET lineage = $1", &[&there]).await?;
    }
    conn.commit().await
}

async fn is_known(conn: &Conn) -> Asked<bool> {
    let row = conn.only(READ, &[]).await?;
    Ok(row.get::<_, &str>(0) == row.get::<_, &str>(1))
}
