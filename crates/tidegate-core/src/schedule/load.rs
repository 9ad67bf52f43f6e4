//! How much there is to do.

use super::Schedule;
use super::lineup::Lineup;

impl Schedule {
    /// Deliveries that wait in memory.
    pub fn queued(&self) -> usize {
        self.lineups.values().map(Lineup::waiting).sum()
    }
}
