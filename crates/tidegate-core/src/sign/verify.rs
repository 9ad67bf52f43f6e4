//! Checking a signature, for people who wonder why theirs fails.
//!
//! A refusal is cheap; a reason is what helps. So when the signature does not match, the usual accidents are tried
//! in turn: a body that was parsed and printed again, a line break at its end, a secret without its prefix. The
//! answer is a refusal in every case. This serves the command line, not the hot path.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

use super::asymmetric::{self, PUBLIC_PREFIX};
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
/// The secret is what signed (`whsec_…`, `whsk_…` or any text), or the public key to what did (`whpk_…`).
/// `timestamp` and `signatures` are the headers `webhook-timestamp` and `webhook-signature` as received.
pub fn verify(
    secret: &str,
    id: &str,
    timestamp: &str,
    signatures: &str,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Complaint> {
    let checker = Checker::parse(secret)?;
    let (id, timestamp) = (id.trim(), timestamp.trim());
    if id.is_empty() {
        return Err(Complaint::Missing("webhook-id"));
    }
    let at = read_timestamp(timestamp)?;
    let request = Request { id, timestamp, tags: read_signatures(signatures, checker.version())? };
    if !request.fits(&checker, body) {
        return Err(request.explain(secret, &checker, body));
    }
    check_age(at, now)
}

/// What signatures are checked with.
enum Checker {
    Signer(Signer),
    Public([u8; 32]),
}

impl Checker {
    fn parse(secret: &str) -> Result<Self, SecretProblem> {
        match secret.strip_prefix(PUBLIC_PREFIX) {
            Some(encoded) => asymmetric::read_public(encoded).map(Self::Public),
            None => Signer::parse(secret).map(Self::Signer),
        }
    }

    /// Which entries of the header it can judge.
    fn version(&self) -> &'static str {
        match self {
            Self::Signer(signer) if signer.is_hmac() => "v1",
            _ => "v1a",
        }
    }

    fn fits(&self, tag: &[u8], signed: &[u8]) -> bool {
        match self {
            Self::Signer(signer) => signer.matches(tag, signed),
            Self::Public(key) => asymmetric::is_right(key, signed, tag),
        }
    }
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

/// The bytes of every signature of this version. Others are passed over, as the specification asks.
fn read_signatures(header: &str, wanted: &'static str) -> Result<Vec<Vec<u8>>, Complaint> {
    const NAME: &str = "webhook-signature";
    if header.trim().is_empty() {
        return Err(Complaint::Missing(NAME));
    }
    let mut tags = Vec::new();
    for entry in header.split_whitespace() {
        let (version, encoded) =
            entry.split_once(',').ok_or(Complaint::Garbled(NAME, "expected v1,<base64> entries"))?;
        if version == wanted {
            let tag = STANDARD.decode(encoded);
            tags.push(tag.map_err(|_| Complaint::Garbled(NAME, "an entry is not base64"))?);
        }
    }
    match (tags.is_empty(), wanted) {
        (false, _) => Ok(tags),
        (true, "v1") => Err(Complaint::Garbled(NAME, "it has no v1 entry, which this secret could check")),
        (true, _) => Err(Complaint::Garbled(NAME, "it has no v1a entry, which this key could check")),
    }
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
    fn fits(&self, checker: &Checker, body: &[u8]) -> bool {
        let signed = [self.id.as_bytes(), b".", self.timestamp.as_bytes(), b".", body].concat();
        self.tags.iter().fold(false, |fits, tag| checker.fits(tag, &signed) | fits)
    }

    fn explain(&self, secret: &str, checker: &Checker, body: &[u8]) -> Complaint {
        let with_secret = |text: &str| Checker::parse(text).is_ok_and(|checker| self.fits(&checker, body));
        if with_secret(secret.trim()) {
            return Complaint::SecretSpace;
        }
        if with_secret(&format!("{PREFIX}{}", secret.trim())) {
            return Complaint::SecretPrefix;
        }
        let trimmed = body.trim_ascii_end();
        let with_end = |end: &[u8]| self.fits(checker, &[trimmed, end].concat());
        if with_end(b"") || with_end(b"\n") || with_end(b"\r\n") {
            return Complaint::TrailingSpace;
        }
        if printed_forms(body).iter().any(|form| self.fits(checker, form)) {
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
