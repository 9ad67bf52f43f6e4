//! The lengths of buckets that are stored, and where each bucket begins.
//!
//! Buckets are aligned in UTC: to multiples since 1970, weeks to Monday. Each length is made of whole buckets of the
//! one before it, so that a coarser rollup is the sum of finer ones.

use std::fmt;
use std::time::Duration;

use crate::time::Timestamp;

const DAY_MS: i64 = 24 * 3_600_000;
/// The first Monday after the epoch, which was a Thursday.
const MONDAY_MS: i64 = 4 * DAY_MS;

/// Short buckets are many, and soon nobody asks for them: a week and a day to look back at, for five seconds.
const S5_KEPT: Duration = Duration::from_hours(8 * 24);
/// A month and some days, for minutes.
const M1_KEPT: Duration = Duration::from_hours(35 * 24);
/// A quarter and some days, for five minutes.
const M5_KEPT: Duration = Duration::from_hours(100 * 24);

/// The length of a bucket. Weeks begin on Monday, everything in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grain {
    /// Five seconds.
    S5,
    /// A minute.
    M1,
    /// Five minutes.
    M5,
    /// An hour.
    H1,
    /// A day.
    D1,
    /// A week.
    D7,
}

impl Grain {
    /// From fine to coarse.
    pub const ALL: [Self; 6] = [Self::S5, Self::M1, Self::M5, Self::H1, Self::D1, Self::D7];

    /// The grains that a metric with this base keeps, from fine to coarse.
    pub fn from_base(base: Self) -> &'static [Self] {
        const ALL: &[Grain] = &Grain::ALL;
        &ALL[base as usize..]
    }

    /// As the store writes it.
    pub fn code(self) -> i64 {
        self as i64
    }

    /// Reads what [`Grain::code`] writes.
    pub fn from_code(code: i64) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// How long its buckets are.
    pub const fn length_ms(self) -> i64 {
        match self {
            Self::S5 => 5_000,
            Self::M1 => 60_000,
            Self::M5 => 300_000,
            Self::H1 => 3_600_000,
            Self::D1 => DAY_MS,
            Self::D7 => 7 * DAY_MS,
        }
    }

    /// How long its buckets are kept of a metric that is kept for a term: longer ones for all of it.
    pub fn kept(self, term: Duration) -> Duration {
        match self {
            Self::S5 => term.min(S5_KEPT),
            Self::M1 => term.min(M1_KEPT),
            Self::M5 => term.min(M5_KEPT),
            Self::H1 | Self::D1 | Self::D7 => term,
        }
    }

    /// The next longer one.
    pub fn longer(self) -> Option<Self> {
        Self::from_base(self).get(1).copied()
    }

    /// When the bucket of an instant begins, in milliseconds.
    pub const fn start(self, time: Timestamp) -> i64 {
        self.start_ms(time.as_ms())
    }

    /// [`Grain::start`] of an instant in milliseconds.
    pub const fn start_ms(self, ms: i64) -> i64 {
        // A constant divisor in each arm spares the hot path a division.
        match self {
            Self::S5 => ms - ms.rem_euclid(5_000),
            Self::M1 => ms - ms.rem_euclid(60_000),
            Self::M5 => ms - ms.rem_euclid(300_000),
            Self::H1 => ms - ms.rem_euclid(3_600_000),
            Self::D1 => ms - ms.rem_euclid(DAY_MS),
            Self::D7 => ms - (ms - MONDAY_MS).rem_euclid(7 * DAY_MS),
        }
    }

    /// Reads what a definition says: `5s`, `1m`, `5m`, `1h`, `1d` or `7d`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grain| grain.name() == text)
    }

    /// What [`Grain::parse`] reads.
    pub const fn name(self) -> &'static str {
        match self {
            Self::S5 => "5s",
            Self::M1 => "1m",
            Self::M5 => "5m",
            Self::H1 => "1h",
            Self::D1 => "1d",
            Self::D7 => "7d",
        }
    }
}

impl fmt::Display for Grain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_and_names_are_read_back() {
        for grain in Grain::ALL {
            assert_eq!(Grain::from_code(grain.code()), Some(grain));
            assert_eq!(Grain::parse(&grain.to_string()), Some(grain));
        }
        assert_eq!((Grain::from_code(6), Grain::from_code(-1), Grain::parse("2m")), (None, None, None));
        assert_eq!(Grain::from_base(Grain::H1), [Grain::H1, Grain::D1, Grain::D7]);
    }

    #[test]
    fn weeks_begin_on_monday() {
        let start = |text| Timestamp::from_ms(Grain::D7.start(Timestamp::parse(text).unwrap())).to_string();
        assert_eq!(start("2026-11-15T23:59:59.999Z"), "2026-11-09T00:00:00.000Z");
        assert_eq!(start("2026-11-16T00:00:00Z"), "2026-11-16T00:00:00.000Z");
        assert_eq!(start("1970-01-01T00:00:00Z"), "1969-12-29T00:00:00.000Z");
    }

    proptest! {
        #[test]
        fn buckets_hold_their_instants_and_nest(ms in -62_167_132_800_000_i64..253_402_207_200_000) {
            for (finer, coarser) in Grain::ALL.into_iter().zip(Grain::ALL.into_iter().skip(1)) {
                for grain in [finer, coarser] {
                    let start = grain.start_ms(ms);
                    prop_assert!(start <= ms && ms < start + grain.length_ms());
                    prop_assert_eq!(grain.start_ms(start), start);
                }
                prop_assert_eq!(coarser.start_ms(finer.start_ms(ms)), coarser.start_ms(ms));
            }
        }
    }
}
