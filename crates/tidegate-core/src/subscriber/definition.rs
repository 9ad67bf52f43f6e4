//! The definition of a subscriber: plain values, printed and read as the API's JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::breaker::Breaker;
use super::disable::DisableAfter;
use super::rate::Rate;
use super::signing::Signing;
use crate::fold::Fold;
use crate::limits::{CONCURRENCY_DEFAULT, TIMEOUT_DEFAULT_MS};
use crate::payload::Payload;
use crate::route::path::Path;
use crate::route::pattern::Pattern;
use crate::time::Span;
use crate::verification::Verification;

/// What its owner says about a subscriber.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// A label; need not be unique.
    #[serde(default)]
    pub name: String,
    /// Which events it wants.
    #[serde(default, rename = "match")]
    pub matching: Match,
    /// How many events become one delivery.
    #[serde(default)]
    pub fold: Fold,
    /// Where they go.
    pub destination: Destination,
    /// How they are signed.
    #[serde(default)]
    pub signing: Signing,
    /// How its endpoint is asked before anything is sent to it.
    #[serde(default)]
    pub verification: Verification,
    /// What must not overtake what.
    #[serde(default)]
    pub order: Order,
    /// The gate that its deliveries pass, with all others that name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<String>,
    /// How much at once.
    #[serde(default)]
    pub limits: Limits,
    /// When to try again.
    #[serde(default)]
    pub retry: Retry,
    /// When to leave it alone for a while.
    #[serde(default)]
    pub breaker: Breaker,
    /// When to stop sending to it.
    #[serde(default)]
    pub disable_after: DisableAfter,
}

impl Definition {
    /// What is said of it, as JSON: with all defaults but those that follow from what is said. This is how it is kept, and
    /// what a patch changes.
    pub(super) fn said(&self) -> Value {
        let mut said = serde_json::to_value(self).expect("a definition is always JSON");
        if matches!(&self.fold, Fold::Many(folded) if folded.waits_by_default)
            && let Some(fold) = said["fold"].as_object_mut()
        {
            fold.remove("max_wait");
        }
        said
    }

    /// Its CEL conditions, each with its field. Any of them may be evaluated for every event.
    pub fn conditions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let (bypass, cancel_on) = match &self.fold {
            Fold::Many(folded) => (folded.bypass.as_deref(), folded.cancel_on.as_deref()),
            Fold::Each => (None, None),
        };
        let fields = [
            ("match.where", self.matching.condition.as_deref()),
            ("fold.bypass", bypass),
            ("fold.cancel_on", cancel_on),
        ];
        fields.into_iter().filter_map(|(field, source)| Some((field, source?)))
    }
}

/// Which events a subscriber wants: all that pass every part that is given. Nothing given is everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Any of these types; empty means any type.
    pub types: Vec<Pattern>,
    /// Any of these sources; empty means any source.
    pub sources: Vec<Pattern>,
    /// A CEL condition over the event.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// Where deliveries go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// What stands there.
    #[serde(default)]
    pub kind: DestinationKind,
    /// The endpoint.
    pub url: String,
    /// Headers to send along.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// What a body looks like.
    #[serde(default)]
    pub payload: Payload,
}

/// What stands at a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DestinationKind {
    /// An HTTP endpoint that takes signed POST requests.
    #[default]
    Webhook,
}

/// What must not overtake what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Order {
    /// What puts events in one lane.
    pub by: OrderBy,
    /// What becomes of an event without that attribute.
    pub missing: Missing,
    /// What a delivery that fails means for those behind it.
    pub on_failure: OnFailure,
}

/// What a delivery that fails means for those behind it in its lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// They wait until it has arrived or is exhausted.
    #[default]
    Block,
    /// After so many failures it steps aside, and comes out of order when it comes.
    SkipAfter(u32),
}

impl OnFailure {
    /// Whether a delivery that has failed so often steps aside.
    pub fn skips(self, failures: u32) -> bool {
        matches!(self, Self::SkipAfter(limit) if failures >= limit)
    }
}

/// What puts events in one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OrderBy {
    /// Nothing: deliveries are independent.
    #[default]
    None,
    /// The subscriber: one lane for all it gets.
    Subscriber,
    /// The value at this path: one lane per value.
    Path(Path),
}

/// What becomes of an event that lacks the order attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// It is not delivered, and its trace says why.
    #[default]
    Skip,
    /// It is delivered outside the lanes.
    Unordered,
}

/// How much at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Attempts under way at once.
    pub concurrency: u32,
    /// Deliveries per time; absent means as fast as the receiver takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Total deadline of one attempt.
    pub timeout: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: CONCURRENCY_DEFAULT, rate: None, timeout: Span::from_ms(TIMEOUT_DEFAULT_MS) }
    }
}

/// When to try again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// The delay before each retry; empty means one attempt only.
    pub schedule: Vec<Span>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { schedule: [1, 2, 4, 8, 16].map(|minutes| Span::from_ms(minutes * 60_000)).to_vec() }
    }
}

impl fmt::Display for OrderBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Subscriber => f.write_str("subscriber"),
            Self::Path(path) => f.write_str(path.as_str()),
        }
    }
}

impl Serialize for OrderBy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OrderBy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "none" => Ok(Self::None),
            "subscriber" => Ok(Self::Subscriber),
            path => Path::parse(path)
                .map(Self::Path)
                .map_err(|problem| D::Error::custom(format!("{problem}, or \"none\" or \"subscriber\""))),
        }
    }
}
