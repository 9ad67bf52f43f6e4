//! Goal: a gate that several replicas share serves whoever became ready first, wherever that was, and keeps its rate all the same.
//! Method: schedules around one basin, millisecond by millisecond, with ways that take their time; lanes become ready at random
//! replicas at random times; then everybody who was served before somebody that became ready earlier elsewhere is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::tests::job;
use super::*;
use crate::gate::{Basin, Caller, Flow, Given};
use crate::limits::GATE_PATIENCE_MS;

const GATE: GateNo = 7;
const REPLICAS: usize = 3;
/// The longest way to the basin, or back.
const WAY_MS: i64 = 6;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}

/// What is on its way.
enum Letter {
    Ask(Beg),
    Answer { who: Slot, tokens: u32, next_in: Duration, penalized_for: Duration },
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Ready(usize),
    Penalize(usize, i64),
    Die(usize),
}

struct Harbour {
    flow: Flow,
    basin: Basin,
    schedules: Vec<Option<Schedule>>,
    letters: Vec<(i64, usize, Letter)>,
    chance: u64,
    /// When each became ready, and where.
    ready: Vec<(i64, usize)>,
    /// Who was served, when, in order.
    served: Vec<(usize, i64)>,
}

impl Harbour {
    fn new(flow: Flow, chance: u64) -> Self {
        let schedule = || {
            let mut schedule = Schedule::default();
            schedule.share_rates();
            schedule.set_gates(&BTreeMap::from([(GATE, flow)]), at(0));
            let terms =
                Terms { concurrency: 100, rate: None, breaker: None, disable_after: None, gate: Some(GATE) };
            schedule.admit(1, terms, at(0));
            Some(schedule)
        };
        let schedules = (0..REPLICAS).map(|_| schedule()).collect();
        let basin = Basin::full(flow, 1_000);
        Self { flow, basin, schedules, letters: Vec::new(), chance, ready: Vec::new(), served: Vec::new() }
    }

    fn way(&mut self) -> i64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) as i64 % (WAY_MS + 1)
    }

    fn act(&mut self, deed: Deed, now: i64) {
        match deed {
            Deed::Ready(replica) => {
                if let Some(schedule) = &mut self.schedules[replica] {
                    schedule.push(job(1, self.ready.len() as i64), at(now)).unwrap();
                    self.ready.push((now, replica));
                }
            }
            Deed::Penalize(replica, lasts) => {
                if let Some(schedule) = &mut self.schedules[replica] {
                    schedule.penalize(GATE, at(now + lasts), at(now));
                    schedule.take_penalties();
                    self.basin.reservoir.penalize(self.flow, now * 1_000, (now + lasts) * 1_000);
                }
            }
            Deed::Die(replica) => self.schedules[replica] = None,
        }
    }

    fn tick(&mut self, now: i64) {
        let due: Vec<_> = self.letters.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, replica, letter) in due {
            match letter {
                Letter::Ask(beg) => self.answer(replica, beg, now),
                Letter::Answer { who, tokens, next_in, penalized_for } => {
                    if let Some(schedule) = &mut self.schedules[replica] {
                        schedule.hear(GATE, penalized_for, None, at(now));
                        schedule.grant(who, tokens, next_in, at(now));
                    }
                }
            }
        }
        for replica in 0..REPLICAS {
            let Some(schedule) = &mut self.schedules[replica] else { continue };
            while let Some(turn) = schedule.pick(at(now)) {
                self.served.push((turn.job.delivery as usize, now));
                schedule
                    .finish(Ended { subscriber: 1, was_probe: false, outcome: Outcome::Delivered }, at(now));
            }
            schedule.take_passed();
            for beg in schedule.begs() {
                let arrives = now + self.way();
                self.letters.push((arrives, replica, Letter::Ask(beg)));
            }
        }
    }

    fn answer(&mut self, replica: usize, beg: Beg, now: i64) {
        let caller = beg.since.map(|since| Caller { who: replica as i64 + 1, since });
        let given = self.basin.ask(beg.flow, now * 1_000, beg.wanted, caller);
        let standing = self.basin.reservoir.standing(beg.flow, now * 1_000);
        let (tokens, next_in) = match given {
            Given::Tokens(tokens) => (tokens, standing.next_in),
            Given::Later => (0, beg.flow.moment()),
        };
        if beg.wanted > 0 {
            let answer =
                Letter::Answer { who: beg.who, tokens, next_in, penalized_for: standing.penalized_for };
            let arrives = now + self.way();
            self.letters.push((arrives, replica, answer));
        }
    }

    /// For each that was served: by how many it was overtaken, and how much later the latest of these became ready.
    fn overtaken(&self) -> Vec<(usize, i64)> {
        let overtaken = |(place, (late, _)): (usize, &(usize, i64))| {
            let before = self.served[..place].iter().map(|(other, _)| self.ready[*other].0);
            let younger: Vec<i64> = before.filter(|ready| *ready > self.ready[*late].0).collect();
            (younger.len(), younger.iter().max().map_or(0, |ready| ready - self.ready[*late].0))
        };
        self.served.iter().enumerate().map(overtaken).collect()
    }
}

