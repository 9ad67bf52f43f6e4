//! Goal: whatever happens, no stretch of time sees more than a full bucket and the rate's worth. Method: histories by hand
//! for each rule, then random ones, in which every stretch is looked at.

use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000;

fn flow(rate: &str, burst: u32) -> Flow {
    Flow::new(Rate::parse(rate).unwrap(), burst)
}

fn next_ms(reservoir: Reservoir, flow: Flow, now_us: i64) -> u128 {
    reservoir.standing(flow, now_us).next_in.as_millis()
}

#[test]
fn a_full_one_gives_a_burst_and_then_its_rate() {
    let flow = flow("3/s", 5);
    let mut reservoir = Reservoir::full(flow, 0);
    assert_eq!(reservoir.take(flow, 0, 9), 5);
    assert_eq!(next_ms(reservoir, flow, 0), 333);
    assert_eq!(reservoir.take(flow, 333_333, 9), 0);
    assert_eq!(reservoir.take(flow, 333_334, 9), 1);
    assert_eq!(reservoir.take(flow, SECOND, 9), 2, "nothing was lost by asking in between");
    assert_eq!(reservoir.full_in(flow, SECOND).as_micros(), 1_666_667);
    assert_eq!(reservoir.take(flow, 100 * SECOND, 9), 5, "never more than a burst");
}

#[test]
fn a_penalty_ends_with_one_and_goes_on_step_by_step() {
    let flow = flow("8/s", 8);
    let mut reservoir = Reservoir::full(flow, 0);
    reservoir.penalize(flow, 0, 5 * SECOND);
    assert_eq!(reservoir.standing(flow, SECOND).penalized_for.as_secs(), 4);
    assert_eq!((reservoir.standing(flow, SECOND).eighths, next_ms(reservoir, flow, SECOND)), (0, 4_000));
    assert_eq!(reservoir.take(flow, 5 * SECOND - 1, 9), 0);
    assert_eq!(reservoir.take(flow, 5 * SECOND, 9), 1);
    let mut given = Vec::new();
    for step in 0..5 {
        let start = 5 * SECOND + step * STEP_US;
        assert_eq!(reservoir.standing(flow, start).eighths, [1, 2, 4, 8, 8][usize::try_from(step).unwrap()]);
        given.push((1..=10).map(|second| reservoir.take(flow, start + second * SECOND, 99)).sum::<u32>());
    }
    assert_eq!(given, [10, 20, 40, 80, 80]);
}

#[test]
fn somebody_can_go_when_a_penalty_ends() {
    let flow = flow("8/s", 8);
    let mut reservoir = Reservoir::full(flow, 0);
    reservoir.take(flow, 0, 8);
    reservoir.penalize(flow, 0, SECOND);
    assert_eq!(next_ms(reservoir, flow, 0), 1_000);
    assert_eq!(reservoir.take(flow, SECOND, 9), 1);
    reservoir.take(flow, 100 * SECOND, 8);
    reservoir.penalize(flow, 100 * SECOND, 100 * SECOND + 1);
    assert_eq!(next_ms(reservoir, flow, 100 * SECOND), 999, "a short one gathers nothing");
}

#[test]
fn a_new_penalty_begins_anew_and_a_shorter_one_changes_nothing() {
    let flow = flow("8/s", 8);
    let mut reservoir = Reservoir::full(flow, 0);
    reservoir.penalize(flow, 0, 10 * SECOND);
    reservoir.penalize(flow, 0, 2 * SECOND);
    assert_eq!(reservoir.take(flow, 9 * SECOND, 1), 0);
    assert_eq!(reservoir.standing(flow, 31 * SECOND).eighths, 4);
    reservoir.penalize(flow, 31 * SECOND, 32 * SECOND);
    assert_eq!(reservoir.standing(flow, 33 * SECOND).eighths, 1);
    reservoir.penalize(flow, 70 * SECOND, 60 * SECOND);
    assert_eq!(reservoir.standing(flow, 70 * SECOND).eighths, 8, "what is over is no penalty");
}

