//! The desk: the schedule, shared by the loops that fill it and empty it.
//!
//! Every decision is `tidegate_core::schedule`'s; this is its lock and its bell.

mod holding;
mod sharing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::delivery::Job;
use tidegate_core::id::{DeliveryNo, GateNo, SubscriberNo};
use tidegate_core::schedule::breaker::{BreakerView, Outcome, Turned};
use tidegate_core::schedule::{
    Aftermath, Beg, Bounds, Ended, Luggage, Penalty, Schedule, Slot, Streak, Ticket, Turn,
};
use tidegate_core::time::Timestamp;
use tidegate_store::coordination::Grant;
use tidegate_store::{Claim, Committed, Refill, Room};
use tokio::sync::{Notify, oneshot};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::roster::Roster;
use crate::standing::Standing;

/// Whose turn it is, for everyone to ask.
pub struct Desk {
    schedule: Mutex<Schedule>,
    pub(super) followed: Mutex<Followed>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    /// Clients in line at a gate, and how to tell them.
    pub(super) clients: Mutex<BTreeMap<Ticket, oneshot::Sender<Duration>>>,
    /// Rates and gates are kept for several processes together.
    pub(super) is_sharing: bool,
    standing: Arc<Standing>,
    /// What became of the last deliveries can not be written: no more begin.
    is_held_back: AtomicBool,
    /// How often everything here was forgotten. Moves only while the schedule is locked.
    life: AtomicU64,
    pub(super) work: Notify,
    appetite: Notify,
    begging: Notify,
}

/// A turn, and the life it was given in.
#[derive(Debug)]
pub struct Pick {
    /// Whose turn it is.
    pub turn: Turn,
    life: u64,
}

/// Who takes part.
#[derive(Default)]
pub(super) struct Followed {
    /// What gates are called.
    pub(super) gates: BTreeMap<GateNo, String>,
    active: BTreeSet<SubscriberNo>,
    /// Which of the rosters.
    pub(super) order: u64,
    /// Nobody does any more.
    is_closed: bool,
}

/// What the end of an attempt led to.
#[derive(Debug, Default)]
pub struct Report {
    /// Claims to give back.
    pub released: Vec<Claim>,
    /// What its subscriber's breaker did.
    pub turned: Option<Turned>,
    /// Its subscriber began to fail, or has ceased to.
    pub streak: Option<Streak>,
    /// Its subscriber has failed for too long, since then.
    pub given_up: Option<Timestamp>,
}

impl Desk {
    /// An empty desk.
    pub fn new(clock: Clock, standing: Arc<Standing>, bounds: Bounds) -> Self {
        Self {
            schedule: Mutex::new(Schedule::new(bounds)),
            followed: Mutex::default(),
            clock,
            metrics: Arc::default(),
            clients: Mutex::default(),
            is_sharing: false,
            standing,
            is_held_back: AtomicBool::new(false),
            life: AtomicU64::new(0),
            work: Notify::new(),
            appetite: Notify::new(),
            begging: Notify::new(),
        }
    }

    /// The same, for one of several processes: rates are kept for all of them together.
    pub fn sharing_rates(mut self) -> Self {
        self.is_sharing = true;
        self.lock().share_rates();
        self
    }

    /// Lets exactly the roster's active subscribers take part, unless a newer one is followed already. Gives back what
    /// waited for the others.
    pub fn follow(&self, roster: &Roster) -> Vec<Claim> {
        let now = self.clock.now();
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if roster.order < followed.order {
            return Vec::new();
        }
        let mut schedule = self.lock();
        // Clients pass gates also where nothing is sent.
        let stranded = schedule.set_gates(&roster.flows(), now);
        self.turn_away(&stranded);
        followed.gates = roster.gate_names();
        if followed.is_closed {
            return Vec::new();
        }
        let last = roster.endpoints().map(|endpoint| endpoint.rule.no).max().unwrap_or(0);
        if followed.order == 0 {
            // A former process may have sent to them a moment ago.
            schedule.know(last);
        }
        let (mut active, mut released) = (BTreeSet::new(), Vec::new());
        for endpoint in roster.endpoints().filter(|endpoint| endpoint.active) {
            let subscriber = endpoint.rule.no;
            released.extend(schedule.admit(subscriber, endpoint.terms, now).iter().map(claim));
            if !followed.active.contains(&subscriber) {
                schedule.recall(subscriber, endpoint.failing_since);
                // Whatever it has in the store, its first refill will find.
                schedule.expect(subscriber, now);
            }
            active.insert(subscriber);
        }
        let gone = followed.active.difference(&active);
        released.extend(gone.flat_map(|subscriber| schedule.dismiss(*subscriber)).map(|job| claim(&job)));
        schedule.know(last);
        followed.active = active;
        followed.order = roster.order;
        drop(schedule);
        self.work.notify_one();
        self.appetite.notify_one();
        released
    }

