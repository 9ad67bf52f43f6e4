//! Ed25519 keys as Standard Webhooks write them: `whsk_` for the private one, `whpk_` for the public one.
//!
//! A private key is 64 bytes (the seed, then the public key) in base64; the seed alone is taken too. Whoever holds
//! the public key can check a signature and make none, so receivers need no secret at all.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use super::SecretProblem;

pub(super) const PRIVATE_PREFIX: &str = "whsk_";
pub(super) const PUBLIC_PREFIX: &str = "whpk_";
const HALF: usize = 32;

/// Reads what follows `whsk_`.
pub(super) fn read_private(encoded: &str) -> Result<Arc<Ed25519KeyPair>, SecretProblem> {
    let bytes = STANDARD_PAD_INDIFFERENT.decode(encoded).map_err(|_| SecretProblem::PrivateKey)?;
    let pair = match bytes.len() {
        HALF => Ed25519KeyPair::from_seed_unchecked(&bytes),
        // The two halves must belong together: a mixed-up pair would give the private key away with its signatures.
        64 => Ed25519KeyPair::from_seed_and_public_key(&bytes[..HALF], &bytes[HALF..]),
        _ => return Err(SecretProblem::PrivateKey),
    };
    pair.map(Arc::new).map_err(|_| SecretProblem::PrivateKey)
}

/// Reads what follows `whpk_`.
pub(super) fn read_public(encoded: &str) -> Result<[u8; HALF], SecretProblem> {
    let bytes = STANDARD_PAD_INDIFFERENT.decode(encoded).map_err(|_| SecretProblem::PublicKey)?;
    bytes.try_into().map_err(|_| SecretProblem::PublicKey)
}

/// A new private key, from bytes of chance.
pub fn private_key_from(seed: [u8; 32]) -> String {
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("32 bytes are a seed");
    let mut key = String::from(PRIVATE_PREFIX);
    STANDARD.encode_string([&seed[..], pair.public_key().as_ref()].concat(), &mut key);
    key
}

/// The public key as text.
pub(super) fn shown(pair: &Ed25519KeyPair) -> String {
    let mut key = String::from(PUBLIC_PREFIX);
    STANDARD.encode_string(pair.public_key().as_ref(), &mut key);
    key
}

pub(super) fn is_right(public: &[u8], signed: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(signed, signature).is_ok()
}
