//! Goal: each object counts in one state at a time, a change counts once from each state that it should, and nothing late
//! turns anything back. Method: tables for the policies; random sightings in any order and division against a plain recount.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::delta::Sight;
use super::state::*;
use crate::id::MetricNo;
use crate::limits::STATES_VISITED_MAX;
use crate::time::Timestamp;

const STATE: MetricNo = 1;
const TRANSITION: MetricNo = 2;

fn policy(only: Option<&[&str]>, additional: &[&str]) -> Arc<Policy> {
    let boxed = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
    Arc::new(Policy { only: only.map(boxed), additional: boxed(additional) })
}

fn sight(object: &str, value: &str, time: i64, event: i64, policy: &Arc<Policy>) -> Sight {
    Sight {
        state: STATE,
        transition: TRANSITION,
        object: object.into(),
        value: value.into(),
        time: Timestamp::from_ms(time),
        event,
        policy: Arc::clone(policy),
    }
}

/// What sightings of one object come to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Applied {
    row: Option<ObjectRow>,
    cells: Vec<(MetricNo, String, Timestamp, i64)>,
    changes: Vec<Change>,
}

fn apply(row: Option<ObjectRow>, sights: &[Sight]) -> Applied {
    let mut cells = Vec::new();
    let mut ledger =
        Ledger::new(|metric, key: &str, time, count| cells.push((metric, key.to_owned(), time, count)));
    let mut row = row.or_else(|| sights.first().map(|first| ledger.begin(first)));
    row.iter_mut().for_each(|row| ledger.apply(row, sights));
    let changes = ledger.changes;
    Applied { row, cells, changes }
}

/// `NEW→PAID` of every transition that counts, for an object that goes through `states`.
fn transitions(policy: &Arc<Policy>, states: &[&str]) -> Vec<String> {
    let sights: Vec<Sight> =
        states.iter().zip(1..).map(|(state, at)| sight("o", state, at, at, policy)).collect();
    let cells = apply(None, &sights).cells;
    let transitions = cells.into_iter().filter(|(metric, ..)| *metric == TRANSITION);
    transitions
        .map(|(_, key, _, count)| {
            let [from, to]: [String; 2] = serde_json::from_str(&key).unwrap();
            assert_eq!(count, 1);
            format!("{from}→{to}")
        })
        .collect()
}

#[test]
fn transitions_count_from_where_the_policy_says() {
    let path = ["NEW", "NEW", "PAID", "SENT", "PAID", "DONE"];
    for (policy, expected) in [
        (policy(None, &[]), "(none)→NEW NEW→PAID PAID→SENT SENT→PAID PAID→DONE"),
        (
            policy(None, &["NEW"]),
            "(none)→NEW NEW→PAID PAID→SENT NEW→SENT SENT→PAID NEW→PAID PAID→DONE NEW→DONE",
        ),
        (policy(None, &["?", "LOST"]), "(none)→NEW NEW→PAID PAID→SENT SENT→PAID PAID→DONE"),
        (policy(Some(&["NEW"]), &[]), "(none)→NEW NEW→PAID NEW→SENT NEW→PAID NEW→DONE"),
        (policy(Some(&["SENT"]), &["?"]), "(none)→NEW NEW→PAID PAID→SENT SENT→PAID SENT→DONE PAID→DONE"),
        (policy(Some(&["LOST"]), &[]), "(none)→NEW"),
        (
            policy(Some(&["*"]), &[]),
            "(none)→NEW NEW→PAID NEW→SENT PAID→SENT NEW→PAID SENT→PAID NEW→DONE SENT→DONE PAID→DONE",
        ),
    ] {
        assert_eq!(transitions(&policy, &path).join(" "), expected, "{policy:?}");
    }
}

