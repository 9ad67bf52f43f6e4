//! Sending again: one event, for one subscriber or for all that want it today.
//!
//! A replay is a new delivery with an id of its own, marked `replay` in lists and `tidegate-replay: true` on the wire. It
//! goes by the rules, the address and the limits in force now. To try a delivery again under its own id, retry it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::event::Event;
use tidegate_core::id::{DeliveryKey, ProjectNo};
use tidegate_core::route::{Judgement, Route, View};
use tidegate_store::{Error, Replay};

use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, parse, read_body};
use super::{App, events, json_answer};
use crate::roster::Roster;

/// What a replay of one event may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    subscriber: Option<String>,
}

/// Sends one event again.
pub(super) async fn event(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let mut query = Query::parse(raw.as_deref())?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let row = events::find(&app, &caller, id, query.take("source")).await?;
    let asked: Asked = parse(&body)?;
    let (seq, event) = (row.seq, row.into_event());
    let (roster, routes, made) = loop {
        let roster = app.parts.rosters.current();
        let routes = routes(&roster, caller.project, &event, asked.subscriber.as_deref())?;
        let (project, version) = (caller.project, roster.version);
        let replay = Replay { project, event: seq, routes: routes.clone(), version };
        match app.pipeline.replay(replay).await {
            Ok(made) => break (roster, routes, made),
            Err(Error::Stale { .. }) => app.parts.rosters.refresh().await?,
            Err(Error::NotFound) => return Err(Problem::not_found("event")),
            Err(error) => return Err(error.into()),
        }
    };
    let deliveries: Vec<Value> =
        routes.iter().zip(made).map(|(route, key)| shown(&app, &roster, route, key)).collect();
    Ok(json_answer(StatusCode::ACCEPTED, &json!({ "event": event.id, "deliveries": deliveries })))
}

fn shown(app: &App, roster: &Roster, route: &Route, key: DeliveryKey) -> Value {
    let subscriber = roster.endpoint(route.subscriber).map(|endpoint| endpoint.rule.id.as_str());
    json!({ "id": app.pipeline.mint.delivery(key), "subscriber": subscriber, "replay": true })
}

/// Who gets the event by the rules of today, or why nobody does.
fn routes(
    roster: &Roster,
    project: ProjectNo,
    event: &Event,
    subscriber: Option<&str>,
) -> Result<Vec<Route>, Problem> {
    let Some(id) = subscriber else {
        let routes = roster.router(project).map_or_else(Vec::new, |router| router.route(event));
        let nobody = || unmatched("no subscriber of the project wants this event");
        return if routes.is_empty() { Err(nobody()) } else { Ok(routes) };
    };
    let endpoint = roster.endpoint_by_id(project, id).ok_or_else(|| Problem::not_found("subscriber"))?;
    match endpoint.rule.judge(&View::new(event)) {
        Judgement::Matched(route) => Ok(vec![route]),
        Judgement::Unmatched { reason } | Judgement::Skipped { reason } => Err(unmatched(&reason)),
    }
}

fn unmatched(reason: &str) -> Problem {
    let detail =
        format!("by the rules of today it goes nowhere: {reason}; change the subscriber's match first");
    Problem::conflict("event_unmatched", detail)
}
