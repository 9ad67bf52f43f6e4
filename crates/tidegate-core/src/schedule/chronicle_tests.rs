//! Goal: nothing that the schedule was given is lost or forgotten, whatever happens around it. Method: random histories of
//! everything that can be said to it, with folds, gates, rates, breakers, replicas and former lives, for one process with
//! buckets of its own and for one of several. After each step the books are compared with what the world knows, and somebody
//! looks after whatever waits; in the end, when nobody interferes any more, everything is sent.

mod audit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::tests::job;
use super::*;
use crate::gate::{Reservoir, TOKEN};

const SUBSCRIBERS: i64 = 2;
const RATES: [&str; 4] = ["20/s", "3/s", "40/m", "20/h"];

/// A turn in somebody's hands.
struct Work {
    turn: Turn,
    life: u32,
}

/// What surrounds a schedule: a store, receivers, clients and, perhaps, other processes.
struct World {
    schedule: Schedule,
    is_shared: bool,
    rare: u64,
    now: i64,
    born: i64,
    done: usize,
    /// What is in the store, and when it is due.
    store: BTreeMap<SubscriberNo, BTreeMap<DeliveryNo, i64>>,
    sending: Vec<Work>,
    preparing: Vec<Work>,
    life: u32,
    active: BTreeMap<SubscriberNo, Terms>,
    gates: BTreeMap<GateNo, Flow>,
    clients: Vec<(GateNo, Ticket)>,
    begs: Vec<Beg>,
    reservoirs: BTreeMap<Slot, Reservoir>,
    /// When somebody passed, since the gate is as it is.
    passed: BTreeMap<GateNo, Vec<i64>>,
    closed_until: BTreeMap<GateNo, i64>,
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

/// Every third is no fold.
fn made(subscriber: SubscriberNo, delivery: DeliveryNo) -> Job {
    Job { fold: (delivery % 3 != 0).then_some(delivery), ..job(subscriber, delivery) }
}

fn flow(chance: u64) -> Flow {
    let rate = Rate::parse(RATES[(chance % 4) as usize]).unwrap();
    Flow::new(rate, 1 + (chance / 4 % 3) as u32)
}

fn terms(chance: u64) -> Terms {
    let probe = Duration::from_secs(20);
    Terms {
        concurrency: 1 + (chance % 3) as u32,
        rate: [None, None, Rate::parse("2/s"), Rate::parse("30/m")][(chance / 3 % 4) as usize],
        gate: [None, Some(1), Some(1), Some(2)][(chance / 12 % 4) as usize],
        breaker: (chance / 48)
            .is_multiple_of(2)
            .then_some(BreakerTerms { failures: 1 + (chance % 2) as u32, probe }),
        disable_after: None,
    }
}

impl World {
    fn new(is_shared: bool, chance: u64, rare: u64) -> Self {
        let bounds =
            Bounds { queue_jobs: 4, refill_below: 2, refill_jobs: 4, in_flight: 4, ..Bounds::default() };
        let mut schedule = Schedule::new(bounds);
        if is_shared {
            schedule.share_rates();
        }
        let mut world = Self {
            schedule,
            is_shared,
            rare,
            now: 0,
            born: 0,
            done: 0,
            store: BTreeMap::new(),
            sending: Vec::new(),
            preparing: Vec::new(),
            life: 0,
            active: BTreeMap::new(),
            gates: BTreeMap::new(),
            clients: Vec::new(),
            begs: Vec::new(),
            reservoirs: BTreeMap::new(),
            passed: BTreeMap::new(),
            closed_until: BTreeMap::new(),
        };
        (1..=SUBSCRIBERS).for_each(|no| world.follow(no, terms(chance >> no), chance));
        world
    }

    /// Of what happens seldom, each history knows some only, and these often.
    fn step(&mut self, what: u8, who: i64, chance: u64) {
        let is_rare = (48..76).contains(&what);
        let what = if is_rare && self.rare >> (what - 48) & 1 == 0 { 76 + (what - 48) % 20 } else { what };
        let subscriber = 1 + who % SUBSCRIBERS;
        match what {
            0..=13 => self.accept(subscriber),
            14..=19 => _ = self.refill(),
            20..=33 => (0..=chance % 3).for_each(|_| self.pick()),
            34..=39 => self.finish(chance),
            40..=47 => self.prepare(chance),
            48..=50 => self.give_up_preparing(chance),
            51..=52 => self.penalize(1 + who % 2, (chance % 4_000) as i64),
            53..=55 => self.follow(subscriber, terms(chance), chance),
            56 => self.pause(subscriber),
            57..=59 => self.reshape(who, chance),
            60..=61 => self.ask(subscriber, chance),
            62..=68 => self.beg(chance),
            69..=70 => self.come_and_go(1 + who % 2, chance),
            71 => self.schedule.unpack(),
            72 => self.schedule.close_breaker(subscriber),
            73 => self.forget(),
            74..=75 => self.squeeze(subscriber, chance),
            76..=84 => self.look_again(),
            85..=95 => self.finish(chance),
            _ => self.now += (chance % 200) as i64,
        }
    }

