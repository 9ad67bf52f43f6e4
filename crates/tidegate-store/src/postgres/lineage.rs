//! Which of the database's histories this is. A standby that takes over begins a new one, and it may lack what the old one had.
//!
//! A fold that is closed and waits in its lane has an id already, and more may join it until it leaves. If it left in what is lost,
//! receivers know that id, and must not see it again with other events. So whoever first writes to a new history gives
//! everything that may still be joined a new random part, before anybody claims it. What a process held when it was lost gets its own
//! when that process is declared dead (`replicas.rs`).

use super::db::{Asked, Conn};
use super::open::LINEAGE;

const READ: &str =
    "SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8), lineage
    FROM pg_control_system(), installation";
const RENAME: &str = "UPDATE deliveries d SET nonce = $1 FROM windows w
    WHERE w.stage = 1 AND d.id = w.delivery AND d.fold = w.no AND d.status <> 1";

/// To be called in every new session before it writes a group.
pub(super) async fn follow(conn: &mut Conn, space: i32) -> Asked<()> {
    match is_known(conn).await {
        Ok(false) => {}
        // Some services do not tell; what they call a failover loses nothing.
        Err(fault) if fault.is_unsupported() => return Ok(()),
        known => return known.map(drop),
    }
    conn.begin().await?;
    conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&space, &LINEAGE]).await?;
    // Somebody else may have done it meanwhile.
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
