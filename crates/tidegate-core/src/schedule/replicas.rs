//! One process among several: its share of everybody's places, and the tokens of rates that all keep together.
//!
//! A limit on concurrency is divided, so that nobody has to ask before sending; a limit smaller than the number of replicas
//! belongs to some of them, and the others leave that subscriber to these. A rate is not divided, since that would waste
//! what an idle replica does not use: whoever has work begs for tokens, and uses them at once.
//!
//! Does not: know who lives or talk to anybody. `tidegate-server` hands in both.

use std::time::Duration;

use super::gates::{State, Waiter};
use super::meter::Wait;
use super::{Meter, Schedule, Slot};
use crate::delivery::Job;
use crate::gate::Flow;
use crate::id::{GateNo, SubscriberNo};
use crate::time::Timestamp;

/// The place of this process among those that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// From 0.
    pub rank: u32,
    /// How many live, this one included.
    pub replicas: u32,
}

impl Default for Share {
    /// The only one.
    fn default() -> Self {
        Self { rank: 0, replicas: 1 }
    }
}

impl Share {
    /// Its part of a subscriber's limit. Each subscriber begins to count the replicas elsewhere, so that small limits do
    /// not all fall to the same one.
    pub fn of(self, limit: u32, subscriber: SubscriberNo) -> u32 {
        let replicas = self.replicas.max(1);
        let turn = subscriber.rem_euclid(i64::from(replicas));
        let rank = (i64::from(self.rank) + turn).rem_euclid(i64::from(replicas));
        share(limit, u32::try_from(rank).unwrap_or(0), replicas)
    }
}

/// The part of a limit that falls to one of several. All parts together are the limit; none differs from another by more
/// than one.
pub fn share(limit: u32, rank: u32, replicas: u32) -> u32 {
    limit / replicas + u32::from(rank < limit % replicas)
}

/// Somebody who waits for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beg {
    /// Who.
    pub who: Slot,
    /// Of which rate.
    pub flow: Flow,
    /// How many it could use at once. None: nobody is in line any more, or it only looks; [`Schedule::hear`] is all the answer.
    pub wanted: u32,
    /// When the first in line became ready; absent where there is no line, or where it does not matter.
    pub since: Option<Timestamp>,
}

impl Schedule {
    /// From now on, whoever has a rate begs for tokens of it. To be said before anybody takes part.
    pub fn share_rates(&mut self) {
        self.shares_rates = true;
    }

    /// Its part of a limit may have changed. Gives back what waited for places that are no longer here.
    pub(super) fn resize(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let took_part = lineup.takes_part();
        lineup.places = self.division.of(lineup.terms.concurrency, subscriber);
        match (took_part, lineup.takes_part()) {
            (true, false) => self.leave_to_others(subscriber),
            (false, true) => {
                self.go_on(subscriber);
                Vec::new()
            }
            (_, is_here) => {
                self.line_up(subscriber);
                if is_here { self.share_out(subscriber) } else { Vec::new() }
            }
        }
    }

    /// What has gathered here beyond what its places here soon use is for whoever has a free one.
    pub(super) fn share_out(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let kept = lineup.capacity(&self.bounds).min(lineup.queue.len());
        let back: Vec<Job> = lineup.queue.drain(kept..).map(|ready| ready.job).collect();
        if !back.is_empty() {
            let bytes: usize = back.iter().map(|job| job.body.len()).sum();
            lineup.bytes -= bytes;
            self.bytes -= bytes;
            self.spill(subscriber);
        }
        back
    }

    /// It has no place here any more; what is under way comes to its end.
    pub(super) fn leave_to_others(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        self.leave_queue(subscriber);
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        if !lineup.queue.is_empty() {
            // A probe that is still here will not tell how it ended.
            lineup.breaker.call_off_probe(self.latest);
        }
        let queue = lineup.empty();
        // Whatever comes until it has places here again is in the store, and older than what comes after.
        lineup.spilled = true;
        self.bytes -= std::mem::take(&mut lineup.bytes);
        queue
    }

    /// Whether somebody waits for tokens who has not asked yet, or the others have to hear of a penalty.
    pub fn has_beggars(&self) -> bool {
        !(self.beggars.is_empty() && self.looks.is_empty() && self.penalties.is_empty())
    }