    /// It is the time at which somebody looks again.
    fn look_again(&mut self) {
        let due = [self.schedule.throttled_until(), self.schedule.store_due_at()];
        let due = due.into_iter().flatten().map(Timestamp::as_ms).min();
        self.now = self.now.max(due.unwrap_or_default());
        self.refill();
    }

    fn accept(&mut self, subscriber: SubscriberNo) {
        self.born += 1;
        if self.schedule.room(subscriber) > 0 {
            self.push(subscriber, self.born);
        } else {
            self.keep(subscriber, self.born, self.now);
            self.schedule.spill(subscriber);
        }
    }

    fn push(&mut self, subscriber: SubscriberNo, delivery: DeliveryNo) {
        if let Err(job) = self.schedule.push(made(subscriber, delivery), at(self.now)) {
            self.give_back([job]);
        }
    }

    fn keep(&mut self, subscriber: SubscriberNo, delivery: DeliveryNo, due_at: i64) {
        assert!(self.store.entry(subscriber).or_default().insert(delivery, due_at).is_none());
    }

    /// Claims that are released are due at once.
    fn give_back(&mut self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            self.keep(job.subscriber, job.delivery, self.now);
            self.schedule.expect(job.subscriber, at(self.now));
        }
    }

    /// Whether somebody wanted something.
    fn refill(&mut self) -> bool {
        let (wishes, asked) = (self.schedule.wishes(at(self.now)), self.schedule.take_asked());
        for (subscriber, delivery) in asked {
            let due = self.store.get_mut(&subscriber).and_then(|kept| kept.remove(&delivery));
            due.into_iter().for_each(|_| self.push(subscriber, delivery));
        }
        let is_wanted = !wishes.is_empty();
        for (subscriber, wanted) in wishes {
            let kept = self.store.entry(subscriber).or_default();
            let due = kept.iter().filter(|(_, due_at)| **due_at <= self.now).map(|(delivery, _)| *delivery);
            let taken: Vec<DeliveryNo> = due.take(wanted).collect();
            kept.retain(|delivery, _| !taken.contains(delivery));
            let is_drained = kept.values().all(|due_at| *due_at > self.now);
            let next_due = kept.values().min().map(|due_at| at(*due_at));
            self.schedule.refilled(subscriber, is_drained, next_due);
            taken.into_iter().for_each(|delivery| self.push(subscriber, delivery));
        }
        is_wanted
    }

    fn pick(&mut self) {
        let turn = self.schedule.pick(at(self.now));
        self.note_passed();
        let Some(turn) = turn else { return };
        let lineup = &self.schedule.lineups[&turn.job.subscriber];
        assert!(lineup.takes_part());
        assert!(turn.is_urgent || turn.probe.is_some() || lineup.breaker.is_closed(), "it is left alone");
        assert!(turn.luggage.is_none() || turn.job.fold.is_some());
        let must_prepare = turn.job.fold.is_some() && turn.luggage.is_none() && lineup.terms.gate.is_some();
        assert_eq!(turn.is_preparing, must_prepare);
        if !turn.is_preparing {
            assert!(lineup.in_flight <= lineup.places && self.sending.len() < self.schedule.bounds.in_flight);
        }
        let list = if turn.is_preparing { &mut self.preparing } else { &mut self.sending };
        list.push(Work { turn, life: self.life });
    }

    fn note_passed(&mut self) {
        for passed in self.schedule.take_passed() {
            assert!(
                self.closed_until.get(&passed.gate).is_none_or(|until| *until <= self.now),
                "it is closed"
            );
            self.passed.entry(passed.gate).or_default().push(self.now);
            if let Some(ticket) = passed.ticket {
                self.clients.retain(|(_, other)| *other != ticket);
            }
        }
    }

