//! `/v1/subscribers`: create, read, change, pause, resume, delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tidegate_core::egress::check_url;
use tidegate_core::headers;
use tidegate_core::id::{SubscriberNo, prefixed};
use tidegate_core::limits::CONDITIONS_PER_PROJECT_MAX;
use tidegate_core::schedule::breaker::BreakerView;
use tidegate_core::sign::{private_key_from, secret_from};
use tidegate_core::subscriber::{
    Algorithm, Creation, Definition, Invalid, OnFailure, Patched, Section, Start, mask_url, masked_headers,
    patch as apply_patch, validate,
};
use tidegate_core::time::Timestamp;
use tidegate_core::verification::Verification;
use tidegate_store::{Change, NewSubscriber, SubscriberUpdate, VerificationUpdate};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::{App, json_answer};
use crate::pipeline::errands::Errand;
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
    let id = prefixed("sub_", app.parts.entropy.u128());
    let answer = make(&app, &caller, id, Creation::parse(&body)?).await?;
    Ok(json_answer(StatusCode::CREATED, &answer))
}

/// Makes a subscriber under this id; what is shown of it holds its secret and its whole address, once.
pub(super) async fn make(
    app: &App,
    caller: &Caller,
    id: String,
    creation: Creation,
) -> Result<Value, Problem> {
    let (endpoint, secret) = app.create_subscriber(caller, id, creation, |invalid| invalid).await?;
    let mut answer = shown(app, &endpoint);
    tell_secret(&mut answer, endpoint.definition().signing.algorithm, secret);
    answer["destination"]["url"] = endpoint.definition().destination.url.as_str().into();
    Ok(answer)
}

/// Subscribers, oldest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "subscribers", &query);
    let (limit, after) = (query.limit()?, pages.position(&mut query)?.unwrap_or(0));
    let roster = app.parts.rosters.current();
    let mut own = roster
        .endpoints()
        .filter(|endpoint| endpoint.rule.project == caller.project && endpoint.rule.no > after);
    let page: Vec<_> = own.by_ref().take(limit).collect();
    let next = page.last().map(|endpoint| endpoint.rule.no).filter(|_| own.next().is_some());
    let items: Vec<Value> = page.into_iter().map(|endpoint| shown(&app, endpoint)).collect();
    Ok(pages.answer(&items, next))
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
    app.patch(|| patch_once(&app, &caller, &id, &body)).await
}

async fn patch_once(app: &App, caller: &Caller, id: &str, body: &[u8]) -> Answer {
    let endpoint = app.endpoint(caller, id)?;
    let patched = apply_patch(endpoint.definition(), body)?;
    patched.validate(&|url| app.check_url(url), &check_headers)?;
    carry_out(app, caller, &endpoint, patched).await
}

/// Makes a checked change.
pub(super) async fn carry_out(app: &App, caller: &Caller, endpoint: &Endpoint, patched: Patched) -> Answer {
    // Whatever failed at the old destination need not fail at the new one.
    let is_fresh = patched.changed.contains(&Section::Destination);
    let id = endpoint.rule.id.as_str();
    app.check_conditions(caller, &patched.definition, Some(endpoint.rule.no))?;
    app.check_gate(caller, &patched.definition)?;
    let rosters = &app.parts.rosters;
    let nonce = app.parts.entropy.bytes();
    let (definition, hidden) = (!patched.changed.is_empty())
        .then(|| rosters.part(caller.project, id, &patched.definition, nonce))
        .unzip();
    let update = SubscriberUpdate {
        definition,
        destination: hidden,
        active: patched.active.map(|active| if active { Ok(()) } else { Err("paused".to_owned()) }),
        verification: verification_update(endpoint.definition(), &patched.definition),
        reorders: endpoint.definition().order.by != patched.definition.order.by,
        skip_after: skip_after(endpoint.definition(), &patched.definition),
        based_on: Some(endpoint.version),
        ..SubscriberUpdate::default()
    };
    update_subscriber(app, caller, id, update, is_fresh).await
}

/// Another endpoint has not agreed to anything, and another way of asking has not been tried.
pub(super) fn verification_update(before: &Definition, after: &Definition) -> Option<VerificationUpdate> {
    let is_moved = before.destination.url != after.destination.url;
    let is_other = before.verification != after.verification;
    match after.verification {
        Verification::None => is_other.then_some(VerificationUpdate::End),
        _ => (is_moved || is_other).then_some(VerificationUpdate::Begin),
    }
}

/// Whoever lets failing heads step aside means those that block their lanes now, which may not be tried again for hours.
pub(super) fn skip_after(before: &Definition, after: &Definition) -> Option<u32> {
    match after.order.on_failure {
        OnFailure::SkipAfter(failures) if before.order.on_failure != after.order.on_failure => Some(failures),
        _ => None,
    }
}

