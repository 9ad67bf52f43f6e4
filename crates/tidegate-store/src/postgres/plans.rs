//! When a session plans its statements anew.
//!
//! A plan is made for the tables as they are at that moment, and kept. One that was made for an empty table goes through
//! all of it, which is right, and slow once it has grown.

use std::ops::RangeInclusive;

/// Rows that are written until statements are planned anew: twice as many each time, within these bounds.
const ROWS: RangeInclusive<usize> = 256..=65_536;

/// How much a session has written since it planned its statements.
pub(super) struct Planning {
    rows: usize,
    rows_max: usize,
}

impl Default for Planning {
    fn default() -> Self {
        Self { rows: 0, rows_max: *ROWS.start() }
    }
}

impl Planning {
    /// Whether it is time, before so many more rows are written.
    pub(super) fn is_due(&mut self, rows: usize) -> bool {
        let is_due = self.rows >= self.rows_max;
        if is_due {
            *self = Self { rows: 0, rows_max: (2 * self.rows_max).min(*ROWS.end()) };
        }
        self.rows += rows;
        is_due
    }
}

#[cfg(test)]
mod tests;
