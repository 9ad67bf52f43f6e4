//! Ingest: the bytes of a request become checked, routed units, and a promise of their fate.
//!
//! Refuses before it accepts: what is malformed, and what there is no room for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::catalog::{judge, judge_again};
use tidegate_core::event::{Unit, lookup_key};
use tidegate_core::id::{ProjectNo, Version};
use tidegate_core::ingest::{Refusal, Request, decode};
use tidegate_core::limits::INGEST_BYTES_IN_FLIGHT_MAX;
use tidegate_core::route::{Changes, Router};
use tidegate_core::span::SpanContext;
use tidegate_core::time::Timestamp;
use tidegate_store::{Admission, QuarantineRow, RoutedUnit, Submission, UnitStatus};

use super::deprecation::Deprecations;
use super::persist::{Persist, Unavailable};
use super::{Parts, lanes};
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
    deprecations: Deprecations,
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
            deprecations: Deprecations::default(),
        }
    }

    /// What it measures time by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
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

    /// What to tell the sender about each unit whose type is deprecated; empty when there is nothing to tell anybody.
    pub fn warnings(&self, project: ProjectNo, units: &[Unit]) -> Vec<Option<String>> {
        let roster = self.rosters.current();
        let Some(catalog) = roster.catalog(project) else { return Vec::new() };
        let warnings = self.deprecations.warnings(project, catalog, units, self.clock.now());
        self.metrics.deprecated(warnings.iter().flatten().count());
        warnings
    }

    /// Accepts what was read: when this returns `Ok`, what it calls accepted is on disk.
    pub async fn accept(&self, project: ProjectNo, units: Vec<Unit>) -> Result<Receipt, Unavailable> {
        self.accept_for(project, units, None).await
    }

    /// The same for a request whose span is recorded.
    pub async fn accept_for(
        &self,
        project: ProjectNo,
        units: Vec<Unit>,
        span: Option<SpanContext>,
    ) -> Result<Receipt, Unavailable> {
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<String> = units.iter().map(|unit| unit.events[0].id.clone()).collect();
        let units = units.into_iter().map(|unit| keyed(project, unit, Admission::Granted)).collect();
        let statuses = self.submit(Submission { project, units }, span).await?;
        Ok(ids.into_iter().zip(statuses).collect())
    }

    /// Accepts what comes out of the quarantine, whatever the catalog says. Rows that can not be read are dropped
    /// from the list and stay where they are.
    pub async fn release(
        &self,
        project: ProjectNo,
        rows: &mut Vec<QuarantineRow>,
    ) -> Result<Vec<UnitStatus>, Unavailable> {
        let mut units = Vec::with_capacity(rows.len());
        rows.retain_mut(|row| match row.unit.take() {
            Some(unit) => {
                units.push(keyed(project, unit, Admission::Released(row.no)));
                true
            }
            None => {
                tracing::error!(no = row.no, "a quarantined unit can not be read");
                false
            }
        });
        if units.is_empty() {
            return Ok(Vec::new());
        }
        self.submit(Submission { project, units }, None).await
    }

    async fn submit(
        &self,
        mut submission: Submission,
        span: Option<SpanContext>,
    ) -> Result<Vec<UnitStatus>, Unavailable> {
        let roster = self.rosters.current();
        route(&roster, &mut submission, self.clock.now());
        let statuses = self.persist.submit(submission, roster, span).await?;
        for status in &statuses {
            self.metrics.event(*status);
        }
        Ok(statuses)
    }
}

fn keyed(project: ProjectNo, unit: Unit, admission: Admission) -> RoutedUnit {
    let keys = unit.events.iter().map(|event| lookup_key(project, &event.source, &event.id)).collect();
    RoutedUnit { unit, routes: Vec::new(), keys, admission }
}

/// Decides for every unit of a submission whether it comes in, and for every event of it who gets it, by this roster.
pub(super) fn route(roster: &Roster, submission: &mut Submission, now: Timestamp) {
    let router = roster.router(submission.project);
    let catalog = roster.catalog(submission.project).map(|catalog| &**catalog);
    for unit in &mut submission.units {
        if !matches!(unit.admission, Admission::Released(_)) {
            let finding = judge(catalog, &unit.unit, now);
            unit.admission = finding.map_or(Admission::Granted, |found| Admission::Refused(Box::new(found)));
        }
        route_unit(router.map(|router| &**router), unit);
    }
}

/// Decides for every event of a unit who gets it; nobody gets those of one that does not come in.
fn route_unit(router: Option<&Router>, unit: &mut RoutedUnit) {
    let router = router.filter(|_| !matches!(unit.admission, Admission::Refused(_)));
    let routes = unit.unit.events.iter().map(|event| {
        router.map_or_else(Vec::new, |router| {
            lanes::skipped(router, event);
            router.route(event)
        })
    });
    unit.routes = routes.collect();
}

/// Decides again, by a newer roster, and only about what changed since the last time: everything else stays as it is.
pub(super) struct Rerouting<'a> {
    roster: &'a Roster,
    now: Timestamp,
    /// By the version before and the project.
    changes: BTreeMap<(Version, ProjectNo), Changes<'a>>,
}

impl<'a> Rerouting<'a> {
    pub(super) fn to(roster: &'a Roster, now: Timestamp) -> Self {
        Self { roster, now, changes: BTreeMap::new() }
    }

    /// Brings a submission that `old` has routed to where the new roster sends it.
    pub(super) fn route(&mut self, old: &Roster, submission: &mut Submission) {
        let (roster, project) = (self.roster, submission.project);
        let (router, nobody) = (roster.router(project).map(|router| &**router), Router::default());
        let changes = self.changes.entry((old.version, project)).or_insert_with(|| match router {
            Some(router) => router.changes_since(old.router(project).map_or(&nobody, |router| router)),
            // A project loses its router with the whole installation only.
            None => Changes::default(),
        });
        let catalogs = (
            old.catalog(project).map(|catalog| &**catalog),
            roster.catalog(project).map(|catalog| &**catalog),
        );
        for unit in &mut submission.units {
            let before = match &unit.admission {
                Admission::Granted => None,
                Admission::Refused(finding) => Some((**finding).clone()),
                Admission::Released(_) => {
                    change_routes(changes, unit);
                    continue;
                }
            };
            let was_refused = before.is_some();
            let finding = judge_again(catalogs, &unit.unit, before, self.now);
            unit.admission = finding.map_or(Admission::Granted, |found| Admission::Refused(Box::new(found)));
            match unit.admission {
                Admission::Granted if !was_refused => change_routes(changes, unit),
                _ => route_unit(router, unit),
            }
        }
    }
}

fn change_routes(changes: &Changes<'_>, unit: &mut RoutedUnit) {
    for (event, routes) in unit.unit.events.iter().zip(&mut unit.routes) {
        changes.apply(event, routes);
    }
}
