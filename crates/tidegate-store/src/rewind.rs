//! Whether a database went back in time: after a failover that lost commits, or with an old backup in its place.
//!
//! PostgreSQL does not report this. A process compares what it has seen with what is there: its own acknowledged groups, the
//! configuration version, the numbers of events. All of them only grow, so a lower value means that the database went
//! back. Then nothing in the process's memory can be trusted, and it starts over.
//!
//! Used where PostgreSQL is read and written, and by the simulation, whose stand-in for it goes back in time as well.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::id::{Incarnation, Version};

use crate::sabotage::{self, Line};
use crate::{Error, Result};

/// What a process has seen in the database.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The life of the process.
    pub life: Incarnation,
    /// The last group of that life that is known to be written.
    pub written: i64,
    /// The highest version of the configuration.
    pub version: Version,
    /// The highest block that has numbers of something written.
    pub block: i64,
}

/// What is there now.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The last group of the life of [`Known`].
    pub written: Option<i64>,
    /// The version in force.
    pub version: Option<Version>,
    /// The last block of numbers that was drawn.
    pub block: Option<i64>,
}

impl Known {
    /// What went back, in words.
    fn lacks(&self, found: Found) -> Option<String> {
        if sabotage::is(Line::Rewind) {
            return None;
        }
        let told = |what: &str, known: i64, found: Option<i64>| {
            found.filter(|found| *found < known).map(|found| format!("{what} was {known} and is {found}"))
        };
        told("the last group of this process", self.written, found.written)
            .or_else(|| told("the version of the configuration", self.version, found.version))
            .or_else(|| told("the last block of numbers", self.block, found.block))
    }
}

/// What a process remembers of it.
#[derive(Default)]
pub struct Seen {
    known: Mutex<Known>,
    is_back: AtomicBool,
    times: AtomicU64,
}

impl Seen {
    /// To be asked before the database is: what it says later may be compared with this.
    pub fn known(&self) -> Known {
        *self.lock()
    }

    /// A group is known to be written, with numbers up to this block.
    pub fn group(&self, life: Incarnation, written: i64, block: i64) {
        let mut known = self.lock();
        if known.life == life {
            known.written = known.written.max(written);
        }
        known.block = known.block.max(block);
    }

    /// This version is or was in force.
    pub fn version(&self, version: Version) {
        let mut known = self.lock();
        known.version = known.version.max(version);
    }

    /// Something with a number of this block is there.
    pub fn block(&self, block: i64) {
        let mut known = self.lock();
        known.block = known.block.max(block);
    }

    /// A new life begins.
    pub fn begin(&self, life: Incarnation) {
        let mut known = self.lock();
        (known.life, known.written) = (life, 0);
        self.is_back.store(false, Ordering::Release);
    }

    /// Whether the database has gone back since this life began.
    pub fn is_back(&self) -> bool {
        self.is_back.load(Ordering::Acquire)
    }

    /// How often it did.
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// Compares what was known with what was found later. Refuses to go on with this life if the database went back.
    pub fn compare(&self, before: Known, found: Found) -> Result<()> {
        let Some(what) = before.lacks(found) else { return Ok(()) };
        let known = self.lock();
        // A new life has begun meanwhile: it knows.
        if known.life == before.life && !self.is_back.swap(true, Ordering::AcqRel) {
            self.times.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                what,
                "the database went back in time, as after a failover that loses commits: events that were accepted shortly \
                 before may be lost, and nobody can say which. Let producers send again what they sent since (what is still \
                 there is taken as a duplicate). This process drops what it holds and begins a new life"
            );
        }
        Err(Error::Fenced)
    }

    /// The configuration was read as of this version.
    pub fn loaded(&self, before: Known, version: Version) {
        let found = Found { written: None, version: Some(version), block: None };
        // The next commit fails with `Fenced`.
        if self.compare(before, found).is_ok() {
            self.version(version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        let seen = Seen::default();
        seen.begin(7);
        seen.group(7, 5, 3);
        seen.version(11);
        seen
    }

    fn found(written: i64, version: Version, block: i64) -> Found {
        Found { written: Some(written), version: Some(version), block: Some(block) }
    }

    #[test]
    fn less_than_was_seen_means_that_the_database_went_back() {
        for (there, is_well) in [
            (found(5, 11, 3), true),
            (found(9, 12, 8), true),
            (found(4, 11, 3), false),
            (found(5, 10, 3), false),
            (found(5, 11, 2), false),
            (Found { written: None, version: None, block: None }, true),
        ] {
            let seen = seen();
            assert_eq!(seen.compare(seen.known(), there).is_ok(), is_well, "{there:?}");
            assert_eq!((seen.is_back(), seen.times()), (!is_well, u64::from(!is_well)));
        }
    }

    #[test]
    fn a_new_life_is_not_judged_by_what_was_asked_before_it_began() {
        let seen = seen();
        let before = seen.known();
        assert!(seen.compare(before, found(4, 11, 3)).is_err());
        assert!(seen.compare(before, found(4, 11, 3)).is_err(), "told once");
        seen.begin(8);
        assert!(!seen.is_back());
        assert!(seen.compare(before, found(4, 11, 3)).is_err(), "the old one stays refused");
        assert_eq!((seen.is_back(), seen.times()), (false, 1));
        seen.group(7, 6, 0);
        assert_eq!(seen.known().written, 0, "a group of the old life says nothing about the new one");
    }

    #[test]
    fn what_was_seen_last_is_not_the_most_that_was_seen() {
        let seen = seen();
        seen.version(9);
        seen.block(2);
        assert!(seen.compare(seen.known(), found(5, 10, 3)).is_err());
        seen.begin(8);
        seen.block(4);
        assert!(seen.compare(seen.known(), found(0, 11, 3)).is_err());
    }
}
