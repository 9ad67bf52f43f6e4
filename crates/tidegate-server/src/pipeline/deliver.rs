//! Deliver: one attempt after the other, in the turn the desk gives.
//!
//! A worker takes a job, renders and signs it, sends it through the guarded transport, judges the answer, leaves the
//! result with persist and asks the desk for the next one. Nothing sleeps in a worker: what is not due is not picked.
//!
//! A fold that passes a gate is put together in a turn of its own, before it takes a token.
//!
//! Promises: every picked job ends in a result or a release, even if its attempt panics; after [`Deliver::stop`]
//! nothing is picked, and it returns when everything under way has come to its end.

mod parcels;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method};
use tidegate_core::attempt::{Attempt, ErrorClass, Phases, Verdict};
use tidegate_core::delivery::Job;
use tidegate_core::id::{Mint, SubscriberNo};
use tidegate_core::limits::GATE_PENALTY_DEFAULT_MS;
use tidegate_core::operator::Notice;
use tidegate_core::payload::Payload;
use tidegate_core::retry::{self, Next};
use tidegate_core::schedule::breaker::{Outcome, Turned};
use tidegate_core::schedule::{Ended, Streak, Turn};
use tidegate_core::time::Timestamp;
use tidegate_core::verification::Verification;
use tidegate_destinations::{Exchange, Outbound, Transport, webhook};
use tidegate_store::{Change, Claim, Error, Finished, Store, SubscriberUpdate};
use tokio::sync::Notify;

use super::Parts;
use super::bulk::Bulk;
use super::desk::{Desk, Pick, Report};
use super::lanes::{self, Lanes};
use super::notices::Notices;
use super::persist::Persist;
use super::verify::ORIGIN;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::roster::{Endpoint, Rosters};
use crate::spans::{self, Spans};

/// The workers.
pub struct Deliver {
    desk: Arc<Desk>,
    persist: Arc<Persist>,
    notices: Arc<Notices>,
    lanes: Lanes,
    bulk: Arc<Bulk>,
    /// Subscribers that are being made inactive.
    retiring: Arc<Mutex<BTreeSet<SubscriberNo>>>,
    rosters: Arc<Rosters>,
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    mint: Mint,
    origin: HeaderValue,
    clock: Clock,
    entropy: Entropy,
    metrics: Arc<Metrics>,
    spans: Arc<Spans>,
    is_stopping: AtomicBool,
    is_idle: Notify,
}

impl Deliver {
    pub(super) fn new(
        parts: &Parts,
        desk: Arc<Desk>,
        persist: Arc<Persist>,
        notices: Arc<Notices>,
        mint: Mint,
    ) -> Arc<Self> {
        let bulk = Bulk::new(desk.lock().bounds().fold_bytes);
        Arc::new(Self {
            desk,
            persist,
            notices,
            lanes: Lanes::new(Arc::clone(&parts.metrics), mint.clone()),
            bulk,
            retiring: Arc::default(),
            rosters: Arc::clone(&parts.rosters),
            store: Arc::clone(&parts.store),
            transport: Arc::clone(&parts.transport),
            mint,
            origin: parts.origin.clone(),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            metrics: Arc::clone(&parts.metrics),
            spans: Arc::clone(&parts.spans),
            is_stopping: AtomicBool::new(false),
            is_idle: Notify::new(),
        })
    }

    /// Starts a worker for every job that may go now, and waits for more. Workers go on by themselves.
    pub async fn run(self: Arc<Self>) {
        while !self.is_stopping.load(Ordering::Acquire) {
            while let Some(pick) = self.desk.pick() {
                tokio::spawn(Arc::clone(&self).work(pick));
            }
            self.desk.work().await;
        }
    }

