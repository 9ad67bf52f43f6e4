//! Secrets at rest: sealed with the master key and bound to the row they belong to.
//!
//! A sealed secret names its key, so that the master key can be changed while both are in use.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use ring::digest;

const FORMAT: u8 = 1;
const KEY_ID_LEN: usize = 4;
const NONCE_LEN: usize = 24;

/// Why a sealed secret can not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealProblem {
    /// Sealed with another master key.
    #[error("the secret was sealed with another master key")]
    OtherKey,
    /// Changed, cut short, or moved from another row.
    #[error("the sealed secret is damaged or belongs to another row")]
    Damaged,
}

/// Seals and opens with one master key.
#[derive(Clone)]
pub struct Sealer {
    cipher: XChaCha20Poly1305,
    key_id: [u8; KEY_ID_LEN],
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Sealer {
    /// With this master key.
    pub fn new(master: &[u8; 32]) -> Self {
        let id = digest::digest(&digest::SHA256, master);
        let key_id = id.as_ref()[..KEY_ID_LEN].try_into().expect("SHA-256 has 32 bytes");
        Self { cipher: XChaCha20Poly1305::new(&(*master).into()), key_id }
    }

    /// Seals `secret` for the row that `row` names. `nonce` must be random.
    pub fn seal(&self, secret: &[u8], row: &str, nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let payload = Payload { msg: secret, aad: row.as_bytes() };
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload).expect("a secret is short");
        [&[FORMAT][..], &self.key_id, &nonce, &sealed].concat()
    }

    /// Opens what was sealed for this row.
    pub fn open(&self, sealed: &[u8], row: &str) -> Result<Vec<u8>, SealProblem> {
        let rest = sealed.strip_prefix(&[FORMAT]).ok_or(SealProblem::Damaged)?;
        let (key_id, rest) = rest.split_at_checked(KEY_ID_LEN).ok_or(SealProblem::Damaged)?;
        if key_id != self.key_id {
            return Err(SealProblem::OtherKey);
        }
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or(SealProblem::Damaged)?;
        let nonce: [u8; NONCE_LEN] = nonce.try_into().map_err(|_| SealProblem::Damaged)?;
        let payload = Payload { msg: text, aad: row.as_bytes() };
        self.cipher.decrypt(&XNonce::from(nonce), payload).map_err(|_| SealProblem::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_for_its_own_row_and_key_only() {
        let sealer = Sealer::new(&[7; 32]);
        let sealed = sealer.seal(b"whsec_x", "1/sub_a", [9; 24]);
        assert_eq!(sealer.open(&sealed, "1/sub_a").unwrap(), b"whsec_x");
        assert_eq!(sealer.open(&sealed, "1/sub_b"), Err(SealProblem::Damaged));
        assert_eq!(Sealer::new(&[8; 32]).open(&sealed, "1/sub_a"), Err(SealProblem::OtherKey));
        assert_eq!(sealer.open(&sealed[..20], "1/sub_a"), Err(SealProblem::Damaged));
        assert_eq!(sealer.open(&[], "1/sub_a"), Err(SealProblem::Damaged));
        let mut flipped = sealed.clone();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(sealer.open(&flipped, "1/sub_a"), Err(SealProblem::Damaged));
        assert!(!sealed.windows(7).any(|window| window == b"whsec_x"));
    }
}
