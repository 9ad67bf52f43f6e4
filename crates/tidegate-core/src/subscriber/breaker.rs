//! When a subscriber is left alone for a while: `{"failures":10,"probe":"60s"}`, or `"off"`.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{BREAKER_FAILURES_DEFAULT, PROBE_DEFAULT_MS};
use crate::schedule::breaker::BreakerTerms;
use crate::time::Span;

/// A subscriber's breaker, as its owner wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// It opens.
    On(BreakerOn),
    /// It never opens.
    Off,
}

/// When a breaker opens, and how often it probes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerOn {
    /// Failures in a row that open it.
    pub failures: u32,
    /// The longest time between two probes.
    pub probe: Span,
}

impl Default for BreakerOn {
    fn default() -> Self {
        Self { failures: BREAKER_FAILURES_DEFAULT, probe: Span::from_ms(PROBE_DEFAULT_MS) }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::On(BreakerOn::default())
    }
}

impl Breaker {
    /// For the schedule.
    pub fn terms(self) -> Option<BreakerTerms> {
        match self {
            Self::On(on) => Some(BreakerTerms { failures: on.failures, probe: on.probe.0 }),
            Self::Off => None,
        }
    }
}

impl Serialize for Breaker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::On(on) => on.serialize(serializer),
            Self::Off => serializer.serialize_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for Breaker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BreakerVisitor)
    }
}

struct BreakerVisitor;

impl<'de> Visitor<'de> for BreakerVisitor {
    type Value = Breaker;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{\"failures\":10,\"probe\":\"60s\"} or \"off\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Breaker, E> {
        if text == "off" {
            return Ok(Breaker::Off);
        }
        Err(E::unknown_variant(&text.chars().take(40).collect::<String>(), &["off"]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Breaker, A::Error> {
        BreakerOn::deserialize(MapAccessDeserializer::new(map)).map(Breaker::On)
    }
}
