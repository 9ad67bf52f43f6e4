//! `PUT /v1/subscribers/{id}`: a subscriber as its owner wants it to be, made or changed until it is so.
//!
//! What `tidegate apply` stands on. Saying the same twice changes nothing; `?dry_run=true` tells what would change and
//! changes nothing. What matters only at creation (`from`, `secret`) is left aside when the subscriber is there, except
//! that another secret is refused: it would look as if it had been taken over.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use tidegate_core::limits::SUBSCRIBER_ID_BYTES_MAX;
use tidegate_core::sign::Signer;
use tidegate_core::subscriber::{Creation, Patched, differences, read, replace, validate};

use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::subscribers::{carry_out, check_headers, make, shown};
use super::{App, json_answer};
use crate::roster::Endpoint;

/// Makes or changes the subscriber with this id.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let is_trial = Query::parse(raw.as_deref())?.flag("dry_run")?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let declared = parse(&id, &body)?;
    app.patch(|| declare(&app, &caller, &id, &declared, is_trial)).await
}

async fn declare(
    app: &App,
    caller: &Caller,
    id: &str,
    declared: &Map<String, Value>,
    is_trial: bool,
) -> Answer {
    let Ok(endpoint) = app.endpoint(caller, id) else {
        return create(app, caller, id.to_owned(), declared, is_trial).await;
    };
    refuse_other_secret(app, &endpoint, declared)?;
    let patched = replace(endpoint.definition(), declared)?;
    patched.validate(&|url| app.check_url(url), &check_headers)?;
    let fields = fields(&endpoint, &patched);
    let change = if fields.is_empty() { "none" } else { "update" };
    let mut answer =
        if is_trial { json!({ "id": id }) } else { change_to(app, caller, &endpoint, patched).await? };
    answer["change"] = change.into();
    answer["fields"] = fields.into();
    Ok(json_answer(StatusCode::OK, &answer))
}

fn parse(id: &str, body: &[u8]) -> Result<Map<String, Value>, Problem> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    // As a step of a path the two mean something else, and clients take them out.
    let is_step = matches!(id, "." | "..");
    if id.len() > SUBSCRIBER_ID_BYTES_MAX || !id.chars().all(legal) || is_step {
        let detail = format!(
            "an id has 1 to {SUBSCRIBER_ID_BYTES_MAX} letters, digits, `_`, `-` and `.`, and is not `.` or `..`"
        );
        return Err(Problem::invalid("id_invalid", "id", detail));
    }
    let mut members: Map<String, Value> = read(body)?;
    if members.remove("id").is_some_and(|inner| inner != id) {
        return Err(Problem::invalid("id_invalid", "id", "`id` must be that of the path, or absent"));
    }
    Ok(members)
}

async fn create(
    app: &App,
    caller: &Caller,
    id: String,
    declared: &Map<String, Value>,
    is_trial: bool,
) -> Answer {
    let body = serde_json::to_vec(declared).expect("JSON that was read is written again");
    let creation = Creation::parse(&body)?;
    validate(&creation.definition, &|url| app.check_url(url), &check_headers)?;
    if is_trial {
        return Ok(json_answer(StatusCode::OK, &json!({ "id": id, "change": "create", "fields": [] })));
    }
    let mut answer = make(app, caller, id, creation).await?;
    answer["change"] = "create".into();
    Ok(json_answer(StatusCode::CREATED, &answer))
}

fn refuse_other_secret(app: &App, endpoint: &Endpoint, declared: &Map<String, Value>) -> Result<(), Problem> {
    let secret = declared.get("secret").and_then(Value::as_str);
    let Some(given) = secret.and_then(|secret| Signer::parse(secret).ok()) else { return Ok(()) };
    let current = &endpoint.signers(app.parts.clock.now())[0];
    // Two keys are the same if they sign alike.
    if current.signature("id", 0, b"") == given.signature("id", 0, b"") {
        return Ok(());
    }
    let detail = "another secret is set by rotate-secret, which keeps the old one valid for a while";
    Err(Problem::invalid("field_fixed", "secret", detail))
}

/// What differs, member by member. Addresses and headers may hold secrets: of them only the names are told.
fn fields(endpoint: &Endpoint, patched: &Patched) -> Vec<Value> {
    let value = |definition| serde_json::to_value(definition).unwrap_or_default();
    let mut told: Vec<Value> = differences(&value(endpoint.definition()), &value(&patched.definition))
        .into_iter()
        .map(|(field, from, to)| {
            let is_secret = field.starts_with("destination.url") || field.starts_with("destination.headers");
            if is_secret {
                json!({ "field": field })
            } else {
                json!({ "field": field, "from": from, "to": to })
            }
        })
        .collect();
    if let Some(active) = patched.active.filter(|active| *active != endpoint.active) {
        told.push(json!({ "field": "active", "from": endpoint.active, "to": active }));
    }
    told
}

async fn change_to(
    app: &App,
    caller: &Caller,
    endpoint: &Endpoint,
    mut patched: Patched,
) -> Result<Value, Problem> {
    patched.active = patched.active.filter(|active| *active != endpoint.active);
    carry_out(app, caller, endpoint, patched).await?;
    Ok(shown(app, &*app.endpoint(caller, &endpoint.rule.id)?))
}
