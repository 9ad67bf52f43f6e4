//! A subscriber in NeoForge's words: `name`, `url`, `secret`, `eventFilter`, `active`.
//!
//! Requests are rewritten into our own words and then go the ordinary way, so that the same rules hold; what is wrong
//! is named in the words of the caller.

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::sign::Signer;
use tidegate_core::subscriber::{Creation, Definition, Invalid, Patched, Start, mask_url, patch, read};
use tidegate_core::time::Timestamp;

use crate::roster::Endpoint;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Registration {
    name: String,
    url: String,
    secret: Option<String>,
    #[serde(rename = "eventFilter")]
    event_filter: Option<Vec<String>>,
    active: Option<bool>,
}

/// Reads a registration. It gets what is kept already, in order and in batches, and has no secret unless it brings one.
pub(super) fn parse(body: &[u8]) -> Result<Creation, Invalid> {
    let form: Registration = read(if body.is_empty() { b"{}" } else { body })?;
    check_secret(form.secret.as_deref())?;
    let ours = json!({
        "name": form.name,
        "match": { "types": form.event_filter.unwrap_or_default() },
        "fold": { "mode": "batch", "every": "30s", "max_events": 1000 },
        "destination": { "url": form.url, "payload": "events" },
        "order": { "by": "subscriber" },
        "active": form.active.unwrap_or(true),
    });
    let creation = Creation::parse(ours.to_string().as_bytes()).map_err(in_their_words)?;
    Ok(Creation { secret: form.secret, from: Start::Beginning, ..creation })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Amendment {
    name: Option<String>,
    url: Option<String>,
    secret: Option<String>,
    #[serde(rename = "eventFilter", default, deserialize_with = "given")]
    event_filter: Option<Option<Vec<String>>>,
    active: Option<bool>,
}

/// Tells `null` from absence: a filter that is null is none.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Vec<String>>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Reads a change of a subscriber; also answers the new secret, if there is one.
pub(super) fn amend(current: &Definition, body: &[u8]) -> Result<(Patched, Option<String>), Invalid> {
    let form: Amendment = read(if body.is_empty() { b"{}" } else { body })?;
    check_secret(form.secret.as_deref())?;
    let mut ours = json!({});
    if let Some(name) = form.name {
        ours["name"] = name.into();
    }
    if let Some(url) = form.url {
        ours["destination"] = json!({ "url": url });
    }
    if let Some(filter) = form.event_filter {
        ours["match"] = json!({ "types": filter.unwrap_or_default() });
    }
    if let Some(active) = form.active {
        ours["active"] = active.into();
    }
    let patched = patch(current, ours.to_string().as_bytes()).map_err(in_their_words)?;
    Ok((patched, form.secret))
}

/// Any text of 1 to 256 bytes signs with its own bytes; `whsec_…` with those it stands for.
fn check_secret(secret: Option<&str>) -> Result<(), Invalid> {
    let problem = match secret.map(Signer::parse) {
        None => return Ok(()),
        Some(Ok(signer)) if signer.is_hmac() => return Ok(()),
        Some(Ok(_)) => "an Ed25519 key can not sign `x-webhook-signature`".to_owned(),
        Some(Err(problem)) => problem.to_string(),
    };
    let detail = format!("`secret`: {problem}");
    Err(Invalid { code: "secret_invalid", field: Some("secret".to_owned()), detail, syntax: false })
}

/// What to say about a secret that is only a text; nothing about a good one.
pub(super) fn warning(secret: Option<&str>) -> Option<&'static str> {
    let is_weak = secret.is_some_and(|secret| !secret.starts_with("whsec_"));
    is_weak.then_some("the secret is a plain text; leave it out to get a random one, whsec_…")
}

/// Names a field as the caller wrote it.
pub(super) fn in_their_words(mut invalid: Invalid) -> Invalid {
    for (ours, theirs) in [("destination.url", "url"), ("match.types", "eventFilter")] {
        invalid.detail = invalid.detail.replace(ours, theirs);
        invalid.field = invalid.field.map(|field| field.replace(ours, theirs));
    }
    invalid
}

/// A subscriber as these clients know it.
pub(super) fn shown(endpoint: &Endpoint, last_success: Option<Timestamp>) -> Value {
    let definition = endpoint.definition();
    let filter = &definition.matching.types;
    json!({
        "id": endpoint.rule.id,
        "name": definition.name,
        "url": mask_url(&definition.destination.url),
        "active": endpoint.active,
        "eventFilter": if filter.is_empty() { Value::Null } else { json!(filter) },
        "createdAt": endpoint.created_at,
        "lastSuccessfulDeliveryAt": last_success,
    })
}
