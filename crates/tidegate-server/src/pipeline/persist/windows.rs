//! What the group commit does for windows: it seals those that leave, closes those whose time has come, and tells how much
//! longer quiet periods are now.

use std::collections::BTreeMap;

use tidegate_core::id::SubscriberNo;
use tidegate_core::time::Timestamp;
use tidegate_store::{Committed, Group, Seal};
use tokio::sync::oneshot;

use super::{Persist, Unavailable};

impl Persist {
    /// A folded delivery begins to leave; answers when nothing can join it any more, and an error if it is no longer ours.
    pub async fn seal(&self, seal: Seal) -> Result<(), Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.lock().seals.push((seal, reply));
        self.wake.notify_one();
        answer.await.map_err(|_| Unavailable::Store)
    }

    /// A window may close at `at`.
    pub fn expect_close(&self, at: Timestamp) {
        let mut pending = self.lock();
        if pending.close_due.is_none_or(|known| at < known) {
            pending.close_due = Some(at);
            drop(pending);
            self.wake.notify_one();
        }
    }

    /// When to look for windows that close. A store of one process knows exactly; in a shared one others open windows
    /// too, and only after a look for all of them it is known when the next one is due.
    pub(super) fn follow_windows(&self, committed: &Committed, group: &Group) {
        if !committed.closed.is_empty() {
            self.metrics.closed(&committed.closed, group.now);
            self.crowds.tell(&self.rosters.current(), &committed.closed, group.now);
        }
        let mut pending = self.lock();
        let knows_all = group.close > 0 || !self.store.is_shared();
        let known = pending.close_due.filter(|_| !knows_all);
        pending.close_due = [known, committed.close_due].into_iter().flatten().min();
    }

    /// By how many percent congestion at gates lengthens quiet periods now, of those that are to adapt.
    pub(super) fn stretch(&self, group: &Group) -> BTreeMap<SubscriberNo, u32> {
        let units = group.submissions.iter().flat_map(|submission| &submission.units);
        let routes = units.flat_map(|unit| unit.routes.iter().flatten());
        let adaptive = routes.filter_map(|route| {
            let terms = &route.fold.as_ref()?.terms;
            terms.adaptive.then_some((route.subscriber, terms))
        });
        let adaptive: BTreeMap<SubscriberNo, _> = adaptive.collect();
        let stretched = adaptive.into_iter().filter_map(|(subscriber, terms)| {
            let percent = terms.stretch(self.desk.gate_pressure(subscriber));
            (percent > 0).then_some((subscriber, percent))
        });
        stretched.collect()
    }
}
