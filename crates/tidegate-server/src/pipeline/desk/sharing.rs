//! This process among several: which places are its own, and what others send.

use std::collections::BTreeSet;

use tidegate_core::delivery::Job;
use tidegate_core::id::SubscriberNo;
use tidegate_core::schedule::{Schedule, Share};
use tidegate_store::Claim;

use super::{Desk, claim};

impl Desk {
    /// Nothing is ours before the others have agreed.
    pub fn stand_by(&self) {
        self.lock().stand_by();
    }

    /// The number of processes, or our place among them, has changed. Gives back what waited for places that are no longer
    /// here.
    pub fn propose(&self, share: Share) -> Vec<Claim> {
        self.reshape(|schedule| schedule.propose(share))
    }

    /// Everybody obeys what was proposed last.
    pub fn agree(&self) -> Vec<Claim> {
        self.reshape(Schedule::agree)
    }

    fn reshape(&self, change: impl FnOnce(&mut Schedule) -> Vec<Job>) -> Vec<Claim> {
        let mut schedule = self.lock();
        let released = change(&mut schedule).iter().map(claim).collect();
        self.ring_if_hungry(schedule);
        self.work.notify_one();
        released
    }

    /// Nobody has more under way than what was proposed allows.
    pub fn obeys(&self) -> bool {
        self.lock().obeys()
    }

    /// Those of these that others alone send to.
    pub fn left_to_others(&self, subscribers: &BTreeSet<SubscriberNo>) -> BTreeSet<SubscriberNo> {
        let schedule = self.lock();
        subscribers.iter().copied().filter(|subscriber| schedule.is_left_to_others(*subscriber)).collect()
    }
}
