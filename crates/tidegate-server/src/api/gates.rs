//! `/v1/gates`: named rates that subscribers and clients share.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tidegate_core::gate::{Gate, check_name};
use tidegate_core::subscriber::Definition;
use tidegate_store::Change;

use super::auth::Caller;
use super::pages::{Pages, page};
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::{App, json_answer};
use crate::gates::GateEntry;

/// Makes a gate, or makes it anew: the next token is given by it. Saying the same twice changes nothing.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(name): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    check_name(&name, "name")?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let gate = Gate::parse(&body)?;
    if let Ok(entry) = app.gate(&caller, &name)
        && entry.gate == gate
    {
        return Ok(json_answer(StatusCode::OK, &shown(&name, &entry)));
    }
    let definition = serde_json::to_string(&gate).expect("a gate is always JSON");
    let changed =
        app.change(Change::PutGate { project: caller.project, name: name.clone(), definition }).await?;
    let status = if changed.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_answer(status, &shown(&name, &app.gate(&caller, &name)?)))
}

/// One gate.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(name): Segment) -> Answer {
    caller.must_read()?;
    Ok(json_answer(StatusCode::OK, &shown(&name, &app.gate(&caller, &name)?)))
}

/// Gates by name.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref(), &["limit", "cursor"])?;
    let pages = Pages::of(&app, &caller, "gates", &query);
    let (limit, after) = (query.limit()?, pages.name(&mut query)?);
    let roster = app.parts.rosters.current();
    let all = roster.gates(caller.project).map(|(name, entry)| (name, shown(name, entry)));
    Ok(page(all, limit, after.as_deref(), &pages))
}

/// Ends a gate that nobody passes any more.
pub(super) async fn delete(State(app): State<Arc<App>>, caller: Caller, Segment(name): Segment) -> Answer {
    caller.must_change()?;
    app.gate(&caller, &name)?;
    let roster = app.parts.rosters.current();
    let mut own = roster.endpoints().filter(|endpoint| endpoint.rule.project == caller.project);
    if let Some(user) = own.find(|endpoint| endpoint.definition().gate.as_ref() == Some(&name)) {
        let id = user.rule.id.as_str();
        let detail = format!("the subscriber {id} passes the gate {name}: change or delete it first");
        return Err(Problem::conflict("gate_in_use", detail).with("subscriber", id));
    }
    let answer = json!({ "name": name, "deleted": true });
    app.change(Change::DeleteGate { project: caller.project, name }).await?;
    Ok(json_answer(StatusCode::OK, &answer))
}

fn shown(name: &str, entry: &GateEntry) -> Value {
    json!({
        "name": name,
        "rate": entry.gate.rate,
        "burst": entry.gate.burst,
        "created_at": entry.created_at,
        "updated_at": entry.updated_at,
    })
}

impl App {
    /// A project's gate, or 404.
    pub(super) fn gate(&self, caller: &Caller, name: &str) -> Result<GateEntry, Problem> {
        let roster = self.parts.rosters.current();
        roster.gate(caller.project, name).copied().ok_or_else(|| Problem::not_found("gate"))
    }

    /// A subscriber passes only gates that are there.
    pub(super) fn check_gate(&self, caller: &Caller, definition: &Definition) -> Result<(), Problem> {
        let Some(name) = &definition.gate else { return Ok(()) };
        self.gate(caller, name).map(|_| ()).map_err(|_| {
            let detail =
                format!("there is no gate {name} in this project; make it with PUT /v1/gates/{name}");
            Problem::invalid("gate_unknown", "gate", detail)
        })
    }
}
