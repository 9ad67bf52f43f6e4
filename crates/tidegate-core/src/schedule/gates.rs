//! Lines at gates: who waits for a token that many share, and who is next.
//!
//! Whoever has something to send through a gate stands in its line with the place of the delivery at the head of its
//! queue: first come, first served, whichever subscriber or client it is. A gate takes turns like a subscriber; when it is
//! its turn the first in line goes, if there is a token. Who turns out to have no place, or to wait for a rate of its own,
//! steps aside without taking one and comes back to where it stood. A client that waits is a ticket in the same line.
//!
//! A fold is put together before it takes a token, see `folds`.
//!
//! Does not: know what a gate is called, or talk to the other replicas: tokens of a shared gate are begged for like those
//! of a shared rate.

mod clients;
mod folds;
mod penalties;
mod pressure;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::lineup::Lineup;
use super::meter::{Meter, Wait};
use super::{Schedule, Slot, Turn, stamped_at};
use crate::gate::{Flow, Standing, eighths};
use crate::id::{GateNo, SubscriberNo};
use crate::limits::GATE_WAITS_KEPT;
use crate::time::Timestamp;
pub use folds::Luggage;
use folds::Preparing;
pub use penalties::Penalty;
use penalties::RECOVERY;

/// A fold looks again after this whether another one may be prepared.
const PLACE_WAIT: Duration = Duration::from_millis(10);

/// A client's place in a line; no two have the same.
pub type Ticket = u64;

/// Somebody has passed a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Which gate.
    pub gate: GateNo,
    /// The client's ticket; absent when a delivery passed.
    pub ticket: Option<Ticket>,
    /// How long it stood in line.
    pub waited: Duration,
    /// The first after a recovery came to its end.
    pub is_recovered: bool,
}

/// Why a client may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turnaway {
    /// There is no such gate here.
    Unknown,
    /// Too many wait already.
    Full,
}

/// How a line stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineView {
    /// How the gate stands, as far as this process knows; with several of them the others may have taken since.
    pub standing: Standing,
    /// Subscribers in line.
    pub subscribers: usize,
    /// Deliveries that wait behind it in memory.
    pub deliveries: usize,
    /// Clients in line.
    pub clients: usize,
    /// How long half of the last ones waited at most.
    pub wait_p50: Duration,
    /// How long nearly all of the last ones waited at most.
    pub wait_p99: Duration,
    /// How many have passed.
    pub passed: u64,
    /// How often it was penalised.
    pub penalties: u64,
}

/// Who stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waiter {
    Subscriber(SubscriberNo),
    Client,
}

/// What a line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody is in it.
    Idle,
    /// It waits for its turn.
    InTurn,
    /// It waits for a token of its own bucket.
    Later,
    /// It waits for tokens from elsewhere.
    Begging,
    /// The first in line waits for tokens of its own rate; what the gate has is kept for it as long as it lasts.
    Held(SubscriberNo),
}

/// A gate and its line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) meter: Meter,
    pub(super) flow: Flow,
    /// By when they became ready; and since when nothing but the gate keeps them.
    pub(super) waiting: BTreeMap<(u64, Waiter), Timestamp>,
    pub(super) clients: usize,
    pub(super) state: State,
    /// Nothing goes before, whatever the bucket says: others may not have heard of it yet.
    closed_until: Timestamp,
    /// When a penalty was last ended by hand: what was asked before that is not known any more.
    lifted_at: Option<Timestamp>,
    /// Since when it is in doubt whether it is still closed.
    doubted_at: Option<Timestamp>,
    is_recovering: bool,
    waits: VecDeque<Duration>,
    /// The bucket that all share has heard that somebody waits here, and not that he does no longer.
    pub(super) is_known: bool,
    /// When the one that has waited longest became ready, wherever it is, and when that was heard.
    first_elsewhere: Option<(Timestamp, Timestamp)>,
    /// When somebody last looked how it stands elsewhere.
    looked_at: Timestamp,
    passed: u64,
    penalties: u64,
    preparing: Preparing,
    /// When it has a token again, as far as it knows.
    token_at: Timestamp,
}

