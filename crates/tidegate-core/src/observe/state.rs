//! The states of objects: what a sighting changes.
//!
//! The store keeps one [`ObjectRow`] per object and state attribute, and asks [`Ledger::apply`] under the row's lock what
//! becomes of it: the row after, the counts that change, and the history. A sighting that is older than what is known is
//! recorded as late and turns nothing back.
//!
//! Promises: at any time, as far as it was told in order, each object counts in exactly one state. A change counts once
//! from each state that its [`Policy`] names and the object was in, never from the new state itself.

use std::sync::Arc;

use super::delta::{Key, Sight};
use super::extract::NONE;
use crate::id::{MetricNo, Seq};
use crate::limits::STATES_VISITED_MAX;
use crate::time::Timestamp;

/// Stands in a policy for the state before.
const LATEST: &str = "?";
/// Stands in a policy for every state that the object was in.
const ALL: &str = "*";

/// From which states a change counts as a transition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// Instead of the state before.
    pub only: Option<Vec<Box<str>>>,
    /// Besides it.
    pub additional: Vec<Box<str>>,
}

/// What is known of an object's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    /// Its state.
    pub value: Arc<str>,
    /// When it was last seen.
    pub time: Timestamp,
    /// By which event.
    pub event: Seq,
    /// The states it was in.
    pub visited: Visited,
}

/// The states that an object was in, each once, the latest last; the first ones go when there are many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visited(pub(super) Vec<Arc<str>>);

impl Visited {
    /// Reads a JSON list. What can not be read is forgotten: it only says which older states may count.
    pub fn read(json: &str) -> Self {
        Self(
            serde_json::from_str::<Vec<String>>(json)
                .unwrap_or_default()
                .into_iter()
                .map(Arc::from)
                .collect(),
        )
    }

    /// They, in order.
    pub fn states(&self) -> &[Arc<str>] {
        &self.0
    }

    /// What [`Visited::read`] reads.
    pub fn to_json(&self) -> String {
        let mut json = String::with_capacity(2 + self.0.iter().map(|state| state.len() + 3).sum::<usize>());
        json.push('[');
        for (place, state) in self.0.iter().enumerate() {
            if place > 0 {
                json.push(',');
            }
            push_text(&mut json, state);
        }
        json.push(']');
        json
    }

    fn push(&mut self, state: &Arc<str>) {
        self.0.retain(|known| known != state);
        let excess = (self.0.len() + 1).saturating_sub(STATES_VISITED_MAX);
        self.0.drain(..excess);
        self.0.push(Arc::clone(state));
    }
}

/// An object came from one state to another, or is said to have been in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which [`super::Kind::State`].
    pub state: MetricNo,
    /// Which object.
    pub object: Arc<str>,
    /// The state before; absent when it was seen first. Of a late one: the state that is known.
    pub from: Option<Arc<str>>,
    /// The state after.
    pub to: Arc<str>,
    /// When, as its event says.
    pub time: Timestamp,
    /// Its event.
    pub event: Seq,
    /// It is older than what was known, and changed nothing.
    pub is_late: bool,
}

/// What sightings come to beside the rows of their objects.
#[derive(Debug)]
pub struct Ledger<C> {
    /// Told what is to be added: to which metric, under which key, when, how much.
    count: C,
    key: String,
    /// The history.
    pub changes: Vec<Change>,
}

impl<C: FnMut(MetricNo, &str, Timestamp, i64)> Ledger<C> {
    /// An empty one. `count` is told what is to be added: to which metric, under which key, when, how much.
    pub fn new(count: C) -> Self {
        Self { count, key: String::new(), changes: Vec::new() }
    }

    /// Applies sightings of one state of one object, sorted by time and event.
    pub fn apply(&mut self, known: &mut ObjectRow, sights: &[Sight]) {
        for sight in sights {
            let is_news = (sight.time, sight.event) > (known.time, known.event);
            if sight.value == known.value {
                if is_news {
                    (known.time, known.event) = (sight.time, sight.event);
                }
            } else if is_news {
                self.change(known, sight);
            } else {
                let from = Some(Arc::clone(&known.value));
                self.record(sight, from, true);
            }
        }
    }

    /// An object that nobody knew; to apply the same sighting once more changes nothing.
    pub fn begin(&mut self, sight: &Sight) -> ObjectRow {
        self.count(sight.state, &[&sight.value], sight.time, 1);
        self.count(sight.transition, &[NONE, &sight.value], sight.time, 1);
        self.record(sight, None, false);
        ObjectRow {
            value: Arc::clone(&sight.value),
            time: sight.time,
            event: sight.event,
            visited: Visited(vec![Arc::clone(&sight.value)]),
        }
    }

    fn change(&mut self, known: &mut ObjectRow, sight: &Sight) {
        let before = std::mem::replace(&mut known.value, Arc::clone(&sight.value));
        (known.time, known.event) = (sight.time, sight.event);
        self.count(sight.state, &[&before], sight.time, -1);
        self.count(sight.state, &[&sight.value], sight.time, 1);
        for from in sight.policy.sources(&before, &sight.value, &known.visited.0) {
            self.count(sight.transition, &[from, &sight.value], sight.time, 1);
        }
        known.visited.push(&sight.value);
        self.record(sight, Some(before), false);
    }

    fn record(&mut self, sight: &Sight, from: Option<Arc<str>>, is_late: bool) {
        self.changes.push(Change {
            state: sight.state,
            object: Arc::clone(&sight.object),
            from,
            to: Arc::clone(&sight.value),
            time: sight.time,
            event: sight.event,
            is_late,
        });
    }

    fn count(&mut self, metric: MetricNo, states: &[&str], time: Timestamp, by: i64) {
        self.key.clear();
        self.key.push('[');
        for (place, state) in states.iter().enumerate() {
            if place > 0 {
                self.key.push(',');
            }
            push_text(&mut self.key, state);
        }
        self.key.push(']');
        (self.count)(metric, &self.key, time, by);
    }
}

impl Policy {
    /// Whether states count that an object was in before the one that it came from.
    pub fn looks_back(&self) -> bool {
        self.only.iter().flatten().chain(&self.additional).any(|token| &**token != LATEST)
    }

    /// The states from which a change counts, each once, of those that the object was in.
    fn sources<'s>(&'s self, before: &'s str, after: &str, visited: &'s [Arc<str>]) -> Vec<&'s str> {
        let mut sources: Vec<&str> = Vec::new();
        let mut add = |state: &'s str| {
            if state != after && !sources.contains(&state) {
                sources.push(state);
            }
        };
        if self.only.is_none() {
            add(before);
        }
        for token in self.only.iter().flatten().chain(&self.additional) {
            match &**token {
                LATEST => add(before),
                ALL => visited.iter().for_each(|state| add(state)),
                named => {
                    if visited.iter().any(|state| **state == *named) {
                        add(named);
                    }
                }
            }
        }
        sources
    }
}

/// The key under which objects in a state are counted.
pub fn counted_as(value: &str) -> Key {
    let mut key = String::from("[");
    push_text(&mut key, value);
    key.push(']');
    key.into()
}

/// A text as JSON; most are written as they are.
fn push_text(json: &mut String, text: &str) {
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        json.push('"');
        json.push_str(text);
        json.push('"');
    } else {
        json.push_str(&serde_json::to_string(text).expect("a text is always JSON"));
    }
}
