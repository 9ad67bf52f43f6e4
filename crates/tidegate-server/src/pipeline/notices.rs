//! Notices: what an operator must know is accepted as an event, the ordinary way.
//!
//! So it is durable, listed, traced and delivered like any other. Few things are told, and each once: changes, and of
//! exhausted deliveries at most one per subscriber and minute. While the store fails a notice waits; it is lost only
//! if the process ends before the store works again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::EXHAUSTED_TOLD_EVERY_MS;
use tidegate_core::operator::Notice;
use tidegate_core::time::Timestamp;

use super::ingest::Ingest;
use super::persist::Persist;
use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::roster::Endpoint;

/// How often a notice is offered to a failing store.
const TRIES: usize = 600;

/// Tells operators.
pub(super) struct Notices {
    ingest: Ingest,
    clock: Clock,
    entropy: Entropy,
    /// When each subscriber's exhausted deliveries were last told of.
    exhausted: Mutex<BTreeMap<SubscriberNo, Timestamp>>,
}

impl Notices {
    pub(super) fn new(parts: &Parts, persist: Arc<Persist>) -> Arc<Self> {
        Arc::new(Self {
            ingest: Ingest::new(parts, persist),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            exhausted: Mutex::default(),
        })
    }

    /// Tells of a subscriber, soon.
    pub(super) fn tell(self: &Arc<Self>, endpoint: &Endpoint, notice: &Notice) {
        let (now, rule) = (self.clock.now(), &endpoint.rule);
        if matches!(notice, Notice::Exhausted { .. }) && !self.may_tell_exhausted(rule.no, now) {
            return;
        }
        let unit = notice.unit(&rule.id, &rule.definition.name, now, self.entropy.u128());
        let (notices, project) = (Arc::clone(self), rule.project);
        tokio::spawn(async move {
            for _ in 0..TRIES {
                if notices.ingest.accept(project, vec![unit.clone()]).await.is_ok() {
                    return;
                }
                notices.clock.pause(STORE_RETRY).await;
            }
            tracing::error!("an operator could not be told: the store does not answer");
        });
    }

    fn may_tell_exhausted(&self, subscriber: SubscriberNo, now: Timestamp) -> bool {
        let mut told = self.exhausted.lock().unwrap_or_else(PoisonError::into_inner);
        let every = Duration::from_millis(EXHAUSTED_TOLD_EVERY_MS);
        if told.get(&subscriber).is_some_and(|at| now.since(*at) < every) {
            return false;
        }
        told.insert(subscriber, now);
        true
    }
}
