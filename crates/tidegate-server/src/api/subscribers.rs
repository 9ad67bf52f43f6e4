//! `/v1/subscribers`: create, read, change, pause, resume, delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tidegate_core::egress::check_url;
use tidegate_core::headers;
use tidegate_core::id::prefixed;
use tidegate_core::schedule::breaker::BreakerView;
use tidegate_core::sign::{private_key_from, secret_from};
use tidegate_core::subscriber::{
    Algorithm, Creation, Patched, Section, Start, masked_headers, patch as apply_patch, validate,
};
use tidegate_core::time::Timestamp;
use tidegate_store::{Change, NewSubscriber, SubscriberUpdate};

use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::{App, json_answer, page_answer};
use crate::roster::Endpoint;

/// Creates a subscriber. Its secret is in the answer, and never again.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let creation = Creation::parse(&body)?;
    validate(&creation.definition, &|url| app.check_url(url), &check_headers)?;
    let id = prefixed("sub_", app.parts.entropy.u128());
    Ok(json_answer(StatusCode::CREATED, &make(&app, &caller, id, creation).await?))
}

/// Makes a checked subscriber under this id; what is shown of it holds its secret, once.
pub(super) async fn make(
    app: &App,
    caller: &Caller,
    id: String,
    creation: Creation,
) -> Result<Value, Problem> {
    let algorithm = creation.definition.signing.algorithm;
    let secret = creation.secret.unwrap_or_else(|| app.new_secret(algorithm));
    let (rosters, entropy) = (&app.parts.rosters, &app.parts.entropy);
    let (definition, hidden) = rosters.part(caller.project, &id, &creation.definition, entropy.bytes());
    let new = NewSubscriber {
        project: caller.project,
        id: id.clone(),
        definition,
        secret: rosters.seal(caller.project, &id, &secret, entropy.bytes()),
        destination: Some(hidden),
        active: creation.active,
        backfill_from: match creation.from {
            Start::Now => None,
            Start::Beginning => Some(Timestamp::from_ms(0)),
            Start::Time(time) => Some(time),
        },
    };
    let wants_past = new.backfill_from.is_some();
    let changed = app.change(Change::CreateSubscriber(new)).await?;
    if wants_past {
        app.pipeline.backfill.start(changed.no);
    }
    let mut answer = shown(app, &*app.endpoint(caller, &id)?);
    tell_secret(&mut answer, algorithm, secret);
    Ok(answer)
}

/// Subscribers, oldest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref(), &["limit", "cursor"])?;
    let (limit, after) = (query.limit()?, query.cursor()?.unwrap_or(0));
    let roster = app.parts.rosters.current();
    let mut own = roster
        .endpoints()
        .filter(|endpoint| endpoint.rule.project == caller.project && endpoint.rule.no > after);
    let page: Vec<_> = own.by_ref().take(limit).collect();
    let next = page.last().map(|endpoint| endpoint.rule.no).filter(|_| own.next().is_some());
    let items: Vec<Value> = page.into_iter().map(|endpoint| shown(&app, endpoint)).collect();
    Ok(page_answer(&items, next))
}

/// One subscriber.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_read()?;
    Ok(json_answer(StatusCode::OK, &shown(&app, &*app.endpoint(&caller, &id)?)))
}

/// Changes a subscriber: a JSON merge patch. Only what it changes is checked.
pub(super) async fn patch(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let _one_at_a_time = app.patching.lock().await;
    let endpoint = app.endpoint(&caller, &id)?;
    let patched = apply_patch(endpoint.definition(), &body)?;
    patched.validate(&|url| app.check_url(url), &check_headers)?;
    carry_out(&app, &caller, &id, patched).await
}

/// Makes a checked change.
pub(super) async fn carry_out(app: &App, caller: &Caller, id: &str, patched: Patched) -> Answer {
    // Whatever failed at the old destination need not fail at the new one.
    let is_fresh = patched.changed.contains(&Section::Destination);
    let rosters = &app.parts.rosters;
    let nonce = app.parts.entropy.bytes();
    let (definition, hidden) = (!patched.changed.is_empty())
        .then(|| rosters.part(caller.project, id, &patched.definition, nonce))
        .unzip();
    let update = SubscriberUpdate {
        definition,
        destination: hidden,
        active: patched.active.map(|active| if active { Ok(()) } else { Err("paused".to_owned()) }),
        reorders: patched.changed.contains(&Section::Order),
        ..SubscriberUpdate::default()
    };
    update_subscriber(app, caller, id, update, is_fresh).await
}

/// Holds its deliveries from now on.
pub(super) async fn pause(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let update = SubscriberUpdate { active: Some(Err("paused".to_owned())), ..SubscriberUpdate::default() };
    update_subscriber(&app, &caller, &id, update, false).await
}

