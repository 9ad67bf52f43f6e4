//! How processes of a crowd reach each other and the buckets they share: the real coordination within a process, with the
//! time that a network takes, and sometimes without an answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::Flow;
use tidegate_core::time::Timestamp;
use tidegate_store::coordination::{BucketKey, Coordination, Grant, Local, News, Tally};

use super::super::dice::Dice;
use super::super::life::Life;

/// The longest way to a bucket, or back.
const WAY_MS_MAX: i64 = 15;
/// How long a question and its answer are on their way at most.
pub(crate) const ROUND_TRIP_MS: i64 = 2 * WAY_MS_MAX;
/// How long one waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_secs(1);

/// One process's end.
pub(crate) struct Wire {
    pub(crate) local: Local,
    pub(crate) life: Arc<Life>,
    pub(crate) dice: Mutex<Dice>,
}

impl Wire {
    async fn travel(&self) {
        let ms = self.lock().between(0, WAY_MS_MAX + 1);
        if ms > 0 {
            self.life.clock.pause(Duration::from_millis(ms.unsigned_abs())).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Coordination for Wire {
    fn tell(&self, news: News) {
        let is_lost = self.life.cut_for().is_some() || self.lock().percent(5);
        if !is_lost {
            self.local.tell(news);
        }
    }

    async fn hear(&self) -> News {
        let news = self.local.hear().await;
        match self.life.cut_for() {
            None => news,
            Some(lasts) => {
                self.life.clock.pause(lasts).await;
                News::everything()
            }
        }
    }

    async fn take_in_line(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wanted: u32,
        since: Option<Timestamp>,
    ) -> Grant {
        self.travel().await;
        if let Some(lasts) = self.life.cut_for() {
            self.life.clock.pause(lasts.min(PATIENCE)).await;
            return Grant { granted: 0, next_in: PATIENCE, standing: None, first: None };
        }
        let grant = self.local.take_in_line(bucket, flow, wanted, since).await;
        self.travel().await;
        grant
    }

    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration) {
        self.travel().await;
        if self.life.cut_for().is_none() {
            self.local.penalize(bucket, flow, lasts).await;
        }
    }

    async fn lift(&self, bucket: &BucketKey, flow: Flow) -> bool {
        self.travel().await;
        self.life.cut_for().is_none() && self.local.lift(bucket, flow).await
    }

    fn tally(&self) -> Tally {
        self.local.tally()
    }
}