    /// The next delivery to send.
    pub fn pick(&self) -> Option<Pick> {
        if !self.may_begin() {
            return None;
        }
        let mut schedule = self.lock();
        let turn = schedule.pick(self.clock.now());
        let pick = self.in_this_life(turn);
        self.ring_if_hungry(schedule);
        pick
    }

    fn in_this_life(&self, turn: Option<Turn>) -> Option<Pick> {
        turn.map(|turn| Pick { turn, life: self.life.load(Ordering::Relaxed) })
    }

    /// Whether a turn may be used: waits while the lease has run out, and says no to one that was given in a former
    /// life or can not be used before the process ends.
    pub async fn may_use(&self, pick: &Pick) -> bool {
        (self.standing.may_act() || self.standing.acts().await) && self.is_of_this_life(pick)
    }

    /// Whether it may be used at this instant.
    pub fn may_use_now(&self, pick: &Pick) -> bool {
        self.standing.may_act() && self.is_of_this_life(pick)
    }

    fn is_of_this_life(&self, pick: &Pick) -> bool {
        self.life.load(Ordering::Relaxed) == pick.life
    }

    /// An attempt has ended; the next delivery to send, if there is one.
    pub fn finish_and_pick(&self, ended: Ended) -> (Option<Pick>, Report) {
        if !self.may_begin() {
            return (None, self.finish(ended));
        }
        let now = self.clock.now();
        let mut schedule = self.lock();
        let aftermath = schedule.finish(ended, now);
        let throttled = schedule.throttled_until();
        let turn = schedule.pick(now);
        let pick = self.in_this_life(turn);
        // The loop sleeps until the time it knew; a rate met here may let somebody go on earlier than that. And a
        // receiver that is back may take more at once than this worker.
        if schedule.throttled_until() != throttled || schedule.has_turns() {
            self.work.notify_one();
        }
        self.ring_if_hungry(schedule);
        (pick, report(&aftermath))
    }

    /// A fold was put together; the next delivery to send, which may be this one. Gives it back if nobody here wants it.
    pub fn prepared(&self, pick: Pick, luggage: Luggage) -> (Option<Pick>, Vec<Claim>) {
        let now = self.clock.now();
        let mut schedule = self.lock();
        // What was claimed in a former life is another's by now.
        let is_ours = self.life.load(Ordering::Relaxed) == pick.life;
        let back: Vec<Claim> = match is_ours {
            true => schedule.prepared(pick.turn, luggage, now).err().iter().map(claim).collect(),
            false => {
                schedule.unprepared(&pick.turn);
                let Turn { ref job, probe, .. } = pick.turn;
                let (subscriber, was_probe) = (job.subscriber, probe.is_some());
                let ended = Ended { subscriber, was_probe, outcome: Outcome::Unsent };
                let given_back = schedule.finish(ended, now).given_back;
                given_back.iter().chain([job]).map(claim).collect()
            }
        };
        let turn = if self.may_begin() { schedule.pick(now) } else { None };
        let next = self.in_this_life(turn);
        if schedule.has_turns() || schedule.throttled_until().is_some() {
            self.work.notify_one();
        }
        self.ring_if_hungry(schedule);
        (next, back)
    }

    /// A fold could not be put together.
    pub fn unprepared(&self, turn: &Turn) {
        self.lock().unprepared(turn);
        self.work.notify_one();
    }

