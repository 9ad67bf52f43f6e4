//! What a simulated subscriber wants, and the oracle that says so.
//!
//! A [`Spec`] is written into the product as JSON. What it matches and which lane it uses is decided here a second
//! time, in the plainest way, so that the product's routing is compared with something that shares no code with it.

use serde_json::{Value, json};

use super::consent::Asked;
use super::terms::FoldSpec;

/// What puts events in one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// No lanes.
    None,
    /// One lane.
    One,
    /// One per `data.key`; events without one are skipped.
    PerKey,
    /// One per `data.key`; events without one are delivered outside the lanes.
    PerKeyOrFree,
}

/// A subscriber's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) id: String,
    pub(crate) types: Vec<&'static str>,
    pub(crate) only_key: Option<&'static str>,
    pub(crate) lanes: Lanes,
    pub(crate) concurrency: u32,
    pub(crate) rate: Option<(u32, &'static str)>,
    pub(crate) timeout_ms: u64,
    pub(crate) retries_ms: Vec<u64>,
    /// Failures that open its breaker, and the bound of its probes; `None` is off.
    pub(crate) breaker: Option<(u32, u64)>,
    /// Nothing but failures for this long make it inactive.
    pub(crate) disable_after_ms: Option<u64>,
    /// Tells one edition of a definition from the next.
    pub(crate) edition: u32,
    /// How its endpoint wants to be asked before it gets anything.
    pub(crate) asked: Asked,
    /// How many become one.
    pub(crate) fold: Option<FoldSpec>,
    /// It passes its project's gate.
    pub(crate) is_gated: bool,
}

impl Spec {
    /// One that takes everything, in any order, and is never left alone.
    pub(crate) fn plain(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            types: Vec::new(),
            only_key: None,
            lanes: Lanes::None,
            concurrency: 8,
            rate: None,
            timeout_ms: 1_000,
            retries_ms: vec![1_000; 3],
            breaker: None,
            disable_after_ms: None,
            edition: 0,
            asked: Asked::Never,
            fold: None,
            is_gated: false,
        }
    }

    /// The definition as the store keeps it.
    pub(crate) fn definition(&self) -> String {
        let mut value = json!({
            "name": self.id,
            "match": {"types": self.types},
            "destination": {
                "url": format!("https://hooks.example/{}?edition={}", self.id, self.edition),
                // Both forms name the event and its `data` alike; which one goes out must not change under way.
                "payload": if self.edition.is_multiple_of(2) { "full" } else { "cloudevents" },
            },
            "limits": {"concurrency": self.concurrency, "timeout": format!("{}ms", self.timeout_ms)},
            "retry": {"schedule": self.retries_ms.iter().map(|ms| format!("{ms}ms")).collect::<Vec<_>>()},
        });
        if let Some(key) = self.only_key {
            value["match"]["where"] = json!(format!("data.key == '{key}'"));
        }
        if let Some((count, unit)) = self.rate {
            value["limits"]["rate"] = json!(format!("{count}/{unit}"));
        }
        value["breaker"] = match self.breaker {
            None => json!("off"),
            Some((failures, probe_ms)) => json!({"failures": failures, "probe": format!("{probe_ms}ms")}),
        };
        value["disable_after"] =
            json!(self.disable_after_ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms}ms")));
        value["verification"] = json!(self.asked.name());
        if self.is_gated {
            value["gate"] = json!(super::gates::NAME);
        }
        value["order"] = match self.lanes {
            Lanes::None => json!({"by": "none"}),
            Lanes::One => json!({"by": "subscriber"}),
            Lanes::PerKey => json!({"by": "data.key"}),
            Lanes::PerKeyOrFree => json!({"by": "data.key", "missing": "unordered"}),
        };
        if let Some(fold) = &self.fold {
            value["fold"] = fold.json(self.lanes);
        }
        value.to_string()
    }

    /// Whether it wants an event and, if so, in which lane.
    pub(crate) fn wants(&self, fact: &Content) -> Option<Option<String>> {
        if let Some(about) = &fact.about {
            let is_named = self.types.iter().any(|pattern| pattern.starts_with("tidegate."));
            if !is_named || *about == self.id {
                return None;
            }
        }
        let typed = self.types.is_empty()
            || self.types.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => fact.type_name.starts_with(prefix),
                None => fact.type_name == *pattern,
            });
        if !typed || self.only_key.is_some_and(|key| fact.key.as_deref() != Some(key)) {
            return None;
        }
        match (self.lanes, &fact.key) {
            (Lanes::None, _) | (Lanes::PerKeyOrFree, None) => Some(None),
            (Lanes::One, _) => Some(Some("*".to_owned())),
            (Lanes::PerKey, None) => None,
            (Lanes::PerKey | Lanes::PerKeyOrFree, Some(key)) => Some(Some(key.clone())),
        }
    }

    /// How many attempts may begin in any span of schedule time.
    pub(crate) fn rate_allows(&self, span_ms: i64) -> Option<i64> {
        let (count, unit) = self.rate?;
        let per_ms = if unit == "m" { 60_000 } else { 1_000 };
        let burst = if unit == "m" { (i64::from(count) / 60).max(1) } else { i64::from(count) };
        // The interval is a whole number of microseconds at best, and instants are whole milliseconds.
        Some(burst + span_ms * i64::from(count) / per_ms + 1)
    }
}

/// The part of an event that the simulation looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) type_name: String,
    pub(crate) key: Option<String>,
    /// The subscriber that a notice for operators is about.
    pub(crate) about: Option<String>,
    /// Every content the plan makes has a number of its own.
    pub(crate) n: i64,
}

impl Content {
    /// Reads an event's JSON.
    pub(crate) fn of(event: &Value) -> Self {
        Self {
            type_name: event["type"].as_str().unwrap_or_default().to_owned(),
            key: event["data"]["key"].as_str().map(str::to_owned),
            about: (event["source"] == "tidegate")
                .then(|| event["subject"].as_str().unwrap_or("?").to_owned()),
            n: event["data"]["n"].as_i64().unwrap_or(-1),
        }
    }
}
