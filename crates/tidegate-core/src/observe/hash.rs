//! How keys are told apart in memory: by a hash that is quick for short ones.

use std::hash::{BuildHasher, Hasher};

/// Folded multiplication: a few nanoseconds for a key, and without the seed no way to find keys that collide.
#[derive(Clone, Copy, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// What comes of it does not depend on the seed, which nobody outside may know.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0 ^ 0x9e37_79b9_7f4a_7c15)
    }
}

/// See [`Seeded`].
#[derive(Debug)]
pub struct Folding(u64);

impl Folding {
    #[inline]
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0xd6e8_feb8_6659_fd93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.fold(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.fold(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.fold(value.into());
    }

    #[inline]
    fn write_i64(&mut self, value: i64) {
        self.fold(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
