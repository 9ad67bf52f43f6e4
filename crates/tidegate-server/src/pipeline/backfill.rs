//! Backfill: past events for a subscriber that asked for them.
//!
//! Steps through the events accepted before the subscriber was created, a bounded number at a time, and leaves the
//! deliveries of those that match with persist. The mark moves in the same commit, so a step is never lost or
//! repeated, whatever crashes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tidegate_core::event::Event;
use tidegate_core::id::SubscriberNo;
use tidegate_core::route::{Judgement, View};
use tidegate_store::{BackfillStep, EventRow, Store};

use super::persist::Persist;
use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::roster::{Endpoint, Roster, Rosters};

/// Events looked at per step.
const STEP_EVENTS: usize = 1_000;
/// Brings past events to new subscribers.
pub struct Backfill {
    store: Arc<dyn Store>,
    rosters: Arc<Rosters>,
    persist: Arc<Persist>,
    clock: Clock,
    /// Those that were begun in this life: they end by themselves.
    begun: Mutex<BTreeSet<SubscriberNo>>,
}

impl Backfill {
    pub(super) fn new(parts: &Parts, persist: Arc<Persist>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&parts.store),
            rosters: Arc::clone(&parts.rosters),
            persist,
            clock: parts.clock.clone(),
            begun: Mutex::default(),
        })
    }

    /// Goes on with every backfill that was under way.
    pub(super) fn resume_all(self: &Arc<Self>, roster: &Roster) {
        for endpoint in roster.endpoints().filter(|endpoint| endpoint.backfilling) {
            self.start(endpoint.rule.no);
        }
    }

    /// Begins, or goes on with, the backfill of one subscriber, once. Ends by itself, also with the pipeline.
    pub fn start(self: &Arc<Self>, subscriber: SubscriberNo) {
        if !self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(subscriber) {
            return;
        }
        let backfill = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(backfill) = Weak::upgrade(&backfill) {
                match backfill.step(subscriber).await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, "a backfill waits for the store");
                        backfill.clock.pause(STORE_RETRY).await;
                    }
                }
            }
        });
    }

    /// One step. Says whether there may be another.
    async fn step(&self, subscriber: SubscriberNo) -> tidegate_store::Result<bool> {
        let Some((mut step, events)) = self.store.backfill(subscriber, STEP_EVENTS).await? else {
            return Ok(false);
        };
        let roster = self.rosters.current();
        let Some(endpoint) = roster.endpoint(subscriber) else { return Ok(false) };
        fill(&mut step, endpoint, events);
        let is_last = step.through >= step.until;
        self.persist
            .backfill(step)
            .await
            .map_err(|_| tidegate_store::Error::Unavailable("the step was not written".to_owned()))?;
        Ok(!is_last)
    }
}

fn fill(step: &mut BackfillStep, endpoint: &Endpoint, events: Vec<EventRow>) {
    for row in events {
        let seq = row.seq;
        let event = Event {
            id: row.id,
            source: row.source,
            type_name: row.type_name,
            subject: row.subject,
            time: row.time,
            body: row.body,
        };
        if let Judgement::Matched { lane } = endpoint.rule.judge(&View::new(&event)) {
            step.matched.push((seq, lane));
        }
    }
}
