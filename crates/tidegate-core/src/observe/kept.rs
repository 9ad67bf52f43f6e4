//! Which buckets of a metric are still there.
//!
//! A bucket goes when the next longer one around it has been over for the term, short ones sooner than long ones: so
//! whatever lies between the beginning of a longer bucket and an instant is there, or none of it is. Whoever asks, and
//! whoever removes, goes by the same rule; the latter a little later, so that what somebody has planned to read is there
//! when it is read. Weeks of a state stay for as long as the metric lives: how many objects are in a state is the sum of
//! everything before.

use std::time::Duration;

use super::grain::Grain;
use super::metric::Kind;
use crate::time::Timestamp;

/// For so long after its term a bucket stays for those who asked just before.
const GRACE: Duration = Duration::from_mins(1);

/// What of a metric is kept at an instant.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    now: Timestamp,
    term: Duration,
    /// How long buckets of each length are; absent: for good.
    terms: [Option<Duration>; Grain::ALL.len()],
}

impl Kept {
    /// Of a metric of this kind that is kept for a term.
    pub fn new(kind: Kind, term: Duration, now: Timestamp) -> Self {
        let is_for_good = |grain| kind == Kind::State && grain == Grain::D7;
        let terms = Grain::ALL.map(|grain| (!is_for_good(grain)).then(|| grain.kept(term)));
        Self { now, term, terms }
    }

    #[cfg(test)]
    pub(crate) fn everything(now: Timestamp) -> Self {
        Self { now, term: Duration::MAX, terms: [None; Grain::ALL.len()] }
    }

    /// Which instant this is about.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// How long it is kept in all.
    pub fn term(&self) -> Duration {
        self.term
    }

    /// The first bucket of a length that is surely there, in milliseconds; `i64::MIN` if all are.
    pub fn since(&self, grain: Grain) -> i64 {
        self.terms[grain as usize].map_or(i64::MIN, |term| self.first(grain, term))
    }

    /// When a bucket may be removed; never, if it may not.
    pub fn until(&self, grain: Grain, bucket: i64) -> Option<Timestamp> {
        let around = around(grain);
        let end = Timestamp::from_ms(around.start_ms(bucket).saturating_add(around.length_ms()));
        self.terms[grain as usize].map(|term| end.plus(term).plus(GRACE))
    }

    /// Buckets before this one may be removed by now.
    pub fn over(&self, grain: Grain) -> i64 {
        self.terms[grain as usize].map_or(i64::MIN, |term| self.first(grain, term + GRACE))
    }

    /// The shortest buckets, of a metric with this base, that are there for an instant. None if it is too long ago for any.
    pub fn finest(&self, base: Grain, ms: i64) -> Option<Grain> {
        let is_kept = |grain: &Grain| around(*grain).start_ms(ms) >= self.since(*grain);
        Grain::from_base(base).iter().copied().find(is_kept)
    }

    /// The first bucket whose longer one was not over so long ago.
    fn first(&self, grain: Grain, ago: Duration) -> i64 {
        let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
        around(grain).start_ms(self.now.as_ms().saturating_sub(ago))
    }
}

fn around(grain: Grain) -> Grain {
    grain.longer().unwrap_or(grain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);
    const NOW: Timestamp = Timestamp::from_ms(1_794_996_022_000);

    #[test]
    fn short_buckets_go_sooner_and_weeks_of_states_never() {
        let kept = Kept::new(Kind::State, 400 * DAY, NOW);
        let days = |grain| (NOW.as_ms() - kept.since(grain)) / Grain::D1.length_ms();
        assert_eq!([Grain::S5, Grain::M1, Grain::M5, Grain::H1].map(days), [8, 35, 100, 400]);
        assert!((400..407).contains(&days(Grain::D1)), "up to the beginning of a week");
        assert_eq!((kept.since(Grain::D7), kept.over(Grain::D7)), (i64::MIN, i64::MIN));
        let short = Kept::new(Kind::Counter, DAY, NOW);
        let minute = Grain::M1.start_ms(NOW.as_ms() - Grain::D1.length_ms());
        assert_eq!((short.since(Grain::S5), short.over(Grain::S5)), (minute, minute - 60_000));
        assert!(short.over(Grain::D7) > i64::MIN);
    }

    #[test]
    fn the_finest_length_is_the_one_that_is_there() {
        let kept = Kept::new(Kind::Counter, 400 * DAY, NOW);
        let finest = |base, days: i64| kept.finest(base, NOW.as_ms() - days * Grain::D1.length_ms());
        let lengths = [0, 8, 9, 35, 36, 100, 101, 400, 408].map(|days| finest(Grain::S5, days));
        use Grain::{H1, M1, M5, S5};
        assert_eq!(lengths[..8], [S5, S5, M1, M1, M5, M5, H1, H1].map(Some));
        assert_eq!((lengths[8], finest(M5, 0)), (None, Some(M5)));
        let state = Kept::new(Kind::State, 400 * DAY, NOW);
        assert_eq!(state.finest(S5, 0), Some(Grain::D7));
    }

    proptest! {
        /// What may be removed is never what somebody can still ask for, and what is there is there for all longer ones.
        #[test]
        fn nothing_goes_that_is_promised(
            term_s in 1_u64..100_000_000, now in 0_i64..4_000_000_000_000, ago in 0_i64..100_000_000_000,
        ) {
            let kept = Kept::new(Kind::Counter, Duration::from_secs(term_s), Timestamp::from_ms(now));
            for grain in Grain::ALL {
                let (since, over) = (kept.since(grain), kept.over(grain));
                prop_assert!(over <= since);
                prop_assert!(kept.until(grain, over - 1).unwrap().as_ms() <= now);
                prop_assert!(kept.until(grain, over).unwrap().as_ms() > now);
            }
            if let Some(finest) = kept.finest(Grain::S5, now - ago) {
                for grain in Grain::from_base(finest) {
                    prop_assert!(around(*grain).start_ms(now - ago) >= kept.since(*grain));
                }
            }
        }
    }
}
