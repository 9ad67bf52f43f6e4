//! The states of objects: what a sighting changes.
//!
//! The store keeps one [`ObjectRow`] per object and state attribute, and asks [`apply`] under the row's lock what becomes
//! of it: the row after, the counts that change, and the history. A sighting that is older than what is known is recorded
//! as late and turns nothing back.
//!
//! Promises: at any time, as far as it was told in order, each object counts in exactly one state. A change counts once
//! from each state that its [`Policy`] names and the object was in, never from the new state itself.

use super::extract::NONE;
use super::slab::{Key, Sight};
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
    pub value: Box<str>,
    /// When it was last seen.
    pub time: Timestamp,
    /// By which event.
    pub event: Seq,
    /// The states it was in, each once, the latest last: a JSON list.
    pub visited: Box<str>,
}

/// What sightings of one object come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The object now; absent if it was unknown and not seen.
    pub row: Option<ObjectRow>,
    /// What is to be added: to which metric, under which key, when, how much.
    pub cells: Vec<(MetricNo, Key, Timestamp, i64)>,
    /// The history.
    pub changes: Vec<Change>,
}

/// An object came from one state to another, or is said to have been in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The state before; absent when it was seen first. Of a late one: the state that is known.
    pub from: Option<Box<str>>,
    /// The state after.
    pub to: Box<str>,
    /// When, as its event says.
    pub time: Timestamp,
    /// Its event.
    pub event: Seq,
    /// It is older than what was known, and changed nothing.
    pub is_late: bool,
}

/// Applies sightings of one state of one object, sorted by time and event.
pub fn apply(row: Option<ObjectRow>, sights: &[&Sight]) -> Applied {
    let mut applied = Applied { row, ..Applied::default() };
    // The same for nearly all: read when the first change asks for it.
    let mut visited = None;
    for sight in sights {
        let Some(known) = &mut applied.row else {
            applied.begin(sight);
            continue;
        };
        let is_news = (sight.time, sight.event) > (known.time, known.event);
        if sight.value == known.value {
            if is_news {
                (known.time, known.event) = (sight.time, sight.event);
            }
        } else if is_news {
            let visited = visited.get_or_insert_with(|| read(&known.visited));
            applied.change(sight, visited);
        } else {
            let from = Some(known.value.clone());
            applied.record(sight, from, true);
        }
    }
    if let (Some(row), Some(visited)) = (&mut applied.row, visited) {
        row.visited = write(&visited);
    }
    applied
}

impl Applied {
    fn begin(&mut self, sight: &Sight) {
        self.cells.push((sight.state, key(&[&sight.value]), sight.time, 1));
        self.cells.push((sight.transition, key(&[NONE, &sight.value]), sight.time, 1));
        self.record(sight, None, false);
        self.row = Some(ObjectRow {
            value: sight.value.clone(),
            time: sight.time,
            event: sight.event,
            visited: write(std::slice::from_ref(&sight.value)),
        });
    }

    fn change(&mut self, sight: &Sight, visited: &mut Vec<Box<str>>) {
        let Some(known) = &mut self.row else { return };
        let before = std::mem::replace(&mut known.value, sight.value.clone());
        (known.time, known.event) = (sight.time, sight.event);
        self.cells.push((sight.state, key(&[&before]), sight.time, -1));
        self.cells.push((sight.state, key(&[&sight.value]), sight.time, 1));
        for from in sight.policy.sources(&before, &sight.value, visited) {
            self.cells.push((sight.transition, key(&[from, &sight.value]), sight.time, 1));
        }
        self.record(sight, Some(before), false);
        visited.retain(|state| *state != sight.value);
        visited.push(sight.value.clone());
        let excess = visited.len().saturating_sub(STATES_VISITED_MAX);
        visited.drain(..excess);
    }

    fn record(&mut self, sight: &Sight, from: Option<Box<str>>, is_late: bool) {
        let (to, time, event) = (sight.value.clone(), sight.time, sight.event);
        self.changes.push(Change { from, to, time, event, is_late });
    }
}

impl Policy {
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
    key(&[value])
}

fn key(states: &[&str]) -> Key {
    serde_json::to_string(states).expect("texts are always JSON").into()
}

fn write(visited: &[Box<str>]) -> Box<str> {
    serde_json::to_string(visited).expect("texts are always JSON").into()
}

/// What can not be read is forgotten: it only says which older states may count.
fn read(visited: &str) -> Vec<Box<str>> {
    serde_json::from_str(visited).unwrap_or_default()
}