#[test]
fn what_is_older_than_known_is_late() {
    let plain = policy(None, &[]);
    let known = apply(None, &[sight("o", "PAID", 20, 5, &plain), sight("o", "PAID", 30, 6, &plain)]);
    let row = known.row.clone().unwrap();
    assert_eq!(
        (row.time, row.event, row.visited.to_json()),
        (Timestamp::from_ms(30), 6, r#"["PAID"]"#.to_owned())
    );
    assert_eq!((known.cells.len(), known.changes.len()), (2, 1), "seen again is no change");
    for (time, event) in [(10, 9), (25, 9), (30, 4)] {
        let late = apply(known.row.clone(), &[sight("o", "NEW", time, event, &plain)]);
        assert_eq!((&late.row, late.cells.len()), (&known.row, 0), "{time}");
        let change = Change {
            state: STATE,
            object: "o".into(),
            from: Some("PAID".into()),
            to: "NEW".into(),
            time: Timestamp::from_ms(time),
            event,
            is_late: true,
        };
        assert_eq!(late.changes, [change]);
    }
    let same = apply(known.row.clone(), &[sight("o", "PAID", 10, 9, &plain)]);
    assert_eq!(same, Applied { row: known.row.clone(), ..Applied::default() });
    let after = apply(known.row, &[sight("o", "NEW", 30, 7, &plain)]);
    assert_eq!(after.changes[0].from.as_deref(), Some("PAID"), "of two at one time the later event counts");
    assert!(!after.changes[0].is_late && apply(None, &[]) == Applied::default());
}

#[test]
fn few_of_the_states_are_remembered_and_damage_is_survived() {
    let all = policy(Some(&["*"]), &[]);
    let count = STATES_VISITED_MAX as i64 + 20;
    let sights: Vec<Sight> = (0..count).map(|n| sight("o", &format!("S{n}"), n, n, &all)).collect();
    let row = apply(None, &sights).row.unwrap();
    let visited: Vec<String> = serde_json::from_str(&row.visited.to_json()).unwrap();
    assert_eq!((visited.len(), visited[0].as_str()), (STATES_VISITED_MAX, "S20"));
    let torn = ObjectRow { visited: Visited::read("["), ..row };
    let after = apply(Some(torn), &[sight("o", "X", count, count, &all)]);
    assert_eq!(after.row.unwrap().visited, Visited::read(r#"["X"]"#));
}

fn any_policy() -> impl Strategy<Value = Arc<Policy>> {
    let tokens = || proptest::collection::vec(prop::sample::select(vec!["A", "B", "C", "?", "*"]), 0..3);
    (proptest::option::of(tokens()), tokens())
        .prop_map(|(only, additional)| policy(only.as_deref(), &additional))
}

/// Sightings of three objects, sorted by time and event.
fn sightings() -> impl Strategy<Value = Vec<Sight>> {
    let one = (
        prop::sample::select(vec!["x", "y", "z"]),
        prop::sample::select(vec!["A", "B", "C", "D"]),
        0_i64..30,
    );
    (proptest::collection::vec(one, 0..40), any_policy()).prop_map(|(sights, policy)| {
        let mut sights: Vec<Sight> = sights
            .into_iter()
            .zip(1..)
            .map(|((object, value, time), event)| sight(object, value, time, event, &policy))
            .collect();
        sights.sort_by_key(|sight| (sight.time, sight.event));
        sights
    })
}

/// Objects, and everything that was counted and recorded on the way.
#[derive(Default)]
struct World {
    rows: BTreeMap<Arc<str>, ObjectRow>,
    cells: Vec<(MetricNo, String, Timestamp, i64)>,
    changes: Vec<Change>,
}

impl World {
    /// As a store flushes a slice: object by object, each sorted.
    fn flush(&mut self, sights: &[Sight]) {
        let mut sorted = sights.to_vec();
        sorted.sort_by_key(|sight| (Arc::clone(&sight.object), sight.time, sight.event));
        for of_object in sorted.chunk_by(|a, b| a.object == b.object) {
            let object = &of_object[0].object;
            let applied = apply(self.rows.remove(object), of_object);
            self.rows.extend(applied.row.map(|row| (object.clone(), row)));
            self.cells.extend(applied.cells);
            self.changes.extend(applied.changes);
        }
    }

    fn sorted(mut self) -> Self {
        self.cells.sort();
        self.changes.sort_by_key(|change| (Arc::clone(&change.object), change.time, change.event));
        self
    }

    /// How many objects are in each state, of which some are.
    fn counts_at(&self, time: Timestamp) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for (metric, key, at, count) in &self.cells {
            if *metric == STATE && *at <= time {
                *counts.entry(key.clone()).or_insert(0) += count;
            }
        }
        counts.retain(|_, count| *count != 0);
        counts
    }
}

proptest! {
    #[test]
    fn in_order_it_does_not_matter_how_they_are_divided(sights in sightings(), size in 1_usize..10) {
        let (mut whole, mut parts) = (World::default(), World::default());
        whole.flush(&sights);
        sights.chunks(size).for_each(|part| parts.flush(part));
        let (whole, parts) = (whole.sorted(), parts.sorted());
        prop_assert_eq!(whole.rows, parts.rows);
        prop_assert_eq!(whole.cells, parts.cells);
        prop_assert_eq!(&whole.changes, &parts.changes);
        prop_assert!(whole.changes.iter().all(|change| !change.is_late));
    }

    #[test]
    fn the_counts_are_the_objects_in_each_state(sights in sightings(), at in 0_i64..31) {
        let mut world = World::default();
        world.flush(&sights);
        let at = Timestamp::from_ms(at);
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        for sight in sights.iter().filter(|sight| sight.time <= at) {
            last.insert(&sight.object, &sight.value);
        }
        let mut expected = BTreeMap::new();
        for value in last.values() {
            *expected.entry(format!("[\"{value}\"]")).or_insert(0) += 1;
        }
        prop_assert_eq!(world.counts_at(at), expected);
    }

    /// Whatever comes late changes nothing: the rest is what it would be without it.
    #[test]
    fn in_any_order_late_ones_are_recorded_and_the_rest_is_as_in_order(
        sights in sightings(),
        order in Just((0..40).collect::<Vec<usize>>()).prop_shuffle(),
        size in 1_usize..10,
    ) {
        let shuffled: Vec<Sight> = order.iter().filter_map(|at| sights.get(*at)).cloned().collect();
        let mut world = World::default();
        shuffled.chunks(size).for_each(|part| world.flush(part));
        let late: Vec<i64> =
            world.changes.iter().filter(|change| change.is_late).map(|change| change.event).collect();
        let mut known: BTreeMap<&str, (Timestamp, i64, &str)> = BTreeMap::new();
        let mut in_time = Vec::new();
        for part in shuffled.chunks(size) {
            let mut part: Vec<&Sight> = part.iter().collect();
            part.sort_by_key(|sight| (sight.time, sight.event));
            for sight in part {
                match known.get(&*sight.object) {
                    Some((time, event, value)) if (*time, *event) > (sight.time, sight.event) => {
                        prop_assert_eq!(late.contains(&sight.event), *value != &*sight.value);
                    }
                    _ => {
                        known.insert(&sight.object, (sight.time, sight.event, &sight.value));
                        in_time.push(sight.clone());
                    }
                }
            }
        }
        prop_assert!(in_time.iter().all(|sight| !late.contains(&sight.event)));
        in_time.sort_by_key(|sight| (sight.time, sight.event));
        let mut ordered = World::default();
        ordered.flush(&in_time);
        world.changes.retain(|change| !change.is_late);
        let (world, ordered) = (world.sorted(), ordered.sorted());
        prop_assert_eq!(world.rows, ordered.rows);
        prop_assert_eq!(world.cells, ordered.cells);
        prop_assert_eq!(world.changes, ordered.changes);
    }
}