    /// Picks no more, and waits for what is under way.
    pub async fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        while self.desk.in_flight() > 0 {
            // What is being put together may wait for the memory of what will not be sent.
            self.desk.unpack();
            self.is_idle.notified().await;
        }
    }

    async fn work(self: Arc<Self>, mut pick: Pick) {
        loop {
            let place = Place { deliver: &self, turn: &pick.turn, is_done: false };
            let ended = match pick.turn.is_preparing {
                false => self.attempt(&pick, place).await,
                true => match self.prepare(&pick, place).await {
                    Err(ended) => ended,
                    Ok(parcel) => {
                        let (next, released) = self.desk.prepared(pick, Arc::new(parcel));
                        self.persist.release(released);
                        match next {
                            Some(next) => pick = next,
                            None => return self.is_idle.notify_one(),
                        }
                        continue;
                    }
                },
            };
            if self.is_stopping.load(Ordering::Acquire) {
                let report = self.desk.finish(ended);
                self.follow_up(ended.subscriber, report);
                self.is_idle.notify_one();
                return;
            }
            let (next, report) = self.desk.finish_and_pick(ended);
            self.follow_up(ended.subscriber, report);
            match next {
                Some(next) => pick = next,
                None => return self.is_idle.notify_one(),
            }
        }
    }

    /// Who gets it, if it may be sent at all.
    async fn begin(&self, pick: &Pick) -> Result<Arc<Endpoint>, Ended> {
        let (turn, job) = (&pick.turn, &pick.turn.job);
        if !self.desk.may_use(pick).await {
            return Err(self.withhold(turn));
        }
        let roster = self.rosters.current();
        if let Some(endpoint) = roster.endpoint(job.subscriber).filter(|endpoint| endpoint.active) {
            return Ok(Arc::clone(endpoint));
        }
        // The desk does not know it yet, else it would not have given this job, and would give it again.
        self.persist.release(self.desk.follow(&roster));
        self.persist.release(vec![claim(job)]);
        Err(ended(turn, Outcome::Unsent))
    }

    /// Another may hold it by now. If so the claim is void, and to give it back comes to nothing.
    fn withhold(&self, turn: &Turn) -> Ended {
        self.persist.release(vec![claim(&turn.job)]);
        ended(turn, Outcome::Unsent)
    }

    /// Notes that a suspect begins to be sent; or says how its turn ends, if that cannot be written. This is the last thing before
    /// the request: what still waits for something must not be taken for what ended the process.
    async fn begin_suspect(&self, turn: &Turn) -> Result<(), Ended> {
        if !turn.job.is_suspect {
            return Ok(());
        }
        let delivery = self.mint.delivery(turn.job.key());
        tracing::info!(delivery, "the process ended often while it held this delivery: it is sent again");
        self.persist.begin(claim(&turn.job)).await.map_err(|_| self.withhold(turn))
    }

    async fn attempt(&self, pick: &Pick, mut place: Place<'_>) -> Ended {
        let (turn, job) = (&pick.turn, &pick.turn.job);
        let begun = match self.begin(pick).await {
            Ok(endpoint) => self.content(pick, &endpoint).await.map(|content| (endpoint, content)),
            Err(ended) => Err(ended),
        };
        let (endpoint, (content, run, _parcel)) = match begun {
            Ok(found) => found,
            Err(ended) => {
                place.is_done = true;
                return ended;
            }
        };
        let endpoint = &endpoint;
        let at = self.clock.now();
        lanes::head_started(endpoint, job, &self.mint);
        let mut outbound = self.outbound(job, endpoint, content);
        let span = spans::attempt::begin(&self.spans, job, &mut outbound);
        let sent = self.transport.send_if(outbound, &|| self.desk.may_use_now(pick)).await;
        let Some(exchange) = sent else {
            place.is_done = true;
            return self.withhold(turn);
        };
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let verdict = to_schedule(webhook::judge(&exchange, wall), now, wall);
        if let Some(span) = &span {
            let delivery = self.mint.delivery(job.key());
            self.spans
                .end(span, spans::attempt::ending(job, delivery, &endpoint.rule.id, &exchange, &verdict));
        }
        self.metrics.attempted(&exchange, &verdict, job.attempts, now.since(job.accepted_at));
        if verdict == Verdict::Delivered {
            endpoint.delivered_at_ms.store(now.as_ms(), Ordering::Relaxed);
        }
        let chance = self.entropy.u64();
        let retries = &endpoint.definition().retry.schedule;
        let penalty = self.penalty(endpoint, &exchange, &verdict, now);
        let next = match turn.probe {
            None if penalty.is_some() => Next::PostponedTo(penalty.unwrap_or(now)),
            Some(probe) => retry::after_probe(&verdict, probe, now, chance),
            None => retry::next(&verdict, retries, job.tries, now, chance),
        };
        if verdict == Verdict::Gone {
            self.deactivate(endpoint, "gone", now);
        }
        if let Next::Exhausted(reason) = &next {
            let delivery = self.mint.delivery(job.key());
            let notice = Notice::Exhausted { delivery, reason: reason.clone(), since: now };
            self.notices.tell(endpoint, &notice);
        }
        if let Some(run) = &run {
            self.lanes.ended(endpoint, job, run, &next, now);
        }
        place.is_done = true;
        let is_delivered = verdict == Verdict::Delivered;
        let finished = finished(job, webhook::attempt(exchange, at), next, Some(endpoint));
        lanes::head_ended(endpoint, job, &finished, &self.mint);
        self.persist.finished(finished);
        ended(
            turn,
            match turn.probe {
                _ if is_delivered => Outcome::Delivered,
                // It lives, and says so.
                None if penalty.is_some() => Outcome::Unsent,
                _ => Outcome::Failed { chance },
            },
        )
    }

    /// A receiver behind a gate that says "too many" means all who pass it. Says when it may be tried again.
    fn penalty(
        &self,
        endpoint: &Endpoint,
        exchange: &Exchange,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let gate = endpoint.terms.gate?;
        let status = exchange.result.as_ref().ok()?.status;
        let until = match (status, verdict) {
            (429 | 503, Verdict::RetryLater { not_before: Some(at) }) => *at,
            (429, _) => now.plus(Duration::from_millis(GATE_PENALTY_DEFAULT_MS)),
            _ => return None,
        };
        self.metrics.gate_refused();
        if let Some(until) = self.desk.penalize(gate, until, "a receiver asked to wait") {
            self.persist.keep_penalty(gate, until);
        }
        Some(until)
    }

    /// What the end of an attempt leads to, beyond its own delivery.
    fn follow_up(&self, subscriber: SubscriberNo, report: Report) {
        self.persist.release(report.released);
        match report.streak {
            Some(Streak::Began(since)) => self.persist.keep_streak(subscriber, Some(since)),
            Some(Streak::Ended) => self.persist.keep_streak(subscriber, None),
            None => {}
        }
        if report.turned.is_none() && report.given_up.is_none() {
            return;
        }
        let roster = self.rosters.current();
        let Some(endpoint) = roster.endpoint(subscriber) else { return };
        let id = endpoint.rule.id.as_str();
        match report.turned {
            Some(Turned::Opened { failures }) => {
                self.metrics.breaker_opened();
                tracing::warn!(subscriber = id, failures, "the receiver only fails: its breaker opens");
                let since = self.clock.now();
                self.notices.tell(endpoint, &Notice::BreakerOpened { failures, since });
            }
            Some(Turned::Closed { opened_at: since }) => {
                tracing::info!(subscriber = id, %since, "the receiver is back: its breaker closes");
                self.notices.tell(endpoint, &Notice::BreakerClosed { since });
            }
            None => {}
        }
        if let Some(since) = report.given_up {
            self.deactivate(endpoint, "failing", since);
        }
    }

    /// There is nothing to send, and never will be.
    fn give_up(&self, turn: &Turn, reason: &str) -> Ended {
        let attempt = interrupted(self.clock.now(), reason);
        self.persist.finished(finished(&turn.job, attempt, Next::Exhausted(reason.to_owned()), None));
        ended(turn, Outcome::Unsent)
    }

    fn outbound(&self, job: &Job, endpoint: &Endpoint, body: Bytes) -> Outbound {
        let id = self.mint.delivery(job.key());
        let signers = endpoint.signers(self.clock.now());
        let mut headers = webhook::render(&id, self.clock.wall(), &body, signers, &endpoint.letterhead);
        if endpoint.definition().verification == Verification::Cloudevents {
            headers.insert(&ORIGIN, self.origin.clone());
        }
        if job.replay {
            webhook::mark_replay(&mut headers);
        }
        if job.out_of_order {
            webhook::mark_out_of_order(&mut headers);
        }
        Outbound {
            target: Arc::clone(&endpoint.target),
            method: Method::POST,
            headers,
            body,
            timeout: endpoint.timeout,
        }
    }

    /// The receiver is gone for good, or has failed for too long: stop sending to it. If this is lost, the next attempt
    /// finds it so again.
    fn deactivate(&self, endpoint: &Arc<Endpoint>, reason: &'static str, since: Timestamp) {
        let (project, no) = (endpoint.rule.project, endpoint.rule.no);
        let is_active = self.rosters.current().endpoint(no).is_some_and(|endpoint| endpoint.active);
        let is_first = || self.retiring.lock().unwrap_or_else(PoisonError::into_inner).insert(no);
        if !is_active || !is_first() {
            return;
        }
        // If others have changed it meanwhile, or found the same, it is not done again.
        let update = SubscriberUpdate {
            active: Some(Err(reason.into())),
            based_on: Some(endpoint.version),
            ..SubscriberUpdate::default()
        };
        let change = Change::UpdateSubscriber { project, no, update };
        let (rosters, notices, metrics) =
            (Arc::clone(&self.rosters), Arc::clone(&self.notices), Arc::clone(&self.metrics));
        let (retiring, endpoint, now) = (Arc::clone(&self.retiring), Arc::clone(endpoint), self.clock.now());
        let desk = Arc::clone(&self.desk);
        tokio::spawn(async move {
            // What fails here may arrive from another process: only nothing at all for so long is too long.
            let arrived = async || rosters.store().has_delivered(no, since).await.unwrap_or(true);
            if reason == "failing" && arrived().await {
                desk.forgive(no);
            } else {
                match rosters.change(change, now).await {
                    Ok(_) => {
                        let id = endpoint.rule.id.as_str();
                        tracing::warn!(
                            subscriber = id,
                            reason,
                            "the subscriber is made inactive: its deliveries are held"
                        );
                        metrics.disabled(reason);
                        notices.tell(&endpoint, &Notice::Disabled { reason, since });
                    }
                    Err(Error::Stale { .. }) => {}
                    Err(error) => tracing::error!(%error, "a subscriber could not be made inactive"),
                }
            }
            retiring.lock().unwrap_or_else(PoisonError::into_inner).remove(&no);
        });
    }
}