impl Line {
    fn new(flow: Flow, is_shared: bool, now: Timestamp) -> Self {
        Self {
            meter: Meter::new(Some(flow), is_shared, now),
            flow,
            waiting: BTreeMap::new(),
            clients: 0,
            state: State::Idle,
            closed_until: Timestamp::default(),
            lifted_at: None,
            doubted_at: None,
            is_recovering: false,
            waits: VecDeque::new(),
            is_known: false,
            first_elsewhere: None,
            looked_at: Timestamp::default(),
            passed: 0,
            penalties: 0,
            preparing: Preparing::default(),
            token_at: now,
        }
    }

    fn change(&mut self, flow: Flow, now: Timestamp) {
        self.flow = flow;
        match &mut self.meter {
            Meter::Own(bucket) => bucket.change(flow, now),
            Meter::Shared(purse) => purse.flow = flow,
            Meter::Free => {}
        }
    }

    fn peek(&mut self, now: Timestamp) -> Result<(), Wait> {
        if now < self.closed_until { Err(Wait::Until(self.closed_until)) } else { self.meter.peek(now) }
    }

    /// The one at this place goes with a token.
    fn pass(&mut self, place: (u64, Waiter), now: Timestamp) -> Option<(Duration, bool)> {
        self.meter.take(now).ok()?;
        let waited = now.since(self.waiting.remove(&place)?);
        self.clients -= usize::from(place.1 == Waiter::Client);
        if self.waits.len() == GATE_WAITS_KEPT {
            self.waits.pop_front();
        }
        self.waits.push_back(waited);
        self.passed += 1;
        let is_recovered = self.is_recovering && now >= self.closed_until.plus(RECOVERY);
        self.is_recovering &= !is_recovered;
        Some((waited, is_recovered))
    }

    /// As far as this process knows.
    fn standing(&self, now: Timestamp) -> Standing {
        let mut standing = match &self.meter {
            Meter::Own(bucket) => bucket.standing(now),
            _ => {
                let since_ms = now.as_ms().saturating_sub(self.closed_until.as_ms());
                Standing { eighths: eighths(since_ms.saturating_mul(1_000)), ..Standing::default() }
            }
        };
        standing.penalized_for = standing.penalized_for.max(self.closed_until.since(now));
        if !standing.penalized_for.is_zero() {
            (standing.tokens, standing.eighths) = (0, 0);
            standing.next_in = standing.next_in.max(standing.penalized_for);
        }
        standing
    }

    fn wait_of(&self, percent: usize) -> Duration {
        let mut waits: Vec<Duration> = self.waits.iter().copied().collect();
        waits.sort_unstable();
        let place = (waits.len() * percent).div_ceil(100).saturating_sub(1);
        waits.get(place).copied().unwrap_or_default()
    }
}

impl Schedule {
    /// Lets exactly these gates be, each as it is said. Gives back the clients at those that are gone.
    pub fn set_gates(&mut self, gates: &BTreeMap<GateNo, Flow>, now: Timestamp) -> Vec<Ticket> {
        let is_shared = self.shares_rates;
        for (no, flow) in gates {
            let line = self.lines.entry(*no).or_insert_with(|| Line::new(*flow, is_shared, now));
            if line.flow != *flow {
                line.change(*flow, now);
                // Whatever it waits for may come sooner now.
                self.reconsider(*no);
            }
        }
        let gone: Vec<GateNo> = self.lines.keys().copied().filter(|no| !gates.contains_key(no)).collect();
        gone.into_iter().flat_map(|no| self.remove_line(no)).collect()
    }

    /// Who passed since this was last asked.
    pub fn take_passed(&mut self) -> Vec<Passed> {
        std::mem::take(&mut self.passed)
    }

    /// When the first in line became ready.
    pub(super) fn first_at(&self, gate: GateNo) -> Option<Timestamp> {
        let ((stamp, _), _) = self.lines.get(&gate)?.waiting.first_key_value()?;
        Some(stamped_at(*stamp))
    }

    /// What a gate is.
    pub fn gate_flow(&self, gate: GateNo) -> Option<Flow> {
        self.lines.get(&gate).map(|line| line.flow)
    }

