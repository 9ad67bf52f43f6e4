//! What the writer remembers of rows that counting meets again and again: numbers of keys.
//!
//! There is one writer, so what it has read or written is what the store has, until it writes something else. Whoever
//! writes takes everything that is remembered, changes it along with the rows, and gives it back after the commit: what
//! ends in any other way leaves nothing behind that could be wrong. Meanwhile there is nothing to take.
//!
//! Promises: never more than `MAX` rows of a kind. Where that is not enough, those go first that were not met lately.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::Seeded;

/// Keys whose numbers are remembered, of about 100 bytes each; those that are counted all the time fit.
const KEYS_MAX: usize = 100_000;

/// What is remembered.
#[derive(Default)]
pub(super) struct Remembered {
    /// Numbers of keys that are in the store.
    pub(super) keys: Rows<KeyNo, KEYS_MAX>,
}

/// What is remembered, while nobody has taken it.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Remembered>>);

impl Shared {
    pub(super) fn take(&self) -> Remembered {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn put(&self, known: Remembered) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

impl Remembered {
    /// Forgets everything of a metric.
    pub(super) fn forget_metric(&mut self, metric: MetricNo) {
        self.keys.forget_metric(metric);
    }
}

/// Rows by metric and name.
pub(super) struct Rows<V, const MAX: usize> {
    metrics: BTreeMap<MetricNo, HashMap<Arc<str>, Row<V>, Seeded>>,
    hasher: Seeded,
    /// Goes on when half of all rows were met, and forgets the others.
    age: u32,
    /// How many were met in this age, at most.
    met: usize,
}

struct Row<V> {
    row: V,
    /// In which age it was met last: this one or the one before.
    age: u32,
}

impl<V, const MAX: usize> Default for Rows<V, MAX> {
    fn default() -> Self {
        Self { metrics: BTreeMap::new(), hasher: Seeded::new(RandomState::new().hash_one(0)), age: 0, met: 0 }
    }
}

impl<V, const MAX: usize> Rows<V, MAX> {
    pub(super) fn get(&mut self, metric: MetricNo, name: &str) -> Option<&mut V> {
        self.make_room();
        let found = self.metrics.get_mut(&metric)?.get_mut(name)?;
        self.met += usize::from(found.age != self.age);
        found.age = self.age;
        Some(&mut found.row)
    }

    pub(super) fn put(&mut self, metric: MetricNo, name: Arc<str>, row: V) {
        self.make_room();
        let row = Row { row, age: self.age };
        let hasher = self.hasher;
        let rows = self.metrics.entry(metric).or_insert_with(|| HashMap::with_hasher(hasher));
        rows.insert(name, row);
        self.met += 1;
    }

    fn make_room(&mut self) {
        if self.met >= MAX / 2 {
            let age = self.age;
            self.metrics.values_mut().for_each(|rows| rows.retain(|_, row| row.age == age));
            (self.age, self.met) = (age.wrapping_add(1), 0);
        }
    }

    pub(super) fn forget(&mut self, metric: MetricNo, name: &str) {
        self.metrics.get_mut(&metric).map(|rows| rows.remove(name));
    }

    fn forget_metric(&mut self, metric: MetricNo) {
        self.metrics.remove(&metric);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_again_stays_and_the_rest_goes_in_time() {
        let mut rows: Rows<i64, 8> = Rows::default();
        for no in 0..100 {
            rows.put(1, no.to_string().into(), no);
            assert_eq!(rows.get(1, "0").copied(), Some(0), "after {no}");
            assert!(rows.metrics[&1].len() <= 8, "{} after {no}", rows.metrics[&1].len());
        }
        assert_eq!(rows.get(1, "99").copied(), Some(99));
        assert_eq!(rows.get(1, "50"), None);
        assert_eq!(rows.get(2, "0"), None);
    }

    #[test]
    fn where_all_are_met_again_there_are_no_more_of_them() {
        let mut rows: Rows<i64, 8> = Rows::default();
        for no in 0..1_000 {
            rows.put(1, no.to_string().into(), no);
            (0..=no).for_each(|no| assert!(rows.get(1, &no.to_string()).is_none_or(|row| *row == no)));
            assert!(rows.metrics[&1].len() <= 8);
        }
    }

    #[test]
    fn what_is_forgotten_is_gone() {
        let mut rows: Rows<i64, 8> = Rows::default();
        for no in 0..6 {
            rows.put(no % 2, no.to_string().into(), no);
        }
        rows.forget_metric(1);
        for (name, expected) in [("0", Some(0)), ("1", None), ("2", Some(2)), ("4", Some(4))] {
            assert_eq!(rows.get(0, name).copied(), expected);
        }
        assert!(["1", "3", "5"].iter().all(|name| rows.get(1, name).is_none()));
    }
}
