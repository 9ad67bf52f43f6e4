//! Observe: what events say about themselves, counted exactly.
//!
//! The catalog declares metrics per type of event (`definition`). An event, judged by the catalog of its day, gives
//! sightings (`extract`); the sightings of a slice of stored events are summed in a slab, which the store adds to
//! its rollups in the one transaction that moves the mark behind the slice. Whoever reads a slice twice, or crashes in
//! between, adds it once. Everything here is a pure function of events and definitions.

pub mod audit;
mod check;
mod decimal;
mod definition;
#[cfg(test)]
mod definition_tests;
mod delta;
mod extract;
#[cfg(test)]
mod extract_tests;
mod grain;
mod hash;
pub mod history;
mod kept;
mod keys;
mod metric;
pub mod objects;
pub mod page;
mod pick;
pub mod posting;
pub mod query;
pub mod retell;
pub mod search;
#[cfg(test)]
mod search_tests;
mod sketch;
mod slab;
pub mod state;
#[cfg(test)]
mod state_tests;
pub mod value;
mod varint;

pub(crate) use check::retention as check_retention;
pub(crate) use definition::Object;
pub use definition::{
    Counter, Extraction, Granularity, Histogram, IMPLICIT_PATHS, Measured, Observing, Switches, Term,
    counting, state_name, telling,
};
pub use delta::{Cell, Delta, Gain, Key, Posting, Rise, Sight};
pub use extract::{Extractor, NONE, Sighting, shortened};
pub use grain::Grain;
pub use hash::Seeded;
pub use kept::Kept;
pub use metric::{Kind, Spec};
pub use sketch::{Accuracy, Sketch, fixed};
pub use slab::Slab;
