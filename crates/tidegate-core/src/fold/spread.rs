//! How slots are spread over a map.
//!
//! A key is part of a SHA-256 already, so little is left to do: its halves are mixed with numbers that nobody outside
//! knows, and whoever chooses the texts of keys can not choose where they come to lie.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers that agree with each other.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    seeds: [u64; 2],
}

impl Default for Spread {
    fn default() -> Self {
        let random = RandomState::new();
        Self { seeds: [random.hash_one(0), random.hash_one(1)] }
    }
}

impl BuildHasher for Spread {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        let [state, seed] = self.seeds;
        Mix { state, seed }
    }
}

/// What was written so far.
pub(super) struct Mix {
    state: u64,
    seed: u64,
}

impl Mix {
    /// Both halves of a product: every bit of either number tells in it.
    fn mix(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(self.seed | 1);
        self.state = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(number));
        }
    }

    fn write_i64(&mut self, number: i64) {
        self.mix(number.cast_unsigned());
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::book::packed;
    use super::*;

    /// Those that differ in one bit, of whichever part, come to lie apart, in the lowest bits and in the highest.
    #[test]
    fn neighbours_lie_apart() {
        let spread = Spread::default();
        let subscribers = (0..64).map(|bit| (1 ^ (1 << bit), 7));
        let slots = subscribers.chain((0..128).map(|bit| (1, 7 ^ (1 << bit)))).map(packed);
        let hashes: Vec<u64> = slots.map(|slot| spread.hash_one(slot)).collect();
        for shift in [0, 48] {
            let ends: BTreeSet<u64> = hashes.iter().map(|hash| (hash >> shift) & 0xffff).collect();
            assert!(ends.len() > 170, "{} of {}", ends.len(), hashes.len());
        }
    }
}
