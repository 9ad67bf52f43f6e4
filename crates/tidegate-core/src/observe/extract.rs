//! Extract: what an event adds to the metrics of its type.
//!
//! Compiled once for each version of a type, asked for every event of it. The body is gone through once for all paths
//! together; only conditions need more of it parsed. Whatever an event holds, something sensible is counted: a missing
//! dimension is `(none)`, a long value stands by its hash, what is not a number adds nothing to a sum, and a condition
//! that errs is not fulfilled.
//! Promises: the same event adds the same, whenever and by whomever it is read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::definition::{Counter, Extraction, Histogram, Measured, Observing, Switches, state_name};
use super::delta::Sight;
use super::grain::Grain;
use super::keys::{self, KeyPlace, Keys, ValueNo};
use super::metric::Kind;
use super::pick::Picker;
use super::sketch::{Accuracy, fixed};
use super::slab::Slab;
use super::state::Policy;
use super::{decimal, value};
use crate::event::Event;
use crate::fold::hashed;
use crate::id::{MetricNo, Seq};
use crate::limits::{ACCURACY_DEFAULT, OBSERVED_VALUE_BYTES_MAX};
use crate::route::{Condition, Path, View};
use crate::time::Timestamp;

/// What stands for a value that is not there.
pub const NONE: &str = "(none)";
/// Texts that stand for something else: a value that reads so is told with a backslash before it.
pub(super) const RESERVED: [&str; 2] = [NONE, "(other)"];

/// Whether a text would be taken for something else, perhaps after what was put before it.
fn is_reserved(text: &str) -> bool {
    text.ends_with(')') && RESERVED.contains(&text.trim_start_matches('\\'))
}

/// A stored event, on its way into the slab.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Its place in the order of acceptance.
    pub seq: Seq,
    /// When it happened.
    pub time: Timestamp,
    /// See [`Event::id`].
    pub id: &'a str,
    /// See [`Event::source`].
    pub source: &'a str,
    /// See [`Event::type_name`].
    pub type_name: &'a str,
    /// See [`Event::subject`].
    pub subject: Option<&'a str>,
    /// See [`Event::body`].
    pub body: &'a Bytes,
}

impl<'a> Sighting<'a> {
    /// The event that was accepted as `seq`.
    pub fn of(event: &'a Event, seq: Seq) -> Self {
        let Event { id, source, type_name, subject, time, body } = event;
        Self { seq, time: *time, id, source, type_name, subject: subject.as_deref(), body }
    }

    fn to_event(self) -> Event {
        Event {
            id: self.id.to_owned(),
            source: self.source.to_owned(),
            type_name: self.type_name.to_owned(),
            subject: self.subject.map(str::to_owned),
            time: self.time,
            body: self.body.clone(),
        }
    }
}

/// What stands at each path that is looked at; by [`Slot`].
type Found<'t> = [Option<&'t str>];
/// A path among those that are looked at.
type Slot = usize;

/// The metrics of one version of a type, ready for events.
#[derive(Clone, Debug)]
pub struct Extractor {
    picker: Picker,
    conditions: Vec<Condition>,
    counters: Vec<Counting>,
    histograms: Vec<Measuring>,
    states: Vec<Watching>,
    indexes: Vec<(MetricNo, Slot)>,
}

#[derive(Clone, Debug)]
struct Counting {
    metric: MetricNo,
    base: Grain,
    dimensions: Vec<Slot>,
    /// Which of the conditions.
    condition: Option<usize>,
    sum: Option<Slot>,
}

#[derive(Clone, Debug)]
struct Measuring {
    metric: MetricNo,
    base: Grain,
    dimensions: Vec<Slot>,
    accuracy: Accuracy,
    value: Reading,
}

#[derive(Clone, Copy, Debug)]
enum Reading {
    At(Slot),
    Between { time: Slot, ended: Slot },
}

#[derive(Clone, Debug)]
struct Watching {
    state: MetricNo,
    transition: MetricNo,
    id: Slot,
    attribute: Slot,
    policy: Arc<Policy>,
}

impl Extractor {
    /// Compiles what a type declares. Only what has a number is observed, and of that only what the type and `switches`
    /// leave on. The error is a condition that can not be compiled any more.
    pub fn compile(
        observing: &Observing,
        metrics: &[(Kind, String, MetricNo)],
        switches: Switches,
    ) -> Result<Self, String> {
        let numbers: BTreeMap<(Kind, &str), MetricNo> = metrics
            .iter()
            .filter(|(kind, ..)| switches.is_on(*kind) && observing.is_on(*kind))
            .map(|(kind, name, no)| ((*kind, name.as_str()), *no))
            .collect();
        let mut compiler = Compiler { numbers, paths: BTreeMap::new(), conditions: Vec::new() };
        let mut counters = Vec::new();
        for (name, counter) in observing.counters.iter().flatten() {
            counters.extend(compiler.counter(name, counter)?);
        }
        let histograms = observing.histograms.iter().flatten();
        let histograms =
            histograms.filter_map(|(name, histogram)| compiler.histogram(name, histogram)).collect();
        let states = observing.states.iter().flatten();
        let states = states.flat_map(|extraction| compiler.states(extraction)).collect();
        let indexed = observing.indexed().into_iter();
        let indexes = indexed.filter_map(|path| compiler.index(path)).collect();
        let mut paths: Vec<(&str, Slot)> =
            compiler.paths.iter().map(|(path, slot)| (path.as_str(), *slot)).collect();
        paths.sort_by_key(|(_, slot)| *slot);
        let picker = Picker::new(paths.into_iter().map(|(path, _)| path));
        Ok(Self { picker, conditions: compiler.conditions, counters, histograms, states, indexes })
    }

