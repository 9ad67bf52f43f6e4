//! The bucket that keeps a rate.
//!
//! The generic cell rate algorithm: one number, the time at which the next one would be exactly on schedule. Nobody
//! sleeps in it; whoever may not go yet is told when.

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
        let interval_us = i64::try_from(rate.interval().as_micros()).unwrap_or(i64::MAX).max(1);
        let tolerance_us = i64::from(rate.burst() - 1).saturating_mul(interval_us);
        Self { interval_us, tolerance_us, due_us: us(now) }
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

fn us(time: Timestamp) -> i64 {
    time.as_ms().saturating_mul(1000)
}
