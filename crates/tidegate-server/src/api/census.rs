//! The census: how much waits, counted in the store no more often than it can bear.
//!
//! Counting takes as long as the backlog is large. So a count is not repeated before many times what it took has
//! passed, and the last one is told meanwhile: a small store is always fresh, and two million waiting deliveries cost
//! a small part of a core, however many ask how often.
//!
//! Promises: one count at a time; one that was begun is ended and kept, even if whoever asked has hung up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::COUNT_REST_FACTOR;
use tidegate_store::{Backlog, Error, Result, Store};
use tokio::sync::Mutex;

use crate::clock::Clock;

/// What was counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Everything.
    pub(super) all: Backlog,
    /// Subscriber by subscriber.
    pub(super) each: Vec<(SubscriberNo, Backlog)>,
    /// Windows that gather, where that is known.
    pub(super) windows: Option<u64>,
}

/// The last count, for everybody who asks.
#[derive(Default)]
pub(super) struct Census(Arc<Mutex<Option<Count>>>);

struct Count {
    figures: Arc<Figures>,
    /// When the next one may begin.
    stale_at: Duration,
}

impl Census {
    /// The figures, as fresh as may be.
    pub(super) async fn figures(&self, store: &Arc<dyn Store>, clock: &Clock) -> Result<Arc<Figures>> {
        self.known_or(clock, count(Arc::clone(store))).await
    }

    async fn known_or(
        &self,
        clock: &Clock,
        count: impl Future<Output = Result<Figures>> + Send + 'static,
    ) -> Result<Arc<Figures>> {
        let mut known = Arc::clone(&self.0).lock_owned().await;
        let began = clock.elapsed();
        if let Some(known) = known.as_ref().filter(|known| began < known.stale_at) {
            return Ok(Arc::clone(&known.figures));
        }
        let clock = clock.clone();
        // A scraper that gives up early must not make the next one begin anew: a task of its own goes on.
        let counting = tokio::spawn(async move {
            let figures = Arc::new(count.await?);
            let ended = clock.elapsed();
            let stale_at = ended + (ended - began) * COUNT_REST_FACTOR;
            *known = Some(Count { figures: Arc::clone(&figures), stale_at });
            Ok(figures)
        });
        counting
            .await
            .unwrap_or_else(|error| Err(Error::Unavailable(format!("the count ended early: {error}"))))
    }
}

async fn count(store: Arc<dyn Store>) -> Result<Figures> {
    let (all, each) = (store.backlog().await?, store.backlogs().await?);
    Ok(Figures { all, each, windows: store.windows_open().await? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tidegate_core::time::Timestamp;

    use super::*;

    /// A store whose count takes this long, and who counts how often it was asked.
    struct Slow {
        census: Census,
        clock: Clock,
        took: Duration,
        counts: Arc<AtomicU64>,
    }

    impl Slow {
        fn new(took: Duration) -> Self {
            let clock = Clock::simulated(Timestamp::from_ms(0));
            Self { census: Census::default(), clock, took, counts: Arc::default() }
        }

        /// What a scrape is told: which count it was.
        async fn scrape(&self) -> u64 {
            let (clock, took, counts) = (self.clock.clone(), self.took, Arc::clone(&self.counts));
            let count = async move {
                clock.pause(took).await;
                let waiting = counts.fetch_add(1, Ordering::Relaxed) + 1;
                Ok(Figures { all: Backlog { waiting, ..Backlog::default() }, ..Figures::default() })
            };
            self.census.known_or(&self.clock, count).await.expect("it counts").all.waiting
        }
    }

    #[tokio::test(start_paused = true)]
    async fn counting_rests_for_twenty_times_what_it_took() {
        let slow = Slow::new(Duration::from_secs(2));
        assert_eq!(slow.scrape().await, 1);
        slow.clock.pause(Duration::from_millis(39_990)).await;
        assert_eq!(slow.scrape().await, 1, "the last figures");
        slow.clock.pause(Duration::from_millis(20)).await;
        assert_eq!(slow.scrape().await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_no_time_is_counted_each_time() {
        let quick = Slow::new(Duration::ZERO);
        assert_eq!((quick.scrape().await, quick.scrape().await), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn many_at_once_share_a_count_and_whoever_hangs_up_leaves_it() {
        let slow = Slow::new(Duration::from_secs(30));
        let patience = Duration::from_secs(10);
        assert!(tokio::time::timeout(patience, slow.scrape()).await.is_err(), "a scraper's patience");
        assert_eq!(tokio::join!(slow.scrape(), slow.scrape(), slow.scrape()), (1, 1, 1));
        assert_eq!(slow.counts.load(Ordering::Relaxed), 1);
    }
}
