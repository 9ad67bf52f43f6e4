//! What a delivery that is in memory waits for, for those who ask about it.
//!
//! Does not: know of deliveries that wait in the store, or in the memory of another process.

use super::Schedule;
use crate::id::{DeliveryNo, GateNo, SubscriberNo};

/// What keeps a delivery from being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// A token of its gate.
    Gate(GateNo),
    /// A token of its subscriber's own rate.
    Rate,
    /// A place: as many as its subscriber allows are under way.
    Place,
    /// Its turn among all subscribers.
    Turn,
}

impl Schedule {
    /// What a delivery waits for here; `None` when it is under way, or not here.
    pub fn waits(&self, subscriber: SubscriberNo, delivery: DeliveryNo) -> Option<Waits> {
        let lineup = self.lineups.get(&subscriber)?;
        lineup.urgent.iter().chain(&lineup.queue).find(|ready| ready.job.delivery == delivery)?;
        Some(match (lineup.terms.gate, lineup.terms.rate) {
            _ if lineup.free_places() == 0 => Waits::Place,
            (Some(gate), _) => Waits::Gate(gate),
            (None, Some(_)) => Waits::Rate,
            (None, None) => Waits::Turn,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gate::Flow;
    use crate::schedule::breaker::Outcome;
    use crate::schedule::tests::job;
    use crate::schedule::{Ended, Terms};
    use crate::subscriber::Rate;
    use crate::time::Timestamp;

    #[test]
    fn what_keeps_a_delivery_is_told() {
        let now = Timestamp::from_ms(0);
        let rate = Rate::parse("1/h");
        let mut schedule = Schedule::default();
        schedule.set_gates(&BTreeMap::from([(7, Flow::from(rate.unwrap()))]), now);
        let terms = Terms { concurrency: 9, rate: None, gate: None, breaker: None, disable_after: None };
        schedule.admit(1, Terms { gate: Some(7), ..terms }, now);
        schedule.admit(2, Terms { rate, ..terms }, now);
        schedule.admit(3, Terms { concurrency: 1, ..terms }, now);
        for subscriber in 1..=3 {
            (0..3).for_each(|n| schedule.push(job(subscriber, 10 * subscriber + n), now).unwrap());
        }
        let sent: Vec<i64> =
            std::iter::from_fn(|| schedule.pick(now)).map(|turn| turn.job.delivery).collect();
        assert_eq!(sent.len(), 3, "{sent:?}");
        for (subscriber, waits) in [(1, Waits::Gate(7)), (2, Waits::Rate), (3, Waits::Place)] {
            assert_eq!(schedule.waits(subscriber, 10 * subscriber), None, "it is under way");
            for n in 1..3 {
                assert_eq!(schedule.waits(subscriber, 10 * subscriber + n), Some(waits));
            }
        }
        assert_eq!((schedule.waits(1, 20), schedule.waits(9, 1)), (None, None), "nobody knows of it");
    }
    fn gated(rate: &str, concurrency: u32) -> Schedule {
        let mut schedule = Schedule::default();
        schedule.set_gates(
            &BTreeMap::from([(7, Flow::new(Rate::parse(rate).unwrap(), 1))]),
            Timestamp::from_ms(0),
        );
        let terms = Terms { concurrency, rate: None, gate: Some(7), breaker: None, disable_after: None };
        schedule.admit(1, terms, Timestamp::from_ms(0));
        schedule
    }

    #[test]
    fn a_backlog_waits_at_its_gate_from_when_it_was_ready() {
        let at = |seconds: i64| Timestamp::from_ms(1_000 * seconds);
        let mut schedule = gated("1/s", 100);
        (0..10).for_each(|delivery| schedule.push(job(1, delivery), at(0)).unwrap());
        assert_eq!(schedule.line_pressure(7, at(0)).as_secs(), 9, "who comes now waits for all of them");
        let waited: Vec<u64> = (0..10)
            .map(|second| {
                assert!(schedule.pick(at(second)).is_some() && schedule.pick(at(second)).is_none());
                schedule.take_passed()[0].waited.as_secs()
            })
            .collect();
        assert_eq!(waited, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let line = schedule.line(7, at(9)).unwrap();
        assert_eq!((line.wait_p50.as_secs(), line.wait_p99.as_secs()), (4, 9));
    }

    #[test]
    fn what_its_own_subscriber_keeps_does_not_wait_for_the_gate() {
        let at = |seconds: i64| Timestamp::from_ms(1_000 * seconds);
        let mut schedule = gated("100/s", 1);
        (0..3).for_each(|delivery| schedule.push(job(1, delivery), at(0)).unwrap());
        for second in [0, 10, 20] {
            assert!(schedule.pick(at(second)).is_some() && schedule.pick(at(second + 9)).is_none());
            assert_eq!(schedule.take_passed()[0].waited.as_secs(), 0, "its receiver is slow, not the gate");
            let ended = Ended { subscriber: 1, was_probe: false, outcome: Outcome::Delivered };
            schedule.finish(ended, at(second + 10));
        }
    }
}
