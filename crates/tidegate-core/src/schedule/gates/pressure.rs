//! How long it takes at a gate, here and elsewhere.
//!
//! A line knows who stands in it. What other replicas know of a gate that all share is heard with every answer of its bucket; who has
//! nothing to ask for looks, when windows are to be stretched by it or somebody says that it was penalised.

use std::time::Duration;

use super::super::Schedule;
use super::super::lineup::Lineup;
use super::super::meter::Meter;
use super::Waiter;
use crate::gate::pressure;
use crate::id::{GateNo, SubscriberNo};
use crate::limits::GATE_HEARD_MS;
use crate::time::Timestamp;

/// What was heard holds for so long, and until there is an answer to the next look.
const HEARD: Duration = Duration::from_millis(GATE_HEARD_MS);

impl Schedule {
    /// What is known of the bucket that all share: it is penalised for so long yet, and the one that has waited longest, wherever
    /// it is, became ready then.
    pub fn hear(&mut self, gate: GateNo, penalized_for: Duration, first: Option<Timestamp>, now: Timestamp) {
        let Some(line) = self.lines.get_mut(&gate) else { return };
        (line.first_elsewhere, line.looked_at) = (first.map(|first| (first, now)), now);
        if !penalized_for.is_zero() {
            line.close(now.plus(penalized_for), now);
        }
    }

    /// Something has happened to a gate elsewhere: worth a look.
    pub fn look_at(&mut self, gate: GateNo, now: Timestamp) {
        if let Some(line) = self.lines.get_mut(&gate).filter(|line| matches!(line.meter, Meter::Shared(_))) {
            line.looked_at = now;
            self.looks.insert(gate);
        }
    }

    /// How long somebody who joins a line now would wait.
    pub fn line_pressure(&self, gate: GateNo, now: Timestamp) -> Duration {
        self.lines.get(&gate).map_or(Duration::ZERO, |line| {
            // All deliveries of a subscriber stand behind one place.
            let ahead = line.waiting.keys().map(|(_, waiter)| match waiter {
                Waiter::Client => 1,
                Waiter::Subscriber(other) => self.lineups.get(other).map_or(0, Lineup::waiting),
            });
            // Whoever comes now waits no shorter than the first of all lines has.
            let elsewhere = line.first_elsewhere.filter(|(_, heard)| now < heard.plus(2 * HEARD));
            let waited = elsewhere.map_or(Duration::ZERO, |(first, _)| now.since(first));
            pressure(line.flow, line.standing(now), ahead.sum()).max(waited)
        })
    }

    /// How long a new delivery of a subscriber would wait at its gate: zero while that is calm, or when it passes none. Who did
    /// not look at the gate for a while does, and knows more the next time.
    pub fn gate_pressure(&mut self, subscriber: SubscriberNo, now: Timestamp) -> Duration {
        let gate = self.lineups.get(&subscriber).and_then(|lineup| lineup.terms.gate);
        let Some(gate) = gate else { return Duration::ZERO };
        if self.lines.get(&gate).is_some_and(|line| now >= line.looked_at.plus(HEARD)) {
            self.look_at(gate, now);
        }
        self.line_pressure(gate, now)
    }
}
