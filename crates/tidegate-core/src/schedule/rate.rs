//! The bucket that keeps a rate.
//!
//! The generic cell rate algorithm: one number, the time at which the next one would be exactly on schedule. Nobody
//! sleeps in it; whoever may not go yet is told when. [`Pace`] is the same arithmetic for many at once, on a number that is
//! kept elsewhere: PostgreSQL and Redis have their twins of it.

use std::time::Duration;

use crate::subscriber::Rate;
use crate::time::Timestamp;

/// Keeps a rate.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    interval_us: i64,
    tolerance_us: i64,
    due_us: i64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Timestamp) -> Self {
        let Pace { interval_us, depth_us } = Pace::of(rate);
        Self { interval_us, tolerance_us: depth_us - interval_us, due_us: us(now) }
    }

    /// Takes one, or says when one may be taken.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Timestamp> {
        let now_us = us(now);
        let due_us = self.due_us.max(now_us);
        let early_us = due_us - self.tolerance_us - now_us;
        if early_us > 0 {
            // Rounded up: a millisecond too late keeps the rate, one too early breaks it.
            return Err(now.plus(Duration::from_micros(early_us.unsigned_abs() + 999)));
        }
        self.due_us = due_us + self.interval_us;
        Ok(())
    }

    /// How many may be taken right now.
    pub fn left(&self, now: Timestamp) -> u32 {
        let ahead_us = self.due_us.max(us(now)) - us(now);
        let room_us = self.tolerance_us - ahead_us;
        if room_us < 0 { 0 } else { u32::try_from(room_us / self.interval_us + 1).unwrap_or(u32::MAX) }
    }

    /// How long until it is full again.
    pub fn refilled_in(&self, now: Timestamp) -> Duration {
        Duration::from_micros((self.due_us - us(now)).max(0).unsigned_abs())
    }
}

/// A rate in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From one to the next.
    pub interval_us: i64,
    /// How far a full bucket's worth reaches.
    pub depth_us: i64,
}

/// What was taken of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How many.
    pub granted: u32,
    /// What is kept: the bucket is full again then.
    pub due_us: i64,
    /// How long until there is another one; zero if there is one now.
    pub next_us: i64,
}

impl Pace {
    /// A rate's.
    pub fn of(rate: Rate) -> Self {
        let interval_us = i64::try_from(rate.interval().as_micros()).unwrap_or(i64::MAX).max(1);
        Self { interval_us, depth_us: i64::from(rate.burst()).saturating_mul(interval_us) }
    }

    /// Takes up to `wanted` of a bucket that is full again at `due_us`. What lies further ahead than an empty bucket can be
    /// comes from another rate or another clock; it counts as empty.
    pub fn take(self, due_us: i64, now_us: i64, wanted: u32) -> Taken {
        let ahead_us = due_us.saturating_sub(now_us).clamp(0, self.depth_us);
        let left = (self.depth_us - ahead_us) / self.interval_us;
        let granted = u32::try_from(left).unwrap_or(u32::MAX).min(wanted);
        let ahead_us = ahead_us + i64::from(granted) * self.interval_us;
        let next_us = (ahead_us - (self.depth_us - self.interval_us)).max(0);
        Taken { granted, due_us: now_us + ahead_us, next_us }
    }
}

fn us(time: Timestamp) -> i64 {
    time.as_ms().saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates() -> impl Strategy<Value = Rate> {
        let units = prop::sample::select(vec![1_u64, 60, 3600]);
        (1_u32..5_000, units).prop_map(|(count, per)| Rate { count, per: Duration::from_secs(per) })
    }

    proptest! {
        /// One by one or many at once, it is the same bucket.
        #[test]
        fn a_pace_takes_what_a_bucket_gives(rate in rates(), steps in prop::collection::vec((0_u64..3_000, 1_u32..50), 1..50)) {
            let start = Timestamp::from_ms(1_000_000);
            let (mut bucket, mut due_us, mut now) = (Bucket::new(rate, start), us(start), start);
            for (ms, wanted) in steps {
                now = now.plus(Duration::from_millis(ms));
                let taken = Pace::of(rate).take(due_us, us(now), wanted);
                due_us = taken.due_us;
                let one_by_one = (0..wanted).take_while(|_| bucket.take(now).is_ok()).count();
                prop_assert_eq!(one_by_one, usize::try_from(taken.granted).unwrap());
                prop_assert_eq!(bucket.left(now) == 0, taken.next_us > 0);
                if let Err(at) = bucket.clone().take(now) {
                    prop_assert_eq!(at, now.plus(Duration::from_micros(taken.next_us.unsigned_abs() + 999)));
                }
            }
        }

        /// Whatever is remembered, right or wrong, a bucket holds no more than a burst and is never shut for longer than
        /// one interval.
        #[test]
        fn nothing_remembered_breaks_a_pace(rate in rates(), due_us in any::<i64>(), wanted in any::<u32>()) {
            let taken = Pace::of(rate).take(due_us, 1_000_000_000, wanted);
            prop_assert!(taken.granted <= rate.burst());
            prop_assert!((0..=Pace::of(rate).interval_us).contains(&taken.next_us));
        }
    }
}
