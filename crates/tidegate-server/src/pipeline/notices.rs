//! Notices: what an operator must know is accepted as an event, the ordinary way.
//!
//! So it is durable, listed, traced and delivered like any other. Few things are told, and each once: changes, and of
//! exhausted deliveries at most one per subscriber and minute. While the store fails a notice waits; it is lost only
//! if the process ends before the store works again.
//!
//! Processes that share a store meet the same trouble, each on its own. So that it is told once, what each of them says of
//! a subscriber for the first time within a minute has the same id: the first is accepted, the others come to nothing. So has what each
//! of them says for the second time, because it happened again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use tidegate_core::id::{SubscriberNo, event_id};
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
    /// What was told by ids that all processes agree on.
    told: Mutex<Told>,
}

impl Notices {
    pub(super) fn new(parts: &Parts, persist: Arc<Persist>) -> Arc<Self> {
        Arc::new(Self {
            ingest: Ingest::new(parts, persist),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            standing: Arc::clone(&parts.standing),
            exhausted: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Tells of a subscriber, soon.
    pub(super) fn tell(self: &Arc<Self>, endpoint: &Endpoint, notice: &Notice) {
        let (now, rule) = (self.clock.now(), &endpoint.rule);
        if matches!(notice, Notice::Exhausted { .. }) && !self.may_tell_exhausted(rule.no, now) {
            return;
        }
        let id = self.id(rule.no, notice, now);
        let unit = notice.unit(&rule.id, &rule.definition.name, now, id);
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

    /// Of its own, or the one that all processes give it.
    fn id(&self, subscriber: SubscriberNo, notice: &Notice, now: Timestamp) -> String {
        if self.standing.is_alone() {
            return event_id(now, self.entropy.u128());
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.common_id(subscriber, notice, now)
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

/// How often each thing was told of each subscriber within the minute that is under way.
#[derive(Default)]
struct Told {
    minute: i64,
    counts: BTreeMap<(SubscriberNo, &'static str), u32>,
}

impl Told {
    /// The same for whoever says the same of a subscriber, as often as they do, within one minute.
    fn common_id(&mut self, subscriber: SubscriberNo, notice: &Notice, now: Timestamp) -> String {
        let every = i64::try_from(EXHAUSTED_TOLD_EVERY_MS).unwrap_or(i64::MAX);
        let minute = now.as_ms().div_euclid(every);
        if self.minute != minute {
            (self.minute, self.counts) = (minute, BTreeMap::new());
        }
        let count = self.counts.entry((subscriber, notice.type_name())).or_default();
        *count += 1;
        let hash = digest(&SHA256, format!("{} {subscriber} {count}", notice.type_name()).as_bytes());
        let chance = u128::from_le_bytes(hash.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"));
        event_id(Timestamp::from_ms(minute * every), chance)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    fn opened(since: Timestamp) -> Notice {
        Notice::BreakerOpened { failures: 10, since }
    }

    #[test]
    fn what_all_say_of_a_subscriber_within_a_minute_has_one_id() {
        let id = |subscriber, notice: &Notice, now| Told::default().common_id(subscriber, notice, now);
        let one = id(1, &opened(at(60_001)), at(60_001));
        assert_eq!(one, id(1, &opened(at(90_000)), at(119_999)));
        assert_ne!(one, id(1, &opened(at(60_001)), at(120_000)), "another minute");
        assert_ne!(one, id(2, &opened(at(60_001)), at(60_001)), "another subscriber");
        assert_ne!(one, id(1, &Notice::BreakerClosed { since: at(0) }, at(60_001)), "another thing");
    }

    #[test]
    fn what_happens_again_is_told_again_once_and_with_its_own_time() {
        let mut replicas = [Told::default(), Told::default()];
        let mut ids = BTreeSet::new();
        for ms in [60_000, 70_000, 80_000, 90_000] {
            let notice =
                if ms % 20_000 == 0 { opened(at(ms)) } else { Notice::BreakerClosed { since: at(ms) } };
            // Each finds out on its own, a little later than the other.
            for (told, later) in replicas.iter_mut().zip([0, 700]) {
                let now = at(ms + later);
                let id = told.common_id(1, &notice, now);
                let event = &notice.unit("s", "", now, id.clone()).events[0];
                assert_eq!((event.time, &event.id), (now, &id));
                ids.insert(id);
            }
        }
        assert_eq!(ids.len(), 4, "it opened twice and closed twice");
    }
}
