//! Instants and durations as the domain knows them.
//!
//! [`Timestamp`] is the only instant in decisions and tables: milliseconds since 1970, UTC. Nothing here can
//! read a clock; `now` always arrives as an argument.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const DAY_MS: i64 = 24 * 3600 * 1000;
/// 9999-12-30: the last instant that every calendar library agrees on.
const MS_MAX: i64 = 253_402_207_200_000;
/// 0000-01-02, for the same reason.
const MS_MIN: i64 = -62_167_132_800_000;

/// An instant, in whole milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `ms` milliseconds after the epoch, held inside the years 0 to 9999.
    pub const fn from_ms(ms: i64) -> Self {
        Self(if ms > MS_MAX {
            MS_MAX
        } else if ms < MS_MIN {
            MS_MIN
        } else {
            ms
        })
    }

    /// Milliseconds since the epoch.
    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded down.
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Days since the epoch: what retention counts in.
    pub const fn day(self) -> i64 {
        self.0.div_euclid(DAY_MS)
    }

    /// This instant moved forward.
    pub fn plus(self, duration: Duration) -> Self {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(MS_MAX);
        Self::from_ms(self.0.saturating_add(ms))
    }

    /// How long ago `earlier` was; zero when it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads RFC 3339, with any offset and any number of digits of the second.
    pub fn parse(text: &str) -> Option<Self> {
        let instant: jiff::Timestamp = text.parse().ok()?;
        (MS_MIN..=MS_MAX).contains(&instant.as_millisecond()).then(|| Self(instant.as_millisecond()))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(instant) => write!(f, "{instant:.3}"),
            Err(_) => f.write_str("9999-12-30T00:00:00.000Z"),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom("expected an RFC 3339 time such as 2026-01-31T09:30:00Z"))
    }
}

/// A duration written the way people write it: `250ms`, `60s`, `5m`, `2h`, `7d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];

impl Span {
    /// A span of whole milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// Reads one whole number and one unit.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
        number.parse::<u64>().ok()?.checked_mul(*ms).map(Self::from_ms)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let (unit, size) =
            UNITS[..4].iter().rev().find(|(_, size)| ms >= *size && ms % size == 0).unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", ms / size)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(
                "expected a duration such as \"250ms\", \"60s\", \"5m\", \"2h\" or \"7d\"",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_they_parse() {
        for text in ["2026-11-15T19:34:14.123Z", "1970-01-01T00:00:00.000Z"] {
            assert_eq!(Timestamp::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Timestamp::parse("2026-01-01T01:00:00+01:00"), Timestamp::parse("2026-01-01T00:00:00Z"));
        assert_eq!(Timestamp::parse("yesterday"), None);
    }

    #[test]
    fn spans_print_as_they_parse() {
        for text in ["250ms", "60s", "5m", "16m", "2h"] {
            assert_eq!(Span::parse(&Span::parse(text).unwrap().to_string()), Span::parse(text));
        }
        assert_eq!(Span::parse("90s").unwrap().to_string(), "90s");
        assert_eq!(Span::parse("7d").unwrap().to_string(), "168h");
        for bad in ["", "5", "s", "-1s", "1.5s", "1 s", "99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(Span::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let late = Timestamp::from_ms(i64::MAX);
        assert_eq!(late.plus(Duration::MAX), late);
        assert_eq!(Timestamp::from_ms(5).since(late), Duration::ZERO);
        assert_eq!(Timestamp::from_ms(-1).day(), -1);
    }
}
