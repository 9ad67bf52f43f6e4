//! The one clock.
//!
//! [`Clock::now`] schedules: it runs with the monotonic clock, follows the wall clock's jumps forward, and never goes
//! back, not even over a restart (it starts no earlier than what the store has seen). So a step back neither delays
//! what is due nor makes anything due twice, and a step forward makes due what is due. [`Clock::wall`] is for
//! signatures, which receivers compare with their own wall clocks.
//!
//! A time that is suddenly far ahead is followed when it has lasted for a while, and what removes data goes by
//! [`Clock::removes_by`], which trusts no time that has just jumped; see `tidegate_core::jumps`.
//!
//! Processes that share a store share its clock: then [`Clock::now`] is moved by what the store shows ([`Clock::follow`])
//! and the machine's own wall clock has no part in it. One that is ahead does not go back either: it runs slowly until it is
//! right.
//!
//! In simulation both are driven by tokio's paused time, so timers and clock are one hand.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tidegate_core::jumps::{Jumps, wait_at_start};
use tidegate_core::limits::CLOCK_JUMP_MAX;
use tidegate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Wall clocks are adjusted by a little all the time; a jump is more than this.
const JUMP_MS: i64 = 1_000;
/// A led clock that is ahead stands still for this long at most before it goes on. Told so with every beat, once a second, it
/// runs at half its speed until it is right: whatever it is ahead by is made up for in twice that time, and what is
/// due meanwhile takes twice as long, but never stops.
const STILL_MAX_MS: i64 = 500;
/// A sleeper looks at the clock at least this often, so that a jump forward does not find it asleep.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Counts the time that a machine is suspended, which Linux's monotonic clock does not.
#[cfg(target_os = "linux")]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const STEADY: ClockId = ClockId::Monotonic;

