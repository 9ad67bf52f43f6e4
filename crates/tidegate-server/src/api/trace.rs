//! `/v1/events/{id}/trace`: for each subscriber what happened, or why not.
//!
//! Judged by the subscriber's definition in force when the event was accepted, with the same code that routed it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use tidegate_core::delivery::Status;
use tidegate_core::event::Event;
use tidegate_core::id::{ProjectNo, SubscriberNo};
use tidegate_core::route::{Judgement, Subscriber, View};
use tidegate_store::{DeliveryRow, TraceRule};

use super::auth::Caller;
use super::problem::Answer;
use super::request::{Query, Segment};
use super::{App, events, json_answer};

#[derive(Serialize)]
struct TraceAnswer {
    event: Box<RawValue>,
    subscribers: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    subscriber: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref(), &["source"])?;
    let event = events::find(&app, &caller, id, query.take("source")).await?;
    let trace = app.parts.store.trace(caller.project, event.seq).await?;
    let mut delivered: BTreeMap<SubscriberNo, Vec<&DeliveryRow>> = BTreeMap::new();
    for delivery in &trace.deliveries {
        delivered.entry(delivery.subscriber).or_default().push(delivery);
    }
    let raw = events::raw(&event);
    let event = event.into_event();
    let mut lines = Vec::new();
    for rule in trace.rules {
        match delivered.remove(&rule.subscriber) {
            Some(rows) => lines.extend(rows.into_iter().map(|row| delivery_line(&app, row))),
            None => lines.push(judged_line(caller.project, rule, &event)),
        }
    }
    lines.extend(delivered.into_values().flatten().map(|row| delivery_line(&app, row)));
    Ok(json_answer(StatusCode::OK, &TraceAnswer { event: raw, subscribers: lines }))
}

fn delivery_line(app: &App, row: &DeliveryRow) -> Line {
    // A delivery in a worker's hands is still pending, or retrying, to whoever asks about the event.
    let outcome = match row.status {
        Status::Sending if row.attempts > 0 => Status::Retrying.name(),
        Status::Sending => Status::Pending.name(),
        status => status.name(),
    };
    Line {
        subscriber: row.subscriber_id.clone(),
        outcome,
        reason: app.reason(row),
        delivery: Some(app.pipeline.mint.delivery(row.no)),
        attempts: Some(row.attempts),
    }
}

fn judged_line(project: ProjectNo, rule: TraceRule, event: &Event) -> Line {
    let (outcome, reason) = judge(project, &rule, event);
    Line { subscriber: rule.subscriber_id, outcome, reason: Some(reason), delivery: None, attempts: None }
}

fn judge(project: ProjectNo, rule: &TraceRule, event: &Event) -> (&'static str, String) {
    let Some(definition) = &rule.definition else {
        return ("unmatched", "the subscriber was created after the event was accepted".to_owned());
    };
    let subscriber =
        serde_json::from_str(definition).map_err(|error| error.to_string()).and_then(|definition| {
            let id = rule.subscriber_id.clone();
            Subscriber::compile(rule.subscriber, project, id, definition)
                .map_err(|problem| problem.to_string())
        });
    match subscriber.map(|subscriber| subscriber.judge(&View::new(event))) {
        Ok(Judgement::Unmatched { reason }) => ("unmatched", reason),
        Ok(Judgement::Skipped { reason }) => ("skipped", reason),
        Ok(Judgement::Matched { .. }) => ("unmatched", "its delivery is no longer kept".to_owned()),
        Err(problem) => ("unmatched", format!("its definition of that time can not be read: {problem}")),
    }
}
