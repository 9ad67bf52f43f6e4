//! How the store is cut into periods, and how a process takes part.

use std::time::Duration;

/// How time is cut into partitions, fixed when the store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// How much time one holds.
    pub length: Duration,
    /// It has two to the power of this many numbers.
    pub bits: u32,
}

impl Default for Periods {
    /// A day, and more numbers than any day needs.
    fn default() -> Self {
        Self { length: Duration::from_secs(24 * 60 * 60), bits: 48 }
    }
}

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What people call this process, for example its host and address.
    pub name: String,
    /// For a store that is made now.
    pub periods: Periods,
    /// Random, kept only by a store that is made now.
    pub salt: Vec<u8>,
}
