//! `/v1/jobs`, and what begins one: replays of a subscriber's past, another try for dead letters.
//!
//! A job covers what was there when it was asked for and goes on over restarts. With `dry_run` nothing is sent: the
//! answer says how many would be.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::id::{DeliveryKey, DeliveryNo, ParsedDelivery, ProjectNo, prefixed};
use tidegate_core::limits::{DRY_RUN_ROWS_MAX, JOB_IDS_MAX, JOB_TYPES_MAX};
use tidegate_core::route::Pattern;
use tidegate_core::time::Timestamp;
use tidegate_store::{Error, JobRow, JobStatus, NewJob, Past, Selector, StopOutcome, What};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, parse, read_body};
use super::{App, json_answer};

/// What a replay of a subscriber's past may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastAsked {
    from: Timestamp,
    to: Option<Timestamp>,
    #[serde(default)]
    types: Vec<Pattern>,
    status: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

/// What another try for dead letters may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LettersAsked {
    subscriber: Option<String>,
    types: Vec<Pattern>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    ids: Vec<String>,
    dry_run: bool,
}

/// Makes new deliveries of past events for one subscriber.
pub(super) async fn replay_past(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let dry_run = is_dry(raw.as_deref())?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let subscriber = app.endpoint(&caller, &id)?.rule.no;
    let asked: PastAsked = parse(&body)?;
    let past = match asked.status.as_deref() {
        None | Some("any") => Past::Any,
        Some("delivered") => Past::Delivered,
        Some("exhausted") => Past::Exhausted,
        Some(_) => {
            let detail = "expected any, delivered or exhausted: everything else is still on its way";
            return Err(Problem::invalid("status_unknown", "status", detail));
        }
    };
    let what = What::Replay { subscriber, past };
    let selector = Selector { what, types: asked.types, from: Some(asked.from), to: asked.to };
    begin(&app, caller.project, selector, dry_run || asked.dry_run).await
}

/// Tries exhausted deliveries again, under their own ids.
pub(super) async fn replay_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let dry_run = is_dry(raw.as_deref())?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let asked: LettersAsked = parse(&body)?;
    let subscriber = match &asked.subscriber {
        Some(id) => Some(app.endpoint(&caller, id)?.rule.no),
        None => None,
    };
    if asked.ids.len() > JOB_IDS_MAX {
        let detail = format!("at most {JOB_IDS_MAX} at once; or select them by subscriber, types and time");
        return Err(Problem::invalid("field_too_long", "ids", detail));
    }
    let keys = named(&app, &caller, &asked.ids).await?;
    let (ids, nonces) = keys.into_iter().map(|key| (key.no, key.nonce)).unzip();
    let what = What::DeadLetters { subscriber, ids, nonces };
    let selector = Selector { what, types: asked.types, from: asked.from, to: asked.to };
    begin(&app, caller.project, selector, dry_run || asked.dry_run).await
}

/// The deliveries with these ids that are still kept, in order, each once; at least one, or the job would be about all.
async fn named(app: &App, caller: &Caller, ids: &[String]) -> Result<Vec<DeliveryKey>, Problem> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mint = &app.pipeline.mint;
    let unknown =
        || Problem::invalid("delivery_unknown", "ids", "expected ids of deliveries, as lists show them");
    let parsed: Option<Vec<_>> = ids.iter().map(|id| mint.parse_delivery(id)).collect();
    let parsed = parsed.ok_or_else(unknown)?;
    let numbers = parsed.iter().map(|id| id.no).collect();
    let rows = app.parts.store.deliveries_among(caller.project, numbers).await?;
    let keys: BTreeMap<DeliveryNo, DeliveryKey> = rows.iter().map(|row| (row.no, row.key())).collect();
    let is_known = |id: &ParsedDelivery| keys.get(&id.no).is_none_or(|key| mint.names(*id, *key));
    let is_meant = !keys.is_empty() && parsed.iter().all(is_known);
    if is_meant { Ok(keys.into_values().collect()) } else { Err(unknown()) }
}

fn is_dry(raw: Option<&str>) -> Result<bool, Problem> {
    match Query::parse(raw)?.take("dry_run").as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Problem::invalid("field_type", "dry_run", "expected true or false")),
    }
}

