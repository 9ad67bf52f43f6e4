//! What a type of events declares to be observed: `index`, `counters`, `histograms`, `states` and `observe`.
//!
//! Part of what `PUT /v1/catalog/services/{service}/types/{type}` takes. Everything is kept as it was written, defaults
//! left out, so that what was put is what is got. [`Observing::specs`] says which metrics the type has; what an event
//! adds to them is found by [`super::Extractor`].
//! Does not: number metrics (the store does), nor know what an installation as a whole has switched off.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::time::Duration;
use std::{fmt, sync::Arc};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::grain::Grain;
use super::metric::{Kind, Spec};
use super::state::Policy;
use crate::id::MetricNo;
use crate::limits::{ACCURACY_DEFAULT, METRIC_KEYS_DEFAULT};
use crate::route::Path;
use crate::time::Span;

/// Paths that are indexed wherever a type has an index at all: every search may name them.
pub const IMPLICIT_PATHS: [&str; 2] = ["source", "type"];

/// Everything that is observed of one type of events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observing {
    /// Attributes by whose values events are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Vec<Path>>,
    /// By name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<BTreeMap<String, Counter>>,
    /// By name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histograms: Option<BTreeMap<String, Histogram>>,
    /// Objects whose states the events tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<Vec<Extraction>>,
    /// What of this is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<Switches>,
}

/// How often, and how much in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// What keeps its series apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<Vec<Path>>,
    /// A CEL condition: what does not fulfil it is not counted.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The number that is added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<Path>,
    /// Its shortest buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Granularity>,
    /// How many series it may have; the rest are `(other)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_max: Option<u32>,
    /// How long its rollups are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Term>,
}

/// How a value is distributed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Which value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Measured>,
    /// What keeps its series apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<Vec<Path>>,
    /// How far a quantile may be from the true one, as a share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Its shortest buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Granularity>,
    /// How many series it may have; the rest are `(other)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_max: Option<u32>,
    /// How long its rollups are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Term>,
}

/// Which object an event is about, and which of its attributes are states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extraction {
    /// What kind of object, for example `order`.
    pub object: String,
    /// Where its id stands.
    pub id: Path,
    /// Where its states stand.
    pub attributes: Vec<Path>,
    /// Transitions that count besides the one from the state before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub additional: Option<Vec<String>>,
    /// Transitions that count instead of the one from the state before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<String>>,
    /// How many states, and how many transitions, are counted apart; the rest are `(other)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_max: Option<u32>,
    /// How long the rollups and the objects are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Term>,
}

/// Kinds that are switched off (`false`) though they are declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switches {
    /// The index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<bool>,
    /// All counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<bool>,
    /// All histograms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histograms: Option<bool>,
    /// States and transitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<bool>,
}

impl Switches {
    /// What is switched off, by the names of the settings.
    pub fn off(&self) -> Vec<&'static str> {
        let all = [
            ("counters", self.counters),
            ("histograms", self.histograms),
            ("states", self.states),
            ("index", self.index),
        ];
        all.into_iter().filter(|(_, switch)| *switch == Some(false)).map(|(name, _)| name).collect()
    }

    /// Whether metrics of this kind are observed.
    pub fn is_on(&self, kind: Kind) -> bool {
        let switch = match kind {
            Kind::Counter => self.counters,
            Kind::Histogram => self.histograms,
            Kind::State | Kind::Transition => self.states,
            Kind::Index => self.index,
        };
        switch.unwrap_or(true)
    }
}

/// The shortest buckets a metric may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Granularity {
    /// Five seconds.
    #[default]
    #[serde(rename = "5s")]
    S5,
    /// A minute.
    #[serde(rename = "1m")]
    M1,
    /// Five minutes.
    #[serde(rename = "5m")]
    M5,
}

impl From<Granularity> for Grain {
    fn from(granularity: Granularity) -> Self {
        match granularity {
            Granularity::S5 => Self::S5,
            Granularity::M1 => Self::M1,
            Granularity::M5 => Self::M5,
        }
    }
}

/// What a histogram is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Measured {
    /// `ended` less `time`, in milliseconds.
    #[default]
    Duration,
    /// The number there.
    At(Path),
}

impl Serialize for Measured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Duration => serializer.serialize_str("duration"),
            Self::At(path) => path.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Measured {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "duration" {
            return Ok(Self::Duration);
        }
        Path::parse(&text)
            .map(Self::At)
            .map_err(|problem| D::Error::custom(format!("{problem}, or `duration` for `ended` less `time`")))
    }
}

/// How long something is kept, in the words of its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    written: String,
    length: Duration,
}

impl Term {
    /// How long that is.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// The same as the store keeps it.
    pub fn length_ms(&self) -> i64 {
        i64::try_from(self.length.as_millis()).unwrap_or(i64::MAX)
    }
}

impl Serialize for Term {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.written)
    }
}

impl<'de> Deserialize<'de> for Term {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        match Span::parse(&written) {
            Some(Span(length)) => Ok(Self { written, length }),
            None => Err(D::Error::custom("expected a duration such as \"12h\" or \"90d\"")),
        }
    }
}

/// Reads a JSON object only: serde would also take a list, as the values of the fields in their order.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

impl Observing {
    /// The metrics of the type, each once, sorted. What is switched off is among them: it keeps what it has counted.
    pub fn specs(&self) -> Vec<Spec> {
        let mut specs = BTreeSet::new();
        for (name, counter) in self.counters.iter().flatten() {
            specs.insert(counter.spec(name));
        }
        for (name, histogram) in self.histograms.iter().flatten() {
            specs.insert(histogram.spec(name));
        }
        for extraction in self.states.iter().flatten() {
            for attribute in &extraction.attributes {
                let name = state_name(&extraction.object, attribute);
                specs.extend([Kind::State, Kind::Transition].map(|kind| extraction.spec(kind, &name)));
            }
        }
        specs.extend(self.indexed().into_iter().map(|path| shared(Kind::Index, path.to_owned())));
        specs.into_iter().collect()
    }

