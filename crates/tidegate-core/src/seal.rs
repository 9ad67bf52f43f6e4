//! Secrets at rest: sealed with the master key and bound to the row they belong to.
//!
//! A sealed secret names its key, so that the master key can be changed while both are in use: a [`Keyring`] seals with
//! the current one, opens with either, and moves what is sealed from one to the other.

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

    /// The key's public name, in hex.
    pub fn id(&self) -> String {
        self.key_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The name of the key that sealed something, in hex.
    pub fn id_in(sealed: &[u8]) -> Option<String> {
        let id = sealed.strip_prefix(&[FORMAT])?.get(..KEY_ID_LEN)?;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn has_sealed(&self, sealed: &[u8]) -> bool {
        sealed.strip_prefix(&[FORMAT]).is_some_and(|rest| rest.starts_with(&self.key_id))
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

/// The master key, and while it is being changed the one before it, or the one after it.
#[derive(Clone, Debug)]
pub struct Keyring {
    current: Sealer,
    previous: Option<Sealer>,
    next: Option<Sealer>,
}

impl From<Sealer> for Keyring {
    fn from(current: Sealer) -> Self {
        Self { current, previous: None, next: None }
    }
}

impl Keyring {
    /// The current key and the one before it.
    pub fn new(current: &[u8; 32], previous: Option<&[u8; 32]>) -> Self {
        let (current, previous) = (Sealer::new(current), previous.map(Sealer::new));
        let previous = previous.filter(|previous| previous.key_id != current.key_id);
        Self { current, previous, next: None }
    }

    /// The same with a key that others seal with already. What they sealed is opened, and stays as it is.
    pub fn expecting(mut self, next: Option<&[u8; 32]>) -> Self {
        self.next = next.map(Sealer::new);
        self
    }

    /// The current key.
    pub fn current(&self) -> &Sealer {
        &self.current
    }

    /// The key before it, while there may be something that it sealed.
    pub fn previous(&self) -> Option<&Sealer> {
        self.previous.as_ref()
    }

    /// Opens what any of its keys has sealed for this row.
    pub fn open(&self, sealed: &[u8], row: &str) -> Result<Vec<u8>, SealProblem> {
        let others = self.previous.iter().chain(&self.next);
        let other = others.into_iter().find(|other| other.has_sealed(sealed));
        other.unwrap_or(&self.current).open(sealed, row)
    }

    /// The same secret under the current key; `None` when it is there already, or ahead of it. The nonce stays what it was: it was
    /// random, and has not been used with this key.
    pub fn reseal(&self, sealed: &[u8], row: &str) -> Result<Option<Vec<u8>>, SealProblem> {
        if self.current.has_sealed(sealed) || self.next.as_ref().is_some_and(|next| next.has_sealed(sealed)) {
            return Ok(None);
        }
        let secret = self.open(sealed, row)?;
        let nonce = sealed[1 + KEY_ID_LEN..][..NONCE_LEN].try_into().expect("it was opened");
        Ok(Some(self.current.seal(&secret, row, nonce)))
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

    #[test]
    fn a_ring_moves_what_is_sealed_from_one_key_to_the_other() {
        let (old, new) = (Sealer::new(&[7; 32]), Sealer::new(&[8; 32]));
        let ring = Keyring::new(&[8; 32], Some(&[7; 32]));
        let sealed = old.seal(b"whsec_x", "1/a", [9; 24]);
        assert_eq!(ring.open(&sealed, "1/a").unwrap(), b"whsec_x");
        let moved = ring.reseal(&sealed, "1/a").unwrap().unwrap();
        assert_eq!(new.open(&moved, "1/a").unwrap(), b"whsec_x");
        assert_eq!(old.open(&moved, "1/a"), Err(SealProblem::OtherKey));
        assert_eq!(ring.reseal(&moved, "1/a"), Ok(None));
        assert_eq!(ring.reseal(&sealed, "1/b"), Err(SealProblem::Damaged));
        let alone = Keyring::from(new);
        assert_eq!(alone.open(&sealed, "1/a"), Err(SealProblem::OtherKey));
        assert_eq!(alone.reseal(&sealed, "1/a"), Err(SealProblem::OtherKey));
        assert!(Keyring::new(&[7; 32], Some(&[7; 32])).previous().is_none());
        let early = Keyring::new(&[7; 32], None).expecting(Some(&[8; 32]));
        assert_eq!(early.open(&moved, "1/a").unwrap(), b"whsec_x", "others are ahead");
        assert_eq!(early.reseal(&moved, "1/a"), Ok(None), "and are not held back");
        assert_eq!(Sealer::id_in(&sealed), Some(old.id()));
        assert_eq!(old.id().len(), 8);
    }
}
