//! Watch: tells whoever looks on that something happened.
//!
//! Fed by the group commit, after the commit. Events are not passed through here: a watcher is woken and reads them
//! from the store, from its own mark on. So it can be as slow as it likes, nothing is lost on it, and it holds no more
//! than it reads at once. Changes of deliveries are remembered here, the last few thousand, in order and numbered.
//!
//! Promises: while nobody watches, a commit pays for one look at a flag. What is remembered is bounded. A watcher that
//! missed changes is told so.
//! Does not: filter, or know projects' events from each other; streams do (`api/stream`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::attempt::{ErrorClass, Phases};
use tidegate_core::delivery::Status;
use tidegate_core::id::{DeliveryNo, Nonce, ProjectNo, SubscriberNo};
use tidegate_core::limits::{STREAM_CHANGES_MAX, STREAMS_MAX, STREAMS_PER_PROJECT_MAX};
use tidegate_core::retry::Next;
use tidegate_core::time::Timestamp;
use tidegate_store::{Finished, Group};
use tokio::sync::watch;

/// The result of an attempt, as those who look on see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which delivery.
    pub delivery: DeliveryNo,
    /// Its random part.
    pub nonce: Nonce,
    /// Whose.
    pub subscriber: SubscriberNo,
    /// Where it stands now.
    pub status: Status,
    /// When it is due again.
    pub due_at: Option<Timestamp>,
    /// The number of the attempt, from 1.
    pub n: u32,
    /// When it began.
    pub at: Timestamp,
    /// The receiver's status, if it answered.
    pub http_status: Option<u16>,
    /// Why it failed.
    pub error: Option<ErrorClass>,
    /// How long it took.
    pub phases: Phases,
}

impl From<&Finished> for Change {
    fn from(finished: &Finished) -> Self {
        let (status, due_at) = match &finished.next {
            Next::Delivered => (Status::Delivered, None),
            Next::RetryAt(at) | Next::PostponedTo(at) => (Status::Retrying, Some(*at)),
            Next::Exhausted(_) => (Status::Exhausted, None),
        };
        Self {
            delivery: finished.claim.delivery,
            nonce: finished.claim.nonce,
            subscriber: finished.subscriber,
            status,
            due_at,
            n: finished.n,
            at: finished.attempt.at,
            http_status: finished.attempt.status,
            error: finished.attempt.error,
            phases: finished.attempt.phases,
        }
    }
}

/// Where watchers meet.
#[derive(Default)]
pub struct Watch {
    is_watched: AtomicBool,
    inner: Mutex<Inner>,
    /// Moves with every commit that somebody may want to know of.
    stir: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    seats: BTreeMap<ProjectNo, usize>,
    changes: VecDeque<Change>,
    /// The number of the next change. The first one remembered is as many before it as are remembered.
    next: u64,
    /// When nobody watches: how many more changes are remembered for those who come back.
    patience: usize,
    is_closed: bool,
}

/// Changes after a mark.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// In order.
    pub changes: Vec<Change>,
    /// The mark to go on from.
    pub through: u64,
    /// Some between the mark and these are forgotten.
    pub has_gap: bool,
}

impl Watch {
    /// A group was committed. `stale` of its results were refused.
    pub fn committed(&self, group: &Group, stale: u64) {
        // A watcher that comes at this instant reads the store after it has raised the flag, so it misses nothing; and
        // it looks again with every sign of life it gives.
        if self.is_watched.load(Ordering::Relaxed)
            && !(group.submissions.is_empty() && group.results.is_empty())
        {
            self.tell(group, stale);
        }
    }

    fn tell(&self, group: &Group, stale: u64) {
        let mut inner = self.lock();
        if stale > 0 {
            // Which ones were refused is not known here: rather a gap than an untruth.
            inner.forget();
        } else {
            inner.remember(&group.results);
        }
        if inner.seats.is_empty() {
            inner.patience = inner.patience.saturating_sub(group.results.len().max(1));
            if inner.patience == 0 {
                inner.forget();
                self.is_watched.store(false, Ordering::Relaxed);
            }
        }
        drop(inner);
        self.stir.send_modify(|count| *count += 1);
    }

    /// Something happened in another process, if anybody wants to know.
    pub fn stir(&self) {
        if self.is_watched.load(Ordering::Relaxed) {
            self.stir.send_modify(|count| *count += 1);
        }
    }

    /// A place to watch from, unless there are too many already.
    pub fn join(self: &Arc<Self>, project: ProjectNo) -> Option<Seat> {
        let mut inner = self.lock();
        let mine = inner.seats.get(&project).copied().unwrap_or(0);
        if inner.open() >= STREAMS_MAX || mine >= STREAMS_PER_PROJECT_MAX {
            return None;
        }
        inner.seats.insert(project, mine + 1);
        self.is_watched.store(true, Ordering::Relaxed);
        drop(inner);
        Some(Seat { watch: Arc::clone(self), project, stirred: self.stir.subscribe() })
    }

    /// How many watch.
    pub fn open(&self) -> usize {
        self.lock().open()
    }

    /// The mark of the present: changes from now on come after it.
    pub fn present(&self) -> u64 {
        self.lock().next
    }

    /// The changes after a mark, `limit` of them at most, and none after the mark `until`.
    pub fn changes(&self, after: u64, until: u64, limit: usize) -> Recent {
        let inner = self.lock();
        let first = inner.next - inner.changes.len() as u64;
        let from = after.clamp(first, inner.next);
        let count = until.min(inner.next).saturating_sub(from).min(limit as u64);
        let skip = usize::try_from(from - first).unwrap_or(usize::MAX);
        let changes = inner.changes.iter().skip(skip).take(usize::try_from(count).unwrap_or(limit));
        Recent { changes: changes.copied().collect(), through: from + count, has_gap: from != after }
    }

    /// Ends every stream, for good.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.stir.send_modify(|count| *count += 1);
    }

    fn leave(&self, project: ProjectNo) {
        let mut inner = self.lock();
        if let Some(count) = inner.seats.get_mut(&project) {
            *count -= 1;
        }
        inner.seats.retain(|_, count| *count > 0);
        inner.patience = STREAM_CHANGES_MAX;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn open(&self) -> usize {
        self.seats.values().sum()
    }

    fn remember(&mut self, results: &[Finished]) {
        self.changes.extend(results.iter().map(Change::from));
        self.next += results.len() as u64;
        let surplus = self.changes.len().saturating_sub(STREAM_CHANGES_MAX);
        self.changes.drain(..surplus);
    }

    /// A number that no change has: every earlier mark is followed by a gap.
    fn forget(&mut self) {
        self.changes.clear();
        self.next += 1;
    }
}

/// A place to watch from. Given up when dropped.
pub struct Seat {
    watch: Arc<Watch>,
    project: ProjectNo,
    stirred: watch::Receiver<u64>,
}

impl Seat {
    /// Returns when something was committed since the last time.
    pub async fn stirred(&mut self) {
        // The sender lives in `watch`, which this holds.
        let _ = self.stirred.changed().await;
    }

    /// The process is on its way out.
    pub fn is_closed(&self) -> bool {
        self.watch.lock().is_closed
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.watch.leave(self.project);
    }
}

#[cfg(test)]
mod tests;
