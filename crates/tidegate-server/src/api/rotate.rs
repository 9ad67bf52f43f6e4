//! `/v1/subscribers/{id}/rotate-secret`: a new secret, and a while in which the old one signs too.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use tidegate_core::subscriber::Rotation;
use tidegate_store::{Change, NewSecret, SubscriberUpdate};

use super::auth::Caller;
use super::problem::Answer;
use super::request::{Segment, read_body};
use super::subscribers::{shown, tell_secret};
use super::{App, json_answer};

/// Replaces the secret. The new one is in the answer, and never again.
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    app.patch(|| replace(&app, &caller, &id, &body)).await
}

async fn replace(app: &App, caller: &Caller, id: &str, body: &[u8]) -> Answer {
    let endpoint = app.endpoint(caller, id)?;
    let rotation = Rotation::parse(endpoint.definition(), body)?;
    let secret = rotation.secret.unwrap_or_else(|| app.new_secret(rotation.algorithm));
    let sealed = app.parts.rosters.seal(caller.project, id, &secret, app.parts.entropy.bytes());
    let grace = rotation.grace.0;
    let grace_until = (!grace.is_zero()).then(|| app.parts.clock.now().plus(grace));
    let part =
        |definition| app.parts.rosters.part(caller.project, id, &definition, app.parts.entropy.bytes());
    let (definition, destination) = rotation.definition.map(part).unzip();
    let update = SubscriberUpdate {
        definition,
        destination,
        secret: Some(NewSecret { sealed, grace_until }),
        based_on: Some(endpoint.version),
        ..SubscriberUpdate::default()
    };
    let no = endpoint.rule.no;
    app.change(Change::UpdateSubscriber { project: caller.project, no, update }).await?;
    let mut answer = shown(app, &*app.endpoint(caller, id)?);
    tell_secret(&mut answer, rotation.algorithm, secret);
    Ok(json_answer(StatusCode::OK, &answer))
}