/// Tells the time. Cheap to clone; all clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    base: Instant,
    anchor_ms: AtomicI64,
    /// What was shown when the clock was last found to be ahead: it stands still until it is right.
    floor_ms: AtomicI64,
    /// Another clock is followed instead of the wall.
    is_led: bool,
    /// In simulation: how far the wall clock has been moved.
    wall_moved_ms: Option<AtomicI64>,
    is_behind: AtomicBool,
    jumps: Mutex<Jumps>,
    /// What the clock that leads showed when it was last seen; `i64::MIN` before that.
    leader_ms: AtomicI64,
    /// Rings when the wall or the clock that leads has jumped far.
    bell: Notify,
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
        let clock = Self::anchored(wall_ms.max(latest.as_ms()), false, None);
        clock.start_after(latest);
        clock
    }

    /// Compares with the latest time in the store, at the start of a process.
    pub fn start_after(&self, latest: Timestamp) {
        // From here on it is seen to jump.
        self.check();
        let wait = wait_at_start(self.earlier(), latest);
        if !wait.is_zero() {
            tracing::warn!(
                seconds = wait.as_secs(),
                "the clock and the latest time in the store lie far apart: retention removes nothing for a while"
            );
            self.wait_to_remove(wait);
        }
    }

    /// A clock that starts at `start` and is led by the store's from then on.
    pub fn led(start: Timestamp) -> Self {
        Self::anchored(start.as_ms(), true, None)
    }

    /// A clock that starts at `start` and moves with tokio's paused time.
    pub fn simulated(start: Timestamp) -> Self {
        Self::anchored(start.as_ms(), false, Some(AtomicI64::new(0)))
    }

    /// The same, led by a store's clock.
    pub fn simulated_led(start: Timestamp) -> Self {
        Self::anchored(start.as_ms(), true, Some(AtomicI64::new(0)))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn anchored(anchor_ms: i64, is_led: bool, wall_moved_ms: Option<AtomicI64>) -> Self {
        Self(Arc::new(Inner {
            base: Instant::now(),
            anchor_ms: AtomicI64::new(anchor_ms),
            floor_ms: AtomicI64::new(i64::MIN),
            is_led,
            wall_moved_ms,
            is_behind: AtomicBool::new(false),
            jumps: Mutex::default(),
            leader_ms: AtomicI64::new(i64::MIN),
            bell: Notify::new(),
        }))
    }

    /// What decisions and rows use.
    pub fn now(&self) -> Timestamp {
        // In this order: whoever sees that it was moved back also sees what it showed before.
        let ms = self.running_ms();
        Timestamp::from_ms(ms.max(self.0.floor_ms.load(Ordering::Acquire)))
    }

    /// What it would show if it had never been ahead.
    fn running_ms(&self) -> i64 {
        self.0.anchor_ms.load(Ordering::Acquire) + self.elapsed_ms()
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
        if self.0.is_led {
            return;
        }
        let wall = self.wall();
        self.see(wall);
        let ahead_ms = wall.as_ms() - self.now().as_ms();
        if ahead_ms > JUMP_MS && self.may_follow(ahead_ms) {
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

    /// The wall, or the clock that leads, shows this.
    fn see(&self, shown: Timestamp) {
        let Some(jump_ms) = self.jumps().see(self.steady(), shown) else { return };
        tracing::warn!(
            jump_ms,
            "the clock jumped: retention removes nothing for a day, so that a wrong time removes nothing"
        );
        self.0.bell.notify_one();
    }

    /// A time that is far ahead may be an error that is over in a moment, and there is no way back from it.
    fn may_follow(&self, ahead_ms: i64) -> bool {
        let is_far = Duration::from_millis(ahead_ms.unsigned_abs()) > CLOCK_JUMP_MAX;
        !is_far || self.jumps().is_settled(self.steady())
    }

    /// The clock that leads shows this.
    pub fn heard(&self, shown: Timestamp) {
        self.0.leader_ms.store(shown.as_ms(), Ordering::Relaxed);
        self.see(shown);
    }

    /// The earlier of this clock and the wall, or the clock that leads as it was last heard.
    pub fn earlier(&self) -> Timestamp {
        let shown = match self.0.leader_ms.load(Ordering::Relaxed) {
            _ if !self.0.is_led => self.wall(),
            i64::MIN => self.now(),
            leader_ms => Timestamp::from_ms(leader_ms),
        };
        self.now().min(shown)
    }

    /// The time by which what is old may be removed; none for a while after a clock jumped.
    pub fn removes_by(&self) -> Option<Timestamp> {
        self.check();
        let earlier = self.earlier();
        self.jumps().removes_by(self.steady(), self.now(), earlier)
    }

    /// For how long nothing may be removed yet.
    pub fn removal_wait(&self) -> Duration {
        self.jumps().left(self.steady())
    }

    /// Nothing may be removed for at least this long.
    pub fn wait_to_remove(&self, wait: Duration) {
        self.jumps().wait(self.steady(), wait);
    }

    /// Returns when the wall, or the clock that leads, has jumped far. For one task.
    pub async fn jumped(&self) {
        self.0.bell.notified().await;
    }

    fn jumps(&self) -> MutexGuard<'_, Jumps> {
        self.0.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clock that is followed shows so much more than this one. Forward at once; back by standing still, for
    /// [`STILL_MAX_MS`] at a time: it never goes back, and what is due must not wait for long.
    pub fn follow(&self, correction_ms: i64) {
        if correction_ms > 0 && !self.may_follow(correction_ms) {
            return;
        }
        let is_behind = correction_ms < -JUMP_MS;
        if correction_ms.abs() > JUMP_MS && !(is_behind && self.0.is_behind.load(Ordering::Relaxed)) {
            tracing::warn!(correction_ms, "the clock of the store and this one differ");
        }
        self.0.is_behind.store(is_behind, Ordering::Relaxed);
        let (shown_ms, runs_at_ms) = (self.now().as_ms(), self.running_ms());
        let wanted_ms = shown_ms + correction_ms;
        if wanted_ms < shown_ms && runs_at_ms < shown_ms {
            // It stands still already; what is left is told again when it runs.
            return;
        }
        if wanted_ms < shown_ms {
            self.0.floor_ms.store(shown_ms, Ordering::Release);
        }
        let moved_ms = wanted_ms.max(shown_ms - STILL_MAX_MS) - runs_at_ms;
        self.0.anchor_ms.fetch_add(moved_ms, Ordering::Release);
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
        self.doze(at.since(self.now())).await;
    }

    /// Sleeps for this long, or for a minute if that is less.
    pub async fn doze(&self, duration: Duration) {
        self.pause(duration.min(SLEEP_MAX)).await;
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

    /// Lets a moment pass that a timer of the loop is too coarse for: those are a millisecond apart. The loop stands still
    /// meanwhile, with all that runs on it.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub async fn stand_still(&self, moment: Duration) {
        match self.0.wall_moved_ms {
            Some(_) => self.pause(moment).await,
            None => std::thread::sleep(moment),
        }
    }

    /// Time since the clock was made, for measuring.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.0.base)
    }

    /// Time on a clock that goes on while the process, or the machine, sleeps. Only to be compared with itself.
    pub fn steady(&self) -> Duration {
        if self.0.wall_moved_ms.is_some() {
            return self.elapsed();
        }
        let time = clock_gettime(STEADY);
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanoseconds)
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
    async fn a_wall_that_is_far_ahead_for_a_moment_is_not_followed() {
        let (clock, far_ms, second) = (Clock::simulated(START), 40 * 24 * 3_600_000, Duration::from_secs(1));
        clock.check();
        clock.jump(far_ms);
        for _ in 0..59 {
            clock.check();
            clock.pause(second).await;
        }
        assert_eq!(clock.now(), START.plus(59 * second));
        clock.jump(-far_ms);
        clock.pause(Duration::from_hours(1)).await;
        clock.check();
        assert_eq!(clock.now(), clock.wall(), "it was never wrong");
        clock.jump(far_ms);
        clock.check();
        clock.pause(60 * second).await;
        clock.check();
        assert_eq!(clock.now(), clock.wall(), "what lasts is followed");
    }

    #[tokio::test(start_paused = true)]
    async fn what_removes_goes_by_the_earlier_clock_and_waits_for_a_day_after_a_jump() {
        let (clock, far_ms, day) = (Clock::simulated(START), 40 * 24 * 3_600_000, Duration::from_hours(24));
        clock.jump(-3_000_000);
        let behind = |clock: &Clock| Timestamp::from_ms(clock.now().as_ms() - 3_000_000);
        assert_eq!(clock.removes_by(), Some(behind(&clock)));
        clock.jump(far_ms);
        assert_eq!(clock.removes_by(), None, "it is seen by whoever is about to remove something");
        clock.jumped().await;
        clock.jump(-far_ms);
        assert_eq!(clock.removes_by(), None);
        clock.pause(day - Duration::from_secs(1)).await;
        assert_eq!(clock.removes_by(), None);
        clock.pause(Duration::from_secs(1)).await;
        assert_eq!(clock.removes_by(), Some(behind(&clock)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_led_clock_removes_by_what_it_last_heard() {
        let (clock, far_ms, second) = (Clock::led(START), 40 * 24 * 3_600_000, Duration::from_secs(1));
        clock.heard(START);
        clock.pause(second).await;
        assert_eq!(clock.removes_by(), Some(START), "which may be a moment ago");
        clock.heard(Timestamp::from_ms(START.as_ms() + far_ms));
        clock.follow(far_ms);
        assert_eq!((clock.now(), clock.removes_by()), (START.plus(second), None), "not yet");
        clock.heard(START.plus(second));
        assert_eq!(clock.removes_by(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_compares_with_what_the_store_has_seen() {
        let hours = Duration::from_hours;
        for (latest, wait) in [(START, hours(0)), (START.plus(hours(48)), hours(2))] {
            let clock = Clock::simulated(START);
            clock.start_after(latest);
            assert_eq!(clock.removal_wait(), wait);
            clock.jump(40 * 24 * 3_600_000);
            clock.check();
            assert_eq!(clock.removal_wait(), hours(24), "whatever happens next is seen");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_led_clock_goes_forward_at_once_and_back_by_standing_still() {
        let (clock, ms) = (Clock::led(START), Duration::from_millis);
        clock.follow(40);
        assert_eq!(clock.now(), START.plus(ms(40)));
        clock.follow(-30);
        clock.pause(ms(10)).await;
        assert_eq!(clock.now(), START.plus(ms(40)), "it waits");
        clock.pause(ms(30)).await;
        assert_eq!(clock.now(), START.plus(ms(50)), "and goes on when it is right");
        clock.follow(-10);
        clock.follow(-10);
        clock.pause(ms(20)).await;
        assert_eq!(clock.now(), START.plus(ms(60)), "told twice, it is the same 10 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_led_clock_that_is_far_ahead_runs_at_half_its_speed_until_it_is_right() {
        let (clock, ahead, second) = (Clock::led(START), Duration::from_hours(1), Duration::from_secs(1));
        let store = |clock: &Clock| Timestamp::from_ms(START.as_ms()).plus(clock.elapsed());
        clock.follow(3_600_000);
        let (mut beats, mut before) = (0, clock.now());
        assert_eq!(before, START.plus(ahead));
        while clock.now() > store(&clock) {
            clock.follow(store(&clock).as_ms() - clock.now().as_ms());
            assert_eq!(clock.now(), before, "it never goes back");
            clock.pause(second).await;
            assert!(clock.now().since(before) >= second / 2, "and never stands still for long");
            (before, beats) = (clock.now(), beats + 1);
        }
        assert_eq!((beats, clock.now()), (7_200, store(&clock)));
        clock.check();
        clock.pause(second).await;
        assert_eq!(clock.now(), store(&clock), "it stays right, whatever the wall shows");
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
