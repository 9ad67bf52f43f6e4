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
use super::pick::elements;
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
    /// The states it was in, each once, the latest last: a JSON list.
    pub visited: Arc<str>,
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
            visited: with("[]", &sight.value),
        }
    }

    fn change(&mut self, known: &mut ObjectRow, sight: &Sight) {
        let before = std::mem::replace(&mut known.value, Arc::clone(&sight.value));
        (known.time, known.event) = (sight.time, sight.event);
        self.count(sight.state, &[&before], sight.time, -1);
        self.count(sight.state, &[&sight.value], sight.time, 1);
        let visited = if sight.policy.is_plain() { Vec::new() } else { read(&known.visited) };
        for from in sight.policy.sources(&before, &sight.value, &visited) {
            self.count(sight.transition, &[from, &sight.value], sight.time, 1);
        }
        known.visited = with(&known.visited, &sight.value);
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
    /// Only the state before counts.
    fn is_plain(&self) -> bool {
        self.only.is_none() && self.additional.is_empty()
    }

    /// The states from which a change counts, each once, of those that the object was in.
    fn sources<'s>(&'s self, before: &'s str, after: &str, visited: &'s [Box<str>]) -> Vec<&'s str> {
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

/// The list with a state as its last; the first ones go when it is long.
fn with(visited: &str, state: &str) -> Arc<str> {
    let mut text = String::with_capacity(state.len() + 2);
    push_text(&mut text, state);
    let others = elements(visited).filter(|known| *known != text).count();
    let excess = (others + 1).saturating_sub(STATES_VISITED_MAX);
    let mut list = String::with_capacity(visited.len() + text.len() + 1);
    list.push('[');
    for known in elements(visited).filter(|known| *known != text).skip(excess) {
        list.push_str(known);
        list.push(',');
    }
    list.push_str(&text);
    list.push(']');
    list.into()
}

/// What can not be read is forgotten: it only says which older states may count.
fn read(visited: &str) -> Vec<Box<str>> {
    serde_json::from_str(visited).unwrap_or_default()
}
