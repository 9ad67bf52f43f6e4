//! A reservoir that lines of several replicas draw from, and whose turn it is there.
//!
//! Each replica asks for the first in its own line and says when that one became ready. The basin remembers the earliest it
//! has heard of, its [`Front`]: whoever became ready later and finds a token steps back for it, and asks again a moment later.
//! Nobody is told anything, since all ask again when there is a token at the latest; and nothing has to be cleaned up. PostgreSQL
//! and Redis have their twins of [`Basin::ask`].
//!
//! Promises: whoever gets a token became ready before all that waited there when they last asked, if these come for
//! it within [`Flow::patience_us`]. One that does not come, because it died or was cut off, costs this time once. Time in which
//! a token that nobody takes would overflow is not given: a bucket that is shallow for its rate has less of it.
//! Does not: change what a reservoir gives in any stretch of time.

use std::time::Duration;

use super::reservoir::{Flow, Reservoir, TOKEN, duration};
use crate::limits::GATE_PATIENCE_MS;
use crate::time::Timestamp;

/// Who steps back asks again after a moment: so often while it has patience.
const LOOKS: i64 = 8;

/// Who asks on behalf of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Which replica; never 0.
    pub who: i64,
    /// When the first in its line became ready.
    pub since: Timestamp,
}

impl Caller {
    /// Whether its first became ready before that one's. The same instant is decided by who it is, and always in the same way: no
    /// two step back for each other.
    fn is_before(self, front: &Front) -> bool {
        (self.since.as_ms(), self.who) < (front.since_ms, front.who)
    }
}

/// The one that is served before all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Front {
    /// Which replica; 0 if there is none.
    pub who: i64,
    /// When its first became ready, in milliseconds of the clock that all replicas share.
    pub since_ms: i64,
    /// Since when others step back for it, by the basin's clock; 0 while it is not known to be late. One that was just served and
    /// has more is waited for from then on.
    pub awaited_us: i64,
}

/// A reservoir, and who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basin {
    /// What it holds.
    pub reservoir: Reservoir,
    /// Who is next.
    pub front: Front,
}

/// What somebody got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// So many tokens.
    Tokens(u32),
    /// There are some, and somebody else has waited for them longer.
    Later,
}

impl Basin {
    /// A full one, with nobody waiting.
    pub fn full(flow: Flow, now_us: i64) -> Self {
        Self { reservoir: Reservoir::full(flow, now_us), front: Front::default() }
    }

    /// Takes up to `wanted` tokens for a line, or for somebody who stands in none. A line that wants nothing is empty by now.
    pub fn ask(&mut self, flow: Flow, now_us: i64, wanted: u32, caller: Option<Caller>) -> Given {
        let mut left = self.reservoir;
        let taken = left.take(flow, now_us, wanted);
        let Some(caller) = caller else {
            self.reservoir = left;
            return Given::Tokens(taken);
        };
        let (front, now_us) = (self.front, left.at_us);
        let awaited_us = front.awaited_us.min(now_us);
        let is_late = awaited_us > 0 && now_us - awaited_us >= flow.patience_us();
        let is_other = front.who != 0 && front.who != caller.who;
        let is_behind = is_other && !is_late && !caller.is_before(&front);
        if is_behind && taken > 0 {
            self.reservoir.take(flow, now_us, 0);
            self.front.awaited_us = if awaited_us > 0 { awaited_us } else { now_us };
            return Given::Later;
        }
        self.reservoir = left;
        let is_kept = match taken {
            _ if wanted == 0 => is_other,
            0 => is_behind && front.awaited_us == 0,
            _ => taken == wanted && is_other && caller.is_before(&front),
        };
        if taken == wanted && !is_kept {
            self.front = Front::default();
        } else if !is_kept {
            let awaited_us = if taken > 0 { now_us } else { 0 };
            self.front = Front { who: caller.who, since_ms: caller.since.as_ms(), awaited_us };
        }
        Given::Tokens(taken)
    }
}

impl Flow {
    /// How long a token is kept for somebody who has waited longer, in microseconds: no longer than it takes to fill the bucket, and
    /// a quarter of the time until the next token would come.
    pub fn patience_us(self) -> i64 {
        let spare_us = (self.depth - TOKEN + TOKEN / 4) / (self.drops * 8).max(1);
        spare_us.clamp(0, i64::try_from(GATE_PATIENCE_MS * 1_000).unwrap_or(i64::MAX))
    }

