//! What a bucket has left, and how it fills.
//!
//! A token is a large whole number of drops, so that every rate fills by whole drops in every microsecond and nothing is
//! ever rounded: no number of askings adds up to a token that was not due. A [`Reservoir`] that is penalised gives nothing
//! until then; after that it fills slowly at first, and step by step faster, until it is as before. PostgreSQL and Redis
//! have their twins of [`Reservoir::take`]; how long to wait is worked out here from what they answer.
//!
//! Promises: in every stretch of time no more is given than a full bucket and what the rate brings, whatever was asked,
//! penalised or changed in between, and however the clock jumps; nothing before the end of a penalty.
//! Does not: read a clock. Every time is in microseconds of one clock, wherever that is.

use std::time::Duration;

use super::Gate;
use crate::limits::{GATE_PENALTY_MAX_MS, GATE_RECOVERY_STEP_MS};
use crate::subscriber::Rate;

/// The steps of a recovery: at an eighth, a quarter and a half of the rate; then all of it.
const FULL: i64 = 8;
/// One step of a recovery.
pub const STEP_US: i64 = (GATE_RECOVERY_STEP_MS * 1_000).cast_signed();
/// No penalty ends later than this.
pub const PENALTY_MAX_US: i64 = (GATE_PENALTY_MAX_MS * 1_000).cast_signed();
/// A clock that is behind by more is another one.
pub const ASTRAY_US: i64 = 60_000_000;
/// Drops of one token. A rate of one an hour brings one drop in a microsecond at the slowest step.
pub const TOKEN: i64 = 3_600_000_000 * FULL;

/// How a reservoir fills, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Drops that come in a microsecond at the slowest step.
    pub drops: i64,
    /// Drops that it holds.
    pub depth: i64,
}

impl Flow {
    /// So many over time, and so many at once.
    pub fn new(rate: Rate, burst: u32) -> Self {
        let hours = 3_600 / i64::try_from(rate.per.as_secs()).unwrap_or(3_600).clamp(1, 3_600);
        Self { drops: i64::from(rate.count) * hours, depth: i64::from(burst.max(1)) * TOKEN }
    }

    /// How many at once.
    pub fn burst(self) -> u32 {
        tokens(self.depth)
    }

    /// From one to the next, at so many eighths of the rate.
    pub fn interval(self, eighths: u8) -> Duration {
        duration(TOKEN / (self.drops * i64::from(eighths)).max(1))
    }
}

impl From<Rate> for Flow {
    fn from(rate: Rate) -> Self {
        Self::new(rate, rate.burst())
    }
}

impl From<Gate> for Flow {
    fn from(gate: Gate) -> Self {
        Self::new(gate.rate, gate.burst)
    }
}

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservoir {
    /// Drops, as of `at_us`.
    pub level: i64,
    /// When that was.
    pub at_us: i64,
    /// The end of the last penalty; long ago if there was none.
    pub until_us: i64,
}

/// How a reservoir stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whole tokens that may be taken now.
    pub tokens: u32,
    /// How long it gives nothing at all.
    pub penalized_for: Duration,
    /// Eighths of the rate at which it fills; none while it is penalised.
    pub eighths: u8,
    /// How long until there is a token; zero if there is one.
    pub next_in: Duration,
}

impl Reservoir {
    /// A full one that was never penalised.
    pub fn full(flow: Flow, now_us: i64) -> Self {
        Self { level: flow.depth, at_us: now_us, until_us: i64::MIN }
    }

    /// One of which only the end of its penalty is known. If that is still to come one may go then, as after every penalty;
    /// otherwise that one may have gone.
    pub fn recalled(now_us: i64, until_us: i64) -> Self {
        Self { level: if now_us < until_us { TOKEN } else { 0 }, at_us: now_us, until_us }
    }

    /// Takes up to `wanted` tokens; says how many.
    pub fn take(&mut self, flow: Flow, now_us: i64, wanted: u32) -> u32 {
        self.fill(flow, now_us);
        if self.at_us < self.until_us {
            return 0;
        }
        let taken = tokens(self.level).min(wanted);
        self.level -= i64::from(taken) * TOKEN;
        taken
    }

    /// Gives nothing until then, unless it is to give nothing for longer already; then one, and slowly more. A new
    /// penalty begins the recovery anew.
    pub fn penalize(&mut self, flow: Flow, now_us: i64, until_us: i64) {
        self.fill(flow, now_us);
        if until_us > self.at_us {
            self.until_us = self.until_us.max(until_us);
        }
    }

    /// Its penalty ends now, if it lasts longer: from here on it recovers as it would have later.
    pub fn lift(&mut self, flow: Flow, now_us: i64) {
        self.fill(flow, now_us);
        self.until_us = self.until_us.min(self.at_us);
    }

