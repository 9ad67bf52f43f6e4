//! Whether a unit is taken, or quarantined and why.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Catalog, Mode, Types};
use crate::event::{Event, Unit};
use crate::limits::TIME_AHEAD_MAX_MS;
use crate::operator;
use crate::time::Timestamp;

/// Why a unit was quarantined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The catalog is strict and does not know the source.
    UnconfiguredService,
    /// The catalog is strict and does not know the type.
    UnconfiguredEventType,
    /// The catalog is strict and does not know the type of a sub-event.
    UnconfiguredNestedEventType,
    /// `data` is not what the type's schema says.
    SchemaViolation,
    /// Its `time` is too far ahead.
    FutureTime,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::UnconfiguredService,
        Self::UnconfiguredEventType,
        Self::UnconfiguredNestedEventType,
        Self::SchemaViolation,
        Self::FutureTime,
    ];

    /// As the API and the store write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnconfiguredService => "UNCONFIGURED_SERVICE",
            Self::UnconfiguredEventType => "UNCONFIGURED_EVENT_TYPE",
            Self::UnconfiguredNestedEventType => "UNCONFIGURED_NESTED_EVENT_TYPE",
            Self::SchemaViolation => "SCHEMA_VIOLATION",
            Self::FutureTime => "FUTURE_TIME",
        }
    }

    /// Reads what [`Reason::name`] writes.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// Why a unit was quarantined, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable.
    pub reason: Reason,
    /// What was found where, with values shortened.
    pub detail: String,
}

/// Judges a unit by its project's catalog; `None` where there is none worth asking.
pub fn judge(catalog: Option<&Catalog>, unit: &Unit, now: Timestamp) -> Option<Finding> {
    let latest = now.plus(Duration::from_millis(TIME_AHEAD_MAX_MS));
    if let Some(event) = unit.events.iter().find(|event| event.time > latest) {
        return Some(future_time(event, now));
    }
    catalog.and_then(|catalog| catalog.judge(unit))
}

/// The same for a unit that `old` has judged: `before` is what it found. Only what changed since is looked at again.
pub fn judge_again(
    (old, new): (Option<&Catalog>, Option<&Catalog>),
    unit: &Unit,
    before: Option<Finding>,
    now: Timestamp,
) -> Option<Finding> {
    let latest = now.plus(Duration::from_millis(TIME_AHEAD_MAX_MS));
    // Of one whose time was too far ahead the catalog was not asked.
    let was_early = before.as_ref().is_some_and(|finding| finding.reason == Reason::FutureTime);
    let is_early = unit.events.iter().any(|event| event.time > latest);
    if was_early || is_early || !is_same_for(unit, old, new) { judge(new, unit, now) } else { before }
}

/// Whether two catalogs have the same to say about a unit. A type that was not changed is the same in memory.
fn is_same_for(unit: &Unit, old: Option<&Catalog>, new: Option<&Catalog>) -> bool {
    let Some(source) = unit.events.first().map(|event| &event.source) else { return true };
    let mode = |catalog: Option<&Catalog>| catalog.map(|catalog| catalog.mode).unwrap_or_default();
    if mode(old) != mode(new) {
        return false;
    }
    let old_types = old.and_then(|catalog| catalog.services.get(source));
    match (old_types, new.and_then(|catalog| catalog.services.get(source))) {
        (None, None) => true,
        (Some(old), Some(new)) => unit.events.iter().all(|event| {
            let (old, new) = (old.get(&event.type_name), new.get(&event.type_name));
            old.map(Arc::as_ptr) == new.map(Arc::as_ptr)
        }),
        _ => false,
    }
}

fn future_time(event: &Event, now: Timestamp) -> Finding {
    let hours = TIME_AHEAD_MAX_MS / 3_600_000;
    let detail =
        format!("the time {} is more than {hours} hours ahead of {now}, when the event came in", event.time);
    Finding { reason: Reason::FutureTime, detail }
}

impl Catalog {
    fn judge(&self, unit: &Unit) -> Option<Finding> {
        let source = &unit.events.first()?.source;
        // What the server says about itself needs no declaration: nobody else can use its name.
        if source == operator::SOURCE {
            return None;
        }
        let Some(types) = self.services.get(source) else {
            let detail = || format!("the catalog has no service {source}");
            return self.unconfigured(Reason::UnconfiguredService, detail);
        };
        unit.events.iter().enumerate().find_map(|(index, event)| self.judge_event(types, event, index > 0))
    }

    fn judge_event(&self, types: &Types, event: &Event, is_nested: bool) -> Option<Finding> {
        let Some(event_type) = types.get(&event.type_name) else {
            let reason =
                if is_nested { Reason::UnconfiguredNestedEventType } else { Reason::UnconfiguredEventType };
            return self.unconfigured(reason, || {
                format!("the catalog has no type {} of service {}", event.type_name, event.source)
            });
        };
        let schema = event_type.schema.as_ref()?;
        let outcome = data(event).and_then(|(value, bytes)| schema.check(&value, bytes));
        outcome.err().map(|words| {
            let detail = if is_nested { format!("in the sub-event {}: {words}", event.id) } else { words };
            Finding { reason: Reason::SchemaViolation, detail }
        })
    }

    fn unconfigured(&self, reason: Reason, detail: impl FnOnce() -> String) -> Option<Finding> {
        (self.mode == Mode::Strict).then(|| Finding { reason, detail: detail() })
    }
}

/// An event's `data` and the bytes it took to write.
fn data(event: &Event) -> Result<(Value, usize), String> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        data: Option<&'a RawValue>,
        data_base64: Option<IgnoredAny>,
    }
    let body: Body<'_> = serde_json::from_slice(&event.body).map_err(|error| error.to_string())?;
    if body.data_base64.is_some() {
        return Err("the type has a schema, and `data_base64` is not JSON: send `data`".to_owned());
    }
    // Read as `Option`, null is none.
    let text = body.data.map_or("null", RawValue::get);
    let value = serde_json::from_str(text)
        .map_err(|error| format!("data: a number can not be held ({error}); send it as text"))?;
    Ok((value, text.len()))
}
