//! What comes after an attempt: the receiver's word, the subscriber's schedule, and chance.

use std::time::Duration;

use crate::attempt::Verdict;
use crate::limits::GONE_AGAIN_AFTER_MS;
use crate::schedule::breaker::Probe;
use crate::time::{Span, Timestamp};

/// Where a delivery goes after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It arrived.
    Delivered,
    /// It is due again at this time.
    RetryAt(Timestamp),
    /// It is due again at this time, and the attempt does not count as a failure of its schedule.
    PostponedTo(Timestamp),
    /// It is over, for this reason.
    Exhausted(String),
}

/// Decides what comes next. `tries` counts the failures before this attempt; `chance` is any random number.
///
/// The delay is drawn evenly between zero and the schedule's (full jitter), so that receivers that failed together
/// are not retried together. It never ends before the time the receiver asked for.
pub fn next(verdict: &Verdict, schedule: &[Span], tries: u32, now: Timestamp, chance: u64) -> Next {
    let not_before = match verdict {
        Verdict::Delivered => return Next::Delivered,
        Verdict::Gone => return after_gone(now),
        Verdict::RetryLater { not_before } => *not_before,
    };
    match schedule.get(tries as usize) {
        None if schedule.is_empty() => Next::Exhausted("its only attempt failed".to_owned()),
        None => Next::Exhausted(format!("all {} attempts failed", schedule.len() + 1)),
        Some(delay) => {
            let at = now.plus(jitter(delay.0, chance));
            Next::RetryAt(not_before.map_or(at, |earliest| at.max(earliest)))
        }
    }
}

/// Decides what comes after a probe: it is an attempt like any other, but an outage must not use up the schedules of
/// those that find out about it. A failed one is due again with the next probe.
pub fn after_probe(verdict: &Verdict, probe: Probe, now: Timestamp, chance: u64) -> Next {
    match verdict {
        Verdict::Delivered => Next::Delivered,
        Verdict::Gone => after_gone(now),
        Verdict::RetryLater { not_before } => {
            let at = probe.again_at(now, chance);
            Next::PostponedTo(not_before.map_or(at, |earliest| at.max(earliest)))
        }
    }
}

/// The subscriber is made inactive with it; the delivery is held, its schedule untouched. It is due a little later, so that
/// it is not sent again before that is written.
fn after_gone(now: Timestamp) -> Next {
    Next::PostponedTo(now.plus(Duration::from_millis(GONE_AGAIN_AFTER_MS)))
}

fn jitter(delay: Duration, chance: u64) -> Duration {
    let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX - 1);
    Duration::from_millis(chance % (ms + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000_000);
    const LATER: Verdict = Verdict::RetryLater { not_before: None };

    #[test]
    fn the_schedule_is_used_up_and_then_it_is_over() {
        let schedule = [Span::from_ms(10), Span::from_ms(20)];
        assert_eq!(next(&LATER, &schedule, 0, NOW, 10), Next::RetryAt(Timestamp::from_ms(1_000_010)));
        assert_eq!(next(&LATER, &schedule, 1, NOW, 20), Next::RetryAt(Timestamp::from_ms(1_000_020)));
        assert_eq!(next(&LATER, &schedule, 2, NOW, 0), Next::Exhausted("all 3 attempts failed".into()));
        assert_eq!(next(&LATER, &[], 0, NOW, 0), Next::Exhausted("its only attempt failed".into()));
        assert_eq!(next(&Verdict::Delivered, &schedule, 2, NOW, 0), Next::Delivered);
        let later = NOW.plus(Duration::from_millis(GONE_AGAIN_AFTER_MS));
        assert_eq!(next(&Verdict::Gone, &schedule, 2, NOW, 0), Next::PostponedTo(later));
    }

    proptest! {
        #[test]
        fn delays_stay_inside_the_schedule_and_after_the_receivers_word(
            delay in 0u64..10_000_000, chance: u64, asked in 0i64..10_000_000,
        ) {
            let earliest = Timestamp::from_ms(NOW.as_ms() + asked);
            let verdict = Verdict::RetryLater { not_before: Some(earliest) };
            let Next::RetryAt(at) = next(&verdict, &[Span::from_ms(delay)], 0, NOW, chance) else { panic!() };
            prop_assert!(at >= earliest);
            prop_assert!(at <= earliest.max(NOW.plus(Duration::from_millis(delay))));
            prop_assert!(at >= NOW);
        }
    }
}
