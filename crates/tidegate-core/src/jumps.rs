//! Jumps of a clock: which time retention may go by, and when a time that is suddenly far ahead is believed.
//!
//! What retention removes is gone, so a clock that is wrong for some seconds must not decide it. Retention goes by the earlier of
//! two clocks, and after a jump of more than [`CLOCK_JUMP_MAX`], in either direction, it removes nothing for
//! [`REMOVAL_WAIT_MAX`] of steady time. A process that starts compares its clock with the latest time in its store. The two
//! may differ because nothing was written for a while, so the wait is in proportion to the difference then.
//!
//! Times named `at` are durations on a clock that never stands still and never jumps, not even while the machine sleeps.

use std::time::Duration;

use crate::limits::{CLOCK_JUMP_MAX, CLOCK_SETTLES_AFTER, REMOVAL_WAIT_MAX, REMOVAL_WAIT_PER_GAP};
use crate::time::Timestamp;

/// How long a process that starts removes nothing, whose clock shows `shown` while its store has seen `latest`. A new store has
/// seen the epoch.
pub fn wait_at_start(shown: Timestamp, latest: Timestamp) -> Duration {
    if latest == Timestamp::default() {
        return Duration::ZERO;
    }
    let gap = shown.since(latest).max(latest.since(shown));
    if gap <= CLOCK_JUMP_MAX { Duration::ZERO } else { (gap / REMOVAL_WAIT_PER_GAP).min(REMOVAL_WAIT_MAX) }
}

/// What is known of one clock's jumps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jumps {
    /// A moment, and what the clock showed then. It has not jumped since.
    anchor: Option<(Duration, Timestamp)>,
    /// When it jumped last.
    last: Option<Duration>,
    /// Nothing is removed before.
    until: Duration,
}

impl Jumps {
    /// The clock shows this. Says by how many milliseconds it has jumped, if it has. Small steps add up.
    pub fn see(&mut self, at: Duration, shown: Timestamp) -> Option<i64> {
        let (since, then) = *self.anchor.get_or_insert((at, shown));
        let expected = then.plus(at.saturating_sub(since));
        if shown.since(expected).max(expected.since(shown)) <= CLOCK_JUMP_MAX {
            return None;
        }
        self.anchor = Some((at, shown));
        self.last = Some(at);
        self.wait(at, REMOVAL_WAIT_MAX);
        Some(shown.as_ms() - expected.as_ms())
    }

    /// Nothing is removed for this long, or longer if that is so already.
    pub fn wait(&mut self, at: Duration, wait: Duration) {
        self.until = self.until.max(at.saturating_add(wait));
    }

    /// For how long nothing is removed.
    pub fn left(&self, at: Duration) -> Duration {
        self.until.saturating_sub(at)
    }

    /// The time that retention goes by, given our own and what the clock shows; none while nothing is removed.
    pub fn removes_by(&self, at: Duration, now: Timestamp, shown: Timestamp) -> Option<Timestamp> {
        self.left(at).is_zero().then(|| now.min(shown))
    }

