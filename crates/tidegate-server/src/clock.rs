//! The one clock.
//!
//! [`Clock::now`] schedules: it runs with the monotonic clock, follows the wall clock's jumps forward, and never goes
//! back, not even over a restart (it starts no earlier than what the store has seen). So a step back neither delays
//! what is due nor makes anything due twice, and a step forward makes due what is due. [`Clock::wall`] is for
//! signatures, which receivers compare with their own wall clocks.
//!
//! In simulation both are driven by tokio's paused time, so timers and clock are one hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::time::Timestamp;
use tokio::time::Instant;

/// Wall clocks are adjusted by a little all the time; a jump is more than this.
const JUMP_MS: i64 = 1_000;
/// A sleeper looks at the clock at least this often, so that a jump forward does not find it asleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Tells the time. Cheap to clone; all clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    base: Instant,
    anchor_ms: AtomicI64,
    /// In simulation: how far the wall clock has been moved.
    wall_moved_ms: Option<AtomicI64>,
    is_behind: AtomicBool,
}

impl Clock {
    /// The system's clock, but not before `latest`.
    pub fn system(latest: Timestamp) -> Self {
        let wall_ms = system_ms();
        if latest.as_ms() > wall_ms + JUMP_MS {
            tracing::warn!(
                behind_ms = latest.as_ms() - wall_ms,
                "the wall clock is behind what the store has seen"
            );
        }
        Self::anchored(wall_ms.max(latest.as_ms()), None)
    }

    /// A clock that starts at `start` and moves with tokio's paused time.
    pub fn simulated(start: Timestamp) -> Self {
        Self::anchored(start.as_ms(), Some(AtomicI64::new(0)))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn anchored(anchor_ms: i64, wall_moved_ms: Option<AtomicI64>) -> Self {
        Self(Arc::new(Inner {
            base: Instant::now(),
            anchor_ms: AtomicI64::new(anchor_ms),
            wall_moved_ms,
            is_behind: AtomicBool::new(false),
        }))
    }

    /// What decisions and rows use.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.0.anchor_ms.load(Ordering::Relaxed) + self.elapsed_ms())
    }

    /// What signatures use.
    pub fn wall(&self) -> Timestamp {
        match &self.0.wall_moved_ms {
            Some(moved) => Timestamp::from_ms(self.now().as_ms() + moved.load(Ordering::Relaxed)),
            None => Timestamp::from_ms(system_ms()),
        }
    }

    /// Compares with the wall clock; follows a jump forward and reports a jump back, once.
    pub fn check(&self) {
        let ahead_ms = self.wall().as_ms() - self.now().as_ms();
        if ahead_ms > JUMP_MS {
            tracing::warn!(ahead_ms, "the wall clock jumped forward: following it");
            self.0.anchor_ms.fetch_add(ahead_ms, Ordering::Relaxed);
            if let Some(moved) = &self.0.wall_moved_ms {
                moved.fetch_sub(ahead_ms, Ordering::Relaxed);
            }
        }
        let is_behind = ahead_ms < -JUMP_MS;
        if is_behind && !self.0.is_behind.load(Ordering::Relaxed) {
            tracing::warn!(behind_ms = -ahead_ms, "the wall clock went back: going on without it");
        }
        self.0.is_behind.store(is_behind, Ordering::Relaxed);
    }

    /// Moves the simulated wall clock.
    pub fn jump(&self, ms: i64) {
        if let Some(moved) = &self.0.wall_moved_ms {
            moved.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// Sleeps until `at`, or for a minute if that is earlier: callers look at what is due and sleep again.
    pub async fn doze_until(&self, at: Timestamp) {
        self.check();
        self.pause(at.since(self.now()).min(SLEEP_MAX)).await;
        self.check();
    }

    /// [`Clock::doze_until`] for those who may have nothing to wait for; then it never returns.
    pub async fn doze_until_some(&self, at: Option<Timestamp>) {
        match at {
            Some(at) => self.doze_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Lets this much time pass.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub async fn pause(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Time since the clock was made, for measuring.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.0.base)
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_ms(1_000_000);

    #[tokio::test(start_paused = true)]
    async fn a_jump_forward_is_followed_and_a_jump_back_is_not() {
        let clock = Clock::simulated(START);
        clock.jump(3_600_000);
        clock.check();
        assert_eq!(clock.now(), START.plus(Duration::from_secs(3600)));
        clock.jump(-3_600_000);
        clock.check();
        assert_eq!(clock.now(), START.plus(Duration::from_secs(3600)), "scheduling never goes back");
        assert_eq!(clock.wall(), START, "signatures carry what receivers see");
    }

    #[tokio::test(start_paused = true)]
    async fn dozing_ends_on_time_or_after_a_minute() {
        let clock = Clock::simulated(START);
        clock.doze_until(START.plus(Duration::from_millis(1500))).await;
        assert_eq!(clock.now(), START.plus(Duration::from_millis(1500)));
        clock.doze_until(START.plus(Duration::from_secs(7200))).await;
        assert!(clock.now() < START.plus(Duration::from_secs(62)));
    }
}
