//! What memory takes and what it wants from the store.
//!
//! Memory is bounded whatever the backlog is: what finds no room stays due in the store, and whoever has room again wishes for
//! it.

use super::{Bounds, Schedule, fits};
use crate::id::{DeliveryNo, SubscriberNo};
use crate::time::Timestamp;

impl Schedule {
    /// Subscribers up to this number are not new. Their rates begin with nothing when they are admitted, since what they were sent
    /// before, by a former process for example, is not counted here. Numbers only grow.
    pub fn know(&mut self, last: SubscriberNo) {
        self.known = self.known.max(last);
    }

    /// Somebody wants this delivery, which is due in the store, sent now, whatever its breaker says.
    pub fn ask(&mut self, subscriber: SubscriberNo, delivery: DeliveryNo) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.takes_part()) {
            lineup.asked.insert(delivery);
            self.asked.push((subscriber, delivery));
        }
    }

    /// The deliveries that were asked for since.
    pub fn take_asked(&mut self) -> Vec<(SubscriberNo, DeliveryNo)> {
        std::mem::take(&mut self.asked)
    }

    /// How many new deliveries of a subscriber memory takes. None while older ones wait in the store.
    pub fn room(&self, subscriber: SubscriberNo) -> usize {
        match self.lineups.get(&subscriber) {
            Some(lineup) if lineup.takes_part() && !lineup.spilled && lineup.breaker.is_closed() => {
                lineup.capacity(&self.bounds).saturating_sub(lineup.queue.len())
            }
            _ => 0,
        }
    }

    /// Whether a new delivery of a subscriber would wait for more than `calm` others. One that does not take part is
    /// never busy: how it stands with those who send for it is not known here, and nobody would tell.
    pub fn is_busy(&self, subscriber: SubscriberNo, calm: usize) -> bool {
        let sending = self.lineups.get(&subscriber).filter(|lineup| lineup.takes_part());
        sending.is_some_and(|lineup| lineup.spilled || lineup.queue.len() > calm)
    }

    /// Whether others alone send to a subscriber.
    pub fn is_left_to_others(&self, subscriber: SubscriberNo) -> bool {
        self.lineups.get(&subscriber).is_some_and(|lineup| lineup.open && lineup.places == 0)
    }

    /// What memory may hold.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// How many bytes of bodies memory takes.
    pub fn room_bytes(&self) -> usize {
        self.bounds.queue_bytes.saturating_sub(self.bytes)
    }

    /// How many bytes of bodies a subscriber has in memory.
    pub fn held_bytes(&self, subscriber: SubscriberNo) -> usize {
        self.lineups.get(&subscriber).map_or(0, |lineup| lineup.bytes)
    }

    /// New deliveries of a subscriber are due in the store because memory had no room.
    pub fn spill(&mut self, subscriber: SubscriberNo) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) {
            lineup.spilled = true;
            match lineup.breaker.probe_at() {
                Some(at) => self.expect(subscriber, at),
                None => {
                    self.hungry.insert(subscriber);
                }
            }
        }
    }

    /// A subscriber has work in the store that is due at `at`.
    pub fn expect(&mut self, subscriber: SubscriberNo, at: Timestamp) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if lineup.later.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = lineup.later.replace(at) {
            self.later.remove(&(known, subscriber));
        }
        self.later.insert((at, subscriber));
    }

    /// Who wants how much from the store now. Asks for a bounded amount in all, so that a commit stays short.
    pub fn wishes(&mut self, now: Timestamp) -> Vec<(SubscriberNo, usize)> {
        self.wake_later(now);
        let (mut left, free) = (self.bounds.refill_jobs, self.room_bytes());
        let mut wishes = Vec::new();
        for subscriber in &self.hungry {
            if left == 0 {
                break;
            }
            let lineup = &self.lineups[subscriber];
            let jobs = lineup.wish(&self.bounds, now).min(left);
            if jobs > 0 && fits(lineup.bytes, free) {
                wishes.push((*subscriber, jobs));
                left = if jobs == left { left / 2 } else { left - jobs };
            }
        }
        wishes
    }

    /// A wish was answered. `drained`: nothing due is left in the store; `next_due`: what is left is due then.
    pub fn refilled(&mut self, subscriber: SubscriberNo, drained: bool, next_due: Option<Timestamp>) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if !drained {
            return;
        }
        lineup.spilled = false;
        self.hungry.remove(&subscriber);
        if let Some(at) = next_due {
            self.expect(subscriber, at);
        }
    }

    /// When the next work in the store is due.
    pub fn store_due_at(&self) -> Option<Timestamp> {
        self.later.first().map(|(at, _)| *at)
    }

    fn wake_later(&mut self, now: Timestamp) {
        while let Some((at, subscriber)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, subscriber));
            let Some(lineup) = self.lineups.get_mut(&subscriber) else { continue };
            lineup.later = None;
            match lineup.breaker.probe_at().filter(|at| now < *at) {
                Some(at) => self.expect(subscriber, at),
                None => {
                    self.hungry.insert(subscriber);
                }
            }
        }
    }
}
