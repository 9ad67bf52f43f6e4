//! Turns: whether anybody wrote what counting reads.
//!
//! A flush is made ready beside the writer, from what a reader sees. That is what the writer would have seen, if nobody
//! wrote anything but groups in between, which touch nothing that is counted. Every other write is a turn: its number is
//! odd while it is under way, and another one when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many turns there were, twice.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<AtomicU64>);

/// A turn that is under way; it ends when this is dropped.
pub(super) struct Turn {
    turns: Turns,
    /// Where it began.
    before: u64,
}

/// A point in between.
#[derive(Clone, Copy)]
pub(super) struct Since(u64);

impl Turns {
    /// To be asked before anything is read.
    pub(super) fn now(&self) -> Since {
        Since(self.0.load(Ordering::SeqCst))
    }

    /// Begins a turn. The caller holds the writer.
    pub(super) fn begin(&self) -> Turn {
        Turn { turns: self.clone(), before: self.0.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Turn {
    /// Whether none was under way at that point, and none came between it and this one.
    pub(super) fn is_next(&self, since: Since) -> bool {
        since.0.is_multiple_of(2) && since.0 == self.before
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_read_between_two_turns_is_known_to_the_next() {
        let turns = Turns::default();
        let before = turns.now();
        let first = turns.begin();
        let during = turns.now();
        assert!(first.is_next(before));
        drop(first);
        let after = turns.now();
        let second = turns.begin();
        assert!(second.is_next(after) && !second.is_next(before) && !second.is_next(during));
    }
}
