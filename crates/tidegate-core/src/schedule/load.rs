//! How much there is to do.

use super::Schedule;

impl Schedule {
    /// Deliveries that wait in memory.
    pub fn queued(&self) -> usize {
        self.lineups.values().map(|lineup| lineup.queue.len() + lineup.urgent.len()).sum()
    }
}
