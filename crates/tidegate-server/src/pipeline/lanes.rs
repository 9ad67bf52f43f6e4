//! What is told of folds and lanes on their way: ready, started, finished, requeued, skipped.
//!
//! Told to the log of those who debug, with the subscriber and the key, and counted for everybody: how long a fold waited
//! from its closing to its first byte, how many events it carried, and how often a lane ran again because something came
//! while it worked. The id of its delivery joins the lines about it. Where nothing is folded, each delivery of a lane is told in
//! its turn, as the lane's head, with the lane's hash: what is hashed is the event's own.
//!
//! Does not: decide anything, or remember more than a bounded number of lanes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::delivery::Job;
use tidegate_core::event::Event;
use tidegate_core::fold::Bundle;
use tidegate_core::id::{DeliveryNo, Lane, Mint, ProjectNo, SubscriberNo};
use tidegate_core::limits::LANES_REMEMBERED_MAX;
use tidegate_core::retry::Next;
use tidegate_core::route::{Judgement, Router, View};
use tidegate_core::time::Timestamp;
use tidegate_store::{ClosedWindow, DeliveryRow, Finished, Store};

use crate::metrics::Metrics;
use crate::roster::{Endpoint, Roster};

/// Windows have closed: their deliveries are ready, or there are none. To be waited for before anybody may start them, or the
/// log would tell of their start first.
pub(crate) async fn ready(roster: &Roster, store: &Arc<dyn Store>, closed: &[ClosedWindow]) {
    if closed.is_empty() || !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let rows = rows(roster, store, closed).await;
    let mint = Mint::new(store.salt());
    for window in closed {
        let Some(endpoint) = roster.endpoint(window.subscriber) else { continue };
        let (subscriber, count) = (endpoint.rule.id.as_str(), window.count);
        let (opened_at, closed_by) = (window.opened_at, window.closed_by.name());
        let row = window.delivery.and_then(|no| rows.get(&no));
        let delivery = row.map(|row| mint.delivery(row.key()));
        match window.delivery {
            _ if window.closed_by.is_cancelled() => {
                tracing::debug!(subscriber, %opened_at, delivery, count, closed_by, "a fold is cancelled");
            }
            Some(_) => {
                let fold = row.and_then(|row| row.fold.as_ref());
                let key = fold.map_or("", |fold| fold.key.as_str());
                tracing::debug!(subscriber, key, delivery, count, closed_by, "a fold is ready");
            }
            None => tracing::debug!(subscriber, %opened_at, closed_by, "a fold ends with nothing to send"),
        }
    }
}

/// Memory knows keys by their hashes alone, and not every nonce, so whoever debugs pays for reading them.
async fn rows(
    roster: &Roster,
    store: &Arc<dyn Store>,
    closed: &[ClosedWindow],
) -> BTreeMap<DeliveryNo, DeliveryRow> {
    let mut made: BTreeMap<ProjectNo, Vec<DeliveryNo>> = BTreeMap::new();
    for window in closed {
        if let Some((delivery, endpoint)) = window.delivery.zip(roster.endpoint(window.subscriber)) {
            made.entry(endpoint.rule.project).or_default().push(delivery);
        }
    }
    let mut found = BTreeMap::new();
    for (project, deliveries) in made {
        let rows = store.deliveries_among(project, deliveries).await.unwrap_or_default();
        found.extend(rows.into_iter().map(|row| (row.no, row)));
    }
    found
}

/// Whoever wants an event but can not put it in order does not get it.
pub(super) fn skipped(router: &Router, event: &Event) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let view = View::new(event);
    for subscriber in router.subscribers() {
        if let Judgement::Skipped { reason } = subscriber.judge(&view) {
            let (id, event) = (subscriber.id.as_str(), event.id.as_str());
            tracing::debug!(subscriber = id, event, reason, "an event is skipped");
        }
    }
}

/// An unfolded delivery of a lane: while it is in somebody's hands, the lane's head.
fn is_head(job: &Job) -> bool {
    job.lane.is_some() && job.fold.is_none()
}

/// As it stands in the log; a lane's number is a hash and has no sign.
fn lane_name(job: &Job) -> String {
    format!("{:016x}", job.lane.unwrap_or_default().cast_unsigned())
}

/// Deliveries were handed to the desk: those of lanes are at the head of theirs.
pub(super) fn heads_ready(roster: &Roster, store: &Arc<dyn Store>, jobs: &[Job]) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let mint = Mint::new(store.salt());
    for job in jobs.iter().filter(|job| is_head(job)) {
        let Some(endpoint) = roster.endpoint(job.subscriber) else { continue };
        let (subscriber, attempts) = (endpoint.rule.id.as_str(), job.attempts);
        let (lane, delivery) = (lane_name(job), mint.delivery(job.key()));
        tracing::debug!(subscriber, lane, delivery, attempts, "a lane's head is ready");
    }
}

/// One of them is sent.
pub(super) fn head_started(endpoint: &Endpoint, job: &Job, mint: &Mint) {
    if is_head(job) && tracing::enabled!(tracing::Level::DEBUG) {
        let (subscriber, attempts) = (endpoint.rule.id.as_str(), job.attempts);
        let (lane, delivery) = (lane_name(job), mint.delivery(job.key()));
        tracing::debug!(subscriber, lane, delivery, attempts, "a lane's head is started");
    }
}

