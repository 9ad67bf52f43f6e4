//! What a slice of events adds to the rollups.
//!
//! A [`Slab`] is filled event by event, in the shortest buckets only and without an allocation for what it has seen before;
//! [`Slab::into_delta`] puts everything in order.
//!
//! Promises: the delta adds the same for any order in which the same was added, and for any way it was divided among
//! slabs that were merged. Does not: know what was stored before, nor keep an event from being added twice: the mark does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::delta::{Cell, Delta, Gain, Key, Posting, Sight};
use super::grain::Grain;
use super::hash::Seeded;
use super::keys::{KeyPlace, Keys};
use super::sketch::{Accuracy, fixed};
use crate::id::{MetricNo, Seq};
use crate::time::Timestamp;

/// What a slice of events adds, while it is read.
#[derive(Debug)]
pub struct Slab {
    hasher: Seeded,
    /// Keys of all metrics: those of one type mostly have the same.
    pub(super) keys: Keys,
    series: HashMap<MetricNo, Series, Seeded>,
    sights: Vec<Sight>,
    /// States that were seen.
    states: HashSet<Arc<str>, Seeded>,
    postings: HashMap<MetricNo, HashMap<Bytes, Vec<Seq>, Seeded>, Seeded>,
    rows: usize,
}

impl Slab {
    /// An empty one. The seed keeps senders from choosing keys that collide; what comes out does not depend on it.
    pub fn new(seed: u64) -> Self {
        let hasher = Seeded::new(seed);
        Self {
            hasher,
            keys: Keys::new(hasher),
            series: HashMap::with_hasher(hasher),
            sights: Vec::new(),
            states: HashSet::with_hasher(hasher),
            postings: HashMap::with_hasher(hasher),
            rows: 0,
        }
    }

    /// Counts one event of a counter whose shortest buckets are `base`; `sum` is its value in units of 10⁻⁹, or 0.
    pub fn count(&mut self, metric: MetricNo, base: Grain, key: &str, time: Timestamp, sum: i128) {
        let key = self.keys.read(key);
        self.count_at(metric, base, key, time, sum);
    }

    pub(super) fn count_at(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: KeyPlace,
        time: Timestamp,
        sum: i128,
    ) {
        let cell = self.cell(metric, base, key, base.start(time), || Cell::Count { count: 0, sum: 0 });
        let Cell::Count { count, sum: total } = cell else { panic!("metric {metric} has values") };
        *count += 1;
        *total = total.saturating_add(sum);
    }

    /// Adds to a count that may also shrink, such as that of the objects in a state.
    pub fn shift(&mut self, metric: MetricNo, base: Grain, key: &str, time: Timestamp, by: i64) {
        let key = self.keys.read(key);
        let cell = self.cell(metric, base, key, base.start(time), || Cell::Count { count: 0, sum: 0 });
        let Cell::Count { count, .. } = cell else { panic!("metric {metric} has values") };
        *count += by;
    }

    /// Adds one value to a histogram whose shortest buckets are `base`. What is not a number is not added.
    pub fn sample(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: &str,
        time: Timestamp,
        accuracy: Accuracy,
        value: f64,
    ) {
        let key = self.keys.read(key);
        self.sample_at(metric, base, key, time, accuracy, (value, fixed(value)));
    }

    pub(super) fn sample_at(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: KeyPlace,
        time: Timestamp,
        accuracy: Accuracy,
        (value, units): (f64, i128),
    ) {
        if value.is_nan() {
            return;
        }
        let cell = self.cell(metric, base, key, base.start(time), || Cell::Sketch(Arc::default()));
        let Cell::Sketch(sketch) = cell else { panic!("metric {metric} has no values") };
        Arc::make_mut(sketch).add_exact(accuracy, value, units);
    }

    /// An object was seen in a state.
    pub fn sight(&mut self, sight: Sight) {
        self.rows += 1;
        self.sights.push(sight);
    }

    /// A state as those see it who were in it before.
    pub fn state(&mut self, value: &str) -> Arc<str> {
        if let Some(known) = self.states.get(value) {
            return Arc::clone(known);
        }
        let new: Arc<str> = value.into();
        self.states.insert(Arc::clone(&new));
        new
    }

    /// An event has a value of an attribute. Events come in order of acceptance; one with the same value twice counts once.
    pub fn post(&mut self, index: MetricNo, value: impl AsRef<[u8]>, event: Seq) {
        let hasher = self.hasher;
        let values = self.postings.entry(index).or_insert_with(|| HashMap::with_hasher(hasher));
        if let Some(events) = values.get_mut(value.as_ref()) {
            if events.last() != Some(&event) {
                events.push(event);
            }
        } else {
            self.rows += 1;
            values.insert(Bytes::copy_from_slice(value.as_ref()), vec![event]);
        }
    }

