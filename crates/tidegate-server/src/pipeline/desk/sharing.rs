//! This process among several: which places are its own, and what others send.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tidegate_core::id::SubscriberNo;
use tidegate_core::schedule::{Parting, Stance};
use tidegate_store::{Claim, Load};

use super::{Desk, claim};

impl Desk {
    /// Nothing is ours before the others have agreed.
    pub fn stand_by(&self) {
        self.lock().stand_by();
    }

    /// Which life this is, how busy it is, and what it says about its part of all limits, which it divides among `flock`. Whoever
    /// says that it is leaving has closed the desk before.
    pub(in super::super) fn speak(&self, flock: i64, is_leaving: bool) -> (u64, Load) {
        let schedule = self.lock();
        let busy = schedule.busy(is_leaving);
        let obeys = if busy.as_ref().is_some_and(Vec::is_empty) { flock } else { 0 };
        let stance = Some(Stance { divides: flock, busy, is_leaving });
        let (in_flight, queued) = (schedule.in_flight() as u64, schedule.queued() as u64);
        let load = Load { in_flight, queued, obeys, stance, ..Load::default() };
        (self.life.load(Ordering::Relaxed), load)
    }

    /// What a beat of this life said about limits. Gives back what waited for places that are no longer here. Nothing, when
    /// another life has begun since: what was agreed was agreed with the one before.
    pub(in super::super) fn divide(&self, life: u64, parting: &Parting) -> Vec<Claim> {
        let mut schedule = self.lock();
        if self.life.load(Ordering::Relaxed) != life {
            return Vec::new();
        }
        let mut released = schedule.propose(parting.share);
        if let Some(busy) = &parting.agreed {
            released.extend(schedule.agree(busy));
        }
        self.ring_if_hungry(schedule);
        self.work.notify_one();
        released.iter().map(claim).collect()
    }

    /// Those of these that others alone send to.
    pub fn left_to_others(&self, subscribers: &BTreeSet<SubscriberNo>) -> BTreeSet<SubscriberNo> {
        let schedule = self.lock();
        subscribers.iter().copied().filter(|subscriber| schedule.is_left_to_others(*subscriber)).collect()
    }
}
