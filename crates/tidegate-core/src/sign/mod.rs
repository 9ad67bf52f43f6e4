//! Signatures, as Standard Webhooks 1.0 describe them.
//!
//! What is signed is `id.timestamp.body`, with HMAC-SHA256; the timestamp is that of the attempt, so every attempt
//! is signed anew. [`Signer`] signs, [`verify`] checks and says what is wrong.
//! Promises: stored bytes are signed bytes are sent bytes, nothing is parsed in between; no secret is ever printed.

mod verify;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use ring::hmac;
use thiserror::Error;

pub use self::verify::{Complaint, verify};
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, SECRET_TEXT_BYTES_MAX};

const PREFIX: &str = "whsec_";

/// A signing secret, ready for use.
#[derive(Clone)]
pub struct Signer {
    key: hmac::Key,
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
}

impl Signer {
    /// A `whsec_` secret signs with its decoded bytes, any other text with its own.
    pub fn parse(secret: &str) -> Result<Self, SecretProblem> {
        if secret.is_empty() {
            return Err(SecretProblem::Empty);
        }
        if secret.len() > SECRET_TEXT_BYTES_MAX {
            return Err(SecretProblem::TooLong);
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
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }

    /// Appends `v1,<base64>`: one signature of the header `webhook-signature`.
    pub fn sign_into(&self, out: &mut String, id: &str, timestamp_seconds: i64, body: &[u8]) {
        let mut context = hmac::Context::with_key(&self.key);
        let mut digits = Digits::default();
        for part in [id.as_bytes(), b".", digits.of(timestamp_seconds), b".", body] {
            context.update(part);
        }
        out.push_str("v1,");
        STANDARD.encode_string(context.sign(), out);
    }

    /// One signature of the header `webhook-signature`.
    pub fn signature(&self, id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
        let mut out = String::with_capacity(SIGNATURE_LEN);
        self.sign_into(&mut out, id, timestamp_seconds, body);
        out
    }

    /// Appends the HMAC of the body alone, in lower-case hex.
    pub fn hex_into(&self, out: &mut String, body: &[u8]) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        for byte in hmac::sign(&self.key, body).as_ref() {
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

    /// Whether `tag` is the signature of these parts; takes the same time wherever they differ.
    fn matches(&self, tag: &[u8], id: &str, timestamp: &str, body: &[u8]) -> bool {
        let mut signed = Vec::with_capacity(id.len() + timestamp.len() + body.len() + 2);
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            signed.extend_from_slice(part);
        }
        hmac::verify(&self.key, &signed, tag).is_ok()
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer(…)")
    }
}

/// Bytes of one signature as text: `v1,` and 32 bytes in base64.
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
