//! How much there is to do.

use super::Schedule;
use super::lineup::Lineup;

impl Schedule {
    /// Deliveries that wait in memory.
    pub fn queued(&self) -> usize {
        self.lineups.values().map(Lineup::waiting).sum()
    }

    /// Somebody could send more at once.
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty() && self.in_flight < self.bounds.in_flight
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight + self.preparing
    }
}
