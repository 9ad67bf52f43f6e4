//! What is counted, for Prometheus. No label ever carries a user's text.
//!
//! Here is what the hot path counts, each in a handle of its own; [`scrape`] looks up the rest when somebody asks.

mod folds;
mod gates;
mod observing;
mod process;
pub mod scrape;
mod sharing;
pub mod text;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use folds::Folds;
use observing::Observing;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use text::Text;
use tidegate_core::attempt::Verdict;
use tidegate_core::time::Timestamp;
use tidegate_destinations::Exchange;
use tidegate_store::{Backlog, ClosedWindow, Committed, Group, Swept, TakenOver, UnitStatus};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// Every metric of the process.
pub struct Metrics {
    registry: Mutex<Registry>,
    accepted: Counter,
    duplicates: Counter,
    conflicts: Counter,
    quarantined: Counter,
    deprecated: Counter,
    requests_limited: Counter,
    delivered: Counter,
    failed: Family<Outcome, Counter>,
    delivery_seconds: Histogram,
    attempt_seconds: Histogram,
    commit_seconds: Histogram,
    commits: Counter,
    commit_events: Counter,
    group_events: Histogram,
    request_seconds: Histogram,
    retries: Counter,
    connections: Gauge,
    results_stale: Counter,
    left_out: Counter,
    lives: Counter,
    rewinds: Counter,
    takeovers: Counter,
    taken_over: Counter,
    connections_refused: Family<Reason, Counter>,
    in_flight: Gauge,
    breakers_open: Gauge,
    deliver_enabled: Gauge,
    breaker_openings: Counter,
    disabled: Family<Reason, Counter>,
    events_removed: Counter,
    deliveries_removed: Counter,
    deliveries_expired: Counter,
    sweeps_skipped: Counter,
    folds: Folds,
    observing: Observing,
    oldest_event: Gauge,
    waiting: Gauge<u64, AtomicU64>,
    held: Gauge<u64, AtomicU64>,
    exhausted: Gauge<u64, AtomicU64>,
    gates: gates::GateMetrics,
}

