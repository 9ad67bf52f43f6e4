//! Coordination within one process.
//!
//! For the embedded store, where there is nobody to tell, and for tests with several replicas in one process, which share
//! a [`Hub`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::{Flow, Reservoir};
use tidegate_core::limits::RATE_BUCKETS_MAX;

use super::mailbox::Mailbox;
use super::tokens::Wish;
use super::{BucketKey, Coordination, Grant, News, Tally, timer};

/// What replicas of one process have in common.
pub struct Hub {
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
    /// One that is full is as good as forgotten.
    buckets: Mutex<BTreeMap<BucketKey, Kept>>,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
}

/// A bucket, what it was last, and how long the last one that was given something had waited.
type Kept = (Flow, Reservoir, Duration);

/// One replica's end.
pub struct Local {
    hub: Arc<Hub>,
    inbox: Arc<Mailbox>,
    heard: AtomicU64,
}

impl Hub {
    /// A hub without members.
    pub fn new() -> Arc<Self> {
        let began = timer::now();
        Self::timed(Box::new(move || timer::us(timer::now().saturating_duration_since(began))))
    }

    /// The same on a clock of its own, in microseconds: for replicas whose clocks have nothing in common.
    pub fn timed(clock: Box<dyn Fn() -> i64 + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { mailboxes: Mutex::default(), buckets: Mutex::default(), clock })
    }

    /// One more replica.
    pub fn join(self: &Arc<Self>) -> Local {
        let inbox = Arc::new(Mailbox::default());
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&inbox));
        Local { hub: Arc::clone(self), inbox, heard: AtomicU64::new(0) }
    }

    fn ask(&self, bucket: &BucketKey, flow: Flow, wish: Wish) -> Grant {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = (self.clock)();
        if buckets.len() >= RATE_BUCKETS_MAX {
            buckets.retain(|_, (flow, bucket, _)| bucket.full_in(*flow, now_us) > Duration::ZERO);
        }
        let full = || (flow, Reservoir::full(flow, now_us), Duration::ZERO);
        let (known, reservoir, waited) = buckets.entry(bucket.clone()).or_insert_with(full);
        *known = flow;
        let granted = reservoir.take(flow, now_us, wish.wanted);
        reservoir.penalize(flow, now_us, now_us + wish.penalty_us);
        if granted > 0 {
            *waited = timer::duration(wish.waited_us);
        }
        Grant::of(granted, *reservoir, flow, *waited)
    }
}

#[async_trait]
impl Coordination for Local {
    fn tell(&self, news: News) {
        let mut mailboxes = self.hub.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
        let others = mailboxes.iter().filter_map(Weak::upgrade);
        for mailbox in others.filter(|mailbox| !Arc::ptr_eq(mailbox, &self.inbox)) {
            mailbox.put(news.clone());
        }
    }

    async fn hear(&self) -> News {
        let news = self.inbox.wait().await;
        self.heard.fetch_add(1, Ordering::Relaxed);
        news
    }

    async fn take_after(&self, bucket: &BucketKey, flow: Flow, wanted: u32, waited: Duration) -> Grant {
        self.hub.ask(bucket, flow, Wish::tokens(wanted, waited))
    }

    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration) {
        self.hub.ask(bucket, flow, Wish::penalty(lasts));
    }

    fn tally(&self) -> Tally {
        // Nothing travels here, so nothing is sent.
        Tally { heard: self.heard.load(Ordering::Relaxed), ..Tally::default() }
    }
}
