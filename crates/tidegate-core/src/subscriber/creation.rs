//! What `POST /v1/subscribers` takes: a definition, and the terms that matter only once.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::breaker::Breaker;
use super::definition::{Definition, Destination, Limits, Match, Order, Retry};
use super::disable::DisableAfter;
use super::hidden::unmask;
use super::invalid::{Invalid, read};
use super::signing::Signing;
use super::validate::check_secret;
use crate::fold::Fold;
use crate::time::Timestamp;
use crate::verification::Verification;

/// A subscriber to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Creation {
    /// What it is.
    pub definition: Definition,
    /// From which event on.
    pub from: Start,
    /// Whether it is delivered to at once; else its deliveries are held.
    pub active: bool,
    /// The signing secret its owner brings along, `whsec_…` or `whsk_…`; absent means a new one.
    pub secret: Option<String>,
}

/// From which event on a new subscriber gets what it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// What is accepted from now on.
    #[default]
    Now,
    /// Everything that is kept.
    Beginning,
    /// What was accepted since.
    Time(Timestamp),
}

impl Creation {
    /// Reads the body of a request. Addresses, headers and the condition are checked by [`super::validate`].
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
        let mut form: Form = read(body)?;
        unmask(&mut form.destination.headers, &BTreeMap::new())?;
        if let Some(secret) = &form.secret {
            check_secret(secret, form.signing.algorithm)
                .map_err(|detail| Invalid::new("secret_invalid", "secret", detail))?;
        }
        Ok(Self {
            definition: Definition {
                name: form.name,
                matching: form.matching,
                fold: form.fold,
                destination: form.destination,
                signing: form.signing,
                verification: form.verification,
                order: form.order,
                gate: form.gate,
                limits: form.limits,
                retry: form.retry,
                breaker: form.breaker,
                disable_after: form.disable_after,
            },
            from: form.from,
            active: form.active.unwrap_or(true),
            secret: form.secret,
        })
    }
}

/// One flat object on the wire. (serde's `flatten` would give up unknown fields and paths.)
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "match")]
    matching: Match,
    #[serde(default)]
    fold: Fold,
    destination: Destination,
    #[serde(default)]
    signing: Signing,
    #[serde(default)]
    verification: Verification,
    #[serde(default)]
    order: Order,
    gate: Option<String>,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    retry: Retry,
    #[serde(default)]
    breaker: Breaker,
    #[serde(default)]
    disable_after: DisableAfter,
    #[serde(default)]
    from: Start,
    active: Option<bool>,
    secret: Option<String>,
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "now" => Ok(Self::Now),
            "beginning" => Ok(Self::Beginning),
            time => Timestamp::parse(time).map(Self::Time).ok_or_else(|| {
                serde::de::Error::custom(
                    "expected \"now\", \"beginning\" or an RFC 3339 time such as 2026-01-31T09:30:00Z",
                )
            }),
        }
    }
}
