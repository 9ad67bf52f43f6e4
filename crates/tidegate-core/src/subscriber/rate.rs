//! Rates as people write them: `10/s`, `100/m`, `5/h`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// At most `count` in every `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many; never zero.
    pub count: u32,
    /// A second, a minute or an hour.
    pub per: Duration,
}

const UNITS: [(&str, u64); 3] = [("s", 1), ("m", 60), ("h", 3600)];

impl Rate {
    /// Reads one whole number above zero and one unit.
    pub fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once('/')?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.parse().ok().filter(|count| digits && *count > 0)?;
        Some(Self { count, per: Duration::from_secs(*seconds) })
    }

    /// The time from one to the next when they are evenly spread.
    pub fn interval(self) -> Duration {
        self.per / self.count
    }

    /// How many in a minute, at least one.
    pub fn per_minute(self) -> u64 {
        (u64::from(self.count) * 60 / self.per.as_secs().max(1)).max(1)
    }

    /// How many may go at once: one second's worth, at least one.
    pub fn burst(self) -> u32 {
        let seconds = u32::try_from(self.per.as_secs()).unwrap_or(u32::MAX).max(1);
        (self.count / seconds).max(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            UNITS.iter().find(|(_, seconds)| *seconds == self.per.as_secs()).map_or("s", |(name, _)| name);
        write!(f, "{}/{unit}", self.count)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom("expected a rate above zero such as \"10/s\", \"100/m\" or \"5/h\"")
        })
    }
}
