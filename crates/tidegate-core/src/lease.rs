//! Whether a process that shares its store may act on what it holds, and when it may take over what another one held.
//!
//! A process beats once a second. Whoever has not beaten for [`BEAT_TTL`] by the store's clock is as good as dead, and the
//! others take over its work. So it must cease to act a little earlier than that by its own clock: [`ends`]. And whoever
//! was cut off from the store together with everybody else must not be the first one back to declare them dead, nor the
//! first one to beat after the store's clock has jumped: [`Vigil`]. Clocks are compared by [`correction_ms`].
//!
//! Times here are durations on a clock that never stands still and never jumps, not even while the machine sleeps.

use std::time::Duration;

use crate::time::Timestamp;

/// How often a process says that it lives.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// One whose last beat is older than this has expired.
pub const BEAT_TTL: Duration = Duration::from_secs(5);
/// How much earlier it ceases to act: the time between looking at the lease and the first byte of a request, on a machine
/// that has too much to do.
pub const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// A beat that takes longer than this has failed; the next one goes another way.
pub const BEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// Beats further apart than this are not a series.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// A clock that shows this much more or less than it should has jumped. Less than what a lease ends early by.
const JUMP: Duration = Duration::from_millis(500);

/// Until when a process may act whose beat began at `began` and came through.
pub fn ends(began: Duration) -> Duration {
    began + (BEAT_TTL - LEASE_MARGIN)
}

/// How long this process has been in touch with the store without a break.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vigil {
    since: Option<Duration>,
    last: Duration,
    /// What the store's clock showed at the last beat.
    shown: Option<Timestamp>,
}

impl Vigil {
    /// A beat came through that began at `at` and took so long; the store's clock showed this. After a silence of this
    /// process, which may have been everybody's, and by a clock that jumped, the last beat of the others may be long ago: then
    /// they have as much time as if they had beaten just now.
    pub fn beat(&mut self, at: Duration, took: Duration, shown: Option<Timestamp>) {
        let is_series = self.since.is_some() && at.saturating_sub(self.last) <= SILENCE_MAX;
        if !is_series || self.has_jumped(at, took, shown) {
            self.since = Some(at);
        }
        (self.last, self.shown) = (at, shown);
    }

    /// Whether the store's clock went by more or less than this process's since the last beat; what a beat takes aside.
    fn has_jumped(&self, at: Duration, took: Duration, shown: Option<Timestamp>) -> bool {
        let (Some(before), Some(shown)) = (self.shown, shown) else { return false };
        let expected = before.plus(at.saturating_sub(self.last));
        shown.since(expected) > took + JUMP || expected.since(shown) > BEAT_TIMEOUT + JUMP
    }

    /// Others have had the time to beat as well: those who did not are dead.
    pub fn may_take_over(&self) -> bool {
        self.since.is_some_and(|since| self.last.saturating_sub(since) >= BEAT_TTL)
    }
}

/// By how much a clock that shows `ours` must be moved to agree with one that showed `theirs` at some moment of the last
/// `round_trip`. Nothing, as long as it may be right.
pub fn correction_ms(ours: Timestamp, theirs: Timestamp, round_trip: Duration) -> i64 {
    let latest = theirs.plus(round_trip);
    if (theirs..=latest).contains(&ours) {
        return 0;
    }
    theirs.plus(round_trip / 2).as_ms() - ours.as_ms()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_ends_before_anybody_takes_over() {
        assert!(ends(s(10)) < s(10) + BEAT_TTL);
        assert!(ends(s(10)) > s(10) + BEAT_EVERY + BEAT_TIMEOUT, "one beat may fail");
    }

    #[test]
    fn nobody_is_declared_dead_by_one_who_was_away() {
        let mut vigil = Vigil::default();
        assert!(!vigil.may_take_over());
        // A process that comes back within one full lease after that is alive.
        for at in (0..9).chain(20..29) {
            vigil.beat(s(at), Duration::ZERO, None);
            assert_eq!(vigil.may_take_over(), [5, 6, 7, 8, 25, 26, 27, 28].contains(&at), "at {at} s");
        }
    }

    #[test]
    fn nobody_is_declared_dead_by_a_clock_that_jumped() {
        for jump_ms in [3_600_000, -3_600_000, 7_000, -7_000] {
            let (mut vigil, mut moved_ms) = (Vigil::default(), 1_000_000);
            for at in 0..14 {
                moved_ms += if at == 7 { jump_ms } else { 0 };
                let shown = Timestamp::from_ms(moved_ms + i64::try_from(at * 1_000).unwrap());
                vigil.beat(s(at), Duration::ZERO, Some(shown));
                assert_eq!(vigil.may_take_over(), [5, 6, 12, 13].contains(&at), "{jump_ms} at {at} s");
            }
        }
    }

    #[test]
    fn a_slow_beat_is_no_jump() {
        let mut vigil = Vigil::default();
        for (at, took, shown_after) in [(0, 0, 0), (1, 2, 2), (3, 0, 0), (4, 2, 0), (6, 0, 0), (7, 0, 0)] {
            let shown = Timestamp::from_ms(i64::try_from((at + shown_after) * 1_000).unwrap());
            vigil.beat(s(at), s(took), Some(shown));
        }
        assert!(vigil.may_take_over());
    }

    #[test]
    fn a_clock_is_moved_only_when_it_is_certainly_wrong() {
        let (at, ms) = (Timestamp::from_ms, Duration::from_millis);
        for (ours, theirs, trip, expected) in [
            (1_000, 1_000, 0, 0),
            (1_000, 990, 20, 0),
            (1_000, 980, 20, 0),
            (1_000, 1_001, 20, 11),
            (1_000, 900, 20, -90),
            (1_000, 500, 600, 0),
        ] {
            assert_eq!(correction_ms(at(ours), at(theirs), ms(trip)), expected, "{ours} {theirs} {trip}");
        }
    }
}
