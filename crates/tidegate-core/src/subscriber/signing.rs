//! How a subscriber's deliveries are signed, and how its secret is changed.
//!
//! `webhook-id`, `webhook-timestamp` and `webhook-signature` are always sent. What else a receiver may know how to
//! check comes in addition, so that it can move to the standard headers without a change here.

use serde::{Deserialize, Serialize};

use super::definition::Definition;
use super::invalid::{Invalid, read};
use super::validate::check_secret;
use crate::headers::check_prefix;
use crate::limits::{SECRET_GRACE_DEFAULT_MS, SECRET_GRACE_MAX_MS};
use crate::time::Span;

/// How deliveries are signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Signing {
    /// With what kind of key. Changed by rotating the secret.
    pub algorithm: Algorithm,
    /// Repeats the three headers under another prefix: `svix` adds `svix-id`, `svix-timestamp`, `svix-signature`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_prefix: Option<String>,
    /// Adds `x-hub-signature-256`, as GitHub sends it.
    pub github: bool,
}

/// With what kind of key deliveries are signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// HMAC-SHA256: sender and receiver share a secret.
    #[default]
    Hmac,
    /// Ed25519: the receiver has the public key only.
    Ed25519,
}

pub(super) fn validate_signing(definition: &Definition) -> Result<(), Invalid> {
    let signing = &definition.signing;
    if signing.github && signing.algorithm != Algorithm::Hmac {
        let detail = "`signing.github` needs the algorithm `hmac`: its header has no room for another";
        return Err(Invalid::new("signing_conflict", "signing.github", detail));
    }
    let Some(prefix) = &signing.header_prefix else { return Ok(()) };
    check_prefix(prefix, &definition.destination.headers)
        .map_err(|problem| Invalid::new("header_refused", "signing.header_prefix", problem.to_string()))
}

/// What `POST /v1/subscribers/{id}/rotate-secret` takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// The new secret its owner brings along; absent means a new one.
    pub secret: Option<String>,
    /// For how long the old one goes on signing.
    pub grace: Span,
    /// The whole definition, when the algorithm changes with the secret.
    pub definition: Option<Definition>,
    /// What the new secret is for.
    pub algorithm: Algorithm,
}

impl Rotation {
    /// Reads the body of a request about the subscriber with this definition.
    pub fn parse(current: &Definition, body: &[u8]) -> Result<Self, Invalid> {
        let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
        let form: Form = read(body)?;
        if form.grace.0.as_millis() > u128::from(SECRET_GRACE_MAX_MS) {
            let days = SECRET_GRACE_MAX_MS / (24 * 3_600_000);
            return Err(Invalid::new("field_range", "grace", format!("`grace` is at most {days}d")));
        }
        let algorithm = form.signing.algorithm.unwrap_or(current.signing.algorithm);
        if let Some(secret) = &form.secret {
            check_secret(secret, algorithm)
                .map_err(|detail| Invalid::new("secret_invalid", "secret", detail))?;
        }
        let mut changed = current.clone();
        changed.signing.algorithm = algorithm;
        validate_signing(&changed)?;
        let definition = (algorithm != current.signing.algorithm).then_some(changed);
        Ok(Self { secret: form.secret, grace: form.grace, definition, algorithm })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    secret: Option<String>,
    #[serde(default = "grace_default")]
    grace: Span,
    #[serde(default)]
    signing: FormSigning,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormSigning {
    algorithm: Option<Algorithm>,
}

fn grace_default() -> Span {
    Span::from_ms(SECRET_GRACE_DEFAULT_MS)
}
