//! How limits are divided while replicas come and go.
//!
//! Everybody learns of a change at another moment. So that all parts together never exceed a limit, a part shrinks as soon as
//! a change is known and grows only when everybody is known to obey it: until then it is the smallest part that any
//! division since the last agreement would give. Somebody who has expired and was not yet taken over may come back and
//! use the part it had, so nothing is agreed without knowing what became of it: [`is_agreed`].

use super::Schedule;
use super::replicas::Share;
use crate::delivery::Job;
use crate::id::{Incarnation, SubscriberNo};

/// How limits are divided right now.
#[derive(Clone, Debug)]
pub(super) struct Division {
    /// What everybody obeys; absent for one that has just come.
    agreed: Option<Share>,
    /// What was to be obeyed since, the newest last.
    proposed: Vec<Share>,
}

impl Default for Division {
    /// The only one has everything.
    fn default() -> Self {
        Self { agreed: Some(Share::default()), proposed: Vec::new() }
    }
}

impl Division {
    /// The part of a subscriber's limit that may be used here.
    pub(super) fn of(&self, limit: u32, subscriber: SubscriberNo) -> u32 {
        let part = |share: &Share| share.of(limit, subscriber);
        self.proposed.iter().map(part).fold(self.agreed.as_ref().map_or(0, part), u32::min)
    }

    fn latest(&self) -> Option<Share> {
        self.proposed.last().copied().or(self.agreed)
    }
}

/// A name for exactly these processes; never 0.
pub fn flock(lives: impl IntoIterator<Item = Incarnation>) -> i64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in lives.into_iter().flat_map(Incarnation::to_le_bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.cast_signed().max(i64::MIN + 1).abs().max(1)
}

/// Whether everybody obeys the division among this flock. `obeyed` is what each of those that live obeys, this process
/// among them; `expired` are those that are silent and were not yet taken over.
pub fn is_agreed(flock: i64, mut obeyed: impl ExactSizeIterator<Item = i64>, expired: usize) -> bool {
    expired == 0 && (obeyed.len() == 1 || obeyed.all(|obeyed| obeyed == flock))
}

impl Schedule {
    /// Nothing is ours before the others have agreed. To be said when a life begins that shares a store.
    pub fn stand_by(&mut self) {
        self.division = Division { agreed: None, proposed: Vec::new() };
    }

    /// The number of replicas, or this one's place among them, has changed: uses no more than before and than that
    /// allows. Gives back what waited for places that are no longer here.
    pub fn propose(&mut self, share: Share) -> Vec<Job> {
        if self.division.latest() == Some(share) {
            return Vec::new();
        }
        self.division.proposed.push(share);
        self.resize_all()
    }

    /// Everybody obeys what was proposed last.
    pub fn agree(&mut self) -> Vec<Job> {
        let Some(share) = self.division.proposed.pop() else { return Vec::new() };
        self.division = Division { agreed: Some(share), proposed: Vec::new() };
        self.resize_all()
    }

    /// Nobody has more under way than what was proposed allows.
    pub fn obeys(&self) -> bool {
        self.lineups.values().all(|lineup| lineup.in_flight <= lineup.places)
    }

