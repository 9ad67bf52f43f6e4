//! Checking a signature, for people who wonder why theirs fails.
//!
//! A refusal is cheap; a reason is what helps. So when the signature does not match, the usual accidents are tried
//! in turn: a body that was parsed and printed again, a line break at its end, a secret without its prefix. The
//! answer is a refusal in every case. This serves the command line, not the hot path.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use super::{PREFIX, SecretProblem, Signer};
use crate::time::{Span, Timestamp};

/// How far the sender's clock may be from ours, in either direction.
const TOLERANCE_MS: i64 = 5 * 60 * 1000;

/// What is wrong with a signed request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Complaint {
    /// The secret is not one.
    #[error("{0}")]
    Secret(#[from] SecretProblem),
    /// A header is missing or empty.
    #[error("the header {0} is missing or empty")]
    Missing(&'static str),
    /// A header can not be read.
    #[error("the header {0} is garbled: {1}")]
    Garbled(&'static str, &'static str),
    /// The signature is right, and too old.
    #[error(
        "the signature is right but was made {0} ago, and 5m is the most: a replay, or a slow clock here"
    )]
    TooOld(Span),
    /// The signature is right, and from the future.
    #[error("the signature is right but dated {0} ahead, and 5m is the most: one of the clocks is wrong")]
    TooNew(Span),
    /// The body would be right if JSON had not been parsed and printed again.
    #[error(
        "the body was re-serialised: check the signature over the bytes as received, before parsing them"
    )]
    Reserialised,
    /// The body would be right but for white space at its end.
    #[error("the body gained or lost a line break or white space at its end")]
    TrailingSpace,
    /// The secret would be right but for white space around it.
    #[error("the secret has white space around it")]
    SecretSpace,
    /// The secret would be right with its prefix.
    #[error("the secret lacks its prefix whsec_, so it was used as text instead of being decoded")]
    SecretPrefix,
    /// Nothing fits.
    #[error(
        "the signature does not match: it was made with another secret, or the id, the timestamp or the body \
         was changed"
    )]
    Mismatch,
}

/// Whether a request was signed with `secret` within five minutes of `now`; otherwise what is wrong with it.
/// `timestamp` and `signatures` are the headers `webhook-timestamp` and `webhook-signature` as received.
pub fn verify(
    secret: &str,
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Complaint> {
    let signer = Signer::parse(secret)?;
    let (id, timestamp) = (id.trim(), timestamp.trim());
    if id.is_empty() {
        return Err(Complaint::Missing("webhook-id"));
    }
    let at = read_timestamp(timestamp)?;
    let request = Request { id, timestamp, tags: read_signatures(signatures)? };
    if !request.fits(&signer, body) {
        return Err(request.explain(secret, &signer, body));
    }
    check_age(at, now)
}

fn read_timestamp(text: &str) -> Result<Timestamp, Complaint> {
    if text.is_empty() {
        return Err(Complaint::Missing("webhook-timestamp"));
    }
    let seconds = text.parse::<i64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let ms = seconds.and_then(|seconds| seconds.checked_mul(1000));
    ms.map(Timestamp::from_ms)
        .ok_or(Complaint::Garbled("webhook-timestamp", "expected whole seconds since 1970"))
}

/// The bytes of every `v1` signature. Other versions are passed over, as the specification asks.
fn read_signatures(header: &str) -> Result<Vec<Vec<u8>>, Complaint> {
    const NAME: &str = "webhook-signature";
    if header.trim().is_empty() {
        return Err(Complaint::Missing(NAME));
    }
    let mut tags = Vec::new();
    for entry in header.split_whitespace() {
        let (version, encoded) =
            entry.split_once(',').ok_or(Complaint::Garbled(NAME, "expected v1,<base64> entries"))?;
        if version == "v1" {
            let tag = STANDARD.decode(encoded);
            tags.push(tag.map_err(|_| Complaint::Garbled(NAME, "a v1 entry is not base64"))?);
        }
    }
    if tags.is_empty() { Err(Complaint::Garbled(NAME, "it has no v1 entry")) } else { Ok(tags) }
}

fn check_age(at: Timestamp, now: Timestamp) -> Result<(), Complaint> {
    let age_ms = now.as_ms() - at.as_ms();
    // Whole seconds: that is all a timestamp has, and all a person needs.
    let span = Span::from_ms(age_ms.unsigned_abs() / 1000 * 1000);
    if age_ms > TOLERANCE_MS {
        return Err(Complaint::TooOld(span));
    }
    if age_ms < -TOLERANCE_MS {
        return Err(Complaint::TooNew(span));
    }
    Ok(())
}

struct Request<'a> {
    id: &'a str,
    timestamp: &'a str,
    tags: Vec<Vec<u8>>,
}

impl Request<'_> {
    /// Every signature is tried, whichever fits: the time taken does not tell which.
    fn fits(&self, signer: &Signer, body: &[u8]) -> bool {
        self.tags.iter().fold(false, |fits, tag| signer.matches(tag, self.id, self.timestamp, body) | fits)
    }

    fn explain(&self, secret: &str, signer: &Signer, body: &[u8]) -> Complaint {
        let with_secret = |text: &str| Signer::parse(text).is_ok_and(|signer| self.fits(&signer, body));
        if with_secret(secret.trim()) {
            return Complaint::SecretSpace;
        }
        if with_secret(&format!("{PREFIX}{}", secret.trim())) {
            return Complaint::SecretPrefix;
        }
        let trimmed = body.trim_ascii_end();
        let with_end = |end: &[u8]| self.fits(signer, &[trimmed, end].concat());
        if with_end(b"") || with_end(b"\n") || with_end(b"\r\n") {
            return Complaint::TrailingSpace;
        }
        if printed_forms(body).iter().any(|form| self.fits(signer, form)) {
            return Complaint::Reserialised;
        }
        Complaint::Mismatch
    }
}

/// The ways common libraries print the JSON in `body`: compact, with a space after colons and commas, indented, and
/// each of them with the members of objects sorted. None when it is not JSON.
fn printed_forms(body: &[u8]) -> Vec<Vec<u8>> {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        return Vec::new();
    };
    let compact = respace(body, b"", b"");
    let sorted = serde_json::to_vec(&value).unwrap_or_default();
    let indented = serde_json::to_vec_pretty(&value).unwrap_or_default();
    let spaced = respace(body, b" ", b" ");
    let sorted_spaced = respace(&sorted, b" ", b" ");
    vec![compact, spaced, sorted, sorted_spaced, indented]
}

/// JSON with the white space between its tokens replaced: `colon` after colons, `comma` after commas, else none.
fn respace(json: &[u8], colon: &[u8], comma: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut in_text, mut is_escaped) = (false, false);
    for &byte in json {
        if in_text {
            out.push(byte);
            in_text = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => continue,
            b'"' => in_text = true,
            _ => {}
        }
        out.push(byte);
        match byte {
            b':' => out.extend_from_slice(colon),
            b',' => out.extend_from_slice(comma),
            _ => {}
        }
    }
    out
}