    /// It was empty at that time, or fuller than it seems: what a bucket holds that moved here from elsewhere is not known.
    pub fn drain(&mut self, flow: Flow, now_us: i64, empty_us: i64) {
        let most = i128::from(now_us.saturating_sub(empty_us).max(0)) * i128::from(flow.drops * FULL);
        self.level = self.level.min(i64::try_from(most).unwrap_or(i64::MAX));
    }

    /// How it stands at that time.
    pub fn standing(mut self, flow: Flow, now_us: i64) -> Standing {
        self.fill(flow, now_us);
        let penalized_us = (self.until_us.saturating_sub(self.at_us)).max(0);
        let tokens = if penalized_us > 0 { 0 } else { tokens(self.level) };
        let next_us = if tokens > 0 { 0 } else { self.reaches_us(flow, TOKEN) };
        Standing {
            tokens,
            penalized_for: duration(penalized_us),
            eighths: eighths(self.at_us.saturating_sub(self.until_us)),
            next_in: duration(next_us),
        }
    }

    /// How long after that time it is full, if nobody takes anything.
    pub fn full_in(mut self, flow: Flow, now_us: i64) -> Duration {
        self.fill(flow, now_us);
        duration(self.reaches_us(flow, flow.depth))
    }

    /// Brings it up to a time. A clock that goes back a little brings nothing, and nothing twice; what is further ahead
    /// was remembered by another clock, and a penalty with it: it lasts for as long as it did there.
    fn fill(&mut self, flow: Flow, now_us: i64) {
        let ahead_us = self.at_us.saturating_sub(now_us);
        if ahead_us > ASTRAY_US {
            self.at_us = now_us;
            self.until_us = self.until_us.saturating_sub(ahead_us);
        }
        let now_us = now_us.max(self.at_us);
        self.until_us = self.until_us.min(now_us.saturating_add(PENALTY_MAX_US));
        let level = i128::from(self.within_penalty(flow, now_us));
        let since_us = self.since_penalty();
        let gained = filled(since_us + i128::from(now_us) - i128::from(self.at_us)) - filled(since_us);
        let level = level + gained * i128::from(flow.drops);
        self.level = i64::try_from(level).unwrap_or(i64::MAX).min(flow.depth);
        self.at_us = now_us;
    }

    /// What it holds at that time, or at the end of its penalty if that is earlier. One token gathers meanwhile, so that
    /// somebody can go when it ends.
    fn within_penalty(&self, flow: Flow, now_us: i64) -> i64 {
        let level = self.level.max(0);
        let gained_us = i128::from(now_us.min(self.until_us)) - i128::from(self.at_us);
        if gained_us <= 0 {
            return level;
        }
        let gained = i128::from(level) + gained_us * i128::from(flow.drops * FULL);
        i64::try_from(gained).unwrap_or(i64::MAX).min(TOKEN)
    }

    /// How long ago its penalty ended, at `at_us`; below zero if it has not. What is longer ago than a recovery takes makes
    /// no difference, and would only make the numbers large.
    fn since_penalty(&self) -> i128 {
        i128::from(self.at_us.saturating_sub(self.until_us).min(3 * STEP_US))
    }

    /// How long after `at_us` it holds this much, and gives it.
    fn reaches_us(&self, flow: Flow, level: i64) -> i64 {
        let (since_us, drops) = (self.since_penalty(), i128::from(flow.drops.max(1)));
        let missing = i128::from(level.saturating_sub(self.within_penalty(flow, i64::MAX)).max(0));
        let eighths = filled(since_us) + (missing + drops - 1) / drops;
        let at_us = if missing == 0 { since_us.max(0) } else { filled_at(eighths) };
        i64::try_from(at_us - since_us).unwrap_or(i64::MAX)
    }
}

/// Eighths of a microsecond's worth that came since the end of a penalty, which was so long ago: nothing before it, then
/// twice as much in each step.
fn filled(since_us: i128) -> i128 {
    let step = i128::from(STEP_US);
    [0, since_us, 2 * since_us - step, 4 * since_us - 5 * step, 8 * since_us - 17 * step]
        .into_iter()
        .max()
        .unwrap_or(0)
}

/// When so many have come: the other way round.
fn filled_at(eighths: i128) -> i128 {
    let step = i128::from(STEP_US);
    let at = |part: i128, less: i128| (eighths + less * step + part - 1) / part;
    [at(1, 0), at(2, 1), at(4, 5), at(8, 17)].into_iter().min().unwrap_or(0)
}

/// At which part of the rate it fills, so long after a penalty.
pub(crate) fn eighths(since_us: i64) -> u8 {
    match since_us {
        ..0 => 0,
        since if since < STEP_US => 1,
        since if since < 2 * STEP_US => 2,
        since if since < 3 * STEP_US => 4,
        _ => 8,
    }
}

fn tokens(drops: i64) -> u32 {
    u32::try_from(drops / TOKEN).unwrap_or(0)
}

pub(super) fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

#[cfg(test)]
#[path = "reservoir_tests.rs"]
mod tests;
