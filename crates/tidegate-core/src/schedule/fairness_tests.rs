//! Goal: whoever waits is served in the order in which it came, and nobody waits for more turns than there are others.
//! Method: a million random steps of arrivals, turns and endings, with what waits kept beside the schedule and every turn
//! compared with it. Gates have histories of their own, and so has everything that can go wrong.

use std::collections::{BTreeMap, VecDeque};

use super::tests::job;
use super::*;

const SUBSCRIBERS: i64 = 6;
const SEEDS: u64 = 250;
const STEPS: u32 = 4_000;

/// Chance that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn subscriber(&mut self) -> SubscriberNo {
        1 + self.below(SUBSCRIBERS as u64) as i64
    }
}

/// What is known of a subscriber beside the schedule.
#[derive(Default)]
struct Known {
    waiting: VecDeque<DeliveryNo>,
    flying: usize,
    /// Turns of others since it could have had one.
    passed_over: usize,
}

struct World {
    schedule: Schedule,
    known: BTreeMap<SubscriberNo, Known>,
    pushed: i64,
    sent: i64,
}

impl World {
    /// The first has one place, the second two, and so on.
    fn new() -> Self {
        let mut schedule = Schedule::default();
        let terms = Terms { concurrency: 1, rate: None, gate: None, breaker: None, disable_after: None };
        for subscriber in 1..=SUBSCRIBERS {
            let terms = Terms { concurrency: subscriber as u32, ..terms };
            drop(schedule.admit(subscriber, terms, Timestamp::from_ms(0)));
        }
        let known = (1..=SUBSCRIBERS).map(|subscriber| (subscriber, Known::default())).collect();
        Self { schedule, known, pushed: 0, sent: 0 }
    }

    fn push(&mut self, subscriber: SubscriberNo) {
        self.schedule.push(job(subscriber, self.pushed), Timestamp::from_ms(0)).expect("there is room");
        self.known.entry(subscriber).or_default().waiting.push_back(self.pushed);
        self.pushed += 1;
    }

    fn pick(&mut self) -> bool {
        let turn = self.schedule.pick(Timestamp::from_ms(0));
        let may_go = |(subscriber, known): (&SubscriberNo, &Known)| {
            !known.waiting.is_empty() && known.flying < *subscriber as usize
        };
        let Some(turn) = turn else {
            assert!(!self.known.iter().any(may_go), "somebody could go, and nobody does");
            return false;
        };
        let Job { subscriber, delivery, .. } = turn.job;
        for (other, known) in &mut self.known {
            let may_go = may_go((other, known));
            known.passed_over = if may_go && *other != subscriber { known.passed_over + 1 } else { 0 };
            assert!(
                known.passed_over < SUBSCRIBERS as usize,
                "{other} waits for more turns than there are others"
            );
        }
        let known = self.known.entry(subscriber).or_default();
        assert_eq!(known.waiting.pop_front(), Some(delivery), "first come, first served");
        known.flying += 1;
        assert!(known.flying <= subscriber as usize, "no more at once than it takes");
        self.sent += 1;
        true
    }

    fn finish(&mut self, subscriber: SubscriberNo) {
        let known = self.known.entry(subscriber).or_default();
        if known.flying > 0 {
            known.flying -= 1;
            let ended = Ended { subscriber, was_probe: false, outcome: Outcome::Delivered };
            self.schedule.finish(ended, Timestamp::from_ms(0));
        }
    }
}

fn play(seed: u64) -> u32 {
    let (mut dice, mut world) = (Dice(seed), World::new());
    // Some seeds bring more than can be sent, others less.
    let arrivals = 2 + seed % 4;
    for _ in 0..STEPS {
        match dice.below(10) {
            roll if roll < arrivals => world.push(dice.subscriber()),
            roll if roll < 8 => drop(world.pick()),
            _ => world.finish(dice.subscriber()),
        }
    }
    while world.sent < world.pushed {
        while world.pick() {}
        (1..=SUBSCRIBERS).for_each(|subscriber| world.finish(subscriber));
    }
    STEPS
}

#[test]
fn a_million_steps_are_fair() {
    let steps: u32 = (0..SEEDS).map(play).sum();
    assert!(steps >= 1_000_000);
}
