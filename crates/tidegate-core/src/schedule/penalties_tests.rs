//! Goal: a penalty ends when it is lifted, and is not forgotten before. Method: histories by hand, of a process alone and of one that
//! shares its gate.

use std::collections::BTreeMap;
use std::time::Duration;

use super::gates_tests::{GATE, at, flow, gated, picks, push, terms};
use super::{Schedule, Slot};

#[test]
fn a_penalty_can_be_lifted_and_then_it_recovers() {
    let mut schedule = gated("8/s", 8, 1);
    (0..100).for_each(|n| push(&mut schedule, 1, n, 0));
    assert_eq!(picks(&mut schedule, 0).len(), 8);
    schedule.penalize(GATE, at(3_600_000), at(0));
    assert!(picks(&mut schedule, 4_999).is_empty());
    schedule.lift(GATE, at(5_000));
    let given: usize = (5_000..15_000).map(|ms| picks(&mut schedule, ms).len()).sum();
    assert_eq!(given, 1 + 9, "one at once, then an eighth of the rate");
    schedule.lift(GATE, at(15_500));
    assert_eq!(schedule.line(GATE, at(15_500)).unwrap().standing.eighths, 2, "lifted twice is lifted once");
}

#[test]
fn a_shared_gate_asks_again_when_a_penalty_was_lifted_and_believes_no_older_answer() {
    let mut schedule = Schedule::default();
    schedule.share_rates();
    schedule.set_gates(&BTreeMap::from([(GATE, flow("3/s", 3))]), at(0));
    schedule.admit(1, terms(9, None), at(0));
    push(&mut schedule, 1, 10, 0);
    picks(&mut schedule, 0);
    schedule.begs();
    schedule.hear(GATE, Duration::from_secs(3_600), None, at(1));
    schedule.grant(Slot::Gate(GATE), 0, Duration::from_secs(3_600), at(1));
    assert!(picks(&mut schedule, 100_000).is_empty() && !schedule.has_beggars());
    schedule.penalize(GATE, at(3_700_000), at(100_000));
    schedule.lift(GATE, at(100_001));
    assert!(schedule.take_penalties().is_empty(), "nobody has to hear of it any more");
    assert!(picks(&mut schedule, 100_001).is_empty());
    assert_eq!(schedule.begs().iter().map(|beg| beg.wanted).collect::<Vec<_>>(), [1, 0]);
    assert!(schedule.is_outdated(GATE, at(100_001)) && !schedule.is_outdated(GATE, at(100_002)));
    schedule.hear(GATE, Duration::from_secs(3_600), None, at(100_002));
    schedule.doubt_penalties(at(100_003));
    schedule.acquit(GATE, at(100_002), at(100_004));
    assert!(
        picks(&mut schedule, 100_004).is_empty() && schedule.begs().len() == 1,
        "a look, and no answer yet"
    );
    schedule.acquit(GATE, at(100_003), at(100_005));
    picks(&mut schedule, 100_005);
    schedule.begs();
    schedule.grant(Slot::Gate(GATE), 1, Duration::ZERO, at(100_006));
    assert_eq!(picks(&mut schedule, 100_006), [10]);
}

#[test]
fn a_gate_of_one_process_remembers_what_the_one_before_was_told() {
    let mut schedule = gated("8/s", 8, 1);
    (0..100).for_each(|n| push(&mut schedule, 1, n, 0));
    schedule.recall_penalty(GATE, at(5_000), at(0));
    assert!(picks(&mut schedule, 4_999).is_empty());
    assert_eq!(picks(&mut schedule, 5_000).len(), 1);
    let mut schedule = gated("8/s", 8, 1);
    (0..100).for_each(|n| push(&mut schedule, 1, n, 36_000));
    schedule.recall_penalty(GATE, at(5_000), at(36_000));
    assert_eq!(picks(&mut schedule, 36_000).len(), 8, "long ago");

    let mut schedule = gated("8/s", 8, 1);
    (0..100).for_each(|n| push(&mut schedule, 1, n, 0));
    schedule.recall_passes(at(0));
    assert!(picks(&mut schedule, 124).is_empty(), "all that it had may have gone a moment ago");
    assert_eq!(picks(&mut schedule, 250).len(), 2);
}
