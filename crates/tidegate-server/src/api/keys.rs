//! `/v1/keys`: who may do what. A key is shown once, when it is made.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::id::{ProjectNo, prefixed};
use tidegate_core::key::{Role, generate, hash, shown as shown_key};
use tidegate_core::limits::SUBSCRIBER_NAME_BYTES_MAX;
use tidegate_store::{Change, KeyRow, NewKey};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::{App, json_answer};
use crate::roster::Roster;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    project: Option<String>,
    role: Role,
    #[serde(default)]
    name: String,
}

/// Makes a key for a project.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let wanted: Wanted = super::request::parse(&body)?;
    if wanted.name.len() > SUBSCRIBER_NAME_BYTES_MAX {
        let detail = format!("at most {SUBSCRIBER_NAME_BYTES_MAX} bytes");
        return Err(Problem::invalid("field_too_long", "name", detail));
    }
    if wanted.name.contains(char::is_control) {
        return Err(Problem::invalid(
            "field_characters",
            "name",
            "it contains a control character; remove it",
        ));
    }
    let project = match &wanted.project {
        Some(id) => reachable(&app.parts.rosters.current(), &caller, id)?,
        None => caller.project,
    };
    let key = generate([app.parts.entropy.u128(), app.parts.entropy.u128()]);
    let new = NewKey {
        project,
        id: prefixed("key_", app.parts.entropy.u128()),
        role: wanted.role.name().to_owned(),
        name: wanted.name,
        prefix: shown_key(&key),
        hash: hash(&key).to_vec(),
    };
    let mut answer = json!({ "id": new.id, "role": new.role, "name": new.name, "key": key });
    app.change(Change::CreateKey(new)).await?;
    answer["project"] = project_id(&app.parts.rosters.current(), project);
    Ok(json_answer(StatusCode::CREATED, &answer))
}

/// The project with this id, if the caller may know of it.
fn reachable(roster: &Roster, caller: &Caller, id: &str) -> Result<ProjectNo, Problem> {
    let no = roster.projects.get(id).map(|project| project.no);
    no.filter(|no| caller.is_operator || *no == caller.project).ok_or_else(|| Problem::not_found("project"))
}

/// Keys, without what they open them with. The installation's key sees all, unless it names a project.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_change()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "keys", &query);
    let limit = query.limit()?;
    let start = usize::try_from(pages.position(&mut query)?.unwrap_or(0)).unwrap_or(usize::MAX);
    let roster = app.parts.rosters.current();
    let seen: Vec<&KeyRow> = roster.keys.iter().filter(|key| is_visible(&caller, key)).collect();
    let items: Vec<Value> = seen.iter().skip(start).take(limit).map(|key| shown(&roster, key)).collect();
    let end = start.saturating_add(items.len());
    Ok(pages.answer(&items, (end < seen.len()).then_some(end as i64)))
}

fn is_visible(caller: &Caller, key: &KeyRow) -> bool {
    (caller.is_operator && !caller.named_project) || key.project == caller.project
}

/// Ends a key at once.
pub(super) async fn delete(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let roster = app.parts.rosters.current();
    let key = roster.keys.iter().find(|key| key.id == id && is_visible(&caller, key));
    let key = key.ok_or_else(|| Problem::not_found("key"))?;
    let is_last = key.project == 0 && roster.keys.iter().filter(|other| other.project == 0).count() == 1;
    if is_last {
        let detail = "it is the installation's last key: without it nobody could manage anything";
        return Err(Problem::conflict("key_last", detail));
    }
    app.change(Change::DeleteKey { project: key.project, id: id.clone() }).await?;
    Ok(json_answer(StatusCode::OK, &json!({ "id": id, "deleted": true })))
}

fn project_id(roster: &Roster, no: ProjectNo) -> Value {
    roster
        .projects
        .values()
        .find(|project| project.no == no)
        .map_or(Value::Null, |project| project.id.clone().into())
}

fn shown(roster: &Roster, key: &KeyRow) -> Value {
    json!({
        "id": key.id,
        "project": project_id(roster, key.project),
        "role": key.role,
        "name": key.name,
        "prefix": key.prefix,
        "created_at": key.created_at,
    })
}
