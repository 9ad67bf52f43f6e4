//! Metrics as the store knows them: numbered, and another one as soon as it counts something else.

use serde::{Deserialize, Serialize};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Counts and sums per key. Of one type of events.
    Counter,
    /// Values in bins per key. Of one type of events.
    Histogram,
    /// How many objects came into and went out of each state. Of a service: several types may tell of one object.
    State,
    /// How often objects went from one state to another. Of a service, beside its [`Kind::State`].
    Transition,
    /// Which events have which value of an attribute. Of a service.
    Index,
}

impl Kind {
    /// As the store writes it.
    pub fn code(self) -> i64 {
        self as i64
    }

    /// Reads what [`Kind::code`] writes.
    pub fn from_code(code: i64) -> Option<Self> {
        [Self::Counter, Self::Histogram, Self::State, Self::Transition, Self::Index]
            .into_iter()
            .find(|kind| kind.code() == code)
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::State => "state",
            Self::Transition => "transition",
            Self::Index => "index",
        }
    }

    /// Whether all types of a service that declare it share it.
    pub fn is_shared(self) -> bool {
        !matches!(self, Self::Counter | Self::Histogram)
    }
}

/// A metric that a type of events declares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spec {
    /// What it is.
    pub kind: Kind,
    /// The counter's or histogram's name, the attribute's path, or the object and the path of its state with a space between.
    pub name: String,
    /// What it counts, as canonical JSON: another shape is another metric. Empty for those that are shared.
    pub shape: String,
    /// How many keys of its own it may have; the rest are counted as `(other)`.
    pub keys_max: u32,
    /// How long its rollups are kept, in milliseconds; absent: as long as the installation says.
    pub keep_ms: Option<i64>,
}
