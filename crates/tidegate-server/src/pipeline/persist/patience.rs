//! A store that does not answer: nobody is left to wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_store::{Committed, Error, Group};

use super::{Batch, Persist};

/// How long somebody waits, before they are told to come again.
const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// How long deliveries go on whose results can not be written: if the process ended now, all of them would be sent again.
const RESULTS_PATIENCE: Duration = Duration::from_secs(1);

/// A commit this long ago says that the store works.
const JUST: Duration = Duration::from_secs(3);

impl Persist {
    /// Commits. When that takes too long, whoever has something in this group, or comes meanwhile, is told to come again.
    /// The group goes on; what became of it is known when the store answers.
    pub(super) async fn patiently(&self, group: Arc<Group>, batch: &mut Batch) -> Result<Committed, Error> {
        let mut commit = self.store.commit(group);
        tokio::select! {
            biased;
            result = &mut commit => return result,
            () = self.clock.pause(RESULTS_PATIENCE) => {}
        }
        self.desk.hold_back();
        tokio::select! {
            biased;
            result = &mut commit => return result,
            () = self.clock.pause(COMMIT_PATIENCE - RESULTS_PATIENCE) => {}
        }
        if self.is_healthy.swap(false, Ordering::Relaxed) {
            tracing::error!("the store does not answer: nothing is accepted until it does");
        }
        batch.submitters.clear();
        let came = {
            let mut pending = self.lock();
            pending.is_stuck = true;
            std::mem::take(&mut pending.submissions)
        };
        drop(came);
        let result = commit.await;
        self.lock().is_stuck = false;
        result
    }

    pub(super) fn remember_commit(&self) {
        self.committed_ms.store(ms(self.clock.steady()), Ordering::Relaxed);
    }

    /// Whether something was committed within the last moments.
    pub fn has_just_committed(&self) -> bool {
        ms(self.clock.steady()).saturating_sub(self.committed_ms.load(Ordering::Relaxed)) < ms(JUST)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
