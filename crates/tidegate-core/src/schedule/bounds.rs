//! How much memory may hold.

use crate::limits::{
    ATTEMPTS_IN_FLIGHT_MAX, FOLDS_IN_FLIGHT_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_JOBS_MAX, QUEUE_JOBS_PER_PLACE,
    QUEUE_REFILL_BELOW, QUEUE_REFILL_JOBS,
};

/// How much memory may hold. Simulation makes them small, so that little traffic meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Deliveries of one subscriber that wait.
    pub queue_jobs: usize,
    /// The same for each place here of one that others send to as well.
    pub place_jobs: usize,
    /// A queue shorter than this is refilled from the store.
    pub refill_below: usize,
    /// Deliveries taken from the store at once.
    pub refill_jobs: usize,
    /// Bodies of all that wait.
    pub queue_bytes: usize,
    /// Attempts under way.
    pub in_flight: usize,
    /// Bytes of folded deliveries under way.
    pub fold_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            queue_jobs: QUEUE_JOBS_MAX,
            place_jobs: QUEUE_JOBS_PER_PLACE,
            refill_below: QUEUE_REFILL_BELOW,
            refill_jobs: QUEUE_REFILL_JOBS,
            queue_bytes: QUEUE_BYTES_MAX,
            in_flight: ATTEMPTS_IN_FLIGHT_MAX,
            fold_bytes: FOLDS_IN_FLIGHT_BYTES_MAX,
        }
    }
}

/// Whether a subscriber may take another body into memory: as long as it holds less than it leaves free for all the
/// others, or nothing at all.
pub fn fits(held: usize, free: usize) -> bool {
    held == 0 || held < free
}
