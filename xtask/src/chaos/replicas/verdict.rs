//! What the checker does not know of a run with several processes: which repeats its faults explain, and how much came at once.
//! Pure, so that it can be tested against liars; its tests are in `tests.rs`.
//!
//! A second taking is explained when the first one may have been under way, or its result not yet written, as a process
//! was killed or stopped: [`Window`]. Every other one is a finding, however few they are.

use std::time::Duration;

use super::audience::Kind;
use crate::chaos::checker::{Event, Promise};

/// What was under way in this time may come again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Duration,
    pub(super) until: Duration,
}

/// What a producer sent under one key, all of it acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) kind: Kind,
    pub(super) last: u32,
}

/// Every event that was acknowledged, and whom it is for. `sent` is by key.
pub(super) fn promises(sent: &[Sent], wanted: impl Fn(Kind) -> &'static [usize]) -> Vec<Promise<'static>> {
    let of_key = |(key, sent): (usize, &Sent)| {
        let (last, wanted) = (sent.last, wanted(sent.kind));
        (1..=last).map(move |seq| Promise::firm(Event { key, seq }, wanted))
    };
    sent.iter().enumerate().flat_map(of_key).collect()
}

/// Of deliveries that were taken again, those that nothing explains.
pub(super) fn unexplained(repeats: &[Duration], windows: &[Window]) -> u64 {
    let explains = |taken: &Duration, window: &Window| (window.from..=window.until).contains(taken);
    repeats.iter().filter(|taken| !windows.iter().any(|window| explains(taken, window))).count() as u64
}

/// By how many requests any stretch of time exceeds what the rate and one burst allow.
pub(super) fn overshoot(arrivals: impl Iterator<Item = Duration>, rate: f64, burst: f64) -> f64 {
    // With n requests until t, a stretch has n₂ - n₁ + 1 of them and allows burst + rate · (t₂ - t₁).
    let (mut lowest, mut worst) = (f64::INFINITY, 0.0_f64);
    for (count, at) in (0_u32..).zip(arrivals) {
        let ahead = f64::from(count) - rate * at.as_secs_f64();
        lowest = lowest.min(ahead);
        worst = worst.max(ahead - lowest + 1.0 - burst);
    }
    worst
}

/// How many requests were under way at once, at most.
pub(super) fn concurrency(requests: impl Iterator<Item = (Duration, Option<Duration>)>) -> u64 {
    let mut steps: Vec<(Duration, i64)> = Vec::new();
    for (at, answered) in requests {
        steps.push((at, 1));
        steps.extend(answered.map(|answered| (answered, -1)));
    }
    // Whoever ends at an instant makes room for who begins then.
    steps.sort_unstable();
    let under_way = steps.iter().scan(0_i64, |count, (_, step)| {
        *count += step;
        Some(*count)
    });
    under_way.max().unwrap_or(0).unsigned_abs()
}