const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Events of one group: how well requests share commits.
const GROUP_EVENTS: [f64; 8] = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::default(),
            accepted: Counter::default(),
            duplicates: Counter::default(),
            conflicts: Counter::default(),
            quarantined: Counter::default(),
            deprecated: Counter::default(),
            requests_limited: Counter::default(),
            delivered: Counter::default(),
            failed: Family::default(),
            delivery_seconds: Histogram::new(SECONDS),
            attempt_seconds: Histogram::new(SECONDS),
            commit_seconds: Histogram::new(SECONDS),
            commits: Counter::default(),
            commit_events: Counter::default(),
            group_events: Histogram::new(GROUP_EVENTS),
            request_seconds: Histogram::new(SECONDS),
            retries: Counter::default(),
            connections: Gauge::default(),
            results_stale: Counter::default(),
            left_out: Counter::default(),
            lives: Counter::default(),
            rewinds: Counter::default(),
            takeovers: Counter::default(),
            taken_over: Counter::default(),
            connections_refused: Family::default(),
            in_flight: Gauge::default(),
            breakers_open: Gauge::default(),
            deliver_enabled: Gauge::default(),
            breaker_openings: Counter::default(),
            disabled: Family::default(),
            events_removed: Counter::default(),
            deliveries_removed: Counter::default(),
            deliveries_expired: Counter::default(),
            sweeps_skipped: Counter::default(),
            folds: Folds::default(),
            observing: Observing::default(),
            oldest_event: Gauge::default(),
            waiting: Gauge::default(),
            held: Gauge::default(),
            exhausted: Gauge::default(),
            gates: gates::GateMetrics::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut registry = Registry::with_prefix("tidegate");
        registry.register("events_accepted", "Events on disk", self.accepted.clone());
        registry.register("events_duplicate", "Events that were there already", self.duplicates.clone());
        registry.register(
            "events_conflicting",
            "Events whose id was taken by other content",
            self.conflicts.clone(),
        );
        registry.register(
            "events_quarantined",
            "Events that the catalog did not let in",
            self.quarantined.clone(),
        );
        registry.register("events_deprecated", "Events of deprecated types", self.deprecated.clone());
        registry.register("requests_limited", "Requests that came too soon", self.requests_limited.clone());
        registry.register("deliveries_delivered", "Deliveries that arrived", self.delivered.clone());
        registry.register("attempts_failed", "Attempts that failed, by why", self.failed.clone());
        registry.register("delivery_seconds", "From acceptance to arrival", self.delivery_seconds.clone());
        registry.register("attempt_seconds", "Duration of attempts", self.attempt_seconds.clone());
        registry.register("commit_seconds", "Duration of group commits", self.commit_seconds.clone());
        registry.register("commits", "Group commits", self.commits.clone());
        registry.register("commit_events", "Events written by group commits", self.commit_events.clone());
        registry.register("group_events", "Events in one group commit", self.group_events.clone());
        registry.register(
            "ingest_request_seconds",
            "From a request's head to its answer, for requests that bring events",
            self.request_seconds.clone(),
        );
        registry.register(
            "attempts_retried",
            "Attempts that were not the first of their delivery",
            self.retries.clone(),
        );
        registry.register("connections_open", "Connections at the door", self.connections.clone());
        registry.register(
            "connections_refused",
            "Connections closed by the door, by why",
            self.connections_refused.clone(),
        );
        registry.register("attempts_in_flight", "Attempts under way", self.in_flight.clone());
        registry.register(
            "breakers_open",
            "Subscribers whose breaker is not closed",
            self.breakers_open.clone(),
        );
        registry.register(
            "subscribers_disabled",
            "Subscribers made inactive because of their receivers, by why",
            self.disabled.clone(),
        );
        registry.register(
            "deliver_enabled",
            "1 when deliveries are sent, 0 when they are only kept",
            self.deliver_enabled.clone(),
        );
        registry.register("breaker_openings", "Times that a breaker opened", self.breaker_openings.clone());
        registry.register("deliveries_waiting", "Deliveries that wait in the store", self.waiting.clone());
        registry.register("deliveries_held", "Deliveries of inactive subscribers", self.held.clone());
        registry.register(
            "deliveries_exhausted",
            "Deliveries whose every attempt failed",
            self.exhausted.clone(),
        );
        self.register_retention(&mut registry);
        self.register_sharing(&mut registry);
        self.folds.register(&mut registry);
        self.observing.register(&mut registry);
        self.gates.register(&mut registry);
        *self.registry.lock().unwrap_or_else(PoisonError::into_inner) = registry;
    }

    /// Registered apart: they count what is no more.
    fn register_retention(&self, registry: &mut Registry) {
        registry.register("events_removed", "Events removed by retention", self.events_removed.clone());
        registry.register(
            "retention_steps_skipped",
            "Steps that retention left out because they failed",
            self.sweeps_skipped.clone(),
        );
        registry.register(
            "deliveries_removed",
            "Deliveries removed by retention",
            self.deliveries_removed.clone(),
        );
        registry.register(
            "deliveries_expired",
            "Deliveries that ended undelivered because retention allows no more",
            self.deliveries_expired.clone(),
        );
        registry.register(
            "oldest_event_timestamp_seconds",
            "When the oldest event was accepted, as of the last round of retention; 0 if there was none",
            self.oldest_event.clone(),
        );
    }

    /// Registered apart: they stay at zero, most of them with a store of one's own.
    fn register_sharing(&self, registry: &mut Registry) {
        registry.register("left_out", "What the store refused for good", self.left_out.clone());
        registry.register(
            "results_stale",
            "Results refused because their claim was void",
            self.results_stale.clone(),
        );
        registry.register(
            "lives_begun_anew",
            "Times that others had taken over what this process held, or the database had gone back in time",
            self.lives.clone(),
        );
        registry.register(
            "store_rewinds",
            "Times that the database was found to have gone back in time, as after a failover that loses commits",
            self.rewinds.clone(),
        );
        registry.register("takeovers", "Processes whose work was taken over here", self.takeovers.clone());
        registry.register(
            "deliveries_taken_over",
            "Deliveries of other processes that were made due again here",
            self.taken_over.clone(),
        );
    }

    /// Windows have closed.
    pub fn closed(&self, windows: &[ClosedWindow], now: Timestamp) {
        self.folds.closed(windows, now);
    }

    /// A folded delivery is sent for the first time, so long after its window closed.
    pub fn fold_left(&self, waited: Duration, events: usize) {
        self.folds.left(waited, events);
    }

    /// A lane works again for what came while it worked.
    pub fn lane_rerun(&self) {
        self.folds.rerun();
    }

    /// What a slice of events adds to metrics was written.
    pub fn observed(&self, events: usize, spent: Duration) {
        self.observing.flushed(events, spent);
    }

    /// Others had taken over what this process held, or the database had gone back in time, so often until now. Says
    /// whether it did.
    pub fn began_anew(&self, rewinds: u64) -> bool {
        self.lives.inc();
        let more = rewinds.saturating_sub(self.rewinds.get());
        self.rewinds.inc_by(more);
        more > 0
    }

    /// What another process held was made due again.
    pub fn taken_over(&self, found: &TakenOver) {
        self.takeovers.inc();
        self.taken_over.inc_by(found.due + found.set_aside);
    }

    /// How many processes were taken over here, and how many deliveries with them.
    pub fn takeovers(&self) -> (u64, u64) {
        (self.takeovers.get(), self.taken_over.get())
    }

    /// Retention has taken a step.
    pub fn swept(&self, swept: &Swept) {
        self.events_removed.inc_by(swept.events);
        self.deliveries_removed.inc_by(swept.deliveries);
        self.deliveries_expired.inc_by(swept.expired);
        self.observing.swept(swept);
        if swept.next.is_none() {
            self.oldest_event.set(swept.oldest_event.map_or(0, Timestamp::as_seconds));
        }
    }

    /// Retention has left out a step that failed.
    pub fn sweep_skipped(&self) {
        self.sweeps_skipped.inc();
    }

    /// An event was answered.
    pub fn event(&self, status: UnitStatus) {
        match status {
            UnitStatus::Accepted => self.accepted.inc(),
            UnitStatus::Duplicate => self.duplicates.inc(),
            UnitStatus::Conflict => self.conflicts.inc(),
            UnitStatus::Quarantined(_) => self.quarantined.inc(),
            UnitStatus::Gone => 0,
        };
    }

    /// The door closed a connection.
    pub fn connection_refused(&self, reason: &'static str) {
        self.connections_refused.get_or_create(&Reason { reason }).inc();
    }

    /// A request that brought events was answered.
    pub fn requested(&self, took: Duration) {
        self.request_seconds.observe(took.as_secs_f64());
    }

    /// A connection came; it is gone when what this gives is dropped.
    pub fn connected(&self) -> Connected {
        self.connections.inc();
        Connected(self.connections.clone())
    }

    /// A request came too soon.
    pub fn request_limited(&self) {
        self.requests_limited.inc();
    }

    /// Units of deprecated types came in.
    pub fn deprecated(&self, units: usize) {
        self.deprecated.inc_by(units as u64);
    }

    /// An attempt has ended: there were so many `before` it.
    pub fn attempted(&self, exchange: &Exchange, verdict: &Verdict, before: u32, since_acceptance: Duration) {
        if before > 0 {
            self.retries.inc();
        }
        self.attempt_seconds.observe(f64::from(exchange.phases.total_us) / 1e6);
        if *verdict == Verdict::Delivered {
            self.delivered.inc();
            self.delivery_seconds.observe(since_acceptance.as_secs_f64());
            return;
        }
        let outcome = match &exchange.result {
            Ok(_) => "status",
            Err(failure) => failure.class.name(),
        };
        self.failed.get_or_create(&Outcome { outcome }).inc();
    }

    /// Whether anything is sent.
    pub fn delivers(&self, delivers: bool) {
        self.deliver_enabled.set(i64::from(delivers));
    }

    /// A breaker opened.
    pub fn breaker_opened(&self) {
        self.breaker_openings.inc();
    }

    /// A subscriber was made inactive because of its receiver.
    pub fn disabled(&self, reason: &'static str) {
        self.disabled.get_or_create(&Reason { reason }).inc();
    }

    /// A group was committed.
    pub fn committed(&self, group: &Group, committed: &Committed, took: Duration) {
        self.commits.inc();
        let units = group.submissions.iter().flat_map(|submission| &submission.units);
        let events: u64 = units.map(|unit| unit.unit.events.len() as u64).sum();
        self.commit_events.inc_by(events);
        self.group_events.observe(events as f64);
        self.results_stale.inc_by(committed.stale);
        self.left_out.inc_by(committed.refused);
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// What was counted, as text. A backlog that is not known is told as it last was.
    pub fn render(&self, in_flight: usize, breakers_open: usize, backlog: Option<Backlog>) -> Text {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.breakers_open.set(i64::try_from(breakers_open).unwrap_or(i64::MAX));
        if let Some(backlog) = backlog {
            self.waiting.set(backlog.waiting);
            self.held.set(backlog.held);
            self.exhausted.set(backlog.exhausted);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))
            .expect("writing to a string does not fail");
        Text::new(text)
    }
}

/// A connection that is counted.
pub struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}
