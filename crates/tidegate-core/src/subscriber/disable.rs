//! When a subscriber that only fails is made inactive: `"5d"`, or `"never"`.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::DISABLE_AFTER_DEFAULT_MS;
use crate::time::Span;

/// After how long of nothing but failures a subscriber is made inactive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisableAfter {
    /// After this long.
    Span(Span),
    /// It is tried for as long as it exists.
    Never,
}

impl Default for DisableAfter {
    fn default() -> Self {
        Self::Span(Span::from_ms(DISABLE_AFTER_DEFAULT_MS))
    }
}

impl DisableAfter {
    /// For the schedule.
    pub fn terms(self) -> Option<Duration> {
        match self {
            Self::Span(span) => Some(span.0),
            Self::Never => None,
        }
    }
}

impl Serialize for DisableAfter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Span(span) => span.serialize(serializer),
            Self::Never => serializer.serialize_str("never"),
        }
    }
}

impl<'de> Deserialize<'de> for DisableAfter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "never" {
            return Ok(Self::Never);
        }
        Span::parse(&text)
            .map(Self::Span)
            .ok_or_else(|| D::Error::custom("expected a duration such as \"5d\", or \"never\""))
    }
}
