//! Ingest: the bytes of a request become checked, routed units, and a promise of their fate.
//!
//! Refuses before it accepts: what is malformed, and what there is no room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::event::{Unit, lookup_key};
use tidegate_core::id::ProjectNo;
use tidegate_core::ingest::{Refusal, Request, decode};
use tidegate_core::limits::INGEST_BYTES_IN_FLIGHT_MAX;
use tidegate_store::{RoutedUnit, Submission, UnitStatus};

use super::Parts;
use super::persist::{Persist, Unavailable};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::roster::{Roster, Rosters};

/// The way in.
pub struct Ingest {
    persist: Arc<Persist>,
    rosters: Arc<Rosters>,
    clock: Clock,
    entropy: Entropy,
    metrics: Arc<Metrics>,
    bytes: Arc<AtomicUsize>,
}

/// What became of each unit of a request: its id and its status.
pub type Receipt = Vec<(String, UnitStatus)>;

/// Room for a request's bytes, given back when dropped.
pub struct Reservation {
    bytes: usize,
    taken: Arc<AtomicUsize>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Ingest {
    pub(super) fn new(parts: &Parts, persist: Arc<Persist>) -> Self {
        Self {
            persist,
            rosters: Arc::clone(&parts.rosters),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            metrics: Arc::clone(&parts.metrics),
            bytes: Arc::default(),
        }
    }

    /// Room for a request of this size, or `None` when too much is under way.
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let reservation = Reservation { bytes, taken: Arc::clone(&self.bytes) };
        (before + bytes <= INGEST_BYTES_IN_FLIGHT_MAX).then_some(reservation)
    }

    /// Reads a request. What it gives holds nothing of the request's own bytes, whose buffer can be used again.
    pub fn decode(&self, request: &Request<'_>) -> Result<Vec<Unit>, Refusal> {
        decode(request, self.clock.now(), &mut || self.entropy.u128())
    }

    /// Accepts what was read: when this returns `Ok`, what it calls accepted is on disk.
    pub async fn accept(&self, project: ProjectNo, units: Vec<Unit>) -> Result<Receipt, Unavailable> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<String> = units.iter().map(|unit| unit.events[0].id.clone()).collect();
        let roster = self.rosters.current();
        let keyed = units.into_iter().map(|unit| {
            let keys =
                unit.events.iter().map(|event| lookup_key(project, &event.source, &event.id)).collect();
            RoutedUnit { unit, routes: Vec::new(), keys }
        });
        let mut submission = Submission { project, units: keyed.collect() };
        route(&roster, &mut submission);
        let statuses = self.persist.submit(submission, roster.version).await?;
        for status in &statuses {
            self.metrics.event(*status);
        }
        Ok(ids.into_iter().zip(statuses).collect())
    }
}

/// Decides for every event of a submission who gets it, by this roster.
pub(super) fn route(roster: &Roster, submission: &mut Submission) {
    let router = roster.router(submission.project);
    for unit in &mut submission.units {
        let routes =
            unit.unit.events.iter().map(|event| router.map_or_else(Vec::new, |router| router.route(event)));
        unit.routes = routes.collect();
    }
}
