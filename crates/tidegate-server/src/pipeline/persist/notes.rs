//! Short notes that ride in the next group: how a subscriber or a gate fares, for the process after this one.

use tidegate_core::id::{GateNo, SubscriberNo};
use tidegate_core::time::Timestamp;

use super::Persist;
use super::pending::Pending;

impl Persist {
    /// Keeps since when a subscriber fails, soon; `None`: it has ceased to.
    pub fn keep_streak(&self, subscriber: SubscriberNo, since: Option<Timestamp>) {
        self.keep_soon(|pending| {
            pending.streaks.insert(subscriber, since);
        });
    }

    /// Keeps until when a gate gives nothing, soon. Where processes share gates, what they share remembers it.
    pub fn keep_penalty(&self, gate: GateNo, until: Timestamp) {
        if self.coordination.is_none() {
            self.keep_soon(|pending| {
                pending.penalties.insert(gate, until);
            });
        }
    }

    fn keep_soon(&self, keep: impl FnOnce(&mut Pending)) {
        let mut pending = self.lock();
        keep(&mut pending);
        if pending.expect_soon(self.clock.now()) {
            drop(pending);
            self.wake.notify_one();
        }
    }
}
