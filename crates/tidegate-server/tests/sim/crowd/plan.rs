//! What goes wrong with processes that share a store, decided before the run begins.

use super::super::dice::Dice;
use super::super::far;
use super::super::plan::{END_T, Plan};

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    /// A process dies with all it knew, and is started again after a while.
    Die { seat: usize, down_ms: i64 },
    /// It is stopped in good order, and started again after a while.
    Leave { seat: usize, down_ms: i64 },
    /// Nothing of it runs for a while; then all of it goes on as if nothing had been.
    Sleep { seat: usize, ms: i64 },
    /// It runs, but reaches neither the store nor the other processes.
    Cut { seat: usize, ms: i64 },
    /// The store's clock jumps.
    Jump { ms: i64 },
    /// A standby has everything up to here, and falls behind.
    Keep,
    /// It takes the place of the store, which is away for a moment: what came since is lost.
    GoBack { away_ms: i64 },
}

/// How many processes there are.
pub(crate) fn seats(seed: u64) -> usize {
    2 + Dice::new(seed, "crowd").below(2)
}

/// From when until when the store might lose what it is given, and says so.
pub(crate) fn weakness(seed: u64) -> Option<(i64, i64)> {
    let mut dice = Dice::new(seed, "weakness");
    let from = dice.between(4_000, END_T - 14_000);
    dice.percent(35).then_some((from, from + 9_000))
}

/// What goes wrong when.
pub(crate) fn troubles(seed: u64, plan: &Plan) -> Vec<(i64, Trouble)> {
    let mut dice = Dice::new(seed, "troubles");
    let seats = seats(seed);
    let busy: Vec<i64> = plan.acts.iter().map(|(t, _)| *t).filter(|t| *t > 1_000).collect();
    let mut troubles = Vec::new();
    for _ in 0..dice.below(5) + 2 {
        // Half of the troubles come just when something is going on.
        let t = match dice.percent(50) {
            true => dice.pick(&busy) + dice.between(0, 60),
            false => dice.between(2_000, END_T - 2_000),
        };
        let seat = dice.below(seats);
        let trouble = match dice.below(10) {
            0..3 => Trouble::Die { seat, down_ms: dice.pick(&[1, 2_000, 9_000]) },
            3 => Trouble::Leave { seat, down_ms: dice.pick(&[1, 3_000]) },
            4..7 => Trouble::Sleep { seat, ms: dice.pick(&[1_500, 3_000, 4_500, 6_500, 9_000]) },
            7..9 => Trouble::Cut { seat, ms: dice.pick(&[1_000, 3_500, 6_500, 9_000]) },
            _ => Trouble::Jump { ms: dice.pick(&[3_600_000, -3_600_000, 7_000, -7_000, 400]) },
        };
        troubles.push((t.min(END_T - 1), trouble));
    }
    troubles.extend(far::jumps(seed).into_iter().map(|(t, ms)| (t, Trouble::Jump { ms })));
    troubles.sort_by_key(|(t, _)| *t);
    troubles
}