    fn finish(&mut self, chance: u64) {
        if self.sending.is_empty() {
            return;
        }
        let index = chance as usize / 4 % self.sending.len();
        let work = self.sending.remove(index);
        let failed = Outcome::Failed { chance };
        self.end(&work, [Outcome::Delivered, failed, failed, Outcome::Unsent][(chance % 4) as usize]);
    }

    /// A turn is over.
    fn end(&mut self, work: &Work, outcome: Outcome) {
        let job = &work.turn.job;
        let ended = Ended { subscriber: job.subscriber, was_probe: work.turn.probe.is_some(), outcome };
        let aftermath = self.schedule.finish(ended, at(self.now));
        self.give_back(aftermath.given_back);
        if work.life != self.life {
            return;
        }
        if outcome == Outcome::Delivered {
            self.done += 1;
            return;
        }
        let due_at = self.now + if outcome == Outcome::Unsent { 0 } else { 300 };
        self.keep(job.subscriber, job.delivery, due_at);
        self.schedule.expect(job.subscriber, at(due_at));
    }

    fn prepare(&mut self, chance: u64) {
        if self.preparing.is_empty() {
            return;
        }
        let work = self.preparing.remove(chance as usize % self.preparing.len());
        if work.life != self.life {
            self.schedule.unprepared(&work.turn);
            return self.end(&work, Outcome::Unsent);
        }
        if let Err(job) = self.schedule.prepared(work.turn, Arc::new(()), at(self.now)) {
            self.give_back([job]);
        }
    }

    fn give_up_preparing(&mut self, chance: u64) {
        if !self.preparing.is_empty() {
            let work = self.preparing.remove(chance as usize % self.preparing.len());
            self.schedule.unprepared(&work.turn);
            self.end(&work, Outcome::Unsent);
        }
    }

    fn penalize(&mut self, gate: GateNo, lasts: i64) {
        if self.gates.contains_key(&gate) && lasts > 0 {
            self.schedule.penalize(gate, at(self.now + lasts), at(self.now));
            let until = self.closed_until.entry(gate).or_default();
            *until = (*until).max(self.now + lasts);
            self.schedule.take_penalties();
        }
    }

    /// A subscriber comes, or allows something else. Gates that nobody names any more may go at the same time.
    fn follow(&mut self, subscriber: SubscriberNo, terms: Terms, chance: u64) {
        let is_new = self.active.insert(subscriber, terms).is_none();
        let named: BTreeSet<GateNo> = self.active.values().filter_map(|terms| terms.gate).collect();
        if chance.is_multiple_of(5) {
            self.gates.retain(|gate, _| named.contains(gate));
        }
        for gate in named {
            let fresh = flow(chance >> gate);
            let is_other = self.gates.get(&gate).is_none_or(|old| chance.is_multiple_of(7) && *old != fresh);
            if is_other {
                self.gates.insert(gate, fresh);
                self.passed.remove(&gate);
                self.reservoirs.remove(&Slot::Gate(gate));
            }
        }
        self.passed.retain(|gate, _| self.gates.contains_key(gate));
        self.closed_until.retain(|gate, _| self.gates.contains_key(gate));
        let stranded = self.schedule.set_gates(&self.gates, at(self.now));
        self.clients.retain(|(_, ticket)| !stranded.contains(ticket));
        let given_back = self.schedule.admit(subscriber, terms, at(self.now));
        self.give_back(given_back);
        if is_new {
            self.schedule.expect(subscriber, at(self.now));
        }
    }

    /// It allows more or less at once, and nothing else changes.
    fn squeeze(&mut self, subscriber: SubscriberNo, chance: u64) {
        if let Some(terms) = self.active.get(&subscriber).copied() {
            self.follow(subscriber, Terms { concurrency: 1 + (chance % 3) as u32, ..terms }, 1);
        }
    }

    fn pause(&mut self, subscriber: SubscriberNo) {
        if self.active.remove(&subscriber).is_some() {
            let jobs = self.schedule.dismiss(subscriber);
            self.give_back(jobs);
        }
    }

    /// Others come and go.
    fn reshape(&mut self, who: i64, chance: u64) {
        let replicas = 1 + (chance % 3) as u32;
        let jobs = self.schedule.propose(Share { rank: who.unsigned_abs() as u32 % replicas, replicas });
        self.give_back(jobs);
        if (chance / 3).is_multiple_of(2) {
            let jobs = self.schedule.agree(&BTreeSet::new());
            self.give_back(jobs);
        }
    }

