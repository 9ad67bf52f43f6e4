//! The circuit breaker of one subscriber: a receiver that only fails is asked seldom instead of by everything that
//! waits for it.
//!
//! Closed, it counts failures in a row; any success begins the count anew, so a receiver that takes some deliveries
//! and refuses others keeps it closed. Open, nothing is sent until the time of a probe. Half-open, exactly one delivery
//! is on its way: if it arrives the breaker closes, else it stays open and the next probe comes later, up to a bound.
//! After it closed, the receiver gets one at a time, then two, four, and so on up to its concurrency.
//!
//! What counts as a failure: every attempt that did not end with 2xx, refusals (4xx) and `429` with a time to come back
//! included. A probe is an attempt of its delivery and does not use up its retry schedule.
//! Does not: survive a restart. A new process begins closed and opens again after as many failures.

use std::time::Duration;

use crate::limits::PROBE_FIRST_MS;
use crate::time::Timestamp;

/// When a breaker opens and how often it probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerTerms {
    /// Failures in a row that open it.
    pub failures: u32,
    /// The longest time between two probes.
    pub probe: Duration,
}

/// How an attempt ended, as far as turns are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has it.
    Delivered,
    /// It failed; with any random number.
    Failed {
        /// Spreads the next probe.
        chance: u64,
    },
    /// It was not made.
    Unsent,
}

/// The one delivery that finds out whether the receiver is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    delay: Duration,
}

impl Probe {
    /// When the next probe is due if this one fails: between half the delay and all of it.
    pub fn again_at(self, now: Timestamp, chance: u64) -> Timestamp {
        let half_ms = u64::try_from(self.delay.as_millis() / 2).unwrap_or(u64::MAX - 1);
        now.plus(self.delay / 2).plus(Duration::from_millis(chance % (half_ms + 1)))
    }
}

/// What a result did to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// It opened after this many failures.
    Opened {
        /// In a row.
        failures: u32,
    },
    /// It closed, having been open since then.
    Closed {
        /// When it opened.
        opened_at: Timestamp,
    },
}

/// How a breaker is called in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerView {
    /// `closed`, `open` or `half_open`.
    pub state: &'static str,
    /// Since when it is closed again, or not; absent when it never opened.
    pub since: Option<Timestamp>,
    /// Failures in a row.
    pub failures: u32,
    /// When it probes next, if something is due then.
    pub next_probe_at: Option<Timestamp>,
}

/// The breaker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Breaker {
    /// Absent means that it never opens.
    terms: Option<BreakerTerms>,
    state: State,
    failures: u32,
    since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many attempts at once.
    Closed {
        allowed: u32,
    },
    Open {
        probe_at: Timestamp,
        probes: u32,
    },
    HalfOpen {
        probes: u32,
    },
}

impl Breaker {
    pub(super) fn new(terms: Option<BreakerTerms>) -> Self {
        Self { terms, state: State::Closed { allowed: u32::MAX }, failures: 0, since: None }
    }

