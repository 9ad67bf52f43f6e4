//! `/v1/projects`: the tenants. Managed with the installation's own key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::catalog::Mode;
use tidegate_core::limits::PROJECT_ID_BYTES_MAX;
use tidegate_store::{Change, ProjectRow};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, read_body};
use super::{App, json_answer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewProject {
    id: String,
    #[serde(default)]
    catalog: Catalog,
}

/// What a change of a project sets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectPatch {
    catalog: Option<Catalog>,
}

/// What becomes of events whose type nobody declared: accepted (open) or quarantined (strict).
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Catalog {
    #[default]
    Open,
    Strict,
}

impl From<Catalog> for Mode {
    fn from(catalog: Catalog) -> Self {
        match catalog {
            Catalog::Open => Self::Open,
            Catalog::Strict => Self::Strict,
        }
    }
}

/// Creates a project.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_operate()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let NewProject { id, catalog } = super::request::parse(&body)?;
    let is_valid = (1..=PROJECT_ID_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte));
    if !is_valid {
        let detail = format!("use 1 to {PROJECT_ID_BYTES_MAX} of a-z, 0-9, - and _");
        return Err(Problem::invalid("project_id_invalid", "id", detail));
    }
    app.change(Change::CreateProject { id: id.clone(), catalog: catalog.into() }).await?;
    shown_by_id(&app, StatusCode::CREATED, &id)
}

/// All projects, oldest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_operate()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "projects", &query);
    let (limit, after) = (query.limit()?, pages.position(&mut query)?.unwrap_or(0));
    let roster = app.parts.rosters.current();
    let mut projects: Vec<&ProjectRow> =
        roster.projects.values().filter(|project| project.no > after).collect();
    projects.sort_by_key(|project| project.no);
    let next =
        projects.get(limit.wrapping_sub(1)).filter(|_| projects.len() > limit).map(|project| project.no);
    let items: Vec<Value> = projects.into_iter().take(limit).map(shown).collect();
    Ok(pages.answer(&items, next))
}

/// Changes a project.
pub(super) async fn patch(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_operate()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let ProjectPatch { catalog } = super::request::parse(&body)?;
    let no = app.parts.rosters.current().projects.get(&id).map(|project| project.no);
    let no = no.ok_or_else(|| Problem::not_found("project"))?;
    if let Some(catalog) = catalog {
        app.change(Change::UpdateProject { no, catalog: catalog.into() }).await?;
    }
    shown_by_id(&app, StatusCode::OK, &id)
}

/// Ends a project that has no subscribers left, and its keys with it.
pub(super) async fn delete(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_operate()?;
    if id == "default" {
        return Err(Problem::conflict("project_default", "the project `default` always exists"));
    }
    let no = app.parts.rosters.current().projects.get(&id).map(|project| project.no);
    let no = no.ok_or_else(|| Problem::not_found("project"))?;
    app.change(Change::DeleteProject { no }).await?;
    Ok(json_answer(StatusCode::OK, &json!({ "id": id, "deleted": true })))
}

fn shown_by_id(app: &App, status: StatusCode, id: &str) -> Answer {
    let roster = app.parts.rosters.current();
    let project = roster.projects.get(id).ok_or_else(|| Problem::not_found("project"))?;
    Ok(json_answer(status, &shown(project)))
}

fn shown(project: &ProjectRow) -> Value {
    json!({ "id": project.id, "catalog": project.catalog.name(), "created_at": project.created_at })
}
