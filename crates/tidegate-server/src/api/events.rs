//! `/v1/events`: publish, list, read.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{self, RawQuery, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde_json::json;
use serde_json::value::RawValue;
use tidegate_core::ingest::Request;
use tidegate_core::span::{self, Carried};
use tidegate_store::{EventFilter, EventRow, UnitStatus};

use super::auth::Caller;
use super::encoding::read_encoded_body;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment};
use super::{App, json_text};
use crate::pipeline::ingest::Receipt;
use crate::pipeline::persist::Unavailable;
use crate::spans::{self, Ending, Kind, Value};

/// Accepts events. The answer comes after the commit.
pub(super) async fn publish(State(app): State<Arc<App>>, request: extract::Request) -> Answer {
    let began = app.parts.clock.elapsed();
    let mut brought = spans::brought_by(request.headers());
    let span = app.parts.spans.begin(brought.as_ref().map(|brought| brought.context));
    if let Some(span) = &span {
        // What comes of these events is caused by this request.
        let state = brought.and_then(|brought| brought.state);
        brought = Some(Carried { context: span.context, state });
    }
    let answer = accept(&app, request, brought).await;
    if let Some(span) = &span {
        app.parts.spans.end(span, span_ending(&answer));
    }
    app.parts.metrics.requested(app.parts.clock.elapsed() - began);
    answer
}

fn span_ending(answer: &Answer) -> Ending {
    let status = match answer {
        Ok(response) => response.status(),
        Err(problem) => problem.status(),
    };
    let attributes = vec![
        ("http.request.method", Value::Text("POST".to_owned())),
        ("http.route", Value::Text("/v1/events".to_owned())),
        ("http.response.status_code", Value::Int(status.as_u16().into())),
    ];
    let has_failed = status.is_server_error();
    Ending { name: "POST /v1/events", kind: Kind::Server, attributes, links: Vec::new(), has_failed }
}

async fn accept(app: &App, request: extract::Request, brought: Option<Carried>) -> Answer {
    let (parts, body) = request.into_parts();
    let caller = Caller::with_events(&parts, app).await?;
    caller.must_publish()?;
    let ingest = &app.pipeline.ingest;
    let (body, _room) = read_encoded_body(&parts.headers, body, ingest).await?;
    if app.disk.is_low(body.len() as u64, app.parts.clock.now()) {
        let detail =
            "the disk is nearly full: nothing new is accepted until there is room; send it again later";
        return Err(Problem::unavailable("disk_reserve", detail));
    }
    let mut units = ingest.decode(&as_request(&parts.headers, &collect_ce(&parts.headers), &body))?;
    // Nothing borrows from the connection's buffer any more: the next request finds it free.
    drop((parts, body));
    if let Some(brought) = &brought {
        for event in units.iter_mut().flat_map(|unit| &mut unit.events) {
            event.body = span::attach(&event.body, brought);
        }
    }
    let span = brought.filter(|_| app.parts.spans.is_on()).map(|brought| brought.context);
    let warnings = ingest.warnings(caller.project, &units);
    match ingest.accept_for(caller.project, units, span).await {
        Ok(receipt) => Ok(answer(&receipt, &warnings)),
        Err(unavailable) => Err(refused_for_now(app, unavailable)),
    }
}

/// Why nothing was accepted.
pub(super) fn refused_for_now(app: &App, why: Unavailable) -> Problem {
    match why {
        Unavailable::Store => store_unavailable(app),
        Unavailable::Configuration => Problem::unavailable(
            "overloaded",
            "the configuration changes faster than the events can be routed; nothing was accepted, send it again",
        ),
    }
}

pub(super) fn store_unavailable(app: &App) -> Problem {
    let what = match app.parts.standing.weakness() {
        Some(weakness) => format!("the database could lose it ({weakness}), so nothing is accepted"),
        None => "the store does not answer".to_owned(),
    };
    Problem::unavailable("store_unavailable", format!("{what}; send it again with the same ids"))
}

/// The headers that carry attributes of a CloudEvent in binary mode, and the one that may carry an event's id.
fn collect_ce(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
    let is_wanted = |name: &str| name.starts_with("ce-") || name == "idempotency-key";
    let ce = headers.iter().filter(|(name, _)| is_wanted(name.as_str()));
    ce.map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

fn as_request<'a>(headers: &'a HeaderMap, ce: &'a [(&'a str, &'a [u8])], body: &'a Bytes) -> Request<'a> {
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or("unreadable"));
    Request { content_type, headers: ce, body }
}

