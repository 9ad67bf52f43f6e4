//! A Bloom filter in blocks: one look at one cache line tells most keys that a run does not hold.
//!
//! Promises: a key that was added is never denied. About one in two hundred that were not is let through.

/// Twelve bits a key: a look-up that finds nothing costs a microsecond, and one in two hundred is rare enough.
const BITS_PER_KEY: usize = 12;
const BLOCK_BITS: usize = 512;
const BLOCK_WORDS: usize = BLOCK_BITS / 64;
/// Bits set per key; nine bits of a hash place each.
const PROBES: u32 = 6;

pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// A filter that holds these keys.
    pub(super) fn of(keys: impl ExactSizeIterator<Item = i64>) -> Self {
        let blocks = (keys.len() * BITS_PER_KEY).div_ceil(BLOCK_BITS).max(1);
        let mut filter = Self { words: vec![0; blocks * BLOCK_WORDS] };
        for key in keys {
            let (start, bits) = filter.place(key);
            for bit in positions(bits) {
                filter.words[start + bit / 64] |= 1 << (bit % 64);
            }
        }
        filter
    }

    /// Whether this key may be among those it holds.
    pub(super) fn may_hold(&self, key: i64) -> bool {
        let (start, bits) = self.place(key);
        positions(bits).all(|bit| self.words[start + bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// Where a key's block starts, and the hash that places its bits in it.
    fn place(&self, key: i64) -> (usize, u64) {
        let hash = key.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let blocks = (self.words.len() / BLOCK_WORDS) as u64;
        let block = ((hash >> 32) * blocks) >> 32;
        (block as usize * BLOCK_WORDS, (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// What [`Filter::to_bytes`] gave; a damaged one holds everything, which is slow but never wrong.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let is_sound =
            !words.is_empty() && words.len().is_multiple_of(BLOCK_WORDS) && bytes.len().is_multiple_of(8);
        Self { words: if is_sound { words } else { vec![u64::MAX; BLOCK_WORDS] } }
    }
}

fn positions(bits: u64) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| (bits >> (probe * 9)) as usize & (BLOCK_BITS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: i64) -> i64 {
        n.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ n
    }

    #[test]
    fn what_was_added_is_never_denied_and_little_else_is_let_through() {
        let filter = Filter::of((0..65_536_i32).map(|n| key(n.into())));
        let filter = Filter::from_bytes(&filter.to_bytes());
        assert!((0..65_536).all(|n| filter.may_hold(key(n))));
        let wrong = (100_000..200_000).filter(|n| filter.may_hold(key(*n))).count();
        assert!(wrong < 2_000, "{wrong} of 100 000");
    }

    #[test]
    fn a_damaged_filter_denies_nothing() {
        assert!(Filter::from_bytes(&[1, 2, 3]).may_hold(7));
        assert!(Filter::of(std::iter::empty()).words.len() == BLOCK_WORDS);
    }
}
