//! The one source of chance: ids, secrets, keys, nonces, jitter. Seeded in simulation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate_core::id::Nonce;

/// Gives random numbers. Cheap to clone; all clones draw from the same source.
#[derive(Clone)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    /// Seeded by the operating system; good for secrets.
    pub fn system() -> Self {
        let mut seed = <StdRng as SeedableRng>::Seed::default();
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut seed)
            .expect("the operating system gives random bytes");
        Self(Arc::new(Mutex::new(StdRng::from_seed(seed))))
    }

    /// The same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// A random number.
    pub fn u64(&self) -> u64 {
        self.lock().next_u64()
    }

    /// For the deliveries of one session with a store; 0 stands for those from before there were nonces.
    pub fn nonce(&self) -> Nonce {
        ((self.u64() >> 32) as Nonce).max(1)
    }

    /// A random number.
    pub fn u128(&self) -> u128 {
        let mut rng = self.lock();
        (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64())
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.lock().fill_bytes(&mut bytes);
        bytes
    }

    fn lock(&self) -> MutexGuard<'_, StdRng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