/// It ended, or is to be tried again; or the lane, folded or not, goes on without it.
pub(super) fn head_ended(endpoint: &Endpoint, job: &Job, finished: &Finished, mint: &Mint) {
    if job.lane.is_none() || !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let subscriber = endpoint.rule.id.as_str();
    let (lane, delivery) = (lane_name(job), mint.delivery(job.key()));
    match &finished.next {
        _ if finished.steps_aside => {
            tracing::debug!(subscriber, lane, delivery, "a lane's head is skipped: those behind it go on");
        }
        // Told as the fold it is.
        _ if job.fold.is_some() => {}
        Next::RetryAt(due_at) | Next::PostponedTo(due_at) => {
            tracing::debug!(subscriber, lane, delivery, %due_at, "a lane's head is requeued");
        }
        Next::Delivered => tracing::debug!(subscriber, lane, delivery, "a lane's head is finished"),
        Next::Exhausted(reason) => {
            tracing::debug!(subscriber, lane, delivery, reason, "a lane's head is finished, undelivered");
        }
    }
}

/// What is told of a folded delivery when it leaves.
pub(super) struct Leaving {
    key: String,
    opened_at: Timestamp,
    closed_at: Timestamp,
    count: usize,
}

impl Leaving {
    pub(super) fn of(bundle: &Bundle) -> Self {
        let Bundle { opened_at, closed_at, .. } = *bundle;
        Self { key: bundle.key.clone(), opened_at, closed_at, count: bundle.events.len() }
    }
}

/// A folded delivery in a worker's hands.
pub(super) struct Run {
    key: String,
    began: Timestamp,
}

/// Folds that leave, told and counted.
pub(super) struct Lanes {
    metrics: Arc<Metrics>,
    mint: Mint,
    runs: Mutex<Runs>,
}

impl Lanes {
    pub(super) fn new(metrics: Arc<Metrics>, mint: Mint) -> Self {
        Self { metrics, mint, runs: Mutex::default() }
    }

    /// A folded delivery starts.
    pub(super) fn started(&self, endpoint: &Endpoint, job: &Job, leaving: &Leaving, now: Timestamp) -> Run {
        if job.attempts == 0 {
            self.metrics.fold_left(now.since(leaving.closed_at), leaving.count);
            let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            if job.lane.is_some_and(|lane| runs.is_rerun((job.subscriber, lane), leaving.opened_at)) {
                self.metrics.lane_rerun();
                let (subscriber, key) = (endpoint.rule.id.as_str(), leaving.key.as_str());
                let told = "a lane is requeued: events came while it worked";
                tracing::debug!(subscriber, key, delivery = self.mint.delivery(job.key()), "{told}");
            }
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            let (subscriber, key) = (endpoint.rule.id.as_str(), leaving.key.as_str());
            let (delivery, count) = (self.mint.delivery(job.key()), leaving.count);
            tracing::debug!(subscriber, key, delivery, count, "a fold is started");
        }
        Run { key: leaving.key.clone(), began: now }
    }

    /// It ended, or is to be tried again.
    pub(super) fn ended(&self, endpoint: &Endpoint, job: &Job, run: &Run, next: &Next, now: Timestamp) {
        if let Some(lane) = job.lane {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.remember((job.subscriber, lane), run.began, now);
        }
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let (subscriber, key) = (endpoint.rule.id.as_str(), run.key.as_str());
        let delivery = self.mint.delivery(job.key());
        match next {
            Next::RetryAt(due_at) | Next::PostponedTo(due_at) => {
                tracing::debug!(subscriber, key, delivery, %due_at, "a fold is requeued");
            }
            Next::Delivered => tracing::debug!(subscriber, key, delivery, "a fold is finished"),
            Next::Exhausted(reason) => {
                tracing::debug!(subscriber, key, delivery, reason, "a fold is finished, undelivered");
            }
        }
    }
}

/// When lanes last worked.
#[derive(Default)]
struct Runs {
    last: BTreeMap<(SubscriberNo, Lane), (Timestamp, Timestamp)>,
    /// In the order in which they were first remembered.
    order: VecDeque<(SubscriberNo, Lane)>,
}

impl Runs {
    fn remember(&mut self, lane: (SubscriberNo, Lane), began: Timestamp, ended: Timestamp) {
        if self.last.insert(lane, (began, ended)).is_some() {
            return;
        }
        self.order.push_back(lane);
        if self.order.len() > LANES_REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
    }

    /// Whether a window opened while its lane worked on the one before.
    fn is_rerun(&self, lane: (SubscriberNo, Lane), opened_at: Timestamp) -> bool {
        self.last.get(&lane).is_some_and(|(began, ended)| (*began..=*ended).contains(&opened_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_runs_again_for_what_came_while_it_worked() {
        let at = Timestamp::from_ms;
        let mut runs = Runs::default();
        runs.remember((1, 7), at(100), at(200));
        for (lane, opened_at, expected) in [
            ((1, 7), 99, false),
            ((1, 7), 100, true),
            ((1, 7), 200, true),
            ((1, 7), 201, false),
            ((1, 8), 150, false),
        ] {
            assert_eq!(runs.is_rerun(lane, at(opened_at)), expected, "{lane:?} {opened_at}");
        }
        for lane in 0..LANES_REMEMBERED_MAX as i64 {
            runs.remember((2, lane), at(100), at(200));
        }
        assert!(!runs.is_rerun((1, 7), at(150)), "the oldest is forgotten");
        assert_eq!((runs.last.len(), runs.order.len()), (LANES_REMEMBERED_MAX, LANES_REMEMBERED_MAX));
    }
}