    /// Whether its last jump is no passing error: it has stayed where it is for a while.
    pub fn is_settled(&self, at: Duration) -> bool {
        self.last.is_none_or(|last| at.saturating_sub(last) >= CLOCK_SETTLES_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp::from_ms(1_767_225_600_000);
    const DAY_MS: i64 = 24 * 3_600_000;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn shown(at: Duration, moved_ms: i64) -> Timestamp {
        Timestamp::from_ms(START.plus(at).as_ms() + moved_ms)
    }

    #[test]
    fn nothing_is_removed_for_a_day_after_a_jump() {
        for jump_ms in [40 * DAY_MS, -40 * DAY_MS, 3_600_001, -3_600_001] {
            let mut jumps = Jumps::default();
            assert_eq!(jumps.see(s(10), shown(s(10), 0)), None);
            assert_eq!(jumps.see(s(20), shown(s(20), jump_ms)), Some(jump_ms));
            assert_eq!(jumps.see(s(21), shown(s(21), jump_ms)), None, "it is one jump");
            let end = s(20) + REMOVAL_WAIT_MAX;
            assert_eq!(jumps.removes_by(end - s(1), START, START), None);
            assert_eq!(jumps.removes_by(end, START, START), Some(START));
            assert_eq!((jumps.is_settled(s(79)), jumps.is_settled(s(80))), (false, true));
        }
    }

    #[test]
    fn steps_of_an_hour_are_followed_and_add_up() {
        let mut jumps = Jumps::default();
        for (at, moved_ms, jumped) in [
            (0, 0, None),
            (1, 3_600_000, None),
            (2, 0, None),
            (3, 1_800_000, None),
            (4, 3_700_000, Some(3_700_000)),
        ] {
            assert_eq!(jumps.see(s(at), shown(s(at), moved_ms)), jumped, "at {at} s");
            assert_eq!(jumps.left(s(at)).is_zero(), jumped.is_none());
        }
    }

    #[test]
    fn a_machine_that_slept_has_not_jumped() {
        let mut jumps = Jumps::default();
        jumps.see(s(0), shown(s(0), 0));
        let week = Duration::from_hours(7 * 24);
        assert_eq!(jumps.see(week, shown(week, 0)), None);
        assert!(jumps.left(week).is_zero() && jumps.is_settled(week));
    }

    #[test]
    fn a_start_waits_in_proportion_to_what_it_finds() {
        let hours = Duration::from_hours;
        assert_eq!(wait_at_start(START, Timestamp::from_ms(0)), Duration::ZERO, "a new store");
        for (gap, wait) in [
            (hours(1), Duration::ZERO),
            (hours(12), Duration::from_mins(30)),
            (hours(48), hours(2)),
            (hours(24 * 24), hours(24)),
            (hours(24 * 400), hours(24)),
        ] {
            assert_eq!(wait_at_start(START.plus(gap), START), wait, "{gap:?} later");
            assert_eq!(wait_at_start(START, START.plus(gap)), wait, "{gap:?} earlier");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Pass(u64),
        Jump(i64),
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u64..7_200_000).prop_map(Step::Pass),
            2 => prop_oneof![-40 * DAY_MS..40 * DAY_MS, -7_200_000..7_200_000_i64].prop_map(Step::Jump),
            1 => Just(Step::Restart),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a clock does, also while the process restarts: for a day after it moved by more than an hour nothing is
        /// removed, and the time that retention goes by is never later than the clock's.
        #[test]
        fn no_time_is_trusted_that_has_just_jumped(steps in prop::collection::vec(step(), 1..60)) {
            let (mut jumps, mut at, mut moved_ms) = (Jumps::default(), Duration::ZERO, 0_i64);
            let (mut now, mut far) = (START, None);
            jumps.see(at, START);
            for step in steps {
                let before = moved_ms;
                match step {
                    Step::Pass(ms) => at += Duration::from_millis(ms),
                    Step::Jump(ms) => moved_ms += ms,
                    Step::Restart => {
                        let mut next = Jumps::default();
                        next.wait(at, jumps.left(at));
                        jumps = next;
                    }
                }
                let shown = shown(at, moved_ms);
                jumps.see(at, shown);
                if moved_ms.abs_diff(before) > 7_200_000 {
                    far = Some(at);
                }
                now = now.max(shown);
                match jumps.removes_by(at, now, shown) {
                    None => {}
                    Some(by) => {
                        prop_assert!(by <= shown && by <= now);
                        prop_assert!(far.is_none_or(|far| at - far >= REMOVAL_WAIT_MAX));
                    }
                }
                // Somebody removes something some day.
                prop_assert!(jumps.left(at) <= REMOVAL_WAIT_MAX);
            }
        }
    }
}
