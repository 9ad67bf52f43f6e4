//! What a slice of events adds to the rollups.
//!
//! A [`Slab`] is filled event by event, in the shortest buckets only and without an allocation for what it has seen before;
//! [`Slab::into_delta`] sums up the longer ones and puts everything in the order in which it is written.
//!
//! Promises: the delta is the same for any order in which the same was added, and for any way it was divided among slabs
//! that were merged. Does not: know what was stored before, nor keep an event from being added twice: the mark does.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::grain::Grain;
use super::metric::Kind;
use super::sketch::{Accuracy, Sketch};
use super::state::Policy;
use super::varint::Torn;
use crate::id::{KeyNo, MetricNo, Seq};
use crate::time::Timestamp;

/// What keeps series of a metric apart: a JSON list of the values of its dimensions, in their order.
/// The rises of one metric in a delta share it.
pub type Key = Arc<str>;

/// What one key has in one bucket. Cells of the same metric add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// How many, and their sum in units of 10⁻⁹. Both may be negative: what leaves a state is counted so.
    Count {
        /// How many.
        count: i64,
        /// Their sum.
        sum: i128,
    },
    /// Values in bins; buckets of different lengths share it as long as they hold the same.
    Sketch(Arc<Sketch>),
}

impl Cell {
    /// What another one of its kind is before anything was added.
    pub(super) fn nothing_like(other: &Self) -> Self {
        match other {
            Self::Count { .. } => Self::Count { count: 0, sum: 0 },
            Self::Sketch(_) => Self::Sketch(Arc::default()),
        }
    }

    /// Adds another one, which is of the same kind or [`Torn`].
    pub fn try_add(&mut self, other: &Self) -> Result<(), Torn> {
        match (self, other) {
            (Self::Count { count, sum }, Self::Count { count: more, sum: more_sum }) => {
                *count = count.saturating_add(*more);
                *sum = sum.saturating_add(*more_sum);
                Ok(())
            }
            (Self::Sketch(sketch), Self::Sketch(more)) => {
                Arc::make_mut(sketch).merge(more);
                Ok(())
            }
            _ => Err(Torn),
        }
    }
}

/// An object was seen in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Which [`super::Kind::State`].
    pub state: MetricNo,
    /// The [`super::Kind::Transition`] beside it.
    pub transition: MetricNo,
    /// The object's id.
    pub object: Box<str>,
    /// What state it is in.
    pub value: Box<str>,
    /// When, as its event says.
    pub time: Timestamp,
    /// Its event.
    pub event: Seq,
    /// From which states a change counts.
    pub policy: Arc<Policy>,
}

/// The events that have a value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Which [`super::Kind::Index`].
    pub index: MetricNo,
    /// The value, written so that bytes sort as values do.
    pub value: Bytes,
    /// The events, in order.
    pub events: Vec<Seq>,
}

/// What is added to one key in one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rise {
    /// Of which metric.
    pub metric: MetricNo,
    /// The length of the bucket.
    pub grain: Grain,
    /// When the bucket begins, in milliseconds.
    pub bucket: i64,
    /// Under which key.
    pub key: Key,
    /// What.
    pub cell: Cell,
}

impl Rise {
    /// The page that has the cell, by the number of its key.
    pub fn page(&self, key: KeyNo) -> u32 {
        let is_sketch = matches!(self.cell, Cell::Sketch(_));
        super::page::of(if is_sketch { Kind::Histogram } else { Kind::Counter }, key)
    }
}

/// Everything that a slice of events adds, in the order in which it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Sorted by metric, grain, bucket and key; each at most once.
    pub rises: Vec<Rise>,
    /// In order of acceptance.
    pub sights: Vec<Sight>,
    /// Sorted by index and value; each at most once.
    pub postings: Vec<Posting>,
}

impl Delta {
    /// Whether it adds nothing.
    pub fn is_empty(&self) -> bool {
        self.rises.is_empty() && self.sights.is_empty() && self.postings.is_empty()
    }
}

/// What a slice of events adds, while it is read.
#[derive(Debug)]
pub struct Slab {
    hasher: Seeded,
    /// Keys of all metrics, numbered as they came: metrics of one type mostly have the same.
    keys: HashMap<Key, u32, Seeded>,
    series: HashMap<MetricNo, Series, Seeded>,
    sights: Vec<Sight>,
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

    /// Adds everything of another one.
    pub fn merge(&mut self, other: Self) {
        let mut keys: Vec<_> = other.keys.into_iter().collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        for (metric, Series { base, cells }) in other.series.into_iter().collect::<Vec<_>>() {
            for ((bucket, key), cell) in cells.into_iter().collect::<Vec<_>>() {
                let key = &keys[key as usize].0;
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

    /// Everything in all lengths of buckets, sorted.
    pub fn into_delta(self) -> Delta {
        let mut series: Vec<_> = self.series.into_iter().collect();
        series.sort_unstable_by_key(|(metric, _)| *metric);
        let keys = Ranked::new(self.keys);
        let mut rises = Vec::with_capacity(self.rows);
        for (metric, series) in series {
            series.rise(metric, &keys, &mut rises);
        }
        let mut sights = self.sights;
        sights.sort_by_key(|sight| sight.event);
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
        Delta { rises, sights, postings }
    }

    fn cell(
        &mut self,
        metric: MetricNo,
        base: Grain,
        key: &str,
        bucket: i64,
        new: impl FnOnce() -> Cell,
    ) -> &mut Cell {
        let hasher = self.hasher;
        let key = match self.keys.get(key) {
            Some(number) => *number,
            None => {
                let number = self.keys.len() as u32;
                self.keys.insert(key.into(), number);
                number
            }
        };
        let series = self.series.entry(metric).or_insert_with(|| Series::new(base, hasher));
        series.cells.entry((bucket, key)).or_insert_with(|| {
            self.rows += Grain::from_base(base).len();
            new()
        })
    }
}

/// Keys in order, and the place of each number among them.
struct Ranked {
    keys: Vec<Key>,
    places: Vec<u32>,
}

impl Ranked {
    fn new(keys: HashMap<Key, u32, Seeded>) -> Self {
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_unstable();
        let mut places = vec![0; keys.len()];
        for (place, (_, number)) in (0..).zip(&keys) {
            places[*number as usize] = place;
        }
        Self { keys: keys.into_iter().map(|(key, _)| key).collect(), places }
    }
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

    /// The rises in all lengths from the base up, each summed from the one before.
    fn rise(self, metric: MetricNo, Ranked { keys, places }: &Ranked, rises: &mut Vec<Rise>) {
        let mut cells: Vec<_> = self
            .cells
            .into_iter()
            .map(|((bucket, key), cell)| ((bucket, places[key as usize]), cell))
            .collect();
        for grain in Grain::from_base(self.base) {
            for ((bucket, _), _) in &mut cells {
                *bucket = grain.start_ms(*bucket);
            }
            cells.sort_by_key(|(place, _)| *place);
            cells.dedup_by(|later, earlier| {
                let is_same = later.0 == earlier.0;
                if is_same {
                    earlier.1.try_add(&later.1).expect("a metric is of one kind");
                }
                is_same
            });
            rises.extend(cells.iter().map(|((bucket, place), cell)| Rise {
                metric,
                grain: *grain,
                bucket: *bucket,
                key: keys[*place as usize].clone(),
                cell: cell.clone(),
            }));
        }
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
