//! `/v1/webhooks/subscribers`: register, list, read, change, delete.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use tidegate_core::delivery::Status;
use tidegate_core::id::prefixed;
use tidegate_core::payload::Payload;
use tidegate_core::time::Timestamp;
use tidegate_store::{Change, DeliveryFilter, NewSecret, SubscriberUpdate};

use super::registration::{amend, in_their_words, parse, shown, warning};
use crate::api::auth::Caller;
use crate::api::pages::Pages;
use crate::api::problem::{Answer, Problem};
use crate::api::request::{Query, Segment, read_body};
use crate::api::subscribers::{check_headers, skip_after, verification_update};
use crate::api::{App, json_answer};
use crate::roster::Endpoint;

/// Registers a subscriber.
pub(in crate::api) async fn register(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let creation = parse(&body)?;
    let warning = warning(creation.secret.as_deref());
    let (is_own, url) = (creation.secret.is_some(), creation.definition.destination.url.clone());
    let id = prefixed("sub_", app.parts.entropy.u128());
    let (endpoint, secret) = app.create_subscriber(&caller, id, creation, in_their_words).await?;
    let mut answer = shown(&endpoint, None);
    answer["url"] = url.into();
    if !is_own {
        answer["secret"] = secret.into();
    }
    warn(&mut answer, &endpoint, warning);
    Ok(json_answer(StatusCode::CREATED, &answer))
}

fn warn(answer: &mut Value, endpoint: &Endpoint, warning: Option<&'static str>) {
    if let Some(warning) = warning {
        tracing::warn!(subscriber = endpoint.rule.id, "{warning}");
        answer["warning"] = warning.into();
    }
}

/// Subscribers of this kind, oldest first.
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "webhooks", &query);
    let (limit, after) = (query.limit()?, pages.position(&mut query)?.unwrap_or(0));
    let roster = app.parts.rosters.current();
    let mut own = roster.endpoints().filter(|endpoint| {
        endpoint.rule.project == caller.project && endpoint.rule.no > after && is_ours(endpoint)
    });
    let page: Vec<_> = own.by_ref().take(limit).cloned().collect();
    let next = page.last().map(|endpoint| endpoint.rule.no).filter(|_| own.next().is_some());
    let mut items = Vec::with_capacity(page.len());
    for endpoint in &page {
        items.push(shown(endpoint, last_success(&app, &caller, endpoint).await?));
    }
    Ok(pages.answer(&items, next))
}

/// One subscriber.
pub(in crate::api) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_read()?;
    let endpoint = find(&app, &caller, &id)?;
    let last = last_success(&app, &caller, &endpoint).await?;
    Ok(json_answer(StatusCode::OK, &shown(&endpoint, last)))
}

/// Changes what is named. A new secret takes the old one's place at once: there is no grace in this API.
pub(in crate::api) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    app.patch(|| put(&app, &caller, &id, &body)).await
}

async fn put(app: &App, caller: &Caller, id: &str, body: &[u8]) -> Answer {
    let endpoint = find(app, caller, id)?;
    let (patched, secret) = amend(endpoint.definition(), body)?;
    patched.validate(&|url| app.check_url(url), &check_headers).map_err(in_their_words)?;
    let nonce = app.parts.entropy.bytes();
    let (definition, hidden) = (!patched.changed.is_empty())
        .then(|| app.parts.rosters.part(caller.project, id, &patched.definition, nonce))
        .unzip();
    let seal = |secret: &String| {
        let sealed = app.parts.rosters.seal(caller.project, id, secret, app.parts.entropy.bytes());
        NewSecret { sealed, grace_until: None }
    };
    let update = SubscriberUpdate {
        definition,
        destination: hidden,
        active: patched.active.map(|active| if active { Ok(()) } else { Err("paused".to_owned()) }),
        secret: secret.as_ref().map(seal),
        verification: verification_update(endpoint.definition(), &patched.definition),
        reorders: endpoint.definition().order.by != patched.definition.order.by,
        skip_after: skip_after(endpoint.definition(), &patched.definition),
        based_on: Some(endpoint.version),
    };
    let no = endpoint.rule.no;
    app.change(Change::UpdateSubscriber { project: caller.project, no, update }).await?;
    let endpoint = find(app, caller, id)?;
    let mut answer = shown(&endpoint, last_success(app, caller, &endpoint).await?);
    warn(&mut answer, &endpoint, warning(secret.as_deref()));
    Ok(json_answer(StatusCode::OK, &answer))
}

/// A subscriber that these clients can describe.
pub(super) fn find(app: &App, caller: &Caller, id: &str) -> Result<Arc<Endpoint>, Problem> {
    let endpoint = app.endpoint(caller, id)?;
    if is_ours(&endpoint) { Ok(endpoint) } else { Err(Problem::not_found("subscriber of this kind")) }
}

fn is_ours(endpoint: &Endpoint) -> bool {
    endpoint.definition().destination.payload == Payload::Events
}

async fn last_success(app: &App, caller: &Caller, endpoint: &Endpoint) -> Result<Option<Timestamp>, Problem> {
    let filter = DeliveryFilter {
        status: Some(Status::Delivered),
        subscriber: Some(endpoint.rule.no),
        limit: 1,
        ..DeliveryFilter::default()
    };
    let page = app.parts.store.deliveries(caller.project, filter).await?;
    Ok(page.items.first().and_then(|row| row.finished_at))
}
