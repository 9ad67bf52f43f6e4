//! Plans of worlds that test one thing: nothing else goes wrong in them.

use tidegate_core::schedule::Bounds;
use tidegate_server::observing::Terms;

use super::{Act, Plan};
use crate::receivers::Moods;

impl Plan {
    /// One project, in which only this happens.
    pub(crate) fn calm(seed: u64, acts: Vec<(i64, Act)>, moods: Moods) -> Self {
        Self {
            seed,
            projects: vec!["default"],
            acts,
            moods,
            outages: Vec::new(),
            bounds: Bounds::default(),
            is_slow: false,
            is_shared: false,
            shares_rates: false,
            is_fragile: false,
            is_haunted: false,
            left_paused: None,
            terms: None,
            gate: None,
            counting: Terms::default(),
            windows_max: None,
        }
    }
}
