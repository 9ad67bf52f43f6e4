//! Signatures, as Standard Webhooks 1.0 describe them.
//!
//! What is signed is `id.timestamp.body`, with HMAC-SHA256 (`v1`) or Ed25519 (`v1a`); the timestamp is that of the
//! attempt, so every attempt is signed anew. [`Signer`] signs, [`verify`] checks and says what is wrong.
//! Promises: stored bytes are signed bytes are sent bytes, nothing is parsed in between; no secret is ever printed.

mod asymmetric;
mod verify;

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use thiserror::Error;

pub use self::asymmetric::private_key_from;
pub use self::verify::{Complaint, verify};
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, SECRET_TEXT_BYTES_MAX};

const PREFIX: &str = "whsec_";

/// A signing secret, ready for use.
#[derive(Clone)]
pub struct Signer {
    key: Key,
}

#[derive(Clone)]
enum Key {
    Hmac(hmac::Key),
    Ed25519(Arc<Ed25519KeyPair>),
}

/// Why a text can not be a signing secret. Never repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretProblem {
    /// Nothing at all.
    #[error("the secret is empty")]
    Empty,
    /// Longer than [`SECRET_TEXT_BYTES_MAX`].
    #[error("the secret is longer than {SECRET_TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// `whsec_` and something else than base64.
    #[error("the secret begins with whsec_ but what follows is not base64")]
    NotBase64,
    /// `whsec_` and too few or too many bytes.
    #[error("a whsec_ secret holds {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one {0}")]
    Size(usize),
    /// `whsk_` and something else than an Ed25519 private key.
    #[error(
        "what follows whsk_ is not an Ed25519 private key: 64 bytes in base64, the seed and its public key"
    )]
    PrivateKey,
    /// `whpk_` and something else than an Ed25519 public key.
    #[error("what follows whpk_ is not an Ed25519 public key: 32 bytes in base64")]
    PublicKey,
    /// A public key, where something is to be signed.
    #[error("a whpk_ key is public: it checks signatures and can not make them")]
    Public,
}

impl Signer {
    /// A `whsec_` secret signs with its decoded bytes, a `whsk_` key with Ed25519, any other text with its own bytes.
    pub fn parse(secret: &str) -> Result<Self, SecretProblem> {
        if secret.is_empty() {
            return Err(SecretProblem::Empty);
        }
        if secret.len() > SECRET_TEXT_BYTES_MAX {
            return Err(SecretProblem::TooLong);
        }
        if let Some(encoded) = secret.strip_prefix(asymmetric::PRIVATE_PREFIX) {
            return asymmetric::read_private(encoded).map(|pair| Self { key: Key::Ed25519(pair) });
        }
        if secret.starts_with(asymmetric::PUBLIC_PREFIX) {
            return Err(SecretProblem::Public);
        }
        let Some(encoded) = secret.strip_prefix(PREFIX) else {
            return Ok(Self::new(secret.as_bytes()));
        };
        let bytes = STANDARD_PAD_INDIFFERENT.decode(encoded).map_err(|_| SecretProblem::NotBase64)?;
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            return Err(SecretProblem::Size(bytes.len()));
        }
        Ok(Self::new(&bytes))
    }

    fn new(bytes: &[u8]) -> Self {
        Self { key: Key::Hmac(hmac::Key::new(hmac::HMAC_SHA256, bytes)) }
    }

    /// The key that receivers check with, when it is not the secret itself: `whpk_…`.
    pub fn public_key(&self) -> Option<String> {
        match &self.key {
            Key::Hmac(_) => None,
            Key::Ed25519(pair) => Some(asymmetric::shown(pair)),
        }
    }

    /// Whether it can sign a body alone, as headers such as `x-webhook-signature` ask for.
    pub fn is_hmac(&self) -> bool {
        matches!(self.key, Key::Hmac(_))
    }

    /// Appends `v1,<base64>` or `v1a,<base64>`: one signature of the header `webhook-signature`.
    pub fn sign_into(&self, out: &mut String, id: &str, timestamp_seconds: i64, body: &[u8]) {
        let mut digits = Digits::default();
        let parts = [id.as_bytes(), b".", digits.of(timestamp_seconds), b".", body];
        match &self.key {
            Key::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                parts.iter().for_each(|part| context.update(part));
                out.push_str("v1,");
                STANDARD.encode_string(context.sign(), out);
            }
            Key::Ed25519(pair) => {
                out.push_str("v1a,");
                STANDARD.encode_string(pair.sign(&parts.concat()), out);
            }
        }
    }

    /// One signature of the header `webhook-signature`.
    pub fn signature(&self, id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
        let mut out = String::with_capacity(SIGNATURE_LEN);
        self.sign_into(&mut out, id, timestamp_seconds, body);
        out
    }

    /// Appends the HMAC of the body alone, in lower-case hex; nothing for other kinds of key.
    pub fn hex_into(&self, out: &mut String, body: &[u8]) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let Key::Hmac(key) = &self.key else { return };
        for byte in hmac::sign(key, body).as_ref() {
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }

    /// The HMAC of the body alone, in lower-case hex.
    pub fn hex_signature(&self, body: &[u8]) -> String {
        let mut out = String::with_capacity(64);
        self.hex_into(&mut out, body);
        out
    }

    /// Whether `tag` is the signature of `signed`; takes the same time wherever they differ.
    fn matches(&self, tag: &[u8], signed: &[u8]) -> bool {
        match &self.key {
            Key::Hmac(key) => hmac::verify(key, signed, tag).is_ok(),
            Key::Ed25519(pair) => asymmetric::is_right(pair.public_key().as_ref(), signed, tag),
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(…)")
    }
}

/// Bytes of one HMAC signature as text: `v1,` and 32 bytes in base64.
pub const SIGNATURE_LEN: usize = 3 + 44;

/// A new secret, from bytes of chance.
pub fn secret_from(bytes: [u8; 32]) -> String {
    let mut secret = String::from(PREFIX);
    STANDARD.encode_string(bytes, &mut secret);
    secret
}

/// A number as decimal text without an allocation: this runs once per attempt and signature.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, number: i64) -> &[u8] {
        use std::io::Write as _;
        let mut rest = &mut self.0[..];
        write!(rest, "{number}").expect("20 bytes hold every 64-bit number");
        let left = rest.len();
        &self.0[..20 - left]
    }
}

#[cfg(test)]
mod tests;
