//! Goal: whoever comes, leaves, takes long or is silent, all together keep every limit, and a subscriber whose attempts take long
//! keeps nobody but itself from being served. Method: random histories of several schedules that know of each other only by
//! beats, some of an older version; then the rules one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::division::{Parting, flock};
use super::tests::job;
use super::*;
use crate::id::Incarnation;
use crate::limits::BUSY_SUBSCRIBERS_MAX;

const NOW: Timestamp = Timestamp::from_ms(0);
const SUBSCRIBERS: [SubscriberNo; 3] = [1, 2, 3];
/// Nobody's attempts of this one end while the others have to be served.
const STUCK: SubscriberNo = 1;

fn limit(subscriber: SubscriberNo) -> u32 {
    [2, 1, 7][usize::try_from(subscriber).unwrap() - 1]
}

fn terms(concurrency: u32) -> Terms {
    Terms { concurrency, rate: None, breaker: None, disable_after: None, gate: None }
}

/// A process as the world sees it.
struct Process {
    schedule: Schedule,
    under_way: BTreeMap<SubscriberNo, u32>,
    /// What was under way in a former life: others may have sent it again.
    void: BTreeMap<SubscriberNo, u32>,
    flock: i64,
    /// As its last beat said.
    obeys: i64,
    stance: Option<Stance>,
    /// Its last beat is long ago; it does nothing before the next one.
    is_silent: bool,
    is_leaving: bool,
    /// It has more to name than a beat carries, whenever it has to name anybody.
    names_nobody: bool,
}

impl Process {
    fn new(is_old: bool, names_nobody: bool) -> Self {
        let mut process = Self {
            schedule: Schedule::new(Bounds::default()),
            under_way: BTreeMap::new(),
            void: BTreeMap::new(),
            flock: 0,
            obeys: 0,
            stance: (!is_old).then(Stance::default),
            is_silent: false,
            is_leaving: false,
            names_nobody,
        };
        process.begin();
        process
    }

    /// A life begins.
    fn begin(&mut self) {
        self.schedule.stand_by();
        if !self.is_leaving {
            for subscriber in SUBSCRIBERS {
                self.schedule.admit(subscriber, terms(limit(subscriber)), NOW);
            }
        }
    }

    /// It was declared dead, and begins a new life with its old attempts under way.
    fn begin_anew(&mut self) {
        self.schedule.drain();
        self.begin();
        for (subscriber, count) in std::mem::take(&mut self.under_way) {
            *self.void.entry(subscriber).or_default() += count;
        }
        (self.obeys, self.is_silent) = (0, false);
        self.stance = self.stance.take().map(|_| Stance::default());
    }

    /// Takes what it may.
    fn send(&mut self, next: &mut i64) {
        for subscriber in SUBSCRIBERS {
            *next += 1;
            // Where it has no place, others take it.
            let _ = self.schedule.push(job(subscriber, *next), NOW);
        }
        while let Some(turn) = self.schedule.pick(NOW) {
            *self.under_way.entry(turn.job.subscriber).or_default() += 1;
        }
    }

