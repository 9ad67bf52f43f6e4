//! Observe: what events say about themselves, counted exactly.
//!
//! The catalog declares metrics per type of event (`definition`). An event, judged by the catalog of its day, gives
//! sightings (`extract`); the sightings of a slice of stored events are summed in a slab, which the store adds to
//! its rollups in the one transaction that moves the mark behind the slice. Whoever reads a slice twice, or crashes in
//! between, adds it once. Everything here is a pure function of events and definitions.

mod grain;
mod metric;
pub mod page;
pub mod query;
mod sketch;
mod slab;
mod varint;

pub use grain::Grain;
pub use metric::{Kind, Spec};
pub use sketch::{Accuracy, Sketch, fixed};
pub use slab::{Cell, Delta, Key, Posting, Rise, Sight, Slab};
