//! Penalties: times in which nothing passes a gate, because somebody was told "too many".
//!
//! A bucket of this process is closed itself. With several processes the bucket is elsewhere and has the last word; a line is
//! closed here at once, and the others hear of it. Whoever lifts a penalty says so in the same two places.

use std::time::Duration;

use super::super::Schedule;
use super::super::meter::Meter;
use super::Line;
use crate::gate::Flow;
use crate::id::GateNo;
use crate::limits::{GATE_PENALTY_MAX_MS, GATE_RECOVERY_STEP_MS};
use crate::time::Timestamp;

/// How long it takes until all of the rate is back.
pub(super) const RECOVERY: Duration = Duration::from_millis(3 * GATE_RECOVERY_STEP_MS);

/// A penalty that the other replicas have to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// Which gate.
    pub gate: GateNo,
    /// What it is.
    pub flow: Flow,
    /// How long it gives nothing.
    pub lasts: Duration,
}

impl Schedule {
    /// Nothing passes a gate until then; after that it recovers step by step.
    pub fn penalize(&mut self, gate: GateNo, until: Timestamp, now: Timestamp) {
        let is_shared = self.shares_rates;
        let Some(line) = self.lines.get_mut(&gate) else { return };
        line.penalties += 1;
        line.doubted_at = None;
        line.close(until, now);
        if let Meter::Own(bucket) = &mut line.meter {
            bucket.penalize(until, now);
        }
        if is_shared {
            self.penalties.push(Penalty { gate, flow: line.flow, lasts: until.since(now) });
        }
        self.wait_at(gate, until.since(now));
    }

    /// A penalty ends before its time; then the gate recovers as it would have later. Where the bucket is elsewhere it has the last
    /// word: whoever waits here asks it again.
    pub fn lift(&mut self, gate: GateNo, now: Timestamp) {
        let Some(line) = self.lines.get_mut(&gate).filter(|line| line.closed_until > now) else { return };
        (line.closed_until, line.lifted_at) = (now, Some(now));
        if let Meter::Own(bucket) = &mut line.meter {
            bucket.lift(now);
        }
        self.penalties.retain(|penalty| penalty.gate != gate);
        self.reconsider(gate);
        self.look_at(gate, now);
    }

    /// It is not known whether somebody elsewhere has lifted penalties: the bucket is asked, and its answer is [heard](Self::acquit).
    pub fn doubt_penalties(&mut self, now: Timestamp) {
        let closed = self.lines.iter_mut().filter(|(_, line)| line.closed_until > now);
        let doubted: Vec<GateNo> = closed
            .map(|(gate, line)| {
                line.doubted_at = Some(now);
                *gate
            })
            .collect();
        doubted.into_iter().for_each(|gate| self.look_at(gate, now));
    }

    /// The bucket, asked then, knows of no penalty. That counts only if it was asked because of a doubt: a penalty of this
    /// process may still be on its way there.
    pub fn acquit(&mut self, gate: GateNo, asked: Timestamp, now: Timestamp) {
        let Some(line) = self.lines.get_mut(&gate) else { return };
        if line.doubted_at.take_if(|doubted_at| *doubted_at <= asked).is_some() {
            self.lift(gate, now);
        }
    }

    /// Whether the answer to a question that was asked then may tell of a penalty that was lifted since.
    pub fn is_outdated(&self, gate: GateNo, asked: Timestamp) -> bool {
        let lifted_at = self.lines.get(&gate).and_then(|line| line.lifted_at);
        lifted_at.is_some_and(|lifted_at| asked <= lifted_at)
    }

    /// There was a process before this one, and what passed its gates just before it ended counts too.
    pub fn recall_passes(&mut self, now: Timestamp) {
        for line in self.lines.values_mut() {
            if let Meter::Own(bucket) = &mut line.meter {
                bucket.empty(now);
            }
        }
    }

    /// A process before this one was told so: the gate goes on where it was, in its pause or in its recovery.
    pub fn recall_penalty(&mut self, gate: GateNo, until: Timestamp, now: Timestamp) {
        if until.plus(RECOVERY) <= now {
            return;
        }
        let until = until.min(now.plus(Duration::from_millis(GATE_PENALTY_MAX_MS)));
        let Some(line) = self.lines.get_mut(&gate) else { return };
        let Meter::Own(bucket) = &mut line.meter else { return };
        bucket.recall(until, now);
        (line.closed_until, line.is_recovering) = (until, true);
    }

    /// Until when nothing passes, or since when it does again.
    pub fn penalized_until(&self, gate: GateNo) -> Option<Timestamp> {
        self.lines.get(&gate).map(|line| line.closed_until)
    }

    /// Penalties that the others have not heard of yet.
    pub fn take_penalties(&mut self) -> Vec<Penalty> {
        std::mem::take(&mut self.penalties)
    }
}

impl Line {
    pub(super) fn close(&mut self, until: Timestamp, now: Timestamp) {
        if until > now {
            self.closed_until = self.closed_until.max(until);
            self.is_recovering = true;
        }
        if let Meter::Shared(purse) = &mut self.meter {
            purse.spend_all();
        }
    }
}
