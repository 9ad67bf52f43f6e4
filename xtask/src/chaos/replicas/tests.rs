//! The verdict against liars: every kind of broken promise is found, and nothing else.

use std::time::Duration;

use super::audience::Kind;
use super::verdict::{Sent, Window, concurrency, overshoot, promises, unexplained};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn everything_that_was_sent_is_promised_to_its_audience() {
    let sent = [Sent { kind: Kind::Narrow, last: 2 }, Sent { kind: Kind::Keyed, last: 1 }];
    let promises = promises(&sent, Kind::audience);
    let told: Vec<String> =
        promises.iter().map(|promise| format!("{} {:?}", promise.event, promise.wanted)).collect();
    assert_eq!(told, ["k0-1 [4]", "k0-2 [4]", "k1-1 [0, 1, 2]"]);
}

#[test]
fn a_second_taking_needs_an_explanation() {
    let windows = [Window { from: ms(1_000), until: ms(2_000) }];
    assert_eq!(unexplained(&[ms(1_500)], &windows), 0);
    assert_eq!(unexplained(&[ms(500), ms(1_500), ms(6_500)], &windows), 2);
    assert_eq!(unexplained(&[ms(500)], &[]), 1);
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