    fn finish(&mut self, subscriber: SubscriberNo) {
        let of = |counts: &mut BTreeMap<_, u32>| {
            let count = counts.get_mut(&subscriber).filter(|count| **count > 0);
            count.map(|count| *count -= 1).is_some()
        };
        if of(&mut self.void) || of(&mut self.under_way) {
            let ended = Ended { subscriber, was_probe: false, outcome: Outcome::Delivered };
            self.schedule.finish(ended, NOW);
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.values().chain(self.void.values()).all(|count| *count == 0)
    }

    /// What its next beat says.
    fn speak(&mut self) {
        if self.stance.is_none() {
            let mut lineups = self.schedule.lineups.values();
            let obeys = lineups.all(|lineup| lineup.in_flight <= lineup.places);
            self.obeys = if obeys { self.flock } else { 0 };
            return;
        }
        let busy = self.schedule.busy(self.is_leaving).filter(|busy| busy.is_empty() || !self.names_nobody);
        self.obeys = if busy.as_ref().is_some_and(Vec::is_empty) { self.flock } else { 0 };
        self.stance = Some(Stance { divides: self.flock, busy, is_leaving: self.is_leaving });
    }

    /// What it does about what its beat told.
    fn follow(&mut self, parting: Option<Parting>) {
        self.flock = parting.as_ref().map_or(0, |parting| parting.flock);
        if let Some(Parting { share, agreed, .. }) = parting {
            self.schedule.propose(share);
            if let Some(busy) = agreed {
                self.schedule.agree(&busy);
            }
        }
    }
}

/// What versions did that only tell whether they obey in everything.
fn divide_as_before(me: Incarnation, fellows: &[Fellow<'_>], expired: usize) -> Option<Parting> {
    let flock = flock(fellows.iter().map(|fellow| fellow.incarnation));
    let rank = u32::try_from(fellows.iter().position(|fellow| fellow.incarnation == me)?).unwrap();
    let share = Share { rank, replicas: u32::try_from(fellows.len()).unwrap() };
    let is_agreed =
        expired == 0 && (fellows.len() == 1 || fellows.iter().all(|fellow| fellow.obeys == flock));
    Some(Parting { flock, share, agreed: is_agreed.then(BTreeSet::new) })
}

#[derive(Default)]
struct World {
    processes: BTreeMap<Incarnation, Process>,
    born: Incarnation,
    next: i64,
}

impl World {
    fn beat(&mut self, me: Incarnation) {
        let process = self.processes.get_mut(&me).unwrap();
        process.is_silent = false;
        process.speak();
        let heard: Vec<Fellow<'_>> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.is_silent)
            .map(|(life, process)| Fellow {
                incarnation: *life,
                obeys: process.obeys,
                stance: process.stance.as_ref(),
            })
            .collect();
        let expired = self.processes.len() - heard.len();
        let decide = if self.processes[&me].stance.is_some() { divide } else { divide_as_before };
        let parting = decide(me, &heard, expired);
        self.processes.get_mut(&me).unwrap().follow(parting);
    }

    fn join(&mut self, process: Process) {
        self.born += 1;
        self.processes.insert(self.born, process);
    }

    fn step(&mut self, (what, who, subscriber): (u8, usize, SubscriberNo)) {
        let chosen = self.processes.keys().nth(who % self.processes.len().max(1)).copied();
        let Some(life) = chosen.filter(|_| what != 0) else {
            return self.join(Process::new(who == 7, who == 6));
        };
        let process = self.processes.get_mut(&life).unwrap();
        match what {
            1 => {
                process.is_leaving = true;
                process.schedule.drain();
                if process.is_idle() {
                    self.processes.remove(&life);
                }
            }
            2..=4 => self.beat(life),
            5..=6 if !process.is_silent => process.send(&mut self.next),
            // The store did not hear it for a while, or nobody. One that is taken over has nothing under way any more.
            10 if process.is_idle() => process.is_silent = true,
            11 => {
                let mut process = self.processes.remove(&life).unwrap();
                process.begin_anew();
                self.join(process);
            }
            _ => process.finish(subscriber),
        }
    }

    fn under_way(&self, subscriber: SubscriberNo) -> u32 {
        self.processes.values().filter_map(|process| process.under_way.get(&subscriber)).sum()
    }

    /// Some seconds pass in which attempts of these end, and nobody comes or goes.
    fn settle(&mut self, ending: &[SubscriberNo]) {
        let lives: Vec<Incarnation> = self.processes.keys().copied().collect();
        for _ in 0..8 {
            for life in &lives {
                let process = self.processes.get_mut(life).unwrap();
                ending.iter().for_each(|subscriber| (0..9).for_each(|_| process.finish(*subscriber)));
                self.beat(*life);
            }
        }
        for _ in 0..8 {
            lives.iter().for_each(|life| self.processes.get_mut(life).unwrap().send(&mut self.next));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn all_together_keep_every_limit_and_one_that_takes_long_stops_nobody_else(
        steps in prop::collection::vec((0_u8..12, 0_usize..8, 1_i64..4), 1..400),
    ) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
            for subscriber in SUBSCRIBERS {
                prop_assert!(world.under_way(subscriber) <= limit(subscriber), "subscriber {}", subscriber);
            }
        }
        let is_served = |world: &World| world.processes.values().any(|process| !process.is_leaving);
        let all_tell = world.processes.values().all(|process| process.stance.is_some() && !process.names_nobody);
        if is_served(&world) && all_tell {
            world.settle(&[2, 3]);
            for subscriber in SUBSCRIBERS {
                let (under_way, limit) = (world.under_way(subscriber), limit(subscriber));
                prop_assert!(under_way == limit || subscriber == STUCK && under_way < limit, "subscriber {}", subscriber);
            }
        }
        // When nobody comes or goes and everything ends, all of every limit is used.
        world.settle(&SUBSCRIBERS);
        world.processes.values_mut().for_each(|process| (0..9).for_each(|_| process.finish(STUCK)));
        world.processes.retain(|_, process| !process.is_leaving || !process.is_idle());
        world.settle(&SUBSCRIBERS);
        if is_served(&world) {
            for subscriber in SUBSCRIBERS {
                prop_assert_eq!(world.under_way(subscriber), limit(subscriber));
            }
        }
    }
}

#[test]
fn a_flock_is_named_by_who_is_in_it() {
    assert_ne!(flock([1, 2]), flock([1, 3]));
    assert_ne!(flock([1]), flock([1, 2]));
    assert_eq!(flock([4, 9]), flock([4, 9]));
    assert!(flock([]) > 0);
}

fn fellow(incarnation: Incarnation, stance: &Stance) -> Fellow<'_> {
    Fellow { incarnation, obeys: 0, stance: Some(stance) }
}

fn dividing(lives: &[Incarnation], busy: &[SubscriberNo]) -> Stance {
    Stance { divides: flock(lives.iter().copied()), busy: Some(busy.to_vec()), is_leaving: false }
}

#[test]
fn everybody_is_agreed_about_but_those_who_take_long() {
    let (calm, busy) = (dividing(&[1, 2], &[]), dividing(&[1, 2], &[7, 9]));
    let parting = divide(2, &[fellow(1, &busy), fellow(2, &calm)], 0).unwrap();
    assert_eq!(parting.share, Share { rank: 1, replicas: 2 });
    assert_eq!(parting.agreed, Some([7, 9].into()));
    let too_many = Stance { busy: None, ..busy.clone() };
    assert_eq!(divide(2, &[fellow(1, &too_many), fellow(2, &calm)], 0).unwrap().agreed, None);
    assert_eq!(divide(2, &[fellow(1, &busy), fellow(2, &calm)], 1).unwrap().agreed, None, "one is silent");
    let elsewhere = dividing(&[1, 2, 3], &[]);
    assert_eq!(divide(2, &[fellow(1, &elsewhere), fellow(2, &calm)], 0).unwrap().agreed, None);
}

#[test]
fn one_that_leaves_has_no_part_and_counts_where_it_still_sends() {
    let leaving = Stance { divides: 0, busy: Some(vec![7]), is_leaving: true };
    let rest = dividing(&[2, 3], &[]);
    let fellows = [fellow(1, &leaving), fellow(2, &rest), fellow(3, &rest)];
    assert_eq!(divide(1, &fellows, 0), None);
    let parting = divide(3, &fellows, 0).unwrap();
    assert_eq!((parting.share, parting.agreed), (Share { rank: 1, replicas: 2 }, Some([7].into())));
    let crowded = Stance { busy: None, ..leaving };
    assert_eq!(
        divide(3, &[fellow(1, &crowded), fellow(2, &rest), fellow(3, &rest)], 0).unwrap().agreed,
        None
    );
}

#[test]
fn one_that_has_just_come_is_waited_for_when_it_says_among_whom_it_divides() {
    let (new, old) = (Stance::default(), dividing(&[1], &[]));
    let parting = divide(1, &[fellow(1, &old), fellow(2, &new)], 0).unwrap();
    assert_eq!((parting.share, parting.agreed), (Share::default(), Some(BTreeSet::new())));
    let parting = divide(2, &[fellow(1, &old), fellow(2, &new)], 0).unwrap();
    assert_eq!((parting.share, parting.agreed), (Share { rank: 1, replicas: 2 }, None));
    let alone = divide(2, &[fellow(2, &new)], 0).unwrap();
    assert_eq!(alone.agreed, None, "nobody takes all before others can know of it");
}

#[test]
fn with_an_older_version_everybody_has_a_part_as_it_thinks() {
    let all = flock([1, 2, 3]);
    let leaving = Stance { divides: all, busy: Some(vec![7]), is_leaving: true };
    let (own, new) = (dividing(&[1, 2, 3], &[]), Stance::default());
    let older = |obeys| Fellow { incarnation: 3, obeys, stance: None };
    let parting = divide(2, &[fellow(1, &leaving), fellow(2, &own), older(all)], 0).unwrap();
    assert_eq!((parting.flock, parting.share.replicas, parting.agreed), (all, 3, Some([7].into())));
    assert_eq!(divide(2, &[fellow(1, &leaving), fellow(2, &own), older(0)], 0).unwrap().agreed, None);
    assert_eq!(divide(2, &[fellow(1, &new), fellow(2, &own), older(all)], 0).unwrap().agreed, None);
}

#[test]
fn attempts_of_a_former_life_hold_up_only_their_own_subscriber() {
    let mut schedule = Schedule::default();
    for subscriber in [1, 2] {
        schedule.admit(subscriber, terms(1), NOW);
        schedule.push(job(subscriber, subscriber), NOW).unwrap();
    }
    assert_eq!(schedule.pick(NOW).unwrap().job.subscriber, 1);
    schedule.drain();
    schedule.stand_by();
    schedule.admit(1, terms(1), NOW);
    schedule.admit(2, terms(1), NOW);
    assert_eq!(schedule.busy(false), Some(vec![1]), "nothing is its own yet");
    // Of two that live, this one is to have neither of the first subscriber's places and all of the second's.
    let share = Share { rank: 0, replicas: 2 };
    assert_eq!((share.of(1, 1), share.of(1, 2)), (0, 1));
    schedule.propose(share);
    let busy = schedule.busy(false).unwrap();
    assert_eq!(busy, [1]);
    schedule.agree(&busy.into_iter().collect());
    schedule.push(job(2, 4), NOW).unwrap();
    assert_eq!(schedule.pick(NOW).unwrap().job.subscriber, 2);
    assert!(schedule.push(job(1, 3), NOW).is_err());
}

#[test]
fn one_that_took_long_gets_its_places_when_that_has_ended() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(2), NOW);
    schedule.propose(Share { rank: 0, replicas: 2 });
    // Another one still has both of its places.
    schedule.agree(&[1].into());
    schedule.propose(Share::default());
    (1..=2).for_each(|n| schedule.push(job(1, n), NOW).unwrap());
    schedule.agree(&[1].into());
    assert_eq!(std::iter::from_fn(|| schedule.pick(NOW)).count(), 1, "the smallest part of those since");
    schedule.agree(&BTreeSet::new());
    assert_eq!(std::iter::from_fn(|| schedule.pick(NOW)).count(), 1);
}

