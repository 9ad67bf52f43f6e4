//! What goes wrong with one process: it dies, stops, loses its store for a while; the clock jumps.

use super::super::dice::Dice;
use super::{Act, Crash, END_T, Planner};

impl Planner {
    pub(super) fn troubles(&mut self) {
        let busy: Vec<i64> = self.plan.acts.iter().map(|(t, _)| *t).filter(|t| *t > 200).collect();
        // Half of the troubles come just when something is going on.
        let moment = |dice: &mut Dice| match dice.percent(50) {
            true => dice.pick(&busy) + dice.between(0, 60),
            false => dice.between(500, END_T - 1_500),
        };
        let dice = &mut self.dice;
        if dice.percent(60) {
            for _ in 0..dice.below(4) + 1 {
                let how = match dice.below(3) {
                    0 => Crash::AtOnce,
                    1 => Crash::AfterPoints(u32::try_from(dice.below(60)).expect("small")),
                    _ => Crash::AfterPolls(u32::try_from(dice.below(40)).expect("small")),
                };
                let act = Act::Crash { how, down_ms: dice.pick(&[0, 1, 300, 3_000]) };
                self.plan.acts.push((moment(dice), act));
            }
        }
        if dice.percent(40) {
            for _ in 0..dice.below(2) + 1 {
                let act = Act::Stop { down_ms: dice.pick(&[0, 500]) };
                self.plan.acts.push((moment(dice), act));
            }
        }
        if dice.percent(35) {
            for _ in 0..dice.below(2) + 1 {
                let from = moment(dice);
                self.plan.outages.push((from, (from + dice.between(1, 3_000)).min(END_T - 100)));
            }
        }
        if dice.percent(35) {
            for _ in 0..dice.below(2) + 1 {
                let ms = dice.pick(&[3_600_000, -3_600_000, 5_000, -5_000, 400]);
                self.plan.acts.push((moment(dice), Act::Jump { ms }));
            }
        }
    }
}
