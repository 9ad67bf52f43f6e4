//! The judge: compares what was acknowledged with what arrived. Pure, so that it can be tested against liars.

use std::collections::BTreeMap;

/// One request at the receiver, in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// Index of the subscriber.
    pub(super) subscriber: usize,
    pub(super) key: usize,
    /// Counted from 1 within the key.
    pub(super) seq: u32,
    /// The `webhook-id`.
    pub(super) delivery: String,
    /// Whether it was answered 200, as far as the receiver can know.
    pub(super) ok: bool,
}

/// What went wrong, counted.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Findings {
    /// Acknowledged, yet never taken by a subscriber.
    pub(super) lost: u64,
    /// Taken more than once by the same subscriber.
    pub(super) duplicates: u64,
    /// Came to the ordered subscriber before its predecessor had been taken.
    pub(super) order_violations: u64,
    /// Came to the same subscriber under two ids.
    pub(super) changed_ids: u64,
    /// Came without having been acknowledged.
    pub(super) strangers: u64,
}

/// `acknowledged[key]` events of each key were acknowledged; `ordered` is the subscriber with lanes.
pub(super) fn judge(
    acknowledged: &[u32],
    subscribers: usize,
    ordered: usize,
    arrivals: &[Arrival],
) -> Findings {
    let mut findings = Findings::default();
    let mut events: BTreeMap<(usize, usize, u32), Seen<'_>> = BTreeMap::new();
    for arrival in arrivals {
        let Arrival { subscriber, key, seq, .. } = *arrival;
        if acknowledged.get(key).is_none_or(|last| seq == 0 || seq > *last) {
            findings.strangers += 1;
            continue;
        }
        let predecessor_taken =
            seq == 1 || events.get(&(subscriber, key, seq - 1)).is_some_and(|before| before.taken > 0);
        let first = !events.contains_key(&(subscriber, key, seq));
        if subscriber == ordered && first && !predecessor_taken {
            findings.order_violations += 1;
        }
        let seen =
            events.entry((subscriber, key, seq)).or_insert(Seen { delivery: &arrival.delivery, taken: 0 });
        if seen.delivery != arrival.delivery {
            findings.changed_ids += 1;
        }
        seen.taken += u64::from(arrival.ok);
    }
    let expected = acknowledged.iter().map(|last| u64::from(*last)).sum::<u64>() * subscribers as u64;
    let taken = events.values().filter(|seen| seen.taken > 0).count() as u64;
    findings.lost = expected - taken;
    findings.duplicates = events.values().map(|seen| seen.taken.saturating_sub(1)).sum();
    findings
}

struct Seen<'a> {
    delivery: &'a str,
    /// How often it was answered 200.
    taken: u64,
}

#[cfg(test)]
mod tests {
    use super::{Arrival, Findings, judge};

    /// Arrivals at the ordered subscriber 0 of key 0, written as (seq, webhook-id, answered 200).
    fn check(acknowledged: u32, arrivals: &[(u32, &str, bool)], expected: &Findings) {
        let arrivals: Vec<Arrival> = arrivals
            .iter()
            .map(|&(seq, delivery, ok)| Arrival {
                subscriber: 0,
                key: 0,
                seq,
                delivery: delivery.to_owned(),
                ok,
            })
            .collect();
        assert_eq!(&judge(&[acknowledged], 1, 0, &arrivals), expected);
    }

    #[test]
    fn a_clean_run_has_no_findings() {
        check(3, &[(1, "a", true), (2, "b", false), (2, "b", true), (3, "c", true)], &Findings::default());
    }

    #[test]
    fn what_was_acknowledged_must_be_taken_by_every_subscriber() {
        check(2, &[(1, "a", true)], &Findings { lost: 1, ..Findings::default() });
        check(1, &[(1, "a", false)], &Findings { lost: 1, ..Findings::default() });
        let one = [Arrival { subscriber: 0, key: 0, seq: 1, delivery: "a".to_owned(), ok: true }];
        assert_eq!(judge(&[1], 2, 9, &one), Findings { lost: 1, ..Findings::default() });
    }

    #[test]
    fn a_second_taking_is_a_duplicate_and_a_retry_is_not() {
        check(1, &[(1, "a", true), (1, "a", true)], &Findings { duplicates: 1, ..Findings::default() });
        check(1, &[(1, "a", false), (1, "a", true)], &Findings::default());
    }

    #[test]
    fn nothing_overtakes_in_a_lane() {
        let swapped = Findings { order_violations: 1, ..Findings::default() };
        check(2, &[(2, "b", true), (1, "a", true)], &swapped);
        check(2, &[(1, "a", false), (2, "b", true), (1, "a", true)], &swapped);
        check(
            2,
            &[(1, "a", true), (2, "b", true), (1, "a", true)],
            &Findings { duplicates: 1, ..Findings::default() },
        );
    }

    #[test]
    fn ids_are_stable_and_nothing_is_made_up() {
        check(1, &[(1, "a", false), (1, "b", true)], &Findings { changed_ids: 1, ..Findings::default() });
        check(1, &[(1, "a", true), (2, "b", true)], &Findings { strangers: 1, ..Findings::default() });
    }
}