#[test]
fn a_penalty_that_is_lifted_ends_like_any_other() {
    let flow = flow("8/s", 8);
    let mut reservoir = Reservoir::full(flow, 0);
    reservoir.penalize(flow, 0, 3_600 * SECOND);
    reservoir.lift(flow, 5 * SECOND);
    let mut twin = Reservoir::full(flow, 0);
    twin.penalize(flow, 0, 5 * SECOND);
    for second in 5..60 {
        assert_eq!(
            reservoir.standing(flow, second * SECOND),
            twin.standing(flow, second * SECOND),
            "{second}"
        );
        assert_eq!(reservoir.take(flow, second * SECOND, 99), twin.take(flow, second * SECOND, 99));
    }
    reservoir.penalize(flow, 60 * SECOND, 61 * SECOND);
    let recovering = reservoir.standing(flow, 75 * SECOND);
    reservoir.lift(flow, 75 * SECOND);
    assert_eq!(reservoir.standing(flow, 75 * SECOND), recovering, "there is nothing to lift");
}

#[test]
fn a_penalty_that_is_recalled_goes_on_where_it_was() {
    let flow = flow("8/s", 8);
    let eighths = |reservoir: Reservoir, second: i64| reservoir.standing(flow, second * SECOND).eighths;
    let mut closed = Reservoir::recalled(0, 5 * SECOND);
    assert_eq!((closed.take(flow, 4 * SECOND, 9), closed.take(flow, 5 * SECOND, 9)), (0, 1));
    assert_eq!((eighths(closed, 5), eighths(closed, 16)), (1, 2));
    let mut open = Reservoir::recalled(16 * SECOND, 5 * SECOND);
    assert_eq!((eighths(open, 16), open.take(flow, 16 * SECOND, 9)), (2, 0), "the one may have gone");
    assert_eq!(open.take(flow, 17 * SECOND, 9), 2);
}

#[test]
fn the_slowest_and_the_fastest_rate_are_exact() {
    for (rate, burst, wait_us) in
        [("1/h", 1, 3_600 * SECOND), ("100000/s", 100_000, 10), ("360000000/h", 1, 10)]
    {
        let flow = flow(rate, burst);
        let mut reservoir = Reservoir::full(flow, 0);
        assert_eq!(reservoir.take(flow, 0, u32::MAX), burst);
        assert_eq!(reservoir.standing(flow, 0).next_in.as_micros(), wait_us.unsigned_abs().into());
        for us in (0..wait_us).step_by(usize::try_from((wait_us / 7).max(1)).unwrap()) {
            assert_eq!(reservoir.take(flow, us, 1), 0);
        }
        assert_eq!(reservoir.take(flow, wait_us, 9), 1, "{rate}");
    }
}

#[test]
fn a_clock_that_goes_back_brings_nothing_twice() {
    let flow = flow("1/s", 2);
    let mut reservoir = Reservoir::full(flow, 10 * SECOND);
    assert_eq!(reservoir.take(flow, 10 * SECOND, 2), 2);
    assert_eq!(reservoir.take(flow, 0, 2), 0);
    assert_eq!(reservoir.take(flow, 10 * SECOND, 2), 0);
    assert_eq!(reservoir.take(flow, 11 * SECOND, 2), 1);
}

