//! Bulk: how much memory folded deliveries take while they are under way.
//!
//! What goes alone is small and comes with its body; a fold may have many megabytes, which are read when its turn comes.
//! Whoever sends one asks here first, and waits until there is room.
//!
//! Promises: never more than the bound is held. A subscriber may hold as much as it leaves free, so one whose receiver
//! hangs never keeps the others out, and whoever holds nothing goes before those who hold something.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::id::SubscriberNo;
use tokio::sync::Notify;

/// The memory there is.
#[derive(Debug)]
pub(super) struct Bulk {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    held: BTreeMap<SubscriberNo, usize>,
    /// Who waits, and for how many.
    waiting: BTreeMap<SubscriberNo, usize>,
}

/// Some of it, given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    bulk: Arc<Bulk>,
    subscriber: SubscriberNo,
    bytes: usize,
}

impl Bulk {
    /// So many bytes for all together.
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        let state = State { free: bytes, held: BTreeMap::new(), waiting: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state), freed: Notify::new() })
    }

    /// Waits until there is room for a subscriber's next fold.
    pub(super) async fn hold(self: &Arc<Self>, subscriber: SubscriberNo, bytes: usize) -> Held {
        if !self.lock().take(subscriber, bytes) {
            let _waits = Waits::begin(self, subscriber);
            loop {
                let mut freed = pin!(self.freed.notified());
                freed.as_mut().enable();
                if self.lock().take(subscriber, bytes) {
                    break;
                }
                freed.await;
            }
        }
        Held { bulk: Arc::clone(self), subscriber, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, subscriber: SubscriberNo, bytes: usize) -> bool {
        let held = self.held.get(&subscriber).copied().unwrap_or(0);
        let gives_way =
            held > 0 && (held > self.free || self.waiting.keys().any(|other| !self.held.contains_key(other)));
        if bytes > self.free || gives_way {
            return false;
        }
        self.free -= bytes;
        self.held.insert(subscriber, held + bytes);
        true
    }

    fn give_back(&mut self, subscriber: SubscriberNo, bytes: usize) {
        self.free += bytes;
        let left = self.held.remove(&subscriber).unwrap_or(0).saturating_sub(bytes);
        if left > 0 {
            self.held.insert(subscriber, left);
        }
    }
}

impl Held {
    /// Less is enough.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let spare = self.bytes.saturating_sub(bytes);
        if spare > 0 {
            self.bytes -= spare;
            self.bulk.lock().give_back(self.subscriber, spare);
            self.bulk.freed.notify_waiters();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bulk.lock().give_back(self.subscriber, self.bytes);
        self.bulk.freed.notify_waiters();
    }
}

/// Somebody waits, until this is dropped.
struct Waits<'a> {
    bulk: &'a Bulk,
    subscriber: SubscriberNo,
}

impl<'a> Waits<'a> {
    fn begin(bulk: &'a Bulk, subscriber: SubscriberNo) -> Self {
        *bulk.lock().waiting.entry(subscriber).or_default() += 1;
        Self { bulk, subscriber }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.bulk.lock();
        let left = state.waiting.remove(&self.subscriber).unwrap_or(1) - 1;
        if left > 0 {
            state.waiting.insert(self.subscriber, left);
        }
        drop(state);
        // Those who gave way to it look again.
        self.bulk.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// What comes of it without waiting.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_who_hangs_leaves_room_for_others_and_the_bound_holds() {
        let bulk = Bulk::new(100);
        let mut hanging = Vec::new();
        while let Some(held) = now(bulk.hold(1, 10)) {
            hanging.push(held);
        }
        assert_eq!(hanging.len(), 6, "it may hold as much as it leaves free");
        let other = now(bulk.hold(2, 40)).expect("there is room for others");
        assert!(now(bulk.hold(3, 1)).is_none(), "but never more than there is");
        drop(other);
        assert!(now(bulk.hold(3, 41)).is_none());
        assert!(now(bulk.hold(3, 40)).is_some());
        drop(hanging);
        assert!(now(bulk.hold(1, 100)).is_some(), "everything was given back");
    }

    #[test]
    fn whoever_holds_nothing_goes_first() {
        let bulk = Bulk::new(100);
        let mut first = now(bulk.hold(1, 30)).unwrap();
        let mut large = Box::pin(bulk.hold(2, 80));
        assert!(now(large.as_mut()).is_none());
        assert!(now(bulk.hold(1, 10)).is_none(), "or the large one would wait for ever");
        first.shrink(20);
        let large = now(large).expect("there is room now");
        drop(large);
        assert!(now(bulk.hold(1, 10)).is_some());
    }

    #[test]
    fn who_ceases_to_wait_holds_nobody_up() {
        let bulk = Bulk::new(100);
        let _first = now(bulk.hold(1, 30)).unwrap();
        let mut large = Box::pin(bulk.hold(2, 80));
        assert!(now(large.as_mut()).is_none());
        drop(large);
        assert!(now(bulk.hold(1, 10)).is_some());
    }
}