    /// Whether the type lets metrics of a kind count.
    pub fn is_on(&self, kind: Kind) -> bool {
        self.observe.unwrap_or_default().is_on(kind)
    }

    /// The paths by which events of the type are found, the implicit ones included.
    pub fn indexed(&self) -> BTreeSet<&str> {
        let declared = self.index.as_deref().unwrap_or_default();
        let implicit = IMPLICIT_PATHS.into_iter().filter(|_| !declared.is_empty());
        declared.iter().map(Path::as_str).chain(implicit).collect()
    }

    /// How long the rollups of one of its metrics are kept, if it says so.
    pub fn retention(&self, kind: Kind, name: &str) -> Option<Duration> {
        let term = match kind {
            Kind::Counter => self.counters.as_ref()?.get(name)?.retention.as_ref(),
            Kind::Histogram => self.histograms.as_ref()?.get(name)?.retention.as_ref(),
            Kind::State | Kind::Transition => {
                let mut entries = self.states.iter().flatten();
                entries.find(|entry| entry.tells_of(name))?.retention.as_ref()
            }
            Kind::Index => None,
        };
        term.map(Term::length)
    }
}

/// Of the metrics of a type those that its events count for: the others it has switched off.
pub fn counting(
    definition: Option<&str>,
    metrics: Vec<(Kind, String, MetricNo)>,
) -> Vec<(Kind, String, MetricNo)> {
    let observing = definition.and_then(|definition| serde_json::from_str::<Observing>(definition).ok());
    let is_on = |kind| observing.as_ref().is_none_or(|observing| observing.is_on(kind));
    metrics.into_iter().filter(|(kind, ..)| is_on(*kind)).collect()
}

/// How a type tells of a state: where the ids of its objects stand, and which transitions count. Nothing if it does not.
pub fn telling(definition: Option<&str>, state: &str) -> Vec<(Path, Policy)> {
    let observing = definition.and_then(|definition| serde_json::from_str::<Observing>(definition).ok());
    let entries = observing.and_then(|observing| observing.states).unwrap_or_default();
    let is_meant = |entry: &&Extraction| {
        entry.attributes.iter().any(|attribute| state_name(&entry.object, attribute) == state)
    };
    entries.iter().filter(is_meant).map(|entry| (entry.id.clone(), Policy::clone(&entry.policy()))).collect()
}

/// The name of a state and of the transitions beside it. An object's own name has no space.
pub fn state_name(object: &str, attribute: &Path) -> String {
    format!("{object} {attribute}")
}

fn shared(kind: Kind, name: String) -> Spec {
    Spec { kind, name, shape: String::new(), keys_max: METRIC_KEYS_DEFAULT, keep_ms: None }
}

impl Counter {
    fn spec(&self, name: &str) -> Spec {
        let mut shape = json!({
            "dimensions": self.dimensions.as_deref().unwrap_or_default(),
            "granularity": self.granularity.unwrap_or_default(),
        });
        if let Some(condition) = &self.condition {
            shape["where"] = condition.as_str().into();
        }
        if let Some(sum) = &self.sum {
            shape["sum"] = sum.as_str().into();
        }
        let keys_max = self.keys_max.unwrap_or(METRIC_KEYS_DEFAULT);
        let (name, shape) = (name.to_owned(), canonical(&shape));
        let keep_ms = self.retention.as_ref().map(Term::length_ms);
        Spec { kind: Kind::Counter, name, shape, keys_max, keep_ms }
    }
}

impl Histogram {
    fn spec(&self, name: &str) -> Spec {
        let shape = json!({
            "accuracy": self.accuracy.unwrap_or(ACCURACY_DEFAULT),
            "dimensions": self.dimensions.as_deref().unwrap_or_default(),
            "granularity": self.granularity.unwrap_or_default(),
            "value": self.value.clone().unwrap_or_default(),
        });
        let keys_max = self.keys_max.unwrap_or(METRIC_KEYS_DEFAULT);
        let (name, shape) = (name.to_owned(), canonical(&shape));
        let keep_ms = self.retention.as_ref().map(Term::length_ms);
        Spec { kind: Kind::Histogram, name, shape, keys_max, keep_ms }
    }
}

/// A flat object with its members in order of the alphabet, whatever order the library keeps.
fn canonical(shape: &Value) -> String {
    let members: BTreeMap<&String, &Value> = shape.as_object().into_iter().flatten().collect();
    serde_json::to_string(&members).expect("a map of values is always JSON")
}

impl Extraction {
    fn spec(&self, kind: Kind, name: &str) -> Spec {
        let keys_max = self.keys_max.unwrap_or(METRIC_KEYS_DEFAULT);
        let keep_ms = self.retention.as_ref().map(Term::length_ms);
        Spec { keys_max, keep_ms, ..shared(kind, name.to_owned()) }
    }

    /// Whether it is about a state of this name.
    fn tells_of(&self, state: &str) -> bool {
        self.attributes.iter().any(|attribute| state_name(&self.object, attribute) == state)
    }

    /// Which transitions count.
    pub fn policy(&self) -> Arc<Policy> {
        let boxed = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
        Arc::new(Policy {
            only: self.only.as_deref().map(boxed),
            additional: self.additional.as_deref().map(boxed).unwrap_or_default(),
        })
    }
}
