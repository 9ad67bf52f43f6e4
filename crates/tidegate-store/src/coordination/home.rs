//! Where the buckets are: in Redis, or in PostgreSQL while a replica can not reach Redis.
//!
//! If each replica chose for itself, one that lost its way to Redis would take from PostgreSQL what the others take from
//! Redis as well, and the rate would double for as long as that lasts. So it moves the buckets for all: it marks in PostgreSQL
//! that they are there from now on, and renews the mark while it has to. Nobody takes from Redis by a look at the mark that
//! is older than [`FRESH`]; nobody takes from PostgreSQL before the mark is older than that. A bucket that moves arrives
//! empty, so that moving costs a moment and not a burst.
//!
//! The mark also tells which Redis it is. Whoever has another one, or none, can not take part there: it marks as well, and for as
//! long as replicas differ the buckets stay in PostgreSQL.

use std::time::Duration;

use tokio::time::Instant;

use super::timer::{duration, us};

/// How old a look at the mark may be.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// How long a mark holds.
pub(super) const HOLDS: Duration = Duration::from_secs(5);
/// How long a mark must have been there: whoever looked before is done with Redis, slow answers included.
pub(super) const QUIET: Duration = Duration::from_millis(1_500);

/// The longest wait before somebody looks again: whatever is written in the mark, it may have been put right meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How far ahead a mark may lie. One that lies further ahead was made before the clock went back.
pub(super) const AHEAD_MAX: Duration = HOLDS.saturating_add(QUIET);

/// The mark as it was seen. Times are microseconds of PostgreSQL's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// When it was seen, by both clocks.
    pub(super) seen: Instant,
    pub(super) seen_us: i64,
    /// When the buckets moved to PostgreSQL; the last time, if they are back.
    pub(super) since_us: i64,
    /// Until when they stay, unless it is renewed.
    pub(super) until_us: i64,
    /// The Redis where they are otherwise, 0 if nobody has one.
    pub(super) redis: i64,
}

/// Where to take tokens from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// There.
    Redis,
    /// There, and nobody has taken from Redis since then by its clock.
    Postgres { since_us: i64 },
    /// On the way: nobody takes anything for this long, and looks again then.
    Nowhere(Duration),
}

impl Mark {
    /// How long ago it was seen.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.seen)
    }

    /// Whether it was made before PostgreSQL's clock went back, so that it says nothing about now. Whoever finds it so makes
    /// another one.
    pub(super) fn is_astray(&self) -> bool {
        self.since_us.max(self.until_us).saturating_sub(self.seen_us) > us(AHEAD_MAX)
    }

    /// Where the buckets are, by this mark.
    pub(super) fn home(&self, now: Instant) -> Home {
        let now_us = self.seen_us.saturating_add(us(self.age(now)));
        // Until then others may have taken from Redis what had come in meanwhile.
        let arrived_us = if self.since_us > 0 { self.since_us.saturating_add(us(QUIET)) } else { 0 };
        let left_us = self.until_us.saturating_add(us(QUIET));
        let nowhere = |until_us: i64| Home::Nowhere(duration(until_us.saturating_sub(now_us)).min(WAIT_MAX));
        if self.is_astray() {
            Home::Nowhere(WAIT_MAX)
        } else if now_us >= left_us {
            Home::Redis
        } else if now_us >= self.until_us {
            nowhere(left_us)
        } else if now_us < arrived_us {
            nowhere(arrived_us)
        } else {
            Home::Postgres { since_us: arrived_us }
        }
    }

    /// What is kept in Redis while the buckets are there: another word each time they come back.
    pub(super) fn stay(&self) -> String {
        format!("{}:{}", self.redis, self.since_us)
    }
}

#[cfg(test)]
mod tests {
    use super::super::timer;
    use super::*;

    const MOVED_US: i64 = 1_000_000_000;

    fn mark(seen_after: Duration) -> Mark {
        let until_us = MOVED_US + us(HOLDS);
        Mark {
            seen: timer::now(),
            seen_us: MOVED_US + us(seen_after),
            since_us: MOVED_US,
            until_us,
            redis: 1,
        }
    }

    #[test]
    fn buckets_move_there_and_back() {
        let mark = mark(Duration::ZERO);
        let at = |after_ms| mark.home(mark.seen + Duration::from_millis(after_ms));
        assert_eq!(at(0), Home::Nowhere(WAIT_MAX));
        assert_eq!(at(1_499), Home::Nowhere(Duration::from_millis(1)));
        let since_us = MOVED_US + us(QUIET);
        assert_eq!(at(1_500), Home::Postgres { since_us });
        assert_eq!(at(4_999), Home::Postgres { since_us });
        assert_eq!(at(5_000), Home::Nowhere(WAIT_MAX));
        assert_eq!(at(6_499), Home::Nowhere(Duration::from_millis(1)));
        assert_eq!(at(6_500), Home::Redis);
        let first = Mark { since_us: 0, ..mark };
        assert_eq!(first.home(first.seen), Home::Postgres { since_us: 0 }, "nobody had a Redis before");
    }

    #[test]
    fn a_mark_from_before_the_clock_went_back_keeps_nobody_waiting_for_long() {
        for back in [Duration::from_secs(7), Duration::from_secs(3_600)] {
            let mark = mark(Duration::ZERO);
            let mark = Mark { seen_us: mark.seen_us - us(back), ..mark };
            assert!(mark.is_astray(), "{back:?}");
            assert_eq!(mark.home(mark.seen), Home::Nowhere(WAIT_MAX), "{back:?}");
        }
        // A smaller step cannot be detected, and does not matter.
        let mark = mark(Duration::ZERO);
        let back = Mark { seen_us: mark.seen_us - us(QUIET), ..mark };
        assert!(!mark.is_astray() && !back.is_astray());
        assert_eq!(back.home(back.seen), Home::Nowhere(WAIT_MAX));
    }

    #[test]
    fn no_two_replicas_take_from_both() {
        // One looked just before the buckets moved and goes by that for as long as it may, with a slow answer at the end.
        let looked = Mark { seen: timer::now(), seen_us: MOVED_US - 1, since_us: 0, until_us: 0, redis: 1 };
        let last = looked.seen + FRESH + super::super::redis::ANSWER_TIMEOUT;
        assert_eq!(looked.home(last), Home::Redis);
        let moved = mark(Duration::ZERO);
        assert!(matches!(moved.home(moved.seen + (last - looked.seen)), Home::Nowhere(_)));
        // One takes from PostgreSQL until the last moment, with a slow answer as well.
        let last = moved.seen + HOLDS + super::super::tokens::ANSWER_TIMEOUT;
        assert!(matches!(moved.home(last), Home::Nowhere(_)));
    }
}
