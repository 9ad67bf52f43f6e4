//! What a slice of events adds to the rollups.

use bytes::Bytes;

use super::grain::Grain;
use crate::id::{MetricNo, Seq};
use crate::time::Timestamp;

/// What keeps series of a metric apart: a JSON list of the values of its dimensions, in their order.
pub type Key = Box<str>;

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
    /// Values in bins.
    Sketch(Box<super::sketch::Sketch>),
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