async fn begin(app: &App, project: ProjectNo, selector: Selector, dry_run: bool) -> Answer {
    if selector.types.len() > JOB_TYPES_MAX {
        return Err(Problem::invalid("field_too_long", "types", format!("at most {JOB_TYPES_MAX}")));
    }
    if selector.from.zip(selector.to).is_some_and(|(from, to)| from >= to) {
        return Err(Problem::invalid("time_order", "to", "expected a time after `from`"));
    }
    let scope = app.parts.store.scope(project, selector, app.parts.clock.now()).await?;
    if dry_run {
        let counted = app.pipeline.errands.count(&scope, DRY_RUN_ROWS_MAX).await?;
        let answer = json!({
            "dry_run": true,
            "matched": counted.matched,
            "done": counted.looked,
            "complete": counted.is_complete(),
            "estimate": counted.estimate(),
        });
        return Ok(json_answer(StatusCode::OK, &answer));
    }
    let id = prefixed("job_", app.parts.entropy.u128());
    let row = app.pipeline.errands.begin(NewJob { id, scope }).await.map_err(|error| match error {
        Error::Conflict(detail) => Problem::conflict("jobs_running", detail),
        error => error.into(),
    })?;
    Ok(json_answer(StatusCode::ACCEPTED, &shown(app, &row)))
}

/// Jobs, newest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "jobs", &query);
    let (limit, before) = (query.limit()?, pages.position(&mut query)?);
    let page = app.parts.store.jobs(caller.project, before, limit).await?;
    let items: Vec<Value> = page.items.iter().map(|row| shown(&app, row)).collect();
    Ok(pages.answer(&items, page.next))
}

/// One job.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_read()?;
    let found = app.parts.store.job(caller.project, id).await?;
    let row = found.ok_or_else(|| Problem::not_found("job"))?;
    Ok(json_answer(StatusCode::OK, &shown(&app, &row)))
}

/// Ends a job where it is; what it sent again stays.
pub(super) async fn stop(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    match app.parts.store.stop_job(caller.project, id, app.parts.clock.now()).await? {
        StopOutcome::Stopped(row) => Ok(json_answer(StatusCode::OK, &shown(&app, &row))),
        StopOutcome::Ended(row) => {
            let detail = format!("it has ended before: {}", status_name(row.status));
            Err(Problem::conflict("job_ended", detail))
        }
        StopOutcome::NotFound => Err(Problem::not_found("job")),
    }
}

fn status_name(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Running => "running",
        JobStatus::Done => "done",
        JobStatus::Stopped => "stopped",
        JobStatus::Failed => "failed",
    }
}

fn shown(app: &App, row: &JobRow) -> Value {
    let Selector { what, types, from, to } = &row.scope.selector;
    let roster = app.parts.rosters.current();
    let id_of = |no: &i64| roster.endpoint(*no).map(|endpoint| endpoint.rule.id.clone());
    let mut selector = json!({});
    let kind = match what {
        What::Replay { subscriber, past } => {
            selector["subscriber"] = json!(id_of(subscriber));
            selector["status"] = json!(past);
            "replay"
        }
        What::DeadLetters { subscriber, ids, nonces } => {
            if let Some(subscriber) = subscriber {
                selector["subscriber"] = json!(id_of(subscriber));
            }
            if !ids.is_empty() {
                let nonces = nonces.iter().copied().chain(std::iter::repeat(0));
                let keys = ids.iter().zip(nonces).map(|(no, nonce)| DeliveryKey { no: *no, nonce });
                selector["ids"] = keys.map(|key| app.pipeline.mint.delivery(key)).collect();
            }
            "dead_letters"
        }
    };
    if !types.is_empty() {
        selector["types"] = json!(types);
    }
    for (name, time) in [("from", from), ("to", to)] {
        if let Some(time) = time {
            selector[name] = json!(time);
        }
    }
    let mut value = json!({
        "id": row.id,
        "kind": kind,
        "status": row.status,
        "selector": selector,
        "total": row.total(),
        "done": row.looked,
        "matched": row.matched,
        "started_at": row.scope.asked_at,
    });
    if let Some(at) = row.finished_at {
        value["finished_at"] = json!(at);
    }
    if let Some(reason) = &row.reason {
        value["reason"] = reason.as_str().into();
    }
    value
}
