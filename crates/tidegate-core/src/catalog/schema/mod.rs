//! JSON Schema 2020-12 over an event's `data`, with a bound on everything.
//!
//! A schema is compiled once, when it is declared, and applied to every event of its type on the thread that takes
//! events in. So this is our own validator: a library's work can be exponential in the schema (two references to one
//! place, thirty times over), while here every step is counted and a check that takes too many ends as a finding.
//! Regular expressions take linear time. There is nothing to resolve outside of the document.
//!
//! Covers the vocabularies core, applicator, unevaluated and validation; `format` and `content*` are annotations, as
//! the standard has it. Refused, because ignoring them would accept what their author meant to refuse: `$dynamicRef`,
//! nested `$id`, references that leave the document, and the words of older drafts.

mod check;
mod compile;
mod equal;
mod evaluated;
mod number;
mod pattern;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

pub use compile::Flaw;
pub(super) use compile::{DATA, anchors};

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    /// Every schema object that can be reached; the first is the whole.
    nodes: Vec<Node>,
}

/// Where a node is.
type Place = usize;

/// What a value has to keep, in the order it is checked. None at all is the schema `true`.
type Node = Vec<Rule>;

/// One keyword, or a few that only make sense together.
#[derive(Debug)]
enum Rule {
    /// The schema `false`.
    Never,
    Ref(Place),
    Type(Kinds),
    Const(Value),
    Enum(Vec<Value>),
    MultipleOf(Number),
    Bound(Bound, Number),
    Count(Counted, Count, u64),
    Pattern(Regex),
    UniqueItems,
    Items(Items),
    Contains {
        place: Place,
        min: u64,
        max: u64,
    },
    Required(Vec<String>),
    DependentRequired(BTreeMap<String, Vec<String>>),
    Members(Members),
    PropertyNames(Place),
    DependentSchemas(BTreeMap<String, Place>),
    AllOf(Vec<Place>),
    AnyOf(Vec<Place>),
    OneOf(Vec<Place>),
    Not(Place),
    If {
        condition: Place,
        then: Option<Place>,
        otherwise: Option<Place>,
    },
    UnevaluatedItems(Place),
    UnevaluatedProperties(Place),
}

/// `prefixItems` and `items`.
#[derive(Debug, Default)]
struct Items {
    first: Vec<Place>,
    rest: Option<Place>,
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug, Default)]
struct Members {
    named: BTreeMap<String, Place>,
    patterns: Vec<(Regex, Place)>,
    rest: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Maximum,
    ExclusiveMaximum,
    Minimum,
    ExclusiveMinimum,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Characters,
    Items,
    Members,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    AtMost,
    AtLeast,
}

/// The names of `type`, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds(u8);

const KINDS: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];

impl Kinds {
    fn named(name: &str) -> Option<Self> {
        KINDS.iter().position(|kind| *kind == name).map(|bit| Self(1 << bit))
    }

    fn of(value: &Value) -> Self {
        let name = kind(value);
        let integer = matches!(value, Value::Number(number) if number::is_integer(number));
        let bits = Self::named(name).map_or(0, |kind| kind.0);
        Self(if integer { bits | 1 << 6 } else { bits })
    }

    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn names(self) -> String {
        let names: Vec<&str> = KINDS
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 == 1)
            .map(|(_, kind)| *kind)
            .collect();
        names.join(" or ")
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::Number(_) => "number",
        Value::String(_) => "string",
    }
}

impl Rule {
    /// The places that are applied to the very same value. Where these lead in a circle, a check would never end.
    fn in_place(&self) -> Vec<Place> {
        match self {
            Self::Ref(place) | Self::Not(place) => vec![*place],
            Self::AllOf(places) | Self::AnyOf(places) | Self::OneOf(places) => places.clone(),
            Self::DependentSchemas(places) => places.values().copied().collect(),
            Self::If { condition, then, otherwise } => {
                [Some(*condition), *then, *otherwise].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }
}