/// A job in a worker's hands. If the attempt unwinds, its place and its claim do not stay taken.
struct Place<'a> {
    deliver: &'a Deliver,
    turn: &'a Turn,
    is_done: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_done || !std::thread::panicking() {
            return;
        }
        let (now, job) = (self.deliver.clock.now(), &self.turn.job);
        let attempt = interrupted(now, "an error of ours ended the attempt; see the log");
        let endpoint = self.deliver.rosters.current().endpoint(job.subscriber).cloned();
        let endpoint = endpoint.as_deref();
        let retries =
            endpoint.map(|endpoint| endpoint.definition().retry.schedule.clone()).unwrap_or_default();
        let verdict = Verdict::RetryLater { not_before: None };
        let chance = self.deliver.entropy.u64();
        let next = retry::next(&verdict, &retries, job.tries, now, chance);
        self.deliver.persist.finished(finished(job, attempt, next, endpoint));
        if self.turn.is_preparing {
            self.deliver.desk.unprepared(self.turn);
        }
        let report = self.deliver.desk.finish(ended(self.turn, Outcome::Failed { chance }));
        self.deliver.follow_up(job.subscriber, report);
        self.deliver.is_idle.notify_one();
    }
}

/// An attempt that came to nothing for reasons of ours.
fn interrupted(at: Timestamp, detail: &str) -> Attempt {
    Attempt {
        at,
        status: None,
        error: Some(ErrorClass::Interrupted),
        detail: detail.to_owned(),
        phases: Phases::default(),
        response: None,
    }
}

