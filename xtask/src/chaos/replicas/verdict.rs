//! The verdict on a run with several processes: what was acknowledged against what arrived, and when. Pure, so that it
//! can be tested against liars; its tests are in `tests.rs`.
//!
//! A second taking is explained when the first one may have been under way, or its result not yet written, as a process
//! was killed or stopped: [`Window`]. Every other one is a finding, however few they are.

use std::collections::BTreeMap;
use std::time::Duration;

use super::audience::{Kind, ORDERED};

/// One request at the receivers, in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) subscriber: usize,
    pub(super) key: usize,
    /// Counted from 1 within the key.
    pub(super) seq: u32,
    /// The `webhook-id`.
    pub(super) delivery: String,
    /// Whether it was, or is going to be, answered 200.
    pub(super) ok: bool,
    pub(super) at: Duration,
    /// When the answer was begun; absent while the request is under way.
    pub(super) answered: Option<Duration>,
}

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

/// What went wrong, counted.
#[derive(PartialEq, Eq, Debug, Default, Clone)]
pub(super) struct Findings {
    /// Acknowledged, yet never taken by a subscriber.
    pub(super) lost: u64,
    /// Taken more than once by the same subscriber.
    pub(super) duplicates: u64,
    /// Those that nothing explains.
    pub(super) unexplained: u64,
    /// Came to the ordered subscriber before the answer to its predecessor.
    pub(super) order_violations: u64,
    /// Came to the same subscriber under two ids.
    pub(super) changed_ids: u64,
    /// Came to whom it was not for, or without having been acknowledged.
    pub(super) strangers: u64,
}

/// What became of one event at one subscriber.
struct Seen<'a> {
    delivery: &'a str,
    /// When the requests came that were answered 200.
    taken: Vec<Duration>,
    /// When the first of those answers was begun.
    answered: Option<Duration>,
}

/// Compares. `sent` is by key.
pub(super) fn judge(sent: &[Sent], arrivals: &[Arrival], windows: &[Window]) -> Findings {
    let mut findings = Findings::default();
    let mut seen: BTreeMap<(usize, usize, u32), Seen<'_>> = BTreeMap::new();
    for arrival in arrivals {
        let Arrival { subscriber, key, seq, .. } = *arrival;
        let is_known = |sent: &Sent| (1..=sent.last).contains(&seq) && sent.kind.goes_to(subscriber);
        if !sent.get(key).is_some_and(is_known) {
            findings.strangers += 1;
            continue;
        }
        let is_first = !seen.contains_key(&(subscriber, key, seq));
        if subscriber == ORDERED && is_first && seq > 1 {
            let before = seen.get(&(subscriber, key, seq - 1)).and_then(|before| before.answered);
            findings.order_violations += u64::from(before.is_none_or(|answered| answered > arrival.at));
        }
        let event = seen.entry((subscriber, key, seq)).or_insert(Seen {
            delivery: &arrival.delivery,
            taken: Vec::new(),
            answered: None,
        });
        findings.changed_ids += u64::from(event.delivery != arrival.delivery);
        if arrival.ok {
            event.taken.push(arrival.at);
            event.answered = [event.answered, arrival.answered].into_iter().flatten().min();
        }
    }
    let expected: u64 =
        sent.iter().map(|sent| u64::from(sent.last) * sent.kind.audience().len() as u64).sum();
    findings.lost = expected - seen.values().filter(|event| !event.taken.is_empty()).count() as u64;
    for event in seen.values() {
        for again in event.taken.windows(2) {
            findings.duplicates += 1;
            findings.unexplained += u64::from(!is_explained(again[0], windows));
        }
    }
    findings
}

fn is_explained(taken: Duration, windows: &[Window]) -> bool {
    windows.iter().any(|window| (window.from..=window.until).contains(&taken))
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