    /// Adds what an event says.
    pub fn observe(&self, event: &Sighting<'_>, slab: &mut Slab) {
        let Ok(body) = std::str::from_utf8(event.body) else { return };
        let found = self.picker.pick(body);
        let verdicts = self.judge(event);
        let mut values = vec![None; found.len()];
        for counter in &self.counters {
            if counter.condition.is_none_or(|condition| verdicts[condition]) {
                let key = key_of(&mut slab.keys, &mut values, &counter.dimensions, &found);
                let sum = counter.sum.and_then(|slot| number_at(found[slot], decimal::units)).unwrap_or(0);
                slab.count_at(counter.metric, counter.base, key, event.time, sum);
            }
        }
        for histogram in &self.histograms {
            if let Some(value) = histogram.value.read(&found) {
                let key = key_of(&mut slab.keys, &mut values, &histogram.dimensions, &found);
                let Measuring { metric, base, accuracy, .. } = *histogram;
                slab.sample_at(metric, base, key, event.time, accuracy, value);
            }
        }
        for state in &self.states {
            state.watch(event, &found, slab);
        }
        let mut scratch = Vec::new();
        for (index, slot) in &self.indexes {
            value::each(found[*slot], &mut scratch, |value| slab.post(*index, value, event.seq));
        }
    }

    fn judge(&self, event: &Sighting<'_>) -> Vec<bool> {
        if self.conditions.is_empty() {
            return Vec::new();
        }
        let event = event.to_event();
        let view = View::new(&event);
        self.conditions.iter().map(|condition| condition.judge(&view) == Ok(true)).collect()
    }
}

impl Reading {
    /// The value, and the same in units of 10⁻⁹.
    fn read(self, found: &Found<'_>) -> Option<(f64, i128)> {
        match self {
            Self::At(slot) => number_at(found[slot], |text| {
                let value = decimal::float(text)?;
                Some((value, decimal::units(text).unwrap_or_else(|| fixed(value))))
            }),
            Self::Between { time, ended } => {
                let at = |slot: Slot| value::plain(found[slot]?)?.parse::<jiff::Timestamp>().ok();
                let nanoseconds = at(ended)?.as_nanosecond() - at(time)?.as_nanosecond();
                Some((nanoseconds as f64 / 1e6, nanoseconds * 1_000))
            }
        }
    }
}

impl Watching {
    fn watch(&self, event: &Sighting<'_>, found: &Found<'_>, slab: &mut Slab) {
        let object = found[self.id].and_then(text_of).filter(|id| !id.is_empty());
        let (Some(object), Some(value)) = (object, found[self.attribute].and_then(text_of)) else { return };
        let value = if is_reserved(&value) { format!("\\{value}").into() } else { value };
        let value = slab.state(&value);
        slab.sight(Sight {
            state: self.state,
            transition: self.transition,
            object: object.into(),
            value,
            time: event.time,
            event: event.seq,
            policy: Arc::clone(&self.policy),
        });
    }
}

/// Gives every path a slot and every condition a number, the same one again where it is the same.
struct Compiler<'m> {
    numbers: BTreeMap<(Kind, &'m str), MetricNo>,
    paths: BTreeMap<String, Slot>,
    conditions: Vec<Condition>,
}

