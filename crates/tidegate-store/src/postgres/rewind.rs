//! A new life of a process, also in a database that went back in time (`crate::rewind`): then the numbers and the version move
//! past those that were seen, which may be known to others by what is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::id::{Incarnation, Version};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::open::draw_from;
use super::{PostgresStore, configuration, replicas};
use crate::Result;
use crate::rewind::{Found, Known};

/// Begins a new life of this process.
pub(super) async fn join(store: &PostgresStore, now: Timestamp) -> Result<Incarnation> {
    let (shared, pool) = (Arc::clone(&store.shared), &store.pool);
    let known = shared.seen.known();
    // A life that was lost as a whole finds this out here.
    let (space, moving) = (shared.space, pool.transact(move |conn| Box::pin(there(conn))));
    let found = moving.await?;
    if shared.seen.compare(known, found).is_err() {
        let moved = pool.transact(move |conn| Box::pin(move_on(conn, space, known, now))).await?;
        shared.seen.version(moved);
    }
    let name = shared.name.clone();
    let joining = pool.transact(move |conn| Box::pin(async move { replicas::join(conn, &name, now).await }));
    let incarnation = joining.await?;
    store.writer.lock().await.begin_anew(incarnation);
    shared.seen.begin(incarnation);
    shared.incarnation.store(incarnation, Ordering::Relaxed);
    Ok(incarnation)
}

/// What is there of what does not belong to a life.
async fn there(conn: &Conn) -> Asked<Found> {
    let row = conn.only("SELECT version, last_value FROM installation, numbers", &[]).await?;
    Ok(Found { written: None, version: row.get(0), block: row.get(1) })
}

/// Moves the numbers and the version past what is known. Says which version is in force.
async fn move_on(conn: &Conn, space: i32, known: Known, now: Timestamp) -> Asked<Version> {
    draw_from(conn, space, known.block).await?;
    configuration::hold_alone(conn, space).await?;
    let current = configuration::version(conn).await?;
    if current >= known.version {
        return Ok(current);
    }
    let next = configuration::after(conn, known.version).await?;
    configuration::set_version(conn, next, now).await?;
    Ok(next)
}
