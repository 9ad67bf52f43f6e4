//! What a slice of events adds to the rollups.
//!
//! A [`Slab`] is filled event by event, in the shortest buckets only and without an allocation for what it has seen before;
//! [`Slab::into_delta`] puts everything in order.
//!
//! Promises: the delta adds the same for any order in which the same was added, and for any way it was divided among
//! slabs that were merged. Does not: know what was stored before, nor keep an event from being added twice: the mark does.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::delta::{Cell, Delta, Gain, Key, Posting, Sight};
use super::grain::Grain;
use super::sketch::Accuracy;
use crate::id::{MetricNo, Seq};
use crate::time::Timestamp;

/// What a slice of events adds, while it is read.
#[derive(Debug)]
pub struct Slab {
    hasher: Seeded,
    /// Keys of all metrics, numbered as they came: metrics of one type mostly have the same.
    keys: HashMap<Key, u32, Seeded>,
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
        let hasher = Seeded(seed);
        Self {
            hasher,
            keys: HashMap::with_hasher(hasher),
            series: HashMap::with_hasher(hasher),
            sights: Vec::new(),
            states: HashSet::with_hasher(hasher),
            postings: HashMap::with_hasher(hasher),
            rows: 0,
        }
    }

    /// Counts one event of a counter whose shortest buckets are `base`; `sum` is its value in units of 10⁻⁹, or 0.
    pub fn count(&mut self, metric: MetricNo, base: Grain, key: &str, time: Timestamp, sum: i128) {
        let cell = self.cell(metric, base, key, base.start(time), || Cell::Count { count: 0, sum: 0 });
        let Cell::Count { count, sum: total } = cell else { panic!("metric {metric} has values") };
        *count += 1;
        *total = total.saturating_add(sum);
    }

    /// Adds to a count that may also shrink, such as that of the objects in a state.
    pub fn shift(&mut self, metric: MetricNo, base: Grain, key: &str, time: Timestamp, by: i64) {
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
        if value.is_nan() {
            return;
        }
        let cell = self.cell(metric, base, key, base.start(time), || Cell::Sketch(Arc::default()));
        let Cell::Sketch(sketch) = cell else { panic!("metric {metric} has no values") };
        Arc::make_mut(sketch).add(accuracy, value);
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
        let mut keys: Vec<_> = other.keys.into_iter().collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        let keys: Vec<u32> = keys.iter().map(|(key, _)| self.number(key)).collect();
        for (metric, Series { base, cells }) in other.series.into_iter().collect::<Vec<_>>() {
            for ((bucket, key), cell) in cells.into_iter().collect::<Vec<_>>() {
                let key = keys[key as usize];
                let mine = self.cell_of(metric, base, key, bucket, || Cell::nothing_like(&cell));
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
        let mut keys: Vec<(Key, u32)> = self.keys.into_iter().collect();
        keys.sort_unstable_by_key(|(_, place)| *place);
        let gains = self.series.into_iter().map(|(metric, series)| series.gain(metric));
        let mut gains: Vec<Gain> = gains.collect();
        gains.sort_unstable_by_key(|gain| gain.metric);
        let mut sights = self.sights;
        sights.sort_by(|a, b| place(a).cmp(&place(b)));
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
        Delta { keys: keys.into_iter().map(|(key, _)| key).collect(), gains, sights, postings }
    }

    fn cell(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: &str,
        bucket: i64,
        new: impl FnOnce() -> Cell,
    ) -> &mut Cell {
        let key = self.number(key);
        self.cell_of(metric, base, key, bucket, new)
    }

    /// The number of a key, a new one if it is new.
    fn number(&mut self, key: &str) -> u32 {
        match self.keys.get(key) {
            Some(number) => *number,
            None => {
                let number = self.keys.len() as u32;
                self.keys.insert(key.into(), number);
                number
            }
        }
    }

    fn cell_of(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: u32,
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

fn place(sight: &Sight) -> (MetricNo, &str, Timestamp, Seq) {
    (sight.state, &sight.object, sight.time, sight.event)
}

/// The cells of one metric, in buckets of one length.
#[derive(Debug)]
struct Series {
    base: Grain,
    cells: HashMap<(i64, u32), Cell, Seeded>,
}

impl Series {
    fn new(base: Grain, hasher: Seeded) -> Self {
        Self { base, cells: HashMap::with_hasher(hasher) }
    }

    fn gain(self, metric: MetricNo) -> Gain {
        let cells = self.cells.into_iter().map(|((bucket, key), cell)| (bucket, key, cell));
        let mut cells: Vec<_> = cells.collect();
        cells.sort_unstable_by_key(|(bucket, key, _)| (*bucket, *key));
        Gain { metric, base: self.base, cells }
    }
}

/// Folded multiplication: a few nanoseconds for a key, and without the seed no way to find keys that collide.
#[derive(Clone, Copy, Debug)]
struct Seeded(u64);

impl BuildHasher for Seeded {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0 ^ 0x9e37_79b9_7f4a_7c15)
    }
}

struct Folding(u64);

impl Folding {
    #[inline]
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.fold(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.fold(value.into());
    }

    #[inline]
    fn write_i64(&mut self, value: i64) {
        self.fold(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;
