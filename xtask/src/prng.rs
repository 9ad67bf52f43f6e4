//! A small seeded generator of chance (SplitMix64), so that a run can be repeated from its seed.
//!
//! Good enough for ids, bodies and delays; not for secrets.

/// A stream of numbers decided by its seed.
#[derive(Clone)]
pub(crate) struct Prng(u64);

impl Prng {
    /// The stream of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`, which must not be zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// One of the given.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let index = self.below(from.len() as u64);
        from[usize::try_from(index).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::Prng;

    #[test]
    fn a_seed_decides_the_stream() {
        let take = |seed| -> Vec<u64> {
            let mut prng = Prng::new(seed);
            (0..5).map(|_| prng.next()).collect()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn below_stays_below() {
        let mut prng = Prng::new(1);
        assert!((0..1000).all(|_| prng.below(3) < 3));
    }
}
