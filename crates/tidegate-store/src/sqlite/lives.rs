//! Several lives on one file at once, for the simulation of processes that share a store.
//!
//! The claims are the real ones: each names its life, and whatever another life says of it is refused by the same
//! statements as in the product. Who lives, and who may be declared dead, is known elsewhere. The product itself never runs
//! like this: there is one process on one file, and that is what opening the file makes sure of.

use std::sync::Arc;

use tidegate_core::id::Incarnation;
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::time::Timestamp;

use super::writer::CLAIMED;
use super::{Calls, SqliteStore, commit, failed};
use crate::{Committed, Group, Result, TakenOver};

impl SqliteStore {
    /// One more life.
    pub async fn begin_life(&self) -> Result<Incarnation> {
        self.write(Calls::Inline, |writer| {
            let sql = "UPDATE meta SET value = value + 1 WHERE name = 'incarnation' RETURNING value";
            writer.conn.query_row(sql, [], |row| row.get(0)).map_err(failed)
        })
        .await
    }

    /// A group of that life.
    pub async fn commit_in(&self, life: Incarnation, group: Arc<Group>) -> Result<Committed> {
        self.write(Calls::Inline, move |writer| {
            writer.incarnation = life;
            commit::commit(writer, &group)
        })
        .await
    }

    /// Nothing that this life held is its own any more. Unless it left in good order, what it held may have been sent.
    pub async fn end_life(&self, life: Incarnation, is_lost: bool, now: Timestamp) -> Result<TakenOver> {
        self.write(Calls::Inline, move |writer| {
            let sql = format!("{CLAIMED} AND incarnation = {life}");
            let ended = writer.void(&sql, is_lost, now).map_err(failed)?;
            let set_aside = ended.iter().filter(|lost| **lost >= CLAIMS_LOST_MAX).count() as u64;
            Ok(TakenOver { due: ended.len() as u64 - set_aside, set_aside })
        })
        .await
    }
}