    /// How a gate and its line stand.
    pub fn line(&self, gate: GateNo, now: Timestamp) -> Option<LineView> {
        let line = self.lines.get(&gate)?;
        let of_gate = self.lineups.values().filter(|lineup| lineup.terms.gate == Some(gate));
        Some(LineView {
            standing: line.standing(now),
            subscribers: line.waiting.len() - line.clients,
            deliveries: of_gate.map(Lineup::waiting).sum(),
            clients: line.clients,
            wait_p50: line.wait_of(50),
            wait_p99: line.wait_of(99),
            passed: line.passed,
            penalties: line.penalties,
        })
    }

    /// How many wait at all gates: subscribers and clients.
    pub fn waiting_at_gates(&self) -> (usize, usize) {
        let clients = self.lines.values().map(|line| line.clients).sum();
        let all: usize = self.lines.values().map(|line| line.waiting.len()).sum();
        (all - clients, clients)
    }

    /// A subscriber takes its place in the line of its gate.
    pub(super) fn join_line(&mut self, gate: GateNo, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        let (Some(stamp), Some(line)) = (lineup.head(), self.lines.get_mut(&gate)) else {
            // What it had to send was given back meanwhile. (A gate is known before whoever names it.)
            lineup.lined_up = false;
            return;
        };
        lineup.seat = Some(stamp);
        // What is ready waits for the gate from then on, in line or behind others of its subscriber.
        let since = stamped_at(stamp).max(lineup.free_since);
        line.waiting.insert((stamp, Waiter::Subscriber(subscriber)), since);
        self.wake(gate);
    }

    /// It stands in line no longer.
    pub(super) fn quit_line(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        let (Some(gate), Some(stamp)) = (lineup.terms.gate, lineup.seat.take()) else { return };
        let Some(line) = self.lines.get_mut(&gate) else { return };
        line.waiting.remove(&(stamp, Waiter::Subscriber(subscriber)));
        self.release_line(gate, subscriber);
        self.desert(gate);
    }

    /// Lets a line take part in the turns, unless it does or waits for something.
    fn wake(&mut self, gate: GateNo) {
        let Some(line) = self.lines.get_mut(&gate).filter(|line| line.state == State::Idle) else { return };
        if !line.waiting.is_empty() {
            line.state = State::InTurn;
            self.turns.push_back(Slot::Gate(gate));
        } else if line.is_known {
            // Others would step back for somebody who does not come.
            self.beggars.insert(Slot::Gate(gate));
        }
    }

    /// Somebody has left a line without a token. If nobody is left it waits for nothing.
    fn desert(&mut self, gate: GateNo) {
        let is_waiting = |line: &Line| matches!(line.state, State::Later | State::Begging);
        if self
            .lines
            .get(&gate)
            .is_some_and(|line| line.is_known && line.waiting.is_empty() && is_waiting(line))
        {
            self.reconsider(gate);
        }
    }

    /// It waits for a time or for tokens that may be others by now: looks again at once.
    pub(super) fn reconsider(&mut self, gate: GateNo) {
        self.forget_slot(Slot::Gate(gate));
        if let Some(line) = self.lines.get_mut(&gate) {
            line.meter.forget();
            line.state = State::Idle;
        }
        self.wake(gate);
    }

    /// What it waited for has come.
    pub(super) fn resume_line(&mut self, gate: GateNo) {
        if let Some(line) = self.lines.get_mut(&gate) {
            line.state = State::Idle;
        }
        self.wake(gate);
    }

    /// The first in line has heard about its own rate: the line goes on.
    pub(super) fn release_line(&mut self, gate: GateNo, subscriber: SubscriberNo) {
        if self.lines.get(&gate).is_some_and(|line| line.state == State::Held(subscriber)) {
            self.resume_line(gate);
        }
    }

