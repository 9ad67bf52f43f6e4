//! Gates at the desk: clients that wait, penalties, and how a line stands.
//!
//! A client stands in the same line as deliveries; its place is given back when it goes away. Nobody waits here while holding
//! a worker: a client waits in its own request.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tidegate_core::gate::Flow;
use tidegate_core::id::{DeliveryNo, GateNo, SubscriberNo};
use tidegate_core::limits::GATE_PENALTY_MAX_MS;
use tidegate_core::schedule::{LineView, Passed, Ticket, Turnaway, Waits};
use tidegate_core::time::Timestamp;
use tidegate_store::coordination::{BucketKey, News};
use tokio::sync::oneshot;

use super::Pipeline;
use super::desk::Desk;
use crate::metrics::Metrics;
use crate::roster::Roster;

/// How long a client that does not want to wait does so all the same where the token is elsewhere: one question.
const ASK_PATIENCE: Duration = Duration::from_millis(250);

/// Why a client got no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such gate.
    Unknown,
    /// Too many wait already; they take so long.
    Full(Duration),
    /// It has waited for as long as it wanted to; there may be one after this.
    Late(Duration),
    /// The process is on its way out.
    Stopping,
}

/// A client's place in a line, given back when it is dropped.
struct Place<'a> {
    desk: &'a Desk,
    gate: GateNo,
    ticket: Ticket,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut schedule = self.desk.lock();
        schedule.leave_line(self.gate, self.ticket);
        self.desk.ring_if_hungry(schedule);
        self.desk.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ticket);
    }
}

impl Desk {
    /// Counts what happens at gates.
    pub fn counting(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Waits in the line of a gate for a token, no longer than that; says how long it took.
    pub async fn acquire(&self, gate: GateNo, wait: Duration) -> Result<Duration, Refused> {
        let acquired = self.stand_in_line(gate, wait).await;
        if acquired.is_err() {
            self.metrics.gate_turned_away();
        }
        acquired
    }

    async fn stand_in_line(&self, gate: GateNo, wait: Duration) -> Result<Duration, Refused> {
        let began = self.clock.now();
        let (sender, granted) = oneshot::channel();
        let place = {
            let mut schedule = self.lock();
            let ticket = schedule.queue_client(gate, began).map_err(|turnaway| match turnaway {
                Turnaway::Unknown => Refused::Unknown,
                Turnaway::Full => Refused::Full(schedule.line_pressure(gate, began)),
            })?;
            self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(ticket, sender);
            schedule.serve_clients(gate, began);
            self.ring_if_hungry(schedule);
            Place { desk: self, gate, ticket }
        };
        self.work.notify_one();
        let wait = if self.is_sharing { wait.max(ASK_PATIENCE) } else { wait };
        let waited = tokio::select! {
            biased;
            granted = granted => Some(granted.map_err(|_| self.why_nobody_answers(gate))),
            () = self.clock.doze_until(began.plus(wait)) => None,
        };
        drop(place);
        // Told without the place that was just given up: whoever comes back stands where others stand now.
        waited.unwrap_or_else(|| Err(Refused::Late(self.wait_at(gate))))
    }

    /// Their gate is gone: they hear it at once.
    pub(super) fn turn_away(&self, stranded: &[Ticket]) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        stranded.iter().for_each(|ticket| drop(clients.remove(ticket)));
    }

    fn why_nobody_answers(&self, gate: GateNo) -> Refused {
        if self.lock().gate_flow(gate).is_none() { Refused::Unknown } else { Refused::Stopping }
    }

    /// How long it may take at a gate for one who comes now. Of a bucket that processes share nobody here knows when it has its
    /// next token: an interval is what that takes at most.
    fn wait_at(&self, gate: GateNo) -> Duration {
        let now = self.clock.now();
        let schedule = self.lock();
        let (Some(line), Some(flow)) = (schedule.line(gate, now), schedule.gate_flow(gate)) else {
            return Duration::ZERO;
        };
        let standing = line.standing;
        let is_known = standing.tokens > 0 || !standing.next_in.is_zero();
        let next_in = if is_known { standing.next_in } else { flow.interval(standing.eighths.max(1)) };
        schedule.line_pressure(gate, now).max(next_in)
    }

