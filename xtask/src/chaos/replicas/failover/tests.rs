//! What may be expected of an event, by when its request was begun and answered.

use std::time::Duration;

use super::senders::Acknowledged;
use super::{Round, promises, windows};
use crate::chaos::checker::Event;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const ROUND: Round = Round {
    safe: Duration::from_millis(1_000),
    killed: Duration::from_millis(3_000),
    released: Duration::from_millis(6_000),
};

/// Whether an event may be lost, and whether it may double.
fn expected(first: u64, began: u64, at: u64) -> (bool, bool) {
    let event = Event { key: 7, seq: 1 };
    let acknowledged = Acknowledged { event, first: ms(first), began: ms(began), at: ms(at) };
    let promises = promises(&[acknowledged], &[ROUND]);
    assert_eq!(promises[0].wanted, [3, 4, 5], "it is for its own tenant");
    (promises[0].may_be_lost, promises[0].may_double)
}

#[test]
fn only_what_was_acknowledged_while_the_standby_was_behind_may_be_lost() {
    assert_eq!(expected(900, 900, 990), (false, false), "the standby has it");
    assert_eq!(expected(900, 900, 1_010), (true, false));
    assert_eq!(expected(2_000, 2_000, 2_010), (true, false));
    assert_eq!(expected(2_900, 2_900, 3_100), (true, false), "the answer was on its way");
    assert_eq!(expected(3_100, 3_100, 4_000), (false, false), "the promoted one has it");
}

#[test]
fn what_was_begun_before_the_kill_and_repeated_after_it_may_double() {
    assert_eq!(expected(2_900, 3_100, 4_000), (false, true));
    assert_eq!(expected(500, 3_100, 4_000), (false, true));
}

#[test]
fn a_run_that_lost_nothing_proves_nothing() {
    let of = |lost| super::conclude(lost, &[]);
    assert!(of(1).is_ok());
    assert!(of(0).is_err_and(|error| error.to_string().contains("proves nothing")));
    assert!(super::conclude(1, &["missing 1".to_owned()]).is_err());
}

#[test]
fn repeats_are_explained_around_a_failover_only() {
    let repeats = |at| super::unexplained(&[ms(at)], &windows(&[ROUND]));
    assert_eq!((repeats(0), repeats(5_999), repeats(6_001)), (0, 0, 1));
}
