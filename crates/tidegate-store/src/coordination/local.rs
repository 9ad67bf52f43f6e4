//! Coordination within one process.
//!
//! For the embedded store, where there is nobody to tell, and for tests with several replicas in one process, which share
//! a [`Hub`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::{Basin, Flow};
use tidegate_core::limits::RATE_BUCKETS_MAX;
use tidegate_core::time::Timestamp;

use super::mailbox::Mailbox;
use super::tokens::{LIFTED, Wish};
use super::{BucketKey, Coordination, Grant, News, Tally, timer};

/// What replicas of one process have in common.
pub struct Hub {
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
    /// One that is full is as good as forgotten.
    buckets: Mutex<BTreeMap<BucketKey, (Flow, Basin)>>,
    /// How many have joined.
    joined: AtomicI64,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
}

/// One replica's end.
pub struct Local {
    hub: Arc<Hub>,
    /// Tells it from the others; from 1.
    me: i64,
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
        let (mailboxes, buckets) = (Mutex::default(), Mutex::default());
        Arc::new(Self { mailboxes, buckets, joined: AtomicI64::new(0), clock })
    }

    /// One more replica.
    pub fn join(self: &Arc<Self>) -> Local {
        let inbox = Arc::new(Mailbox::default());
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&inbox));
        let me = self.joined.fetch_add(1, Ordering::Relaxed) + 1;
        Local { hub: Arc::clone(self), me, inbox, heard: AtomicU64::new(0) }
    }

    fn ask(&self, bucket: &BucketKey, flow: Flow, wish: Wish) -> Grant {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = (self.clock)();
        if buckets.len() >= RATE_BUCKETS_MAX {
            buckets.retain(|_, (flow, basin)| basin.reservoir.full_in(*flow, now_us) > Duration::ZERO);
        }
        let full = || (flow, Basin::full(flow, now_us));
        let (known, basin) = buckets.entry(bucket.clone()).or_insert_with(full);
        *known = flow;
        let given = basin.ask(flow, now_us, wish.wanted, wish.caller);
        match wish.penalty_us {
            LIFTED => basin.reservoir.lift(flow, now_us),
            lasts_us => basin.reservoir.penalize(flow, now_us, now_us + lasts_us),
        }
        Grant::of(given, *basin, flow)
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

    async fn take_in_line(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wanted: u32,
        since: Option<Timestamp>,
    ) -> Grant {
        self.hub.ask(bucket, flow, Wish::tokens(wanted, since, self.me))
    }

    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration) {
        self.hub.ask(bucket, flow, Wish::penalty(lasts));
    }

    async fn lift(&self, bucket: &BucketKey, flow: Flow) -> bool {
        self.hub.ask(bucket, flow, Wish::lift()).standing.is_some()
    }

    fn tally(&self) -> Tally {
        // Nothing travels here, so nothing is sent.
        Tally { heard: self.heard.load(Ordering::Relaxed), ..Tally::default() }
    }
}