#[test]
fn a_penalty_lasts_no_longer_because_another_clock_is_behind() {
    let (flow, hour) = (flow("1/s", 2), 3_600 * SECOND);
    let mut reservoir = Reservoir::full(flow, hour);
    reservoir.penalize(flow, hour, hour + 5 * SECOND);
    assert_eq!(reservoir.take(flow, 4 * SECOND, 1), 0);
    assert_eq!(reservoir.standing(flow, 4 * SECOND).penalized_for, Duration::from_secs(5));
    assert_eq!(reservoir.take(flow, 9 * SECOND, 1), 1);
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Act {
    Take { wanted: u32 },
    Penalize { us: i64 },
    Lift,
    Change { rate: &'static str, burst: u32 },
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let pauses = prop_oneof![8 => 0..2 * SECOND, 1 => 0..60 * SECOND, 1 => 0..10_000 * SECOND];
    let rates = prop::sample::select(vec!["1/s", "3/s", "50/s", "1000/s", "7/m", "100/m", "90/h"]);
    let act = prop_oneof![
        12 => (1_u32..60).prop_map(|wanted| Act::Take { wanted }),
        1 => (0..20 * SECOND).prop_map(|us| Act::Penalize { us }),
        1 => Just(Act::Lift),
        1 => (rates, 1_u32..40).prop_map(|(rate, burst)| Act::Change { rate, burst }),
    ];
    prop::collection::vec((pauses, act), 1..120)
}

proptest! {
    /// What was taken between any two moments is at most what was there and what the rate brought.
    #[test]
    fn no_stretch_sees_more_than_a_burst_and_the_rate(acts in acts()) {
        let mut flow = flow("3/s", 3);
        let (mut reservoir, mut now) = (Reservoir::full(flow, 0), 0);
        let mut closed_until = i64::MIN;
        // For each moment in the past: what may still be taken since then, in drops.
        let mut stretches: Vec<i128> = vec![flow.depth.into()];
        for (pause, act) in acts {
            now += pause;
            for left in &mut stretches {
                *left += i128::from(pause) * i128::from(flow.drops) * 8;
            }
            stretches.push(flow.depth.into());
            match act {
                Act::Take { wanted } => {
                    let standing = reservoir.standing(flow, now);
                    let taken = reservoir.take(flow, now, wanted);
                    prop_assert_eq!(taken, standing.tokens.min(wanted));
                    prop_assert!(taken == 0 || now >= closed_until);
                    for left in &mut stretches {
                        *left -= i128::from(taken) * i128::from(TOKEN);
                        prop_assert!(*left >= 0, "{} drops too many", -*left);
                    }
                }
                Act::Penalize { us } => {
                    reservoir.penalize(flow, now, now + us);
                    closed_until = closed_until.max(now + us);
                }
                Act::Lift => {
                    reservoir.lift(flow, now);
                    closed_until = closed_until.min(now);
                }
                Act::Change { rate, burst } => {
                    reservoir.take(flow, now, 0);
                    flow = self::flow(rate, burst);
                }
            }
        }
    }

    /// Who waits as long as it is told gets one, and not a microsecond earlier.
    #[test]
    fn the_wait_is_exact(acts in acts(), wait_before in 0..40 * SECOND) {
        let flow = flow("3/s", 3);
        let (mut reservoir, mut now) = (Reservoir::full(flow, 0), 0);
        for (pause, act) in acts {
            now += pause;
            match act {
                Act::Take { wanted } => drop(reservoir.take(flow, now, wanted)),
                Act::Penalize { us } => reservoir.penalize(flow, now, now + us),
                Act::Lift => reservoir.lift(flow, now),
                Act::Change { .. } => {}
            }
        }
        now += wait_before;
        reservoir.take(flow, now, u32::MAX);
        let wait = i64::try_from(reservoir.standing(flow, now).next_in.as_micros()).unwrap();
        prop_assert!(wait > 0);
        prop_assert_eq!(reservoir.clone().take(flow, now + wait - 1, 1), 0);
        prop_assert_eq!(reservoir.take(flow, now + wait, 1), 1);
    }

    /// Whatever was remembered, right or wrong, no more than a burst is given.
    #[test]
    fn nothing_remembered_breaks_it(level: i64, at_us: i64, until_us: i64, wanted: u32, now in 0..i64::MAX) {
        let flow = flow("3/s", 5);
        let mut reservoir = Reservoir { level, at_us, until_us };
        prop_assert!(reservoir.take(flow, now, wanted) <= 5);
        reservoir.standing(flow, now);
    }
}
