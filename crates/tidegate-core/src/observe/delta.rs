//! What a slice of events adds, ready to be written.
//!
//! A [`Gain`] has the cells of one metric in its shortest buckets, by the places of their keys. The store knows, or gives,
//! the number of each key; then [`Gain::each_page`] goes over everything that is to be merged, in all lengths of buckets.
//!
//! Promises: every page is met once, in order, with its cells in order of keys. Does not: know what is stored already.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;

use super::grain::Grain;
use super::metric::Kind;
use super::page;
use super::sketch::Sketch;
use super::state::Policy;
use super::varint::Torn;
use crate::id::{KeyNo, MetricNo, Seq};
use crate::time::Timestamp;

/// What keeps series of a metric apart: a JSON list of the values of its dimensions, in their order.
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
    pub object: Arc<str>,
    /// What state it is in; those of a slice share it.
    pub value: Arc<str>,
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

/// Everything that a slice of events adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// The keys of all metrics, as they came: those of one type mostly have the same.
    pub keys: Vec<Key>,
    /// Sorted by metric.
    pub gains: Vec<Gain>,
    /// Sorted by state, object, time and event.
    pub sights: Vec<Sight>,
    /// Sorted by index and value; each at most once.
    pub postings: Vec<Posting>,
}

impl Delta {
    /// Whether it adds nothing.
    pub fn is_empty(&self) -> bool {
        self.gains.is_empty() && self.sights.is_empty() && self.postings.is_empty()
    }
}

/// What one metric gains, in its shortest buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gain {
    /// Which metric.
    pub metric: MetricNo,
    /// How long the buckets are.
    pub base: Grain,
    /// Bucket, place of the key among [`Delta::keys`], and what is added; sorted, each at most once.
    pub cells: Vec<(i64, u32, Cell)>,
}

/// The cells of some buckets of one length, in order of buckets and of keys.
type Buckets = Vec<(i64, Vec<(KeyNo, Cell)>)>;

impl Gain {
    /// Goes over what is to be added to each page, from short buckets to long ones, in order of buckets and pages. `number`
    /// knows keys by their places.
    pub fn each_page<E>(
        &self,
        number: impl Fn(u32) -> KeyNo,
        mut each: impl FnMut(Grain, i64, u32, &[(KeyNo, Cell)]) -> Result<(), E>,
    ) -> Result<(), E> {
        let kind = match self.cells.first() {
            Some((.., Cell::Sketch(_))) => Kind::Histogram,
            _ => Kind::Counter,
        };
        let mut buckets = self.numbered(number);
        for grain in Grain::from_base(self.base) {
            buckets = widened(buckets, *grain);
            for (bucket, cells) in &buckets {
                let pages = cells.chunk_by(|a, b| page::of(kind, a.0) == page::of(kind, b.0));
                for cells in pages {
                    each(*grain, *bucket, page::of(kind, cells[0].0), cells)?;
                }
            }
        }
        Ok(())
    }

    fn numbered(&self, number: impl Fn(u32) -> KeyNo) -> Buckets {
        let buckets = self.cells.chunk_by(|a, b| a.0 == b.0);
        buckets
            .map(|cells| {
                let numbered = cells.iter().map(|(_, place, cell)| (number(*place), cell.clone()));
                (cells[0].0, summed(numbered.collect()))
            })
            .collect()
    }
}

/// The same in longer buckets. Most often there is nothing to sum: a slice of events is of a moment.
fn widened(buckets: Buckets, grain: Grain) -> Buckets {
    let mut wide: Buckets = Vec::with_capacity(buckets.len());
    let mut is_joined = false;
    for (bucket, cells) in buckets {
        let start = grain.start_ms(bucket);
        match wide.last_mut() {
            Some((last, joined)) if *last == start => {
                joined.extend(cells);
                is_joined = true;
            }
            _ => wide.push((start, cells)),
        }
    }
    if is_joined {
        wide.iter_mut().for_each(|(_, cells)| *cells = summed(std::mem::take(cells)));
    }
    wide
}

/// In order of keys, each once.
fn summed(mut cells: Vec<(KeyNo, Cell)>) -> Vec<(KeyNo, Cell)> {
    cells.sort_by_key(|(key, _)| *key);
    cells.dedup_by(|later, earlier| {
        let is_same = later.0 == earlier.0;
        if is_same {
            earlier.1.try_add(&later.1).expect("a metric is of one kind");
        }
        is_same
    });
    cells
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

impl Delta {
    /// Everything that is added, in all lengths of buckets: sorted by metric, grain, bucket and key.
    pub fn rises(&self) -> Vec<Rise> {
        let mut sorted: Vec<(&Key, usize)> = self.keys.iter().zip(0..).collect();
        sorted.sort_unstable();
        let mut numbers = vec![0; sorted.len()];
        for (no, (_, place)) in (0..).zip(&sorted) {
            numbers[*place] = no;
        }
        let mut rises = Vec::new();
        for gain in &self.gains {
            let each = |grain, bucket, _, cells: &[(KeyNo, Cell)]| {
                rises.extend(cells.iter().map(|(no, cell)| {
                    let (key, cell) = (sorted[*no as usize].0.clone(), cell.clone());
                    Rise { metric: gain.metric, grain, bucket, key, cell }
                }));
                Ok::<(), Infallible>(())
            };
            let Ok(()) = gain.each_page(|place| numbers[place as usize], each);
        }
        rises
    }
}
