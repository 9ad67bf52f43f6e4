//! What somebody wants to know, as the body of a request says it.
//!
//! One form for the four kinds of questions; each knows its own fields and refuses the others by name. What depends on the
//! metric (its dimensions, its shortest buckets) is checked when the question is planned.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::Subject;
use crate::limits::{QUERY_PERCENTILES_MAX, QUERY_POINTS_MAX, QUERY_VALUES_MAX};
use crate::observe::decimal;
use crate::observe::extract::{RESERVED, in_key, shortened};
use crate::observe::metric::Kind;
use crate::subscriber::{Invalid, read};
use crate::time::{Span, Timestamp};

const PERCENTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

/// What becomes of buckets in which nothing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// They are there, with zeros.
    #[default]
    Zero,
    /// They are left out.
    None,
}

/// How an answer is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Buckets, each with its series.
    #[default]
    Rows,
    /// One list for each member, a place in them for each point.
    Columns,
}

/// Which metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A counter or histogram of a type of events.
    OfType {
        /// The type.
        type_name: String,
        /// The metric's name.
        name: String,
    },
    /// A state of objects.
    OfObject {
        /// The kind of object.
        object: String,
        /// The attribute that is its state.
        attribute: String,
    },
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// What is asked for.
    pub kind: Kind,
    /// Of which service.
    pub service: String,
    /// Which metric.
    pub named: Named,
    /// Where to go on, as the answer before said.
    pub cursor: Option<String>,
    pub(super) from: Option<Timestamp>,
    pub(super) to: Option<Timestamp>,
    pub(super) at: Option<Timestamp>,
    pub(super) every: Option<Span>,
    /// Values by dimension, as texts: a dimension that is not there may have any.
    pub(super) filters: BTreeMap<String, BTreeSet<String>>,
    pub(super) group_by: Vec<String>,
    pub(super) percentiles: Vec<f64>,
    pub(super) fill: Fill,
    pub(super) form: Form,
    pub(super) limit: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Body {
    service: Option<String>,
    #[serde(rename = "type")]
    type_name: Option<String>,
    counter: Option<String>,
    histogram: Option<String>,
    object: Option<String>,
    attribute: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    at: Option<Timestamp>,
    every: Option<Span>,
    #[serde(rename = "where")]
    filters: Option<BTreeMap<String, Value>>,
    group_by: Option<Vec<String>>,
    percentiles: Option<Vec<f64>>,
    states: Option<Vec<String>>,
    from_states: Option<Vec<String>>,
    to_states: Option<Vec<String>>,
    fill: Option<Fill>,
    format: Option<Form>,
    limit: Option<usize>,
    cursor: Option<String>,
}

impl Ask {
    /// Reads the body of a request for metrics of a kind.
    pub fn parse(kind: Kind, body: &[u8]) -> Result<Self, Invalid> {
        let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
        let mut body: Body = read(body)?;
        body.check_fields(kind)?;
        let filters = body.filters(kind)?;
        let ask = Self {
            kind,
            service: needed("service", body.service.take())?,
            named: body.named(kind)?,
            cursor: body.cursor,
            from: body.from,
            to: body.to,
            at: body.at,
            every: body.every,
            filters,
            group_by: match kind {
                Kind::State | Kind::Transition => Subject::of_objects(kind).dimensions,
                _ => body.group_by.unwrap_or_default(),
            },
            percentiles: body.percentiles.unwrap_or_else(|| PERCENTILES.to_vec()),
            fill: body.fill.unwrap_or_default(),
            form: body.format.unwrap_or_default(),
            limit: body.limit,
        };
        ask.check()?;
        Ok(ask)
    }

    fn check(&self) -> Result<(), Invalid> {
        if self.limit.is_some_and(|limit| !(1..=QUERY_POINTS_MAX).contains(&limit)) {
            let detail = format!("`limit` is 1 to {QUERY_POINTS_MAX}");
            return Err(Invalid::new("field_range", "limit", detail));
        }
        if self.cursor.is_some() && self.limit.is_none() {
            let detail = "`cursor` goes on with an answer that `limit` cut: give the same `limit`";
            return Err(Invalid::new("field_missing", "limit", detail));
        }
        let is_share = |q: &f64| (0.0..=1.0).contains(q);
        let count = self.percentiles.len();
        if !self.percentiles.iter().all(is_share) || !(1..=QUERY_PERCENTILES_MAX).contains(&count) {
            let detail = format!("`percentiles` has 1 to {QUERY_PERCENTILES_MAX} numbers from 0 to 1");
            return Err(Invalid::new("field_range", "percentiles", detail));
        }
        let before = |at: usize| &self.percentiles[..at];
        let is_repeated =
            |at: &usize| before(*at).iter().any(|q| q.total_cmp(&self.percentiles[*at]).is_eq());
        if let Some(at) = (0..count).find(is_repeated) {
            let field = format!("percentiles[{at}]");
            let detail = format!("`{field}` repeats {}; remove it", self.percentiles[at]);
            return Err(Invalid::new("field_repeated", &field, detail));
        }
        let is_series = self.from.is_some() || self.to.is_some() || self.every.is_some();
        if self.at.is_some() && is_series {
            let detail = "`at` asks for one moment; `from`, `to` and `every` ask for many";
            return Err(Invalid::new("field_conflict", "at", detail));
        }
        Ok(())
    }