#[test]
fn one_that_took_long_shrinks_with_the_others() {
    let mut schedule = Schedule::default();
    schedule.admit(1, terms(8), NOW);
    schedule.propose(Share { rank: 0, replicas: 2 });
    schedule.agree(&[1].into());
    schedule.propose(Share { rank: 0, replicas: 4 });
    (1..=8).for_each(|n| schedule.push(job(1, n), NOW).unwrap());
    assert_eq!(std::iter::from_fn(|| schedule.pick(NOW)).count(), 2);
}

#[test]
fn no_more_are_named_than_a_beat_carries() {
    let mut schedule = Schedule::default();
    let count = i64::try_from(BUSY_SUBSCRIBERS_MAX).unwrap() + 1;
    for subscriber in 1..=count {
        schedule.admit(subscriber, terms(1), NOW);
        schedule.push(job(subscriber, subscriber), NOW).unwrap();
        schedule.pick(NOW).unwrap();
    }
    assert_eq!((schedule.busy(false), schedule.busy(true)), (Some(vec![]), None));
    schedule.finish(Ended { subscriber: 1, was_probe: false, outcome: Outcome::Delivered }, NOW);
    assert_eq!(schedule.busy(true).map(|busy| busy.len()), Some(BUSY_SUBSCRIBERS_MAX));
}
