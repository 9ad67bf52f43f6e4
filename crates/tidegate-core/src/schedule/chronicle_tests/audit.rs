//! What must be so after every step of a history: the books say what the world knows, and whatever waits is looked after.

use super::super::gates::{State, Waiter};
use super::*;

impl World {
    pub(super) fn audit(&self) {
        let schedule = &self.schedule;
        let flying = self.sending.iter().chain(&self.preparing);
        let ours = flying.filter(|work| work.life == self.life).count();
        let kept: usize = self.store.values().map(BTreeMap::len).sum();
        assert_eq!(kept + ours + schedule.queued() + self.done, self.born as usize, "nothing is lost");
        assert_eq!(schedule.in_flight(), self.sending.len() + self.preparing.len());
        assert_eq!((schedule.in_flight, schedule.preparing), (self.sending.len(), self.preparing.len()));
        let bytes: usize = schedule.lineups.values().map(|lineup| lineup.bytes).sum();
        assert_eq!((schedule.bytes, bytes), (2 * schedule.queued(), 2 * schedule.queued()));
        schedule.lineups.iter().for_each(|(subscriber, lineup)| self.audit_lineup(*subscriber, lineup));
        schedule.lines.iter().for_each(|(gate, line)| self.audit_line(*gate, line));
        for gate in self.passed.keys() {
            self.audit_rate(*gate);
        }
    }

    fn is_asking(&self, who: Slot) -> bool {
        self.schedule.beggars.contains(&who) || self.begs.iter().any(|beg| beg.who == who)
    }

    fn turns(&self, who: Slot) -> usize {
        self.schedule.turns.iter().filter(|other| **other == who).count()
    }

    fn is_throttled(&self, who: Slot) -> bool {
        self.schedule.throttled.iter().any(|(_, other)| *other == who)
    }

    fn audit_lineup(&self, subscriber: SubscriberNo, lineup: &Lineup) {
        let who = Slot::Subscriber(subscriber);
        let of = |work: &&Work| work.turn.job.subscriber == subscriber;
        let (sending, preparing) = (self.sending.iter().filter(of), self.preparing.iter().filter(of));
        let counted = (sending.count(), preparing.clone().count());
        assert_eq!((lineup.in_flight as usize, lineup.preparing as usize), counted);
        assert_eq!(lineup.open, self.active.contains_key(&subscriber));
        assert!(lineup.open || !lineup.is_idle(), "nobody needs it");
        assert!(self.turns(who) <= 1);
        let stands = lineup.seat.is_some_and(|seat| {
            let line = lineup.terms.gate.and_then(|gate| self.schedule.lines.get(&gate));
            line.is_some_and(|line| line.waiting.contains_key(&(seat, Waiter::Subscriber(subscriber))))
        });
        assert_eq!(lineup.seat.is_some(), stands, "a seat is in a line");
        let is_found = stands || self.turns(who) == 1 || self.is_throttled(who);
        if lineup.lined_up {
            assert!(is_found || self.is_asking(who), "it waits for nothing");
        } else {
            assert!(!is_found, "it is not known to wait");
            assert!(!(lineup.open && lineup.may_send()), "nobody looks after what it has");
        }
        let is_due = self.store.get(&subscriber).is_some_and(|kept| !kept.is_empty());
        let is_known = self.schedule.hungry.contains(&subscriber) || lineup.later.is_some();
        let has_probe = |work: &Work| work.turn.probe.is_some();
        let is_probing = !lineup.queue.is_empty()
            || self.sending.iter().filter(of).any(has_probe)
            || preparing.into_iter().any(has_probe);
        let is_half_open = !lineup.breaker.is_closed() && lineup.breaker.probe_at().is_none();
        assert!(!lineup.open || !is_half_open || is_probing, "nobody finds out");
        assert!(lineup.breaker.probe_at().is_none() || lineup.queue.is_empty(), "they would wait for ever");
        let is_parked = lineup.breaker.probe_at().is_none_or(|probe_at| probe_at <= at(self.now));
        let is_looked_for = is_parked || lineup.later.is_some();
        assert!(!lineup.open || !is_due || is_looked_for, "nobody asks the store for a probe");
        let is_expected = is_known || lineup.places == 0 || !lineup.breaker.is_closed();
        assert!(!lineup.open || !is_due || is_expected, "nobody asks the store");
    }

    fn audit_line(&self, gate: GateNo, line: &Line) {
        let who = Slot::Gate(gate);
        assert_eq!(self.turns(who), usize::from(line.state == State::InTurn), "{:?}", line.state);
        match line.state {
            State::Idle => assert!(line.waiting.is_empty(), "nobody calls them"),
            State::InTurn => {}
            State::Later => assert!(self.is_throttled(who)),
            State::Begging => assert!(self.is_throttled(who) || self.is_asking(who)),
            State::Held(subscriber) => {
                assert!(self.schedule.lineups[&subscriber].seat.is_some());
                assert!(self.is_asking(Slot::Subscriber(subscriber)));
            }
        }
        for (seat, waiter) in line.waiting.keys() {
            if let Waiter::Subscriber(subscriber) = waiter {
                let lineup = &self.schedule.lineups[subscriber];
                assert_eq!(
                    (lineup.terms.gate, lineup.seat),
                    (Some(gate), Some(*seat)),
                    "nobody else stands there"
                );
            }
        }
        let clients = self.clients.iter().filter(|(other, _)| *other == gate).count();
        assert_eq!(line.clients, clients);
    }

    /// A bucket of its own keeps its rate in every stretch of time.
    fn audit_rate(&self, gate: GateNo) {
        let (passed, flow) = (&self.passed[&gate], self.gates[&gate]);
        let Some(last) = passed.last().filter(|_| !self.is_shared) else { return };
        for (count, from) in passed.iter().rev().enumerate() {
            let most = flow.depth + flow.drops * 8 * (last - from) * 1_000;
            assert!((count as i64 + 1) * TOKEN <= most, "{} passed since {from}", count + 1);
        }
    }
}
