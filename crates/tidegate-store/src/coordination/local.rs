//! Coordination within one process.
//!
//! For the embedded store, where there is nobody to tell, and for tests with several replicas in one process, which share
//! a [`Hub`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use tidegate_core::limits::RATE_BUCKETS_MAX;
use tidegate_core::schedule::Pace;
use tidegate_core::subscriber::Rate;
use tokio::time::Instant;

use super::mailbox::Mailbox;
use super::{BucketKey, Coordination, Grant, News, Tally, timer};

/// What replicas of one process have in common.
pub struct Hub {
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
    /// When each is full again. One that is full is as good as forgotten.
    buckets: Mutex<BTreeMap<BucketKey, i64>>,
    began: Instant,
}

/// One replica's end.
pub struct Local {
    hub: Arc<Hub>,
    inbox: Arc<Mailbox>,
    heard: AtomicU64,
}

impl Hub {
    /// A hub without members.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { mailboxes: Mutex::default(), buckets: Mutex::default(), began: timer::now() })
    }

    /// One more replica.
    pub fn join(self: &Arc<Self>) -> Local {
        let inbox = Arc::new(Mailbox::default());
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&inbox));
        Local { hub: Arc::clone(self), inbox, heard: AtomicU64::new(0) }
    }

    fn take(&self, bucket: &BucketKey, rate: Rate, wanted: u32) -> Grant {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now_us = timer::us(timer::now().saturating_duration_since(self.began));
        if buckets.len() >= RATE_BUCKETS_MAX {
            buckets.retain(|_, due_us| *due_us > now_us);
        }
        let due_us = buckets.get(bucket).copied().unwrap_or(0);
        let taken = Pace::of(rate).take(due_us, now_us, wanted);
        buckets.insert(bucket.clone(), taken.due_us);
        Grant { granted: taken.granted, next_in: timer::duration(taken.next_us) }
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

    async fn take(&self, bucket: &BucketKey, rate: Rate, wanted: u32) -> Grant {
        self.hub.take(bucket, rate, wanted)
    }

    fn tally(&self) -> Tally {
        // Nothing travels here, so nothing is sent.
        Tally { heard: self.heard.load(Ordering::Relaxed), ..Tally::default() }
    }
}