/// Goes through a history, and on until all was served that could be.
fn play(flow: Flow, chance: u64, deeds: &[(i64, Deed)]) -> Harbour {
    let mut harbour = Harbour::new(flow, chance);
    let (mut now, mut next) = (1, 0);
    let most = deeds.last().map_or(0, |(at, _)| *at) + 400_000;
    let mut quiet_since = now;
    while now < most && (next < deeds.len() || now - quiet_since < 20_000) {
        while let Some((_, deed)) = deeds.get(next).filter(|(at, _)| *at <= now) {
            harbour.act(*deed, now);
            next += 1;
        }
        let served = harbour.served.len();
        harbour.tick(now);
        if harbour.served.len() != served {
            quiet_since = now;
        }
        now += 1;
    }
    harbour
}

fn flow(rate: &str, burst: u32) -> Flow {
    Flow::new(Rate::parse(rate).unwrap(), burst)
}

fn lanes() -> impl Strategy<Value = Vec<(usize, i64)>> {
    prop::collection::vec((0..REPLICAS, 0_i64..=120), 1..60)
}

/// Becoming ready at so many hundredths of the time between two tokens from each other.
fn deeds(flow: Flow, lanes: &[(usize, i64)]) -> Vec<(i64, Deed)> {
    let interval = flow.interval(8).as_millis() as i64;
    let mut now = 10;
    let ready = |(replica, hundredths): &(usize, i64)| {
        now += hundredths * interval / 100;
        (now, Deed::Ready(*replica))
    };
    lanes.iter().map(ready).collect()
}

fn rates() -> impl Strategy<Value = Flow> {
    prop::sample::select(vec![("1/s", 1), ("3/s", 3), ("3/s", 1), ("10/s", 10), ("30/m", 2)])
        .prop_map(|(rate, burst)| flow(rate, burst))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whoever was served earlier became ready earlier, but for the time that a question and its answer take: before that
    /// nobody can know of the other.
    #[test]
    fn nobody_is_overtaken(flow in rates(), lanes in lanes(), chance: u64) {
        let deeds = deeds(flow, &lanes);
        let harbour = play(flow, chance, &deeds);
        prop_assert_eq!(harbour.served.len(), lanes.len());
        for (count, later) in harbour.overtaken() {
            prop_assert!(count <= 2 && later <= 4 * WAY_MS, "by {count}, ready {later} ms later");
        }
        keeps_its_rate(&harbour)?;
    }

    /// The same after a pause.
    #[test]
    fn nor_after_a_pause(flow in rates(), lanes in lanes(), when in 0_i64..40, chance: u64) {
        let mut deeds = deeds(flow, &lanes);
        let now = when * 100;
        let place = deeds.partition_point(|(at, _)| *at <= now);
        deeds.insert(place, (now, Deed::Penalize(0, 2_000)));
        let harbour = play(flow, chance, &deeds);
        prop_assert_eq!(harbour.served.len(), lanes.len());
        for (count, later) in harbour.overtaken() {
            prop_assert!(count <= 2 && later <= 4 * WAY_MS, "by {count}, ready {later} ms later");
        }
        keeps_its_rate(&harbour)?;
    }

    /// One that dies takes nobody else's time, but for a moment.
    #[test]
    fn one_that_dies_costs_a_moment(flow in rates(), lanes in lanes(), when in 0_i64..40, chance: u64) {
        let mut deeds = deeds(flow, &lanes);
        let now = when * 100;
        let place = deeds.partition_point(|(at, _)| *at <= now);
        deeds.insert(place, (now, Deed::Die(0)));
        let harbour = play(flow, chance, &deeds);
        let interval = flow.interval(8).as_millis() as i64;
        let there: Vec<usize> = (0..harbour.ready.len()).filter(|lane| harbour.ready[*lane].1 != 0).collect();
        let lost = GATE_PATIENCE_MS as i64 + 4 * WAY_MS;
        for lane in there {
            let (_, served) = harbour.served.iter().find(|(served, _)| *served == lane).expect("it was served");
            let (ready, _) = harbour.ready[lane];
            let ahead = harbour.ready[..lane].iter().filter(|(other, _)| ready - other < 1_000_000).count() as i64;
            prop_assert!(served - ready <= (ahead + 2) * (interval + 2 * WAY_MS + 2) + lost, "{lane} at {served}");
        }
        keeps_its_rate(&harbour)?;
    }
}

/// In any stretch of time no more goes than a burst and the rate's worth, with tokens that are on their way for a moment.
fn keeps_its_rate(harbour: &Harbour) -> Result<(), TestCaseError> {
    let interval_us = harbour.flow.interval(8).as_micros() as i64;
    for (first, (_, from)) in harbour.served.iter().enumerate() {
        for (count, (_, until)) in harbour.served[first..].iter().enumerate() {
            let most = i64::from(harbour.flow.burst()) + (until - from + WAY_MS) * 1_000 / interval_us;
            prop_assert!((count as i64) < most, "{} from {from} to {until}", count + 1);
        }
    }
    Ok(())
}

/// A fast gate gives all it has, whoever waits for how long: nobody is waited for longer than the bucket has room.
#[test]
fn a_fast_gate_loses_nothing() {
    for burst in [10, 1_000] {
        let flow = flow("1000/s", burst);
        let mut deeds: Vec<(i64, Deed)> = Vec::new();
        for n in 0..6_000 {
            deeds.push((10 + n / 10, Deed::Ready((n % 7 % 3) as usize)));
        }
        let harbour = play(flow, 42, &deeds);
        assert_eq!(harbour.served.len(), 6_000);
        let (_, last) = harbour.served.last().unwrap();
        assert!(*last < 6_300, "{last}");
    }
}