/// Asks its endpoint for consent again; until it has agreed, deliveries are held.
pub(super) async fn verify(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let endpoint = app.endpoint(&caller, &id)?;
    if endpoint.definition().verification == Verification::None {
        let detail = "its `verification` is `none`; set it to `challenge` or `cloudevents` first";
        return Err(Problem::conflict("verification_none", detail));
    }
    let verification = Some(VerificationUpdate::Begin);
    let update = SubscriberUpdate { verification, ..SubscriberUpdate::default() };
    app.change(Change::UpdateSubscriber { project: caller.project, no: endpoint.rule.no, update }).await?;
    Ok(json_answer(StatusCode::ACCEPTED, &shown(&app, &*app.endpoint(&caller, &id)?)))
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

/// A subscriber as the API shows it, without its secrets and those in its URL.
pub(super) fn shown(app: &App, endpoint: &Endpoint) -> Value {
    let mut value = json!({
        "id": endpoint.rule.id,
        "active": endpoint.active,
        "created_at": endpoint.created_at,
    });
    if let Some(reason) = &endpoint.inactive_reason {
        value["inactive_reason"] = reason.as_str().into();
    }
    if let Some(row) = &endpoint.verification {
        value["verification_status"] = row.status.name().into();
        if let Some(detail) = &row.detail {
            value["verification_detail"] = detail.as_str().into();
        }
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
    value["destination"]["url"] = mask_url(&endpoint.definition().destination.url).into();
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
    /// Makes a subscriber, and answers its secret, which is known here and never again. `explain` puts what is wrong
    /// with it into the words of the caller.
    pub(super) async fn create_subscriber(
        &self,
        caller: &Caller,
        id: String,
        creation: Creation,
        explain: fn(Invalid) -> Invalid,
    ) -> Result<(Arc<Endpoint>, String), Problem> {
        let definition = &creation.definition;
        validate(definition, &|url| self.check_url(url), &check_headers).map_err(explain)?;
        self.check_conditions(caller, definition, None)?;
        self.check_gate(caller, definition)?;
        let secret = creation.secret.unwrap_or_else(|| self.new_secret(definition.signing.algorithm));
        let (rosters, entropy) = (&self.parts.rosters, &self.parts.entropy);
        let (open, hidden) = rosters.part(caller.project, &id, definition, entropy.bytes());
        let new = NewSubscriber {
            project: caller.project,
            id: id.clone(),
            definition: open,
            secret: rosters.seal(caller.project, &id, &secret, entropy.bytes()),
            destination: Some(hidden),
            active: creation.active,
            unverified: definition.verification != Verification::None,
            backfill_from: match creation.from {
                Start::Now => None,
                Start::Beginning => Some(Timestamp::from_ms(0)),
                Start::Time(time) => Some(time),
            },
        };
        let wants_past = new.backfill_from.is_some();
        let changed = self.change(Change::CreateSubscriber(new)).await?;
        if wants_past {
            self.pipeline.errands.start(Errand::Backfill(changed.no));
        }
        Ok((self.endpoint(caller, &id)?, secret))
    }

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

    /// A condition is evaluated for every event that passes the rest of its match: a project has only so many.
    fn check_conditions(
        &self,
        caller: &Caller,
        definition: &Definition,
        own: Option<SubscriberNo>,
    ) -> Result<(), Problem> {
        let Some((field, _)) = definition.conditions().next() else { return Ok(()) };
        let roster = self.parts.rosters.current();
        let others = roster
            .endpoints()
            .filter(|endpoint| endpoint.rule.project == caller.project && Some(endpoint.rule.no) != own);
        let count: usize = others.map(|endpoint| endpoint.definition().conditions().count()).sum();
        if count + definition.conditions().count() <= CONDITIONS_PER_PROJECT_MAX {
            return Ok(());
        }
        let detail = format!(
            "a project's subscribers have at most {CONDITIONS_PER_PROJECT_MAX} conditions: match by type or source"
        );
        Err(Problem::conflict("quota_exceeded", detail).with("field", field))
    }

    /// A project's subscriber, or 404.
    pub(super) fn endpoint(&self, caller: &Caller, id: &str) -> Result<Arc<Endpoint>, Problem> {
        let roster = self.parts.rosters.current();
        roster.endpoint_by_id(caller.project, id).cloned().ok_or_else(|| Problem::not_found("subscriber"))
    }

    /// Changes the configuration and lets the pipeline follow.
    pub(super) async fn change(&self, change: Change) -> Result<tidegate_store::Changed, Problem> {
        let stepping = match &change {
            Change::UpdateSubscriber { no, update, .. } if update.skip_after.is_some() => Some(*no),
            _ => None,
        };
        let changed = self.parts.rosters.change(change, self.parts.clock.now()).await?;
        self.pipeline.reconfigured(&self.parts.rosters);
        // Those behind the heads that stepped aside.
        self.pipeline.herald().work_is_due(stepping.into_iter().collect());
        Ok(changed)
    }
}
