//! The verdict against liars: every kind of broken promise is found, and nothing else.

use std::time::Duration;

use super::audience::{Kind, NARROW, ORDERED, PLAIN, RATED};
use super::verdict::{Arrival, Findings, Sent, Window, concurrency, judge, overshoot};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Taken by `subscriber` at a time and answered a millisecond later.
fn taken(subscriber: usize, seq: u32, at: u64) -> Arrival {
    let delivery = format!("{subscriber}-{seq}");
    Arrival { subscriber, key: 0, seq, delivery, ok: true, at: ms(at), answered: Some(ms(at + 1)) }
}

fn check(sent: Sent, arrivals: &[Arrival], expected: &Findings) {
    let windows = [Window { from: ms(1_000), until: ms(2_000) }];
    assert_eq!(&judge(&[sent], arrivals, &windows), expected);
}

const NARROW_ONES: Kind = Kind::Narrow;

fn narrow(last: u32) -> Sent {
    Sent { kind: NARROW_ONES, last }
}

#[test]
fn everybody_gets_what_is_for_them() {
    let sent = Sent { kind: Kind::Keyed, last: 1 };
    let all: Vec<Arrival> =
        Kind::Keyed.audience().iter().map(|subscriber| taken(*subscriber, 1, 10)).collect();
    check(sent, &all, &Findings::default());
    check(sent, &all[1..], &Findings { lost: 1, ..Findings::default() });
    let mut failed = all.clone();
    failed[0].ok = false;
    check(sent, &failed, &Findings { lost: 1, ..Findings::default() });
    let stranger = [all, vec![taken(RATED, 1, 20)]].concat();
    check(sent, &stranger, &Findings { strangers: 1, ..Findings::default() });
    check(
        narrow(1),
        &[taken(NARROW, 1, 1), taken(NARROW, 2, 2)],
        &Findings { strangers: 1, ..Findings::default() },
    );
}

#[test]
fn a_second_taking_needs_an_explanation() {
    let again = |first, second| [taken(NARROW, 1, first), taken(NARROW, 1, second)];
    let explained = Findings { duplicates: 1, ..Findings::default() };
    let unexplained = Findings { duplicates: 1, unexplained: 1, ..Findings::default() };
    check(narrow(1), &again(1_500, 7_000), &explained);
    check(narrow(1), &again(500, 1_500), &unexplained);
    check(narrow(1), &again(6_500, 7_000), &unexplained);
    let mut retried = again(500, 1_500);
    retried[0].ok = false;
    check(narrow(1), &retried, &Findings::default());
    retried[1].delivery = "another".to_owned();
    check(narrow(1), &retried, &Findings { changed_ids: 1, ..Findings::default() });
}

#[test]
fn nothing_overtakes_in_a_lane_nor_goes_beside_its_predecessor() {
    let violations =
        |arrivals: &[Arrival]| judge(&[Sent { kind: Kind::Keyed, last: 2 }], arrivals, &[]).order_violations;
    let (one, two) = (taken(ORDERED, 1, 10), taken(ORDERED, 2, 20));
    assert_eq!(violations(&[one.clone(), two.clone()]), 0);
    assert_eq!(violations(&[two.clone(), one.clone()]), 1);
    let late = Arrival { answered: Some(ms(25)), ..one.clone() };
    assert_eq!(violations(&[late, two.clone()]), 1, "the first was not answered yet");
    let failed = Arrival { ok: false, ..one.clone() };
    assert_eq!(violations(&[failed, two.clone()]), 1);
    assert_eq!(violations(&[one.clone(), two, one]), 0, "a repeat is a duplicate");
    assert_eq!(violations(&[taken(PLAIN, 2, 10), taken(PLAIN, 1, 20)]), 0, "no order was promised");
}

#[test]
fn rates_are_measured_over_every_stretch() {
    let over = |times: &[u64]| overshoot(times.iter().map(|at| ms(*at)), 10.0, 3.0);
    let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6;
    assert!(near(over(&[0, 0, 0]), 0.0));
    assert!(near(over(&[0, 0, 0, 100, 200]), 0.0));
    assert!(near(over(&[0, 0, 0, 100, 100]), 1.0));
    assert!(near(over(&[0, 60_000, 60_000, 60_000, 60_000, 60_000]), 2.0), "a pause saves up one burst");
    assert!(near(over(&[]), 0.0));
}

#[test]
fn requests_under_way_are_counted() {
    let most = |requests: &[(u64, Option<u64>)]| {
        concurrency(requests.iter().map(|(at, answered)| (ms(*at), answered.map(ms))))
    };
    assert_eq!(most(&[(0, Some(10)), (10, Some(20))]), 1);
    assert_eq!(most(&[(0, Some(10)), (5, None), (10, Some(20))]), 2);
    assert_eq!(most(&[]), 0);
}
