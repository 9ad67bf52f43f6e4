//! Chance for the simulation: small, seeded, and split into streams, so that a question more in one place does not
//! change the answers in all the others.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The stream `name` of a seed.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let named = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ named);
        dice.roll();
        dice
    }

    /// Any number.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` on, below `high`.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let width = u64::try_from(high - low).expect("ranges are not empty").max(1);
        low + i64::try_from(self.roll() % width).expect("the width is small")
    }

    /// A number from 0 on, below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.roll() % count.max(1) as u64).expect("the count is small")
    }

    /// True in this many cases of a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.roll() % 100 < percent
    }

    /// One of these.
    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }
}