    /// Tells those who passed a gate.
    pub(super) fn tell_passed(&self, passed: Vec<Passed>) {
        for one in passed {
            self.metrics.gate_passed(one.ticket.is_some(), one.waited);
            if one.is_recovered {
                tracing::info!(gate = self.gate_name(one.gate), "the gate has recovered");
            }
            let Some(ticket) = one.ticket else { continue };
            let client = self.clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&ticket);
            // One that has gone away a moment ago has had its token.
            let _ = client.map(|client| client.send(one.waited));
        }
    }

    /// Nothing passes a gate until then, here at once and in the other processes as soon as they hear of it. Says until when it
    /// is, if that is longer.
    pub fn penalize(&self, gate: GateNo, until: Timestamp, why: &str) -> Option<Timestamp> {
        let now = self.clock.now();
        let until = until.min(now.plus(Duration::from_millis(GATE_PENALTY_MAX_MS)));
        if until <= now {
            return None;
        }
        let mut schedule = self.lock();
        let before = schedule.penalized_until(gate);
        schedule.penalize(gate, until, now);
        let after = schedule.penalized_until(gate);
        self.ring_if_hungry(schedule);
        // Whoever refuses again during a pause says nothing new.
        if before.is_none_or(|before| before < until) {
            self.metrics.gate_penalized();
            tracing::warn!(gate = self.gate_name(gate), %until, why, "the gate is penalised");
        }
        after
    }

    /// What gates let through and were told before this process was there.
    pub(super) fn recall_gates(&self, kept: &[(GateNo, Timestamp)]) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        schedule.recall_passes(now);
        kept.iter().for_each(|(gate, until)| schedule.recall_penalty(*gate, *until, now));
    }

    /// A penalty ends before its time, as far as this process is concerned.
    pub fn lift(&self, gate: GateNo) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        let was_paused = schedule.penalized_until(gate).is_some_and(|until| until > now);
        schedule.lift(gate, now);
        self.ring_if_hungry(schedule);
        self.work.notify_one();
        if was_paused {
            tracing::info!(gate = self.gate_name(gate), "the penalty of the gate is lifted");
        }
    }

    /// These penalties were lifted elsewhere.
    pub(super) fn lifted(&self, gates: &BTreeSet<GateNo>) {
        gates.iter().for_each(|gate| self.lift(*gate));
    }

    /// Penalties may have been lifted elsewhere: worth a look.
    pub(super) fn doubt_penalties(&self) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        schedule.doubt_penalties(now);
        self.ring_if_hungry(schedule);
    }

    /// How a gate and its line stand, as far as this process knows.
    pub fn line(&self, gate: GateNo) -> Option<LineView> {
        let now = self.clock.now();
        self.lock().line(gate, now)
    }

    /// Subscribers and clients that wait at gates.
    pub fn waiting_at_gates(&self) -> (usize, usize) {
        self.lock().waiting_at_gates()
    }

    /// How long a new delivery of a subscriber would wait at its gate: zero while that is calm, or when it passes none.
    pub fn gate_pressure(&self, subscriber: SubscriberNo) -> Duration {
        let now = self.clock.now();
        let mut schedule = self.lock();
        let pressure = schedule.gate_pressure(subscriber, now);
        self.ring_if_hungry(schedule);
        pressure
    }

    /// These were penalised elsewhere.
    pub(super) fn look_at(&self, gates: &BTreeSet<GateNo>) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        gates.iter().for_each(|gate| schedule.look_at(*gate, now));
        self.ring_if_hungry(schedule);
    }

    /// What a delivery in this process's hands waits for, in words; nothing when it is under way, or elsewhere.
    pub fn waits(&self, subscriber: SubscriberNo, delivery: DeliveryNo) -> Option<String> {
        let waits = self.lock().waits(subscriber, delivery)?;
        Some(match waits {
            Waits::Gate(gate) => format!("waits for gate {}", self.gate_name(gate)),
            Waits::Rate => "waits for its subscriber's limits.rate".to_owned(),
            Waits::Place => {
                "waits until one of its subscriber's attempts ends: limits.concurrency are under way"
                    .to_owned()
            }
            Waits::Turn => "waits for its turn".to_owned(),
        })
    }

    /// Whether it has not heard yet of what this roster says.
    pub fn is_behind(&self, roster: &Roster) -> bool {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner).order < roster.order
    }

    fn gate_name(&self, gate: GateNo) -> String {
        let followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.gates.get(&gate).cloned().unwrap_or_default()
    }
}

impl Pipeline {
    /// Nothing passes a gate until then, in any process; returns when all can know it.
    pub async fn penalize(&self, gate: GateNo, flow: Flow, until: Timestamp, why: &str) {
        if let Some(until) = self.desk.penalize(gate, until, why) {
            self.persist.keep_penalty(gate, until);
        }
        let lasts = until.since(self.clock.now());
        if let Some(coordination) = self.coordination.as_ref().filter(|_| !lasts.is_zero()) {
            coordination.penalize(&BucketKey::gate(gate), flow, lasts).await;
        }
    }

    /// A penalty ends before its time, in every process; says whether all can know it.
    pub async fn lift(&self, gate: GateNo, flow: Flow) -> bool {
        if let Some(coordination) = &self.coordination {
            if !coordination.lift(&BucketKey::gate(gate), flow).await {
                return false;
            }
            coordination.tell(News::lift(gate));
        }
        self.desk.lift(gate);
        self.persist.keep_penalty(gate, self.clock.now());
        true
    }

    /// How a gate and its line stand: tokens and penalties of all processes together, who waits in this one.
    pub async fn line(&self, gate: GateNo, flow: Flow) -> Option<LineView> {
        let mut line = self.desk.line(gate)?;
        if let Some(coordination) = &self.coordination {
            let looked = coordination.take(&BucketKey::gate(gate), flow, 0).await;
            line.standing = looked.standing.unwrap_or(line.standing);
        }
        Some(line)
    }
}
