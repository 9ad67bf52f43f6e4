//! The room that memory has for deliveries: a commit claims what fits and leaves the rest due in the store.

use std::collections::BTreeMap;

use tidegate_core::id::SubscriberNo;
use tidegate_core::schedule::fits;

/// What memory can take: deliveries per subscriber, and bytes for all of them.
///
/// A subscriber may hold as many bytes as it leaves free. So one whose receiver hangs holds half of them at most, two a
/// third each, and there is always room for others. Whoever holds nothing may take one, whatever its size.
#[derive(Clone, Debug, Default)]
pub struct Room {
    places: BTreeMap<SubscriberNo, Place>,
    free: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// More deliveries that fit.
    jobs: usize,
    /// Bytes it holds.
    held: usize,
}

impl Room {
    /// `free` bytes for bodies and, so far, room for nobody's new deliveries.
    pub fn new(free: usize) -> Self {
        Self { places: BTreeMap::new(), free }
    }

    /// Room for `jobs` more deliveries of one subscriber.
    pub fn set(&mut self, subscriber: SubscriberNo, jobs: usize) {
        self.places.entry(subscriber).or_default().jobs = jobs;
    }

    /// What one subscriber holds already.
    pub fn set_held(&mut self, subscriber: SubscriberNo, bytes: usize) {
        self.places.entry(subscriber).or_default().held = bytes;
    }

    /// Takes a place for one delivery, if there is one.
    pub fn take(&mut self, subscriber: SubscriberNo, bytes: usize) -> bool {
        let has_place = self.places.get(&subscriber).is_some_and(|place| place.jobs > 0);
        if !has_place || !self.take_bytes(subscriber, bytes) {
            return false;
        }
        self.places.entry(subscriber).and_modify(|place| place.jobs -= 1);
        true
    }

    /// Takes bytes alone.
    pub fn take_bytes(&mut self, subscriber: SubscriberNo, bytes: usize) -> bool {
        let place = self.places.entry(subscriber).or_default();
        if !fits(place.held, self.free) {
            return false;
        }
        place.held += bytes;
        self.free = self.free.saturating_sub(bytes);
        true
    }
}