    /// What waits takes no memory beyond its own.
    pub fn unpack(&self) {
        self.lock().unpack();
    }

    /// An attempt has ended.
    pub fn finish(&self, ended: Ended) -> Report {
        let now = self.clock.now();
        let mut schedule = self.lock();
        let aftermath = schedule.finish(ended, now);
        self.ring_if_hungry(schedule);
        report(&aftermath)
    }

    /// Somebody wants this delivery, which is due in the store, sent now.
    pub fn ask(&self, subscriber: SubscriberNo, delivery: DeliveryNo) {
        let now = self.clock.now();
        {
            let mut schedule = self.lock();
            schedule.ask(subscriber, delivery);
            // If it can not be brought in alone, it comes with the others.
            schedule.expect(subscriber, now);
        }
        self.appetite.notify_one();
    }

    /// How a subscriber's breaker stands; `None` when it does not take part.
    pub fn breaker(&self, subscriber: SubscriberNo) -> Option<BreakerView> {
        self.lock().breaker(subscriber)
    }

    /// Something has arrived for a subscriber, though not from here: its failures are counted anew.
    pub fn forgive(&self, subscriber: SubscriberNo) {
        self.lock().recall(subscriber, None);
    }

    /// Since when a subscriber has done nothing but fail.
    pub fn failing_since(&self, subscriber: SubscriberNo) -> Option<Timestamp> {
        self.lock().failing_since(subscriber)
    }

    /// How many breakers are not closed.
    pub fn breakers_open(&self) -> usize {
        self.lock().breakers_open()
    }

    /// Sends to a subscriber as if it had never failed.
    pub fn close_breaker(&self, subscriber: SubscriberNo) {
        let mut schedule = self.lock();
        schedule.close_breaker(subscriber);
        self.ring_if_hungry(schedule);
        self.work.notify_one();
    }

    pub(super) fn ring_if_hungry(&self, mut schedule: MutexGuard<'_, Schedule>) {
        let (is_hungry, has_beggars) = (schedule.take_appetite(), schedule.has_beggars());
        let passed = schedule.take_passed();
        drop(schedule);
        if !passed.is_empty() {
            self.tell_passed(passed);
        }
        if is_hungry {
            self.appetite.notify_one();
        }
        if has_beggars {
            self.begging.notify_one();
        }
    }

    /// Who wants tokens of a shared rate, and which gates were penalised; waits until there is something.
    pub async fn begging(&self) -> (Vec<Beg>, Vec<Penalty>) {
        loop {
            let (begs, penalties) = {
                let mut schedule = self.lock();
                (schedule.begs(), schedule.take_penalties())
            };
            if !(begs.is_empty() && penalties.is_empty()) {
                return (begs, penalties);
            }
            self.begging.notified().await;
        }
    }

    /// Answers who begged at that time.
    pub fn grant(&self, who: Slot, mut grant: Grant, asked: Timestamp) {
        self.hear(who, &grant, asked);
        let now = self.clock.now();
        let mut schedule = self.lock();
        if matches!(who, Slot::Gate(gate) if schedule.is_outdated(gate, asked)) {
            grant.next_in = Duration::ZERO;
        }
        schedule.grant(who, grant.granted, grant.next_in, now);
        drop(schedule);
        self.work.notify_one();
    }

    /// How a bucket stood, after that time, that all processes share.
    pub fn hear(&self, who: Slot, grant: &Grant, asked: Timestamp) {
        let (Slot::Gate(gate), Some(standing)) = (who, grant.standing) else { return };
        let now = self.clock.now();
        let mut schedule = self.lock();
        if schedule.is_outdated(gate, asked) {
            return;
        }
        schedule.hear(gate, standing.penalized_for, grant.first, now);
        if standing.penalized_for.is_zero() {
            schedule.acquit(gate, asked, now);
            self.ring_if_hungry(schedule);
            self.work.notify_one();
        }
    }