    /// People want one of those in the store sent now.
    fn ask(&mut self, subscriber: SubscriberNo, chance: u64) {
        let Some(kept) = self.store.get_mut(&subscriber).filter(|kept| !kept.is_empty()) else { return };
        let delivery = *kept.keys().nth(chance as usize % kept.len()).unwrap();
        kept.insert(delivery, self.now);
        self.schedule.ask(subscriber, delivery);
        self.schedule.expect(subscriber, at(self.now));
    }

    /// Somebody asks for tokens, or hears the answer.
    fn beg(&mut self, chance: u64) {
        self.begs.extend(self.schedule.begs());
        if self.begs.is_empty() || chance.is_multiple_of(3) {
            return;
        }
        let beg = self.begs.remove(chance as usize / 3 % self.begs.len());
        if beg.wanted == 0 {
            return;
        }
        let now_us = self.now * 1_000;
        let reservoir = self.reservoirs.entry(beg.who).or_insert_with(|| Reservoir::full(beg.flow, now_us));
        let tokens = reservoir.take(beg.flow, now_us, beg.wanted);
        let next_in = reservoir.standing(beg.flow, now_us).next_in;
        self.schedule.grant(beg.who, tokens, next_in, at(self.now));
    }

    fn come_and_go(&mut self, gate: GateNo, chance: u64) {
        if chance.is_multiple_of(2) {
            let ticket = self.schedule.queue_client(gate, at(self.now));
            self.clients.extend(ticket.map(|ticket| (gate, ticket)));
            self.schedule.serve_clients(gate, at(self.now));
            self.note_passed();
        } else if let Some((gate, ticket)) = self.clients.pop() {
            assert!(self.schedule.leave_line(gate, ticket));
        }
    }

    /// The lease ran out: whatever was in memory or under way is another's.
    fn forget(&mut self) {
        let jobs = self.schedule.drain();
        let flying: Vec<(SubscriberNo, DeliveryNo)> = (self.sending.iter().chain(&self.preparing))
            .filter(|work| work.life == self.life)
            .map(|work| (work.turn.job.subscriber, work.turn.job.delivery))
            .collect();
        self.life += 1;
        self.give_back(jobs);
        flying.into_iter().for_each(|(subscriber, delivery)| self.keep(subscriber, delivery, self.now));
        self.schedule.stand_by();
        let active = std::mem::take(&mut self.active);
        active.into_iter().for_each(|(subscriber, terms)| self.follow(subscriber, terms, 1));
    }
}

impl World {
    /// Nobody interferes any more: everything goes, as slowly as folds are put together.
    fn settle(&mut self, slowness: i64) {
        let jobs = self.schedule.propose(Share::default());
        self.give_back(jobs);
        let jobs = self.schedule.agree(&BTreeSet::new());
        self.give_back(jobs);
        for subscriber in 1..=SUBSCRIBERS {
            if !self.active.contains_key(&subscriber) {
                self.follow(subscriber, terms(36), 1);
            }
        }
        for _ in 0..100 * (self.born + 10) {
            if self.done as i64 == self.born && self.clients.is_empty() && self.schedule.in_flight() == 0 {
                return;
            }
            let work = |world: &Self| world.sending.len() + world.preparing.len() + world.clients.len();
            let before = work(self);
            self.pick();
            let is_moving = self.refill() || work(self) != before;
            self.audit();
            if is_moving {
                continue;
            }
            let due = [self.schedule.throttled_until(), self.schedule.store_due_at()];
            let due = due.into_iter().flatten().map(Timestamp::as_ms).min();
            if !(self.sending.is_empty() && self.preparing.is_empty()) {
                self.now += slowness;
                (0..self.sending.len()).for_each(|_| self.finish(0));
                (0..self.preparing.len()).for_each(|_| self.prepare(0));
            } else if !self.begs.is_empty() || self.schedule.has_beggars() {
                self.beg(1);
            } else {
                let due = due.expect("somebody looks again");
                self.now = self.now.max(due);
            }
        }
        panic!("{} of {} were sent, {} clients wait", self.done, self.born, self.clients.len());
    }
}

fn histories() -> impl Strategy<Value = Vec<(u8, i64, u64)>> {
    prop::collection::vec((0_u8..100, 0_i64..8, any::<u64>()), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_forgotten(steps in histories(), is_shared: bool, chance: u64, rare: (u64, u64), slowness in 0_i64..3_000) {
        let mut world = World::new(is_shared, chance, rare.0 & rare.1);
        for (what, who, chance) in steps {
            world.step(what, who, chance);
            world.audit();
        }
        world.settle(slowness);
    }
}