/// Receivers speak in wall time; the schedule runs on its own clock.
fn to_schedule(verdict: Verdict, now: Timestamp, wall: Timestamp) -> Verdict {
    match verdict {
        Verdict::RetryLater { not_before: Some(at) } => {
            Verdict::RetryLater { not_before: Some(now.plus(at.since(wall))) }
        }
        other => other,
    }
}

fn ended(turn: &Turn, outcome: Outcome) -> Ended {
    Ended { subscriber: turn.job.subscriber, was_probe: turn.probe.is_some(), outcome }
}

fn claim(job: &Job) -> Claim {
    Claim::of(job)
}

/// What is sent. The form is chosen at the first attempt; from then on the same bytes go out.
fn body(job: &Job, endpoint: &Endpoint) -> Bytes {
    if job.attempts > 0 {
        return job.body.clone();
    }
    endpoint.definition().destination.payload.render(&job.body)
}

fn finished(job: &Job, attempt: Attempt, next: Next, endpoint: Option<&Endpoint>) -> Finished {
    // What has arrived is never sent again, and the event's own bytes are kept anyway.
    let is_kept = |endpoint: &&Endpoint| {
        let payload = endpoint.definition().destination.payload;
        payload != Payload::Full && job.fold.is_none() && job.attempts == 0 && next != Next::Delivered
    };
    let body = endpoint.filter(is_kept).map(|endpoint| body(job, endpoint));
    let skips = |endpoint: &Endpoint| endpoint.definition().order.on_failure.skips(job.tries + 1);
    let steps_aside = job.lane.is_some() && matches!(next, Next::RetryAt(_)) && endpoint.is_some_and(skips);
    let (subscriber, lane) = (job.subscriber, job.lane);
    Finished { claim: claim(job), subscriber, lane, n: job.attempts + 1, attempt, next, steps_aside, body }
}