    /// Who waits for tokens since this was last asked. Each is answered by [`Schedule::grant`].
    pub fn begs(&mut self) -> Vec<Beg> {
        let beggars = std::mem::take(&mut self.beggars);
        let mut begs: Vec<Beg> = beggars.into_iter().filter_map(|who| self.beg(who)).collect();
        for gate in std::mem::take(&mut self.looks) {
            let flow = self.gate_flow(gate);
            begs.extend(flow.map(|flow| Beg { who: Slot::Gate(gate), flow, wanted: 0, since: None }));
        }
        begs
    }

    fn beg(&mut self, who: Slot) -> Option<Beg> {
        let Meter::Shared(purse) = self.meter(who)? else { return None };
        let flow = purse.flow;
        match who {
            Slot::Subscriber(subscriber) => {
                let wanted = self.lineups[&subscriber].usable().min(flow.burst());
                if wanted == 0 {
                    // What there was to send was given back meanwhile.
                    self.leave_queue(subscriber);
                    return None;
                }
                Some(Beg { who, flow, wanted, since: None })
            }
            Slot::Gate(gate) => {
                let (wanted, since) = (self.wanted_at(gate), self.first_at(gate).unwrap_or(self.latest));
                let line = self.lines.get_mut(&gate)?;
                let was_known = std::mem::replace(&mut line.is_known, wanted > 0);
                if wanted == 0 {
                    self.reconsider(gate);
                }
                (wanted > 0 || was_known).then_some(Beg { who, flow, wanted, since: Some(since) })
            }
        }
    }

    /// How many tokens a line could use at once: one for each that stands in it, and for the first all it could send.
    fn wanted_at(&self, gate: GateNo) -> u32 {
        let Some(line) = self.lines.get(&gate) else { return 0 };
        let Some(((_, first), _)) = line.waiting.first_key_value() else { return 0 };
        let more = match first {
            Waiter::Client => 1,
            Waiter::Subscriber(subscriber) => {
                self.lineups.get(subscriber).map_or(1, |lineup| lineup.usable().max(1))
            }
        };
        let all = u32::try_from(line.waiting.len() - 1).unwrap_or(u32::MAX).saturating_add(more);
        all.min(line.flow.burst())
    }

    fn meter(&mut self, who: Slot) -> Option<&mut Meter> {
        match who {
            Slot::Subscriber(subscriber) => self.lineups.get_mut(&subscriber).map(|lineup| &mut lineup.meter),
            Slot::Gate(gate) => self.lines.get_mut(&gate).map(|line| &mut line.meter),
        }
    }

    /// Whether an answer still concerns it. Who stopped waiting for tokens, because it waits for a place or for nothing by now,
    /// begs anew when it needs some.
    fn waits_for_tokens(&self, who: Slot) -> bool {
        match who {
            Slot::Subscriber(no) => self.lineups.get(&no).is_some_and(|lineup| lineup.lined_up),
            Slot::Gate(no) => self.lines.get(&no).is_some_and(|line| line.state == State::Begging),
        }
    }

    /// Answers who begged: so many may go at once; if that is none, it is worth begging again after `next_in`.
    pub fn grant(&mut self, who: Slot, tokens: u32, next_in: Duration, now: Timestamp) {
        self.latest = self.latest.max(now);
        let Some(Meter::Shared(purse)) = self.meter(who) else { return };
        if !purse.put(tokens, now) || !self.waits_for_tokens(who) {
            return;
        }
        if tokens > 0 {
            if let Slot::Gate(gate) = who
                && let Some(line) = self.lines.get_mut(&gate)
            {
                line.is_known = false;
            }
            return self.readmit(who);
        }
        // Rounded up: who comes too early only begs in vain.
        let wait = next_in + Duration::from_micros(999);
        let again = now.plus(wait.max(Duration::from_millis(1)));
        let again = match who {
            Slot::Gate(gate) => {
                self.wait_at(gate, wait);
                self.call_line_at(gate, again)
            }
            Slot::Subscriber(subscriber) => {
                self.quit_line(subscriber);
                self.lineups.get_mut(&subscriber).map_or(again, |lineup| {
                    lineup.unpack(wait, true);
                    lineup.token_at = again;
                    lineup.call_at(again, now)
                })
            }
        };
        self.wait_for(who, &Wait::Until(again));
    }
}