    pub(super) fn terms(&self) -> Option<BreakerTerms> {
        self.terms
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Attempts at once, those by hand not counted.
    pub(super) fn allowed(&self) -> u32 {
        match self.state {
            State::Closed { allowed } => allowed,
            State::Open { .. } => 0,
            State::HalfOpen { .. } => 1,
        }
    }

    /// It is open, and this is when it probes.
    pub(super) fn probe_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Open { probe_at, .. } => Some(probe_at),
            _ => None,
        }
    }

    /// The delivery that is sent now is a probe.
    pub(super) fn probe(&self) -> Option<Probe> {
        match self.state {
            State::HalfOpen { probes } => Some(Probe { delay: self.delay(probes + 1) }),
            _ => None,
        }
    }

    /// A delivery was found that goes as a probe.
    pub(super) fn half_open(&mut self) {
        if let State::Open { probes, .. } = self.state {
            self.state = State::HalfOpen { probes };
        }
    }

    /// The probe is not sent: another one may go at once.
    pub(super) fn call_off_probe(&mut self, now: Timestamp) {
        if let State::HalfOpen { probes } = self.state {
            self.state = State::Open { probe_at: now, probes };
        }
    }

    /// An attempt has ended.
    pub(super) fn ended(
        &mut self,
        outcome: Outcome,
        was_probe: bool,
        concurrency: u32,
        now: Timestamp,
    ) -> Option<Turned> {
        match outcome {
            Outcome::Delivered => self.delivered(concurrency, now),
            Outcome::Failed { chance } => self.failed(was_probe, now, chance),
            Outcome::Unsent => {
                if was_probe {
                    self.call_off_probe(now);
                }
                None
            }
        }
    }

    fn delivered(&mut self, concurrency: u32, now: Timestamp) -> Option<Turned> {
        self.failures = 0;
        match self.state {
            State::Closed { allowed } => {
                if allowed < concurrency {
                    self.state = State::Closed { allowed: allowed.saturating_mul(2) };
                }
                None
            }
            State::Open { .. } | State::HalfOpen { .. } => {
                let opened_at = self.since.replace(now).unwrap_or(now);
                self.state = State::Closed { allowed: 1 };
                Some(Turned::Closed { opened_at })
            }
        }
    }

    fn failed(&mut self, was_probe: bool, now: Timestamp, chance: u64) -> Option<Turned> {
        self.failures = self.failures.saturating_add(1);
        let terms = self.terms?;
        match self.state {
            State::Closed { .. } if self.failures >= terms.failures => {
                let probe = Probe { delay: self.delay(0) };
                self.state = State::Open { probe_at: probe.again_at(now, chance), probes: 0 };
                self.since = Some(now);
                Some(Turned::Opened { failures: self.failures })
            }
            State::HalfOpen { probes } if was_probe => {
                let probe = Probe { delay: self.delay(probes + 1) };
                self.state = State::Open { probe_at: probe.again_at(now, chance), probes: probes + 1 };
                None
            }
            _ => None,
        }
    }

    /// How long after so many failed probes the next one comes, at most.
    fn delay(&self, probes: u32) -> Duration {
        let bound = self.terms.map_or(Duration::ZERO, |terms| terms.probe);
        Duration::from_millis(PROBE_FIRST_MS.saturating_mul(1 << probes.min(16))).min(bound)
    }

    pub(super) fn view(&self) -> BreakerView {
        BreakerView {
            state: match self.state {
                State::Closed { .. } => "closed",
                State::Open { .. } => "open",
                State::HalfOpen { .. } => "half_open",
            },
            since: self.since,
            failures: self.failures,
            next_probe_at: self.probe_at(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Outcome = Outcome::Failed { chance: 0 };

    fn breaker(failures: u32, probe_s: u64) -> Breaker {
        Breaker::new(Some(BreakerTerms { failures, probe: Duration::from_secs(probe_s) }))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_ms(seconds * 1000)
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = breaker(3, 60);
        for _ in 0..5 {
            assert_eq!(breaker.ended(FAILED, false, 4, at(0)), None);
            assert_eq!(breaker.ended(FAILED, false, 4, at(0)), None);
            assert_eq!(breaker.ended(Outcome::Delivered, false, 4, at(0)), None);
        }
        assert_eq!(breaker.ended(FAILED, false, 4, at(1)), None);
        assert_eq!(breaker.ended(FAILED, false, 4, at(1)), None);
        assert_eq!(breaker.ended(FAILED, false, 4, at(1)), Some(Turned::Opened { failures: 3 }));
        assert_eq!((breaker.allowed(), breaker.probe_at()), (0, Some(at(6))));
        assert_eq!(breaker.ended(FAILED, false, 4, at(2)), None, "what was under way changes nothing");
        assert_eq!(breaker.probe_at(), Some(at(6)));
    }

    #[test]
    fn probes_come_later_each_time_and_never_later_than_the_bound() {
        let mut breaker = breaker(1, 60);
        breaker.ended(FAILED, false, 4, at(0));
        for (now, least) in [(100, 10), (200, 20), (300, 30), (400, 30), (500, 30)] {
            breaker.half_open();
            let probe = breaker.probe().expect("half-open");
            for chance in [0, 1, u64::MAX] {
                let again = probe.again_at(at(now), chance);
                assert!(again >= at(now + least) && again <= at(now + 2 * least), "{now}: {again}");
            }
            breaker.ended(FAILED, true, 4, at(now));
            assert_eq!(breaker.probe_at(), Some(probe.again_at(at(now), 0)));
        }
        assert_eq!(breaker.view().since, Some(at(0)));
    }

    #[test]
    fn it_closes_into_a_slow_start() {
        let mut breaker = breaker(1, 1);
        breaker.ended(FAILED, false, 5, at(0));
        breaker.half_open();
        assert_eq!(
            breaker.ended(Outcome::Delivered, true, 5, at(9)),
            Some(Turned::Closed { opened_at: at(0) })
        );
        let mut steps = vec![breaker.allowed()];
        for _ in 0..4 {
            breaker.ended(Outcome::Delivered, false, 5, at(9));
            steps.push(breaker.allowed());
        }
        assert_eq!(steps, [1, 2, 4, 8, 8]);
    }

    #[test]
    fn a_probe_that_was_not_sent_is_due_again_at_once() {
        let mut breaker = breaker(1, 1);
        breaker.ended(FAILED, false, 5, at(0));
        breaker.half_open();
        breaker.ended(Outcome::Unsent, true, 5, at(7));
        assert_eq!(breaker.probe_at(), Some(at(7)));
    }

    #[test]
    fn without_terms_it_never_opens() {
        let mut breaker = Breaker::new(None);
        for _ in 0..1000 {
            assert_eq!(breaker.ended(FAILED, false, 4, at(0)), None);
        }
        assert_eq!((breaker.is_closed(), breaker.view().failures), (true, 1000));
    }
}