    /// What memory can take of new work of these subscribers.
    pub fn room(&self, subscribers: &BTreeSet<SubscriberNo>) -> Room {
        let schedule = self.lock();
        let mut room = Room::new(schedule.room_bytes());
        for subscriber in subscribers {
            room.set(*subscriber, schedule.room(*subscriber));
            room.set_held(*subscriber, schedule.held_bytes(*subscriber));
        }
        room
    }

    /// Who wants more from the store now, and which deliveries people want sent now.
    pub fn wishes(&self, now: Timestamp) -> (Vec<Refill>, Vec<(SubscriberNo, DeliveryNo)>) {
        if !self.standing.may_act() {
            return Default::default();
        }
        let mut schedule = self.lock();
        let (wishes, asked) = (schedule.wishes(now), schedule.take_asked());
        drop(schedule);
        (wishes.into_iter().map(|(subscriber, jobs)| Refill { subscriber, jobs }).collect(), asked)
    }

    /// When the next work in the store is due. Never, while nothing may be taken from there.
    pub fn store_due_at(&self) -> Option<Timestamp> {
        self.standing.may_act().then(|| self.lock().store_due_at()).flatten()
    }

    /// A subscriber has work in the store that is due at `at`.
    pub fn expect(&self, subscriber: SubscriberNo, at: Timestamp) {
        self.lock().expect(subscriber, at);
        self.appetite.notify_one();
    }

    /// Whether any of these has more than `calm` deliveries ahead of a new one.
    pub fn is_busy(&self, subscribers: &BTreeSet<SubscriberNo>, calm: usize) -> bool {
        let schedule = self.lock();
        subscribers.iter().any(|subscriber| schedule.is_busy(*subscriber, calm))
    }

    /// Takes what a commit handed over. Gives back what nobody here wants any more.
    pub fn take(&self, committed: &mut Committed) -> Vec<Claim> {
        let now = self.clock.now();
        let mut schedule = self.lock();
        for subscriber in &committed.spilled {
            schedule.spill(*subscriber);
        }
        for (subscriber, at) in &committed.postponed {
            schedule.expect(*subscriber, *at);
        }
        for refilled in &committed.refilled {
            schedule.refilled(refilled.subscriber, refilled.drained, refilled.next_due);
        }
        let jobs = std::mem::take(&mut committed.jobs);
        let any = !jobs.is_empty();
        let unwanted =
            jobs.into_iter().filter_map(|job| schedule.push(job, now).err()).map(|job| claim(&job)).collect();
        drop(schedule);
        if any {
            self.work.notify_one();
        }
        unwanted
    }

    /// Lets nobody take part any more, for a graceful stop. Gives back everything that waits in memory; what commits
    /// still hand over is given back as it comes.
    pub fn close(&self) -> Vec<Claim> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        // Whoever waits at a gate hears that nobody answers any more.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.lock().drain().iter().map(claim).collect()
    }

    /// Forgets everything that waits in memory, for it is another's by now; whatever is under way is void. Who takes part
    /// is found out anew by [`Desk::follow`].
    pub fn forget(&self) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut schedule = self.lock();
        self.life.fetch_add(1, Ordering::Relaxed);
        schedule.drain();
        schedule.stand_by();
        followed.active.clear();
        followed.order = 0;
    }

    /// The lease is back: everybody looks again.
    pub fn ring(&self) {
        self.work.notify_one();
        self.appetite.notify_one();
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    /// Returns when there may be something to pick that was not there before.
    pub async fn work(&self) {
        // Without a lease nobody goes on, whatever the time is; when it is back everybody is told.
        let throttled = self.may_begin().then(|| self.lock().throttled_until()).flatten();
        tokio::select! {
            biased;
            () = self.work.notified() => {}
            () = self.clock.doze_until_some(throttled) => {}
        }
    }

    /// Returns when somebody may want more from the store.
    pub async fn appetite(&self) {
        self.appetite.notified().await;
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(aftermath: &Aftermath) -> Report {
    let released = aftermath.given_back.iter().map(claim).collect();
    let Aftermath { turned, streak, given_up, .. } = *aftermath;
    Report { released, turned, streak, given_up }
}

fn claim(job: &Job) -> Claim {
    Claim::of(job)
}

#[cfg(test)]
mod tests;