    /// It asks how things stand at one moment, rather than over time.
    pub fn is_moment(&self) -> bool {
        let is_series = self.from.is_some() || self.to.is_some() || self.every.is_some();
        self.kind == Kind::State && !is_series
    }
}

impl Body {
    /// Fields that other questions have are as unknown here as misspelt ones.
    fn check_fields(&self, kind: Kind) -> Result<(), Invalid> {
        use Kind::{Counter, Histogram, State, Transition};
        let fields: [(&str, bool, &[Kind]); 12] = [
            ("type", self.type_name.is_some(), &[Counter, Histogram]),
            ("counter", self.counter.is_some(), &[Counter]),
            ("histogram", self.histogram.is_some(), &[Histogram]),
            ("where", self.filters.is_some(), &[Counter, Histogram]),
            ("group_by", self.group_by.is_some(), &[Counter, Histogram]),
            ("percentiles", self.percentiles.is_some(), &[Histogram]),
            ("object", self.object.is_some(), &[State, Transition]),
            ("attribute", self.attribute.is_some(), &[State, Transition]),
            ("at", self.at.is_some(), &[State]),
            ("states", self.states.is_some(), &[State]),
            ("from_states", self.from_states.is_some(), &[Transition]),
            ("to_states", self.to_states.is_some(), &[Transition]),
        ];
        match fields.into_iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind)) {
            Some((name, ..)) => {
                Err(Invalid::new("field_unknown", name, format!("`{name}`: unknown field in this question")))
            }
            None => Ok(()),
        }
    }

    fn named(&mut self, kind: Kind) -> Result<Named, Invalid> {
        let name = match kind {
            Kind::State | Kind::Transition => {
                return Ok(Named::OfObject {
                    object: needed("object", self.object.take())?,
                    attribute: needed("attribute", self.attribute.take())?,
                });
            }
            Kind::Histogram => needed("histogram", self.histogram.take())?,
            _ => needed("counter", self.counter.take())?,
        };
        Ok(Named::OfType { type_name: needed("type", self.type_name.take())?, name })
    }

    fn filters(&mut self, kind: Kind) -> Result<BTreeMap<String, BTreeSet<String>>, Invalid> {
        let mut filters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, values) in self.filters.take().into_iter().flatten() {
            let field = format!("where.{name}");
            let values = if let Value::Array(values) = values { values } else { vec![values] };
            if values.is_empty() || values.iter().any(|value| value.is_array() || value.is_object()) {
                let detail = format!("`{field}` is a value or a list of values");
                return Err(Invalid::new("field_value", &field, detail));
            }
            filters.insert(name, values.iter().map(|value| in_key(reserved(text_of(value)))).collect());
        }
        if kind == Kind::State || kind == Kind::Transition {
            let lists = [
                (Subject::STATE, self.states.take()),
                (Subject::FROM_STATE, self.from_states.take()),
                (Subject::TO_STATE, self.to_states.take()),
            ];
            let given = lists.into_iter().filter_map(|(name, states)| Some((name, states?)));
            let narrow = given.filter(|(_, states)| !states.is_empty() && !states.iter().any(|s| s == "*"));
            let kept =
                |states: Vec<String>| states.into_iter().map(|state| shortened(&reserved(state))).collect();
            filters.extend(narrow.map(|(name, states)| (name.to_owned(), kept(states))));
        }
        match filters.iter().find(|(_, values)| values.len() > QUERY_VALUES_MAX) {
            Some((name, _)) => {
                let detail = format!("at most {QUERY_VALUES_MAX} values; leave it out and group instead");
                Err(Invalid::new("field_too_many", name, detail))
            }
            None => Ok(filters),
        }
    }
}

fn needed(name: &str, value: Option<String>) -> Result<String, Invalid> {
    value.ok_or_else(|| Invalid::new("field_missing", name, format!("`{name}`: missing field `{name}`")))
}

/// What stands for something else than a text may be written in any case.
fn reserved(text: String) -> String {
    RESERVED.iter().find(|known| known.eq_ignore_ascii_case(&text)).map_or(text, |known| (*known).to_owned())
}

/// A value as it is compared: a number is the same whether it is given as one or as its text.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "(none)".to_owned(),
        Value::Number(number) => {
            let written = number.to_string();
            decimal::shown(&written).map(Cow::into_owned).unwrap_or(written)
        }
        other => other.to_string(),
    }
}
