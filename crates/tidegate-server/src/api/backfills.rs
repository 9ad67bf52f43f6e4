//! Backfills of metrics: what was accepted before a type declared them is counted too.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::catalog::EventType;
use tidegate_store::{BackfillRow, Error, Metric, NewBackfill};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Pair, Query, Segment, parse, read_body};
use super::{App, json_answer};

/// What may be said about a backfill.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Only these counters, histograms, states or indexed attributes.
    metrics: Option<Vec<String>>,
}

/// Begins to count the past of a type.
pub(super) async fn start(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(service, type_name): Pair,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let asked: Asked = parse(&body)?;
    let event_type = app.event_type(&caller, &service, &type_name)?;
    let metrics = wanted(&app, &event_type, asked.metrics)?;
    if metrics.is_empty() {
        let detail = "the type has nothing that is counted: declare a counter, histogram, state or index, or switch it on";
        return Err(Problem::invalid("metric_unknown", "metrics", detail));
    }
    let definition = serde_json::to_string(&event_type.definition).expect("a definition is always JSON");
    let new = NewBackfill { project: caller.project, service, type_name, metrics, definition };
    let row = app.parts.store.start_backfill(new, app.parts.clock.now()).await?;
    app.pipeline.observe.look_again();
    Ok(json_answer(StatusCode::ACCEPTED, &shown(&row)))
}

/// The metrics that are named, or else all of the type that are switched on.
fn wanted(app: &App, event_type: &EventType, names: Option<Vec<String>>) -> Result<Vec<Metric>, Problem> {
    let (installation, own) = (app.parts.observing.switches, &event_type.definition.observing);
    let is_on = |(kind, ..): &&Metric| installation.is_on(*kind) && own.is_on(*kind);
    let Some(names) = names else { return Ok(event_type.metrics.iter().filter(is_on).cloned().collect()) };
    for name in &names {
        let of_name: Vec<&Metric> = event_type.metrics.iter().filter(|(_, of, _)| of == name).collect();
        let problem = match &of_name[..] {
            [] => "the type has no counter, histogram, state or index",
            all if !all.iter().any(is_on) => "switch it on before it is backfilled:",
            _ => continue,
        };
        let name: String = name.chars().take(80).collect();
        let detail = format!("{problem} `{}`", name.escape_debug());
        return Err(Problem::invalid("metric_unknown", "metrics", detail));
    }
    Ok(event_type.metrics.iter().filter(is_on).filter(|(_, of, _)| names.contains(of)).cloned().collect())
}

/// Backfills of a project, newest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "backfills", &query);
    let (limit, before) = (query.limit()?, pages.position(&mut query)?);
    let page = app.parts.store.backfills(caller.project, before, limit).await?;
    // Whoever learns here that one is done may ask for what it counted, which can be another metric by now.
    app.parts.rosters.catch_up().await?;
    let items: Vec<Value> = page.items.iter().map(shown).collect();
    Ok(pages.answer(&items, page.next))
}

/// Ends a backfill of states where it is; they stay as they were before.
pub(super) async fn stop(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let no = id.parse().map_err(|_| Problem::not_found("backfill"))?;
    let row = match app.parts.store.stop_backfill(caller.project, no, app.parts.clock.now()).await {
        Err(Error::NotFound) => return Err(Problem::not_found("backfill")),
        result => result?,
    };
    Ok(json_answer(StatusCode::OK, &shown(&row)))
}

fn shown(row: &BackfillRow) -> Value {
    let length = row.until.saturating_sub(row.begin);
    let passed = row.after.saturating_sub(row.begin);
    // One that counts states goes on for as long as something comes.
    let share = match row.finished_at {
        Some(_) if row.stopped.is_none() => 1.0,
        _ if length > 0 => (passed as f64 / length as f64).min(0.999),
        _ => 1.0,
    };
    let mut names: Vec<&String> = row.metrics.iter().map(|(_, name, _)| name).collect();
    names.dedup();
    let status = match (&row.stopped, row.finished_at) {
        (Some(_), _) => "stopped",
        (None, Some(_)) => "done",
        (None, None) => "running",
    };
    json!({
        "id": row.no,
        "service": row.service,
        "type": row.type_name,
        "metrics": names,
        "status": status,
        "reason": row.stopped,
        "progress": (share * 1000.0).round() / 1000.0,
        "events": row.looked,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    })
}