impl Compiler<'_> {
    fn counter(&mut self, name: &str, counter: &Counter) -> Result<Option<Counting>, String> {
        let Some(metric) = self.number(Kind::Counter, name) else { return Ok(None) };
        let condition = counter.condition.as_deref().map(|source| self.condition(source)).transpose()?;
        Ok(Some(Counting {
            metric,
            base: counter.granularity.unwrap_or_default().into(),
            dimensions: self.dimensions(counter.dimensions.as_deref()),
            condition,
            sum: counter.sum.as_ref().map(|path| self.slot(path.as_str())),
        }))
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) -> Option<Measuring> {
        let metric = self.number(Kind::Histogram, name)?;
        let value = match &histogram.value {
            Some(Measured::At(path)) => Reading::At(self.slot(path.as_str())),
            Some(Measured::Duration) | None => {
                Reading::Between { time: self.slot("time"), ended: self.slot("ended") }
            }
        };
        Some(Measuring {
            metric,
            base: histogram.granularity.unwrap_or_default().into(),
            dimensions: self.dimensions(histogram.dimensions.as_deref()),
            accuracy: Accuracy::new(histogram.accuracy.unwrap_or(ACCURACY_DEFAULT))?,
            value,
        })
    }

    fn states(&mut self, extraction: &Extraction) -> Vec<Watching> {
        let (policy, mut states) = (extraction.policy(), Vec::new());
        for attribute in &extraction.attributes {
            let name = state_name(&extraction.object, attribute);
            let numbers = self.number(Kind::State, &name).zip(self.number(Kind::Transition, &name));
            let Some((state, transition)) = numbers else { continue };
            let (id, attribute) = (self.slot(extraction.id.as_str()), self.slot(attribute.as_str()));
            states.push(Watching { state, transition, id, attribute, policy: Arc::clone(&policy) });
        }
        states
    }

    fn index(&mut self, path: &str) -> Option<(MetricNo, Slot)> {
        self.number(Kind::Index, path).map(|metric| (metric, self.slot(path)))
    }

    fn number(&self, kind: Kind, name: &str) -> Option<MetricNo> {
        self.numbers.get(&(kind, name)).copied()
    }

    fn dimensions(&mut self, paths: Option<&[Path]>) -> Vec<Slot> {
        paths.unwrap_or_default().iter().map(|path| self.slot(path.as_str())).collect()
    }

    fn slot(&mut self, path: &str) -> Slot {
        let next = self.paths.len();
        *self.paths.entry(path.to_owned()).or_insert(next)
    }

    fn condition(&mut self, source: &str) -> Result<usize, String> {
        if let Some(known) = self.conditions.iter().position(|known| known.source() == source) {
            return Ok(known);
        }
        self.conditions.push(Condition::compile(source).map_err(|problem| problem.to_string())?);
        Ok(self.conditions.len() - 1)
    }
}

/// The list of the values of the dimensions. `values` are those of the event that were asked for already.
fn key_of(
    keys: &mut Keys,
    values: &mut [Option<ValueNo>],
    dimensions: &[Slot],
    found: &Found<'_>,
) -> KeyPlace {
    let mut key = keys::NOTHING;
    for slot in dimensions {
        let value =
            *values[*slot].get_or_insert_with(|| keys.value(found[*slot].unwrap_or("null"), write_dimension));
        key = keys.and(key, value);
    }
    key
}

/// A value as JSON, so that equal ones read alike.
fn write_dimension(key: &mut String, json: &str) {
    let is_short = json.len() <= OBSERVED_VALUE_BYTES_MAX;
    match json.as_bytes().first() {
        Some(b'n') | None => write_text(key, NONE),
        Some(b't' | b'f') => key.push_str(json),
        Some(b'"') if is_short && value::plain(json).is_some_and(|text| !is_reserved(text)) => {
            key.push_str(json);
        }
        Some(b'-' | b'0'..=b'9') => match decimal::shown(json) {
            Some(number) if number.len() <= OBSERVED_VALUE_BYTES_MAX => key.push_str(&number),
            _ => write_text(key, &shortened(json)),
        },
        Some(_) => match serde_json::from_str::<Value>(json).map(written) {
            Ok(text) if text.len() <= OBSERVED_VALUE_BYTES_MAX => key.push_str(&text),
            Ok(text) => write_text(key, &hashed(text.as_bytes())),
            // Such as a text with half a surrogate, which no parser takes: it stands there as it was sent.
            Err(_) => write_text(key, &shortened(json)),
        },
    }
}

/// A value as JSON; a text that stands for something else is told apart from that.
fn written(value: Value) -> String {
    match value {
        Value::String(text) if is_reserved(&text) => Value::String(format!("\\{text}")).to_string(),
        other => other.to_string(),
    }
}

fn write_text(key: &mut String, text: &str) {
    key.push_str(&serde_json::to_string(text).expect("text is always JSON"));
}

/// A value of a dimension as it reads in keys: one that is long is its hash.
pub(super) fn in_key(text: String) -> String {
    let json = serde_json::to_string(&text).expect("text is always JSON");
    if json.len() <= OBSERVED_VALUE_BYTES_MAX { text } else { hashed(json.as_bytes()) }
}

/// A text as it is kept: one that is long is its hash.
pub fn shortened(text: &str) -> String {
    if text.len() <= OBSERVED_VALUE_BYTES_MAX { text.to_owned() } else { hashed(text.as_bytes()) }
}

/// A number, or a text that is one.
fn number_at<T>(found: Option<&str>, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let json = found?;
    match json.as_bytes().first()? {
        b'"' => read(value::plain(json)?),
        b'-' | b'0'..=b'9' => read(json),
        _ => None,
    }
}

/// An id or a state: a text, a number or a truth value.
fn text_of(json: &str) -> Option<Cow<'_, str>> {
    let text = match json.as_bytes().first()? {
        b'"' => match value::plain(json) {
            Some(plain) => Cow::Borrowed(plain),
            None => serde_json::from_str::<String>(json).ok()?.into(),
        },
        b't' | b'f' => Cow::Borrowed(json),
        b'-' | b'0'..=b'9' => decimal::shown(json)?,
        _ => return None,
    };
    Some(if text.len() <= OBSERVED_VALUE_BYTES_MAX { text } else { hashed(text.as_bytes()).into() })
}