    /// When it is worth asking again for somebody who stepped back.
    pub fn moment(self) -> Duration {
        let moment = duration(self.patience_us() / LOOKS).min(self.interval(8));
        moment.max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscriber::Rate;

    fn flow(rate: &str, burst: u32) -> Flow {
        Flow::new(Rate::parse(rate).unwrap(), burst)
    }

    /// Somebody asks for one token, in milliseconds.
    fn ask(basin: &mut Basin, flow: Flow, ms: i64, (who, since): (i64, i64)) -> Given {
        ask_for(1, basin, flow, ms, (who, since))
    }

    fn ask_for(wanted: u32, basin: &mut Basin, flow: Flow, ms: i64, (who, since): (i64, i64)) -> Given {
        let caller = Caller { who, since: Timestamp::from_ms(since) };
        basin.ask(flow, ms * 1_000, wanted, Some(caller))
    }

    const NONE: Given = Given::Tokens(0);
    const ONE: Given = Given::Tokens(1);

    /// An empty one of one a second.
    fn empty() -> (Basin, Flow) {
        let flow = flow("1/s", 1);
        let mut basin = Basin::full(flow, 0);
        assert_eq!(basin.ask(flow, 0, 1, None), ONE);
        (basin, flow)
    }

    #[test]
    fn the_first_come_is_served_whoever_asks_first() {
        let (mut basin, flow) = empty();
        assert_eq!(ask(&mut basin, flow, 10, (1, 10)), NONE);
        assert_eq!(ask(&mut basin, flow, 20, (2, 5)), NONE, "it became ready before");
        assert_eq!(ask(&mut basin, flow, 30, (3, 7)), NONE);
        assert_eq!(ask(&mut basin, flow, 1_000, (1, 10)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 1_001, (3, 7)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 1_002, (2, 5)), ONE);
        assert_eq!(ask(&mut basin, flow, 1_010, (1, 10)), NONE);
        assert_eq!(ask(&mut basin, flow, 1_020, (3, 7)), NONE);
        assert_eq!(ask(&mut basin, flow, 2_002, (1, 10)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 2_003, (3, 7)), ONE);
    }

    #[test]
    fn one_that_does_not_come_costs_its_time_once() {
        let (mut basin, flow) = empty();
        assert_eq!(ask(&mut basin, flow, 1, (1, 1)), NONE);
        assert_eq!(ask(&mut basin, flow, 1_500, (2, 2)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 1_599, (2, 2)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 1_600, (2, 2)), ONE);
        assert_eq!(ask(&mut basin, flow, 2_600, (3, 3)), ONE, "nobody waits for it any more");
    }

    #[test]
    fn a_line_that_became_empty_says_so() {
        let (mut basin, flow) = empty();
        assert_eq!(ask(&mut basin, flow, 1, (1, 1)), NONE);
        assert_eq!(ask_for(0, &mut basin, flow, 2, (2, 2)), NONE, "it was not the front");
        assert_eq!(ask(&mut basin, flow, 1_000, (2, 2)), Given::Later);
        assert_eq!(ask_for(0, &mut basin, flow, 1_001, (1, 1)), NONE);
        assert_eq!(ask(&mut basin, flow, 1_002, (2, 2)), ONE);
    }

    #[test]
    fn who_was_served_and_has_more_is_waited_for_a_moment_and_compared_anew() {
        let (mut basin, flow) = empty();
        assert_eq!(ask_for(5, &mut basin, flow, 1_000, (1, 1)), ONE);
        assert_eq!(ask(&mut basin, flow, 1_001, (2, 50)), NONE);
        assert_eq!(ask_for(4, &mut basin, flow, 1_002, (1, 60)), NONE, "its next became ready later");
        assert_eq!(ask_for(4, &mut basin, flow, 2_000, (1, 60)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 2_001, (2, 50)), ONE);
        // Where tokens are many it keeps its place, if it comes soon.
        let flow = self::flow("1000/s", 1_000);
        let mut basin = Basin::full(flow, 0);
        assert_eq!(ask_for(2_000, &mut basin, flow, 1, (1, 1)), Given::Tokens(1_000));
        assert_eq!(ask(&mut basin, flow, 3, (2, 50)), Given::Later);
        assert_eq!(ask_for(2_000, &mut basin, flow, 4, (1, 2)), Given::Tokens(3));
    }

    #[test]
    fn who_stands_in_no_line_takes_what_there_is_and_moves_nobody() {
        let (mut basin, flow) = empty();
        ask(&mut basin, flow, 1, (1, 1));
        let front = basin.front;
        assert_eq!(basin.ask(flow, 1_000_000, 0, None), NONE);
        assert_eq!(basin.ask(flow, 1_000_000, 1, None), ONE);
        assert_eq!(basin.front, front);
    }

    #[test]
    fn a_clock_that_goes_back_keeps_nobody_waiting() {
        let (mut basin, flow) = empty();
        let day = 86_400_000;
        ask(&mut basin, flow, day, (2, 5));
        ask(&mut basin, flow, day + 1, (1, 1));
        assert_eq!(ask(&mut basin, flow, day + 1_000, (2, 2)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 2_000, (2, 2)), Given::Later);
        assert_eq!(ask(&mut basin, flow, 2_100, (2, 2)), ONE);
    }

    #[test]
    fn no_rate_suffers_from_patience() {
        let patience = |rate, burst| flow(rate, burst).patience_us();
        assert_eq!(patience("1/h", 1), 100_000);
        assert_eq!(patience("1/s", 1), 100_000);
        assert_eq!(patience("3/s", 3), 100_000);
        assert_eq!(patience("20/s", 1), 12_500);
        assert_eq!(patience("1000/s", 1), 250, "as good as none");
        assert_eq!(patience("1000/s", 1_000), 100_000, "nothing overflows meanwhile");
        assert_eq!(flow("3/s", 3).moment(), Duration::from_micros(12_500));
        assert_eq!(flow("1000/s", 1_000).moment(), Duration::from_millis(1));
    }
}