    fn resize_all(&mut self) -> Vec<Job> {
        let everyone: Vec<SubscriberNo> = self.lineups.keys().copied().collect();
        everyone.into_iter().flat_map(|subscriber| self.resize(subscriber)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::schedule::breaker::Outcome;
    use crate::schedule::{Bounds, Ended, Terms};
    use crate::time::Timestamp;

    const NOW: Timestamp = Timestamp::from_ms(0);
    const SUBSCRIBERS: [SubscriberNo; 3] = [1, 2, 3];

    fn limit(subscriber: SubscriberNo) -> u32 {
        [1, 3, 7][usize::try_from(subscriber).unwrap() - 1]
    }

    /// A process as the world sees it.
    struct Process {
        schedule: Schedule,
        under_way: BTreeMap<SubscriberNo, u32>,
        flock: i64,
        /// As its last beat said.
        obeys: i64,
        /// Its last beat is long ago; it does nothing before the next one.
        is_silent: bool,
    }

    impl Process {
        fn new() -> Self {
            let mut schedule = Schedule::new(Bounds::default());
            schedule.stand_by();
            for subscriber in SUBSCRIBERS {
                let terms = Terms {
                    concurrency: limit(subscriber),
                    rate: None,
                    breaker: None,
                    disable_after: None,
                    gate: None,
                };
                schedule.admit(subscriber, terms, NOW);
            }
            Self { schedule, under_way: BTreeMap::new(), flock: 0, obeys: 0, is_silent: false }
        }

        /// Takes what it may.
        fn send(&mut self, next: &mut i64) {
            for subscriber in SUBSCRIBERS {
                *next += 1;
                let job = crate::schedule::tests::job(subscriber, *next);
                // Where it has no place, others take it.
                let _ = self.schedule.push(job, NOW);
            }
            while let Some(turn) = self.schedule.pick(NOW) {
                *self.under_way.entry(turn.job.subscriber).or_default() += 1;
            }
        }

        fn finish(&mut self, subscriber: SubscriberNo) {
            if let Some(count) = self.under_way.get_mut(&subscriber).filter(|count| **count > 0) {
                *count -= 1;
                let outcome = Outcome::Delivered;
                self.schedule.finish(Ended { subscriber, was_probe: false, outcome }, NOW);
            }
        }
    }

    #[derive(Default)]
    struct World {
        processes: BTreeMap<Incarnation, Process>,
        born: Incarnation,
        next: i64,
    }

    impl World {
        fn beat(&mut self, incarnation: Incarnation) {
            self.processes.get_mut(&incarnation).unwrap().is_silent = false;
            let heard = self.processes.iter().filter(|(_, process)| !process.is_silent);
            let lives: Vec<Incarnation> = heard.map(|(life, _)| *life).collect();
            let process = self.processes.get_mut(&incarnation).unwrap();
            process.obeys = if process.schedule.obeys() { process.flock } else { 0 };
            let flock = flock(lives.iter().copied());
            let obeyed: Vec<i64> = lives.iter().map(|life| self.processes[life].obeys).collect();
            let expired = self.processes.len() - lives.len();
            let rank = u32::try_from(lives.iter().position(|life| *life == incarnation).unwrap()).unwrap();
            let replicas = u32::try_from(lives.len()).unwrap();
            let process = self.processes.get_mut(&incarnation).unwrap();
            process.schedule.propose(Share { rank, replicas });
            process.flock = flock;
            if is_agreed(flock, obeyed.into_iter(), expired) {
                process.schedule.agree();
            }
        }

        fn is_idle(&self, life: Incarnation) -> bool {
            self.processes[&life].under_way.values().all(|count| *count == 0)
        }

        fn step(&mut self, what: u8, who: usize, subscriber: SubscriberNo) {
            let chosen = self.processes.keys().nth(who % self.processes.len().max(1)).copied();
            match (what, chosen) {
                (0, _) | (_, None) => {
                    self.born += 1;
                    self.processes.insert(self.born, Process::new());
                }
                // One that leaves, or is taken over, has nothing under way any more.
                (1, Some(life)) => {
                    if self.is_idle(life) {
                        self.processes.remove(&life);
                    }
                }
                (2..=4, Some(life)) => self.beat(life),
                (5..=6, Some(life)) => {
                    let process = self.processes.get_mut(&life).unwrap();
                    if !process.is_silent {
                        process.send(&mut self.next);
                    }
                }
                // The store did not hear it for a while, or nobody.
                (10, Some(life)) => {
                    if self.is_idle(life) {
                        self.processes.get_mut(&life).unwrap().is_silent = true;
                    }
                }
                (_, Some(life)) => self.processes.get_mut(&life).unwrap().finish(subscriber),
            }
        }
    }

    proptest! {
        #[test]
        fn all_together_keep_every_limit(steps in prop::collection::vec((0_u8..11, 0_usize..8, 1_i64..4), 1..400)) {
            let mut world = World::default();
            for (what, who, subscriber) in steps {
                world.step(what, who, subscriber);
                for subscriber in SUBSCRIBERS {
                    let under_way = world.processes.values().filter_map(|process| process.under_way.get(&subscriber));
                    prop_assert!(under_way.sum::<u32>() <= limit(subscriber));
                }
            }
            // When nobody comes or goes, all of every limit is used in the end.
            let lives: Vec<Incarnation> = world.processes.keys().copied().collect();
            for _ in 0..4 {
                for life in &lives {
                    let process = world.processes.get_mut(life).unwrap();
                    SUBSCRIBERS.iter().for_each(|subscriber| (0..8).for_each(|_| process.finish(*subscriber)));
                    world.beat(*life);
                }
            }
            if !lives.is_empty() {
                for _ in 0..8 {
                    lives.iter().for_each(|life| world.processes.get_mut(life).unwrap().send(&mut world.next));
                }
                for subscriber in SUBSCRIBERS {
                    let under_way = world.processes.values().filter_map(|process| process.under_way.get(&subscriber));
                    prop_assert_eq!(under_way.sum::<u32>(), limit(subscriber));
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
}
