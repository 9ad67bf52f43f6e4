//! Values in bins whose width is a fixed share of the value.

use std::collections::BTreeMap;

/// How many values fell into each bin. Sketches of one accuracy add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    /// Bins of positive values.
    pub positive: BTreeMap<i32, u64>,
}