pub(super) fn status_name(status: UnitStatus) -> &'static str {
    match status {
        UnitStatus::Accepted => "accepted",
        UnitStatus::Duplicate => "duplicate",
        UnitStatus::Conflict => "conflict",
        UnitStatus::Quarantined(_) => "quarantined",
        UnitStatus::Gone => "gone",
    }
}

fn answer(receipt: &Receipt, warnings: &[Option<String>]) -> Response {
    let count = |wanted| receipt.iter().filter(|(_, status)| *status == wanted).count();
    if let [(id, UnitStatus::Conflict)] = receipt.as_slice() {
        let results = json!([{ "id": id, "status": "conflict", "reason": CONFLICT }]);
        return Problem::conflict("event_conflict", CONFLICT)
            .with("accepted", 0)
            .with("duplicates", 0)
            .with("conflicts", 1)
            .with("quarantined", 0)
            .with("results", results)
            .into_response();
    }
    // Written by hand: this is the answer of the hot path.
    let mut text = String::with_capacity(96 + receipt.len() * 64);
    let (accepted, duplicates) = (count(UnitStatus::Accepted), count(UnitStatus::Duplicate));
    let conflicts = count(UnitStatus::Conflict);
    let is_quarantined = |status: &UnitStatus| matches!(status, UnitStatus::Quarantined(_));
    let quarantined = receipt.iter().filter(|(_, status)| is_quarantined(status)).count();
    let _ = write!(
        text,
        "{{\"accepted\":{accepted},\"duplicates\":{duplicates},\"conflicts\":{conflicts},\"quarantined\":{quarantined},\"results\":["
    );
    for (index, (id, status)) in receipt.iter().enumerate() {
        let id = serde_json::to_string(id).expect("text is always JSON");
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{{\"id\":{id},\"status\":\"{}\"", status_name(*status));
        let reason = match status {
            UnitStatus::Conflict => CONFLICT,
            UnitStatus::Quarantined(reason) => reason.name(),
            _ => "",
        };
        if !reason.is_empty() {
            let _ = write!(text, ",\"reason\":\"{reason}\"");
        }
        if let Some(Some(warning)) = warnings.get(index) {
            let warning = serde_json::to_string(warning).expect("text is always JSON");
            let _ = write!(text, ",\"warning\":{warning}");
        }
        text.push('}');
    }
    text.push_str("]}");
    json_text(StatusCode::ACCEPTED, text)
}

const CONFLICT: &str =
    "an event with this source and id but other content was accepted before; nothing changed";

/// Events, newest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "events", &query);
    let condition = query.take("where");
    let (from, to) = query.range()?;
    let filter = EventFilter {
        source: query.take("source"),
        type_name: query.take("type"),
        subject: query.take("subject"),
        from,
        to,
        before: pages.position(&mut query)?,
        limit: query.limit()?,
    };
    let (page, until) = match condition {
        Some(condition) => app.search(&caller, &condition, filter).await?,
        None => (app.parts.store.events(caller.project, filter).await?, None),
    };
    let bodies: Vec<&str> = page.items.iter().map(body_text).collect();
    let next =
        page.next.map_or_else(|| "null".to_owned(), |position| format!("\"{}\"", pages.cursor(position)));
    let until = until.map_or_else(String::new, |until| format!(",\"complete_until\":\"{until}\""));
    let items = bodies.join(",");
    Ok(json_text(StatusCode::OK, format!("{{\"items\":[{items}],\"next\":{next}{until}}}")))
}

/// One event, byte for byte as it is delivered.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let event = find(&app, &caller, id, query.take("source")).await?;
    Ok(json_text(StatusCode::OK, body_text(&event).to_owned()))
}

/// The one event with this id; where several sources share it, `source` decides.
pub(super) async fn find(
    app: &App,
    caller: &Caller,
    id: String,
    source: Option<String>,
) -> Result<EventRow, Problem> {
    let mut found = app.parts.store.event(caller.project, id).await?;
    found.retain(|event| source.as_ref().is_none_or(|source| event.source == *source));
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(Problem::not_found("event")),
        (Some(event), true) => Ok(event),
        (Some(event), false) => {
            let sources: Vec<String> =
                found.into_iter().map(|event| event.source).chain([event.source]).collect();
            let detail =
                format!("several sources use this id: say which with ?source= ({})", sources.join(", "));
            Err(Problem::conflict("event_ambiguous", detail))
        }
    }
}

/// Bodies were checked to be UTF-8 when they came in.
fn body_text(event: &EventRow) -> &str {
    std::str::from_utf8(&event.body).unwrap_or("null")
}

/// The event as a part of a larger answer, its bytes untouched.
pub(super) fn raw(event: &EventRow) -> Box<RawValue> {
    RawValue::from_string(body_text(event).to_owned()).unwrap_or_default()
}
