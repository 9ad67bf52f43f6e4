//! `/v1/catalog`: services, their types, and what is said about them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tidegate_core::catalog::{Catalog, Definition, EventType, check_names, describe};
use tidegate_core::observe::Term;
use tidegate_core::subscriber::differences;
use tidegate_store::Change;

use super::auth::Caller;
use super::pages::{Pages, page};
use super::problem::{Answer, Problem};
use super::request::{Pair, Query, Segment, read_body};
use super::{App, json_answer};

/// Declares a type, or declares it anew. Binds the next event. A dry run checks it all the same.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(service, type_name): Pair,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let is_trial = Query::parse(raw.as_deref())?.flag("dry_run")?;
    check_names(&service, &type_name)?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let definition = Definition::parse(&body)?;
    if is_trial {
        let known = app.event_type(&caller, &service, &type_name).ok();
        let known = known.as_ref().map(|event_type| &event_type.definition);
        return Ok(json_answer(StatusCode::OK, &told(&service, &type_name, known, &definition)));
    }
    let change = Change::PutType {
        project: caller.project,
        service: service.clone(),
        type_name: type_name.clone(),
        definition: serde_json::to_string(&definition).expect("a definition is always JSON"),
        metrics: definition.specs(),
        keep_ms: definition.retention.as_ref().map(Term::length_ms),
    };
    let changed = app.change(change).await?;
    let status = if changed.created { StatusCode::CREATED } else { StatusCode::OK };
    let event_type = app.event_type(&caller, &service, &type_name)?;
    Ok(json_answer(status, &shown(&service, &type_name, &event_type)))
}

/// One type.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(service, type_name): Pair,
) -> Answer {
    caller.must_read()?;
    let event_type = app.event_type(&caller, &service, &type_name)?;
    Ok(json_answer(StatusCode::OK, &shown(&service, &type_name, &event_type)))
}

/// Takes a type back.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(service, type_name): Pair,
) -> Answer {
    caller.must_change()?;
    app.event_type(&caller, &service, &type_name)?;
    let answer = json!({ "service": service, "type": type_name, "deleted": true });
    app.change(Change::DeleteType { project: caller.project, service, type_name }).await?;
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Services by name.
pub(super) async fn services(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "services", &query);
    let (limit, after) = (query.limit()?, pages.name(&mut query)?);
    let catalog = app.catalog(&caller);
    let all = catalog
        .services()
        .iter()
        .map(|(name, types)| (name, json!({ "service": name, "types": types.len() })));
    Ok(page(all, limit, after.as_deref(), &pages))
}

/// A service's types by name, without their schemas.
pub(super) async fn types(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(service): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, &format!("types of {service}"), &query);
    let (limit, after) = (query.limit()?, pages.name(&mut query)?);
    let catalog = app.catalog(&caller);
    let types = catalog.services().get(&service).ok_or_else(|| Problem::not_found("service"))?;
    let all = types.iter().map(|(name, event_type)| {
        let mut item = shown(&service, name, event_type);
        item["has_schema"] = event_type.definition.schema.is_some().into();
        item.as_object_mut().map(|members| members.remove("schema"));
        (name, item)
    });
    Ok(page(all, limit, after.as_deref(), &pages))
}

/// The catalog as an AsyncAPI document.
pub(super) async fn asyncapi(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_read()?;
    let roster = app.parts.rosters.current();
    let project = roster.projects.values().find(|project| project.no == caller.project);
    let name = project.map_or("", |project| project.id.as_str());
    Ok(json_answer(StatusCode::OK, &describe(name, roster.version, &app.catalog(&caller))))
}

/// What a declaration would change.
fn told(service: &str, type_name: &str, known: Option<&Definition>, wanted: &Definition) -> Value {
    let value = |definition: &Definition| serde_json::to_value(definition).unwrap_or_default();
    let fields: Vec<Value> = known
        .map(|known| differences(&value(known), &value(wanted)))
        .into_iter()
        .flatten()
        .map(|(field, from, to)| json!({ "field": field, "from": from, "to": to }))
        .collect();
    let change = match known {
        None => "create",
        Some(_) if fields.is_empty() => "none",
        Some(_) => "update",
    };
    json!({ "service": service, "type": type_name, "change": change, "fields": fields })
}

fn shown(service: &str, type_name: &str, event_type: &EventType) -> Value {
    let mut value = json!({
        "service": service,
        "type": type_name,
        "created_at": event_type.created_at,
        "updated_at": event_type.updated_at,
    });
    if let (Value::Object(value), Ok(Value::Object(definition))) =
        (&mut value, serde_json::to_value(&event_type.definition))
    {
        value.extend(definition);
    }
    value
}

impl App {
    /// The catalog of the caller's project.
    pub(super) fn catalog(&self, caller: &Caller) -> Arc<Catalog> {
        self.parts.rosters.current().catalog(caller.project).cloned().unwrap_or_default()
    }

    pub(super) fn event_type(
        &self,
        caller: &Caller,
        service: &str,
        type_name: &str,
    ) -> Result<Arc<EventType>, Problem> {
        let found = self.catalog(caller).get(service, type_name).cloned();
        found.ok_or_else(|| Problem::not_found("type"))
    }
}
