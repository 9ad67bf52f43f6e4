//! Rates: how many per second, minute or hour, and the bucket that keeps them.
//!
//! The bucket is the generic cell rate algorithm: one number, the time at which the next one would be exactly on
//! schedule. Nobody sleeps in it; whoever may not go yet is told when.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::RATE_PER_SECOND_MAX;
use crate::time::Timestamp;

/// So many per second, minute or hour: `10/s`, `100/m`, `5/h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    unit: char,
}

impl Rate {
    /// Reads `10/s`, `100/m` or `5/h`. Zero is not a rate.
    pub fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once('/')?;
        let unit = match unit {
            "s" => 's',
            "m" => 'm',
            "h" => 'h',
            _ => return None,
        };
        let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        let count = count.parse().ok().filter(|count| digits && (1..=RATE_PER_SECOND_MAX).contains(count))?;
        Some(Self { count, unit })
    }

    fn per(self) -> Duration {
        Duration::from_secs(match self.unit {
            's' => 1,
            'm' => 60,
            _ => 3600,
        })
    }

    fn interval_us(self) -> i64 {
        (self.per().as_micros() / u128::from(self.count)).max(1) as i64
    }

    /// One second's worth, at least one.
    fn burst(self) -> i64 {
        (1_000_000 / self.interval_us()).max(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.unit)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom("expected a rate such as \"10/s\", \"100/m\" or \"5/h\""))
    }
}

/// Keeps a rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    interval_us: i64,
    tolerance_us: i64,
    due_us: i64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Timestamp) -> Self {
        let interval_us = rate.interval_us();
        Self { interval_us, tolerance_us: (rate.burst() - 1) * interval_us, due_us: us(now) }
    }

    /// Takes one, or says when one may be taken.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        let now_us = us(now);
        let due_us = self.due_us.max(now_us);
        let early_us = due_us - self.tolerance_us - now_us;
        if early_us > 0 {
            // Rounded up: a millisecond too late keeps the rate, one too early breaks it.
            return Err(now.plus(Duration::from_micros(early_us.unsigned_abs() + 999)));
        }
        self.due_us = due_us + self.interval_us;
        Ok(())
    }
}

fn us(time: Timestamp) -> i64 {
    time.as_ms().saturating_mul(1000)
}