    /// It is a gate's turn: the first in line goes, if there is a token.
    pub(super) fn pick_at(&mut self, gate: GateNo, now: Timestamp) -> Option<Turn> {
        loop {
            // Its turn lasts until it waits for something: whoever comes back to it meanwhile does not call it again.
            let line = self.lines.get_mut(&gate)?;
            let Some((place, _)) = line.waiting.first_key_value() else {
                self.resume_line(gate);
                return None;
            };
            let place = *place;
            if let (_, Waiter::Subscriber(first)) = place
                && self.is_first_early(gate, place, now)
            {
                return Some(self.pick_first(gate, place, (first, false), now));
            }
            let line = self.lines.get_mut(&gate)?;
            if let Err(mut wait) = line.peek(now) {
                line.state = if wait == Wait::Tokens { State::Begging } else { State::Later };
                let is_unknown = matches!(line.meter, Meter::Shared(_)) && !line.is_known;
                if let Wait::Until(at) = &mut wait {
                    self.wait_at(gate, at.since(now));
                    *at = self.call_line_at(gate, *at);
                    if is_unknown {
                        // It gets nothing before the end of the pause, and then in its turn.
                        self.beggars.insert(Slot::Gate(gate));
                    }
                }
                self.wait_for(Slot::Gate(gate), &wait);
                return None;
            }
            if let Some(until) = line.is_kept_until(now) {
                line.state = State::Later;
                self.wait_for(Slot::Gate(gate), &Wait::Until(until));
                return None;
            }
            match place {
                (stamp, Waiter::Client) => self.let_pass(gate, place, Some(stamp), now),
                (stamp, Waiter::Subscriber(subscriber)) => match self.ask_head(subscriber, stamp, now) {
                    Ok(is_ready) => return Some(self.pick_first(gate, place, (subscriber, is_ready), now)),
                    Err(Some(Wait::Tokens)) => {
                        self.beggars.insert(Slot::Subscriber(subscriber));
                        self.lines.get_mut(&gate)?.state = State::Held(subscriber);
                        return None;
                    }
                    Err(aside) => self.step_aside(gate, place, aside),
                },
            }
        }
    }

    fn let_pass(&mut self, gate: GateNo, place: (u64, Waiter), ticket: Option<Ticket>, now: Timestamp) {
        let Some(line) = self.lines.get_mut(&gate) else { return };
        if let Some((waited, is_recovered)) = line.pass(place, now) {
            self.passed.push(Passed { gate, ticket, waited, is_recovered });
        }
    }

    /// Whether the first in line may go, and is ready to; nothing, if it has no business there any more; or what else it
    /// waits for.
    fn ask_head(
        &mut self,
        subscriber: SubscriberNo,
        stamp: u64,
        now: Timestamp,
    ) -> Result<bool, Option<Wait>> {
        let lineup = self.lineups.get_mut(&subscriber).ok_or(None)?;
        if !lineup.may_send() || lineup.head() != Some(stamp) {
            return Err(None);
        }
        if lineup.is_unprepared() {
            if self.preparing >= self.bounds.in_flight {
                return Err(Some(Wait::Until(now.plus(PLACE_WAIT))));
            }
            if lineup.is_due_soon(lineup.token_at, now) {
                return Ok(false);
            }
            return lineup.meter.peek(now).map(|()| false).map_err(Some);
        }
        lineup.meter.take(now).map(|()| true).map_err(|wait| {
            if let Wait::Until(at) = wait {
                lineup.unpack(at.since(now), true);
            }
            Some(wait)
        })
    }

    /// The first in line goes away without a token; it comes back when it can, to where it belongs.
    fn step_aside(&mut self, gate: GateNo, place: (u64, Waiter), wait: Option<Wait>) {
        let (_, Waiter::Subscriber(subscriber)) = place else { return };
        if let Some(line) = self.lines.get_mut(&gate) {
            line.waiting.remove(&place);
        }
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        lineup.seat = None;
        match wait {
            Some(mut wait) => {
                if let Wait::Until(at) = &mut wait {
                    (lineup.free_since, lineup.token_at) = (*at, *at);
                    *at = lineup.call_at(*at, self.latest);
                }
                self.wait_for(Slot::Subscriber(subscriber), &wait);
            }
            None => {
                lineup.lined_up = false;
                self.line_up(subscriber);
            }
        }
    }
}