/// Releases what was held, in order and within its limits.
pub(super) async fn resume(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let update = SubscriberUpdate { active: Some(Ok(())), ..SubscriberUpdate::default() };
    update_subscriber(&app, &caller, &id, update, true).await
}

/// Changes a subscriber; a fresh one is sent to as if it had never failed.
async fn update_subscriber(
    app: &App,
    caller: &Caller,
    id: &str,
    update: SubscriberUpdate,
    is_fresh: bool,
) -> Answer {
    let endpoint = app.endpoint(caller, id)?;
    if update.definition.is_some() || update.active.is_some() {
        app.change(Change::UpdateSubscriber { project: caller.project, no: endpoint.rule.no, update })
            .await?;
    }
    if is_fresh {
        app.pipeline.desk.close_breaker(endpoint.rule.no);
    }
    Ok(json_answer(StatusCode::OK, &shown(app, &*app.endpoint(caller, id)?)))
}

/// Ends a subscriber; what was not sent is cancelled.
pub(super) async fn delete(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let no = app.endpoint(&caller, &id)?.rule.no;
    app.change(Change::DeleteSubscriber { project: caller.project, no }).await?;
    Ok(json_answer(StatusCode::OK, &json!({ "id": id, "deleted": true })))
}

/// Puts a new secret into the answer that made it. A private key is needed by nobody but us, so it stays here.
pub(super) fn tell_secret(answer: &mut Value, algorithm: Algorithm, secret: String) {
    if algorithm == Algorithm::Hmac {
        answer["secret"] = secret.into();
    }
}

/// A subscriber as the API shows it, without its secrets.
pub(super) fn shown(app: &App, endpoint: &Endpoint) -> Value {
    let mut value = json!({
        "id": endpoint.rule.id,
        "active": endpoint.active,
        "created_at": endpoint.created_at,
    });
    if let Some(reason) = &endpoint.inactive_reason {
        value["inactive_reason"] = reason.as_str().into();
    }
    if let Some(key) = endpoint.public_key() {
        value["public_key"] = key.into();
    }
    if let Some(until) = endpoint.grace_until.filter(|until| app.parts.clock.now() < *until) {
        value["grace_until"] = json!(until);
    }
    let mut definition = endpoint.definition().clone();
    definition.destination.headers = masked_headers(&definition.destination.headers);
    if let (Value::Object(value), Ok(Value::Object(definition))) =
        (&mut value, serde_json::to_value(definition))
    {
        value.extend(definition);
    }
    if let Some(since) = app.pipeline.desk.failing_since(endpoint.rule.no) {
        value["failing_since"] = json!(since);
    }
    show_breaker(&mut value["breaker"], app.pipeline.desk.breaker(endpoint.rule.no));
    value
}

pub(super) fn check_headers(custom: &BTreeMap<String, String>) -> Result<(), String> {
    headers::check_headers(custom).map_err(|problem| problem.to_string())
}

/// A breaker as the API shows it: its terms and how it stands.
fn show_breaker(breaker: &mut Value, view: Option<BreakerView>) {
    if !breaker.is_object() {
        return;
    }
    breaker["state"] = view.map_or("closed", |view| view.state).into();
    breaker["consecutive_failures"] = view.map_or(0, |view| view.failures).into();
    if let Some(since) = view.and_then(|view| view.since) {
        breaker["since"] = json!(since);
    }
    if let Some(at) = view.and_then(|view| view.next_probe_at) {
        breaker["next_probe_at"] = json!(at);
    }
}

impl App {
    /// A secret that nobody has seen yet.
    pub(super) fn new_secret(&self, algorithm: Algorithm) -> String {
        let chance = self.parts.entropy.bytes();
        match algorithm {
            Algorithm::Hmac => secret_from(chance),
            Algorithm::Ed25519 => private_key_from(chance),
        }
    }

    pub(super) fn check_url(&self, url: &str) -> Result<(), String> {
        check_url(url, self.parts.rosters.policy()).map(|_| ()).map_err(|problem| problem.to_string())
    }

    /// A project's subscriber, or 404.
    pub(super) fn endpoint(&self, caller: &Caller, id: &str) -> Result<Arc<Endpoint>, Problem> {
        let roster = self.parts.rosters.current();
        roster.endpoint_by_id(caller.project, id).cloned().ok_or_else(|| Problem::not_found("subscriber"))
    }

    /// Changes the configuration and lets the pipeline follow.
    pub(super) async fn change(&self, change: Change) -> Result<tidegate_store::Changed, Problem> {
        let changed = self.parts.rosters.change(change, self.parts.clock.now()).await?;
        self.pipeline.reconfigured(&self.parts.rosters);
        Ok(changed)
    }
}
