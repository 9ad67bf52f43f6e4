//! What replicas tell each other, and the tokens they share.
//!
//! Nothing here is a record. A hint that is lost costs latency, for everyone also looks into the store by himself now and
//! then; a bucket that is lost costs at most one burst; no event depends on either. Three ways: [`Local`] within a process,
//! [`Postgres`] for replicas that share a database, [`Redis`] beside it for those who have one. All keep the contract in
//! `conformance`.
//!
//! Does not: decide who may send (that is `tidegate_core::schedule`) or know who lives (that is the store's heartbeat).

#[cfg(feature = "conformance")]
pub mod conformance;
mod home;
mod local;
mod mailbox;
mod news;
mod postgres;
mod redis;
mod scripts;
pub(crate) mod timer;
mod tokens;

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::{Basin, Flow, Given, Standing};
use tidegate_core::id::{GateNo, SubscriberNo};
use tidegate_core::time::Timestamp;

pub use local::{Hub, Local};
pub use news::News;
pub use postgres::Postgres;
pub use redis::Redis;
pub(crate) use redis::client as redis_client;

/// Hints between replicas and tokens they share. Whatever is lost costs latency or at most one burst, never an event.
#[async_trait]
pub trait Coordination: Send + Sync + 'static {
    /// Tells the other replicas, soon; many tellings of a short while are one message. Never waits, never fails.
    fn tell(&self, news: News);

    /// What the others told since; waits until there is something. After a gap, in which tellings may have been lost, it is
    /// [`News::everything`]. For one listener.
    async fn hear(&self) -> News;

    /// Takes up to `wanted` tokens of a shared bucket, to be used at once; none is a look at it. Who can not reach the
    /// bucket gets none.
    async fn take(&self, bucket: &BucketKey, flow: Flow, wanted: u32) -> Grant {
        self.take_in_line(bucket, flow, wanted, None).await
    }

    /// The same for a line, whose first became ready then. Who finds a token for which another replica's first has waited longer
    /// gets none and asks again a moment later; who wants none is not waited for any more.
    async fn take_in_line(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wanted: u32,
        since: Option<Timestamp>,
    ) -> Grant;

    /// A shared bucket gives nothing for so long, unless it is to give nothing for longer already; then it recovers step by
    /// step. If this is lost, whoever said "too many" says it again.
    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration);

    /// A penalty of a shared bucket ends before its time, if there is one; then it recovers as it would have later. Says whether
    /// the bucket could be reached.
    async fn lift(&self, bucket: &BucketKey, flow: Flow) -> bool;

    /// What has gone through it so far.
    fn tally(&self) -> Tally;

    /// Whether Redis answers; nothing where there is none.
    fn is_connected_to_redis(&self) -> Option<bool> {
        None
    }
}

/// Names a bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketKey(String);

impl BucketKey {
    /// That of a subscriber's own rate.
    pub fn subscriber(no: SubscriberNo) -> Self {
        Self(format!("subscriber:{no}"))
    }

    /// That of a gate.
    pub fn gate(no: GateNo) -> Self {
        Self(format!("gate:{no}"))
    }

    /// Its name, in letters, digits and colons.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tokens to be used at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// How many.
    pub granted: u32,
    /// If they were fewer than wanted: when it is worth asking again.
    pub next_in: Duration,
    /// How the bucket stands after that; absent if it could not be reached.
    pub standing: Option<Standing>,
    /// When the first of all lines became ready, of those who wait there.
    pub first: Option<Timestamp>,
}

impl Grant {
    /// None for now.
    fn nothing_for(next_in: Duration) -> Self {
        Self { granted: 0, next_in, standing: None, first: None }
    }

    /// What was given, of a bucket that is left like this.
    fn of(given: Given, left: Basin, flow: Flow) -> Self {
        let Basin { reservoir, front } = left;
        let standing = reservoir.standing(flow, reservoir.at_us);
        let first = (front.who != 0).then(|| Timestamp::from_ms(front.since_ms));
        let (granted, next_in) = match given {
            Given::Tokens(granted) => (granted, standing.next_in),
            Given::Later => (0, flow.moment()),
        };
        Self { granted, next_in, standing: Some(standing), first }
    }
}

/// Counts, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages sent.
    pub sent: u64,
    /// Messages heard from others.
    pub heard: u64,
    /// Times after which messages may have been missed.
    pub gaps: u64,
    /// Takings that were answered from PostgreSQL because Redis could not.
    pub fallbacks: u64,
}
