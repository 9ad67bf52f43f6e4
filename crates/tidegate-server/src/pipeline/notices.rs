//! Notices: what an operator must know is accepted as an event, the ordinary way.
//!
//! So it is durable, listed, traced and delivered like any other. Few things are told, and each once: changes, and of
//! exhausted deliveries at most one per subscriber and minute. While the store fails a notice waits; it is lost only
//! if the process ends before the store works again.
//!
//! Processes that share a store meet the same trouble, each on its own. So that it is told once, what each of them says of
//! a subscriber within one minute has the same id: the first is accepted, the others are duplicates of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::digest::{SHA256, digest};
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
use crate::standing::Standing;

/// How often a notice is offered to a failing store.
const TRIES: usize = 600;

/// Tells operators.
pub(super) struct Notices {
    ingest: Ingest,
    clock: Clock,
    entropy: Entropy,
    standing: Arc<Standing>,
    /// When each subscriber's exhausted deliveries were last told of.
    exhausted: Mutex<BTreeMap<SubscriberNo, Timestamp>>,
}

impl Notices {
    pub(super) fn new(parts: &Parts, persist: Arc<Persist>) -> Arc<Self> {
        Arc::new(Self {
            ingest: Ingest::new(parts, persist),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            standing: Arc::clone(&parts.standing),
            exhausted: Mutex::default(),
        })
    }

    /// Tells of a subscriber, soon.
    pub(super) fn tell(self: &Arc<Self>, endpoint: &Endpoint, notice: &Notice) {
        let (now, rule) = (self.clock.now(), &endpoint.rule);
        if matches!(notice, Notice::Exhausted { .. }) && !self.may_tell_exhausted(rule.no, now) {
            return;
        }
        let (at, chance) = self.name(&rule.id, notice, now);
        let unit = notice.unit(&rule.id, &rule.definition.name, at, chance);
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

    /// What its id is made of: the time and chance, or what all processes agree on.
    fn name(&self, subscriber: &str, notice: &Notice, now: Timestamp) -> (Timestamp, u128) {
        if self.standing.is_alone() {
            return (now, self.entropy.u128());
        }
        common_name(subscriber, notice, now)
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

/// The same for whoever says the same of a subscriber within one minute.
fn common_name(subscriber: &str, notice: &Notice, now: Timestamp) -> (Timestamp, u128) {
    let every = i64::try_from(EXHAUSTED_TOLD_EVERY_MS).unwrap_or(i64::MAX);
    let hash = digest(&SHA256, format!("{} {subscriber}", notice.type_name()).as_bytes());
    let chance = u128::from_le_bytes(hash.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"));
    (Timestamp::from_ms(now.as_ms().div_euclid(every) * every), chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_say_of_a_subscriber_within_a_minute_has_one_id() {
        let at = Timestamp::from_ms;
        let id = |subscriber: &str, notice: &Notice, now| {
            let (at, chance) = common_name(subscriber, notice, now);
            notice.unit(subscriber, "", at, chance).events[0].id.clone()
        };
        let opened = |failures, since| Notice::BreakerOpened { failures, since };
        let one = id("s", &opened(10, at(60_001)), at(60_001));
        assert_eq!(one, id("s", &opened(11, at(90_000)), at(119_999)));
        assert_ne!(one, id("s", &opened(10, at(60_001)), at(120_000)), "another minute");
        assert_ne!(one, id("t", &opened(10, at(60_001)), at(60_001)), "another subscriber");
        assert_ne!(one, id("s", &Notice::BreakerClosed { since: at(0) }, at(60_001)), "another thing");
    }
}
