//! What every part of the shared store knows.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use tidegate_core::id::{Incarnation, Seq};
use tidegate_core::time::Timestamp;

use super::connect::Target;
use super::db::{Conn, Work};
use super::open::BLOCK_BITS;
use super::terms::Periods;
use super::{PostgresStore, replicas};
use crate::Result;
use crate::rewind::Seen;

/// What every part of the store knows.
pub(super) struct Shared {
    pub(super) target: Target,
    /// Tells this installation's advisory locks from others' in the same database.
    pub(super) space: i32,
    pub(super) periods: Periods,
    pub(super) incarnation: AtomicI64,
    pub(super) name: String,
    pub(super) salt: Vec<u8>,
    pub(super) latest: Timestamp,
    /// What was there when this process looked.
    pub(super) seen: Seen,
    /// How many windows of a project can be joined.
    pub(super) windows_max: AtomicUsize,
}

impl Shared {
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation.load(Ordering::Relaxed)
    }

    /// An event with this number is there.
    pub(super) fn saw(&self, event: Seq) -> Seq {
        self.seen.block(event >> BLOCK_BITS);
        event
    }
}

impl PostgresStore {
    /// A change that is no group's.
    pub(super) async fn change_at<T: Send + 'static>(
        &self,
        now: Timestamp,
        work: impl for<'a> FnOnce(&'a Conn) -> Work<'a, T> + Send + 'static,
    ) -> Result<T> {
        let changing = self.pool.transact(move |conn| {
            Box::pin(async move {
                let done = work(conn).await?;
                replicas::stamp(conn, now).await?;
                Ok(done)
            })
        });
        Ok(changing.await?)
    }
}