    /// How many cells and rows it would write, at most.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether it would write nothing.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds everything of another one, which came later: what comes out is as if one had seen it all.
    pub fn merge(&mut self, other: Self) {
        let theirs = (0..other.keys.len()).map(|no| other.keys.text(KeyPlace(no as u32)));
        let keys: Vec<KeyPlace> = theirs.map(|key| self.keys.read(&key)).collect();
        for (metric, Series { base, cells }) in other.series.into_iter().collect::<Vec<_>>() {
            for ((bucket, key), cell) in cells.into_iter().collect::<Vec<_>>() {
                let key = keys[key.0 as usize];
                let mine = self.cell(metric, base, key, bucket, || Cell::nothing_like(&cell));
                mine.try_add(&cell).expect("a metric is of one kind");
            }
        }
        other.sights.into_iter().for_each(|sight| self.sight(sight));
        for (index, values) in other.postings.into_iter().collect::<Vec<_>>() {
            for (value, events) in values.into_iter().collect::<Vec<_>>() {
                events.into_iter().for_each(|event| self.post(index, &value, event));
            }
        }
    }

    /// All of it, sorted.
    pub fn into_delta(self) -> Delta {
        let mut places = vec![None; self.keys.len()];
        let met = self.series.values().flat_map(|series| series.cells.keys());
        met.for_each(|(_, key)| places[key.0 as usize] = Some(0));
        let mut keys: Vec<Key> = Vec::new();
        for (place, no) in places.iter_mut().zip(0..).filter(|(place, _)| place.is_some()) {
            *place = Some(keys.len() as u32);
            keys.push(self.keys.text(KeyPlace(no)));
        }
        let place = |KeyPlace(no)| places[no as usize].unwrap_or_default();
        let gains = self.series.into_iter().map(|(metric, series)| series.gain(metric, place));
        let mut gains: Vec<Gain> = gains.collect();
        gains.sort_unstable_by_key(|gain| gain.metric);
        let sights = sorted(self.sights);
        let mut postings: Vec<_> = self
            .postings
            .into_iter()
            .flat_map(|(index, values)| values.into_iter().map(move |(value, events)| (index, value, events)))
            .map(|(index, value, mut events)| {
                events.sort_unstable();
                Posting { index, value, events }
            })
            .collect();
        postings.sort_unstable_by(|a, b| (a.index, &a.value).cmp(&(b.index, &b.value)));
        Delta { keys, gains, sights, postings }
    }

    fn cell(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: KeyPlace,
        bucket: i64,
        new: impl FnOnce() -> Cell,
    ) -> &mut Cell {
        let hasher = self.hasher;
        let series = self.series.entry(metric).or_insert_with(|| Series::new(base, hasher));
        series.cells.entry((bucket, key)).or_insert_with(|| {
            self.rows += Grain::from_base(base).len();
            new()
        })
    }
}

/// Most objects are told apart by the beginnings of their ids, which are compared as numbers.
fn sorted(sights: Vec<Sight>) -> Vec<Sight> {
    let keyed = sights.iter().zip(0..).map(|(sight, place)| (sight.state, beginning(&sight.object), place));
    let mut order: Vec<(MetricNo, u64, usize)> = keyed.collect();
    order.sort_unstable_by(|a, b| {
        let whole = || place(&sights[a.2]).cmp(&place(&sights[b.2])).then(a.2.cmp(&b.2));
        (a.0, a.1).cmp(&(b.0, b.1)).then_with(whole)
    });
    let mut sights: Vec<Option<Sight>> = sights.into_iter().map(Some).collect();
    order.into_iter().filter_map(|(.., place)| sights[place].take()).collect()
}

fn place(sight: &Sight) -> (MetricNo, &str, Timestamp, Seq) {
    (sight.state, &sight.object, sight.time, sight.event)
}

/// Sorts as the text does, as far as it goes.
fn beginning(text: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = text.len().min(8);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

/// The cells of one metric, in buckets of one length.
#[derive(Debug)]
struct Series {
    base: Grain,
    cells: HashMap<(i64, KeyPlace), Cell, Seeded>,
}

impl Series {
    fn new(base: Grain, hasher: Seeded) -> Self {
        Self { base, cells: HashMap::with_hasher(hasher) }
    }

    fn gain(self, metric: MetricNo, place: impl Fn(KeyPlace) -> u32) -> Gain {
        let cells = self.cells.into_iter().map(|((bucket, key), cell)| (bucket, place(key), cell));
        let mut cells: Vec<_> = cells.collect();
        cells.sort_unstable_by_key(|(bucket, key, _)| (*bucket, *key));
        Gain { metric, base: self.base, cells }
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;
