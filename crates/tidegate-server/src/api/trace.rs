//! `/v1/events/{id}/trace`: for each subscriber what happened, or why not.
//!
//! Judged by the subscriber's definition in force when the event was accepted, with the same code that routed it. An event
//! that was folded stands beside its window, whether that is open, a delivery by now, or was cancelled.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate_core::delivery::Status;
use tidegate_core::event::Event;
use tidegate_core::fold::ClosedBy;
use tidegate_core::id::{ProjectNo, SubscriberNo};
use tidegate_core::route::{Judgement, Subscriber, View};
use tidegate_store::{DeliveryRow, FoldRow, TraceRule};

use super::auth::Caller;
use super::problem::Answer;
use super::request::{Query, Segment};
use super::windows::traced;
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
    window: Option<Value>,
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
    let mut query = Query::parse(raw.as_deref())?;
    let event = events::find(&app, &caller, id, query.take("source")).await?;
    let trace = app.parts.store.trace(caller.project, event.seq).await?;
    let mut found: BTreeMap<SubscriberNo, Vec<Line>> = BTreeMap::new();
    for delivery in &trace.deliveries {
        found.entry(delivery.subscriber).or_default().push(delivery_line(&app, delivery));
    }
    for window in trace.windows.iter().filter(|window| window.delivery.is_none()) {
        let rule = trace.rules.iter().find(|rule| rule.subscriber == window.subscriber);
        let line = rule.map(|rule| window_line(&app, rule, window));
        found.entry(window.subscriber).or_default().extend(line);
    }
    let raw = events::raw(&event);
    let event = event.into_event();
    let mut lines = Vec::new();
    for rule in trace.rules {
        match found.remove(&rule.subscriber) {
            Some(own) => lines.extend(own),
            None => lines.push(judged_line(caller.project, rule, &event)),
        }
    }
    lines.extend(found.into_values().flatten());
    Ok(json_answer(StatusCode::OK, &TraceAnswer { event: raw, subscribers: lines }))
}

/// A window that is no delivery: it is open, or ended without one.
fn window_line(app: &App, rule: &TraceRule, window: &FoldRow) -> Line {
    let is_there = app.parts.rosters.current().endpoint(window.subscriber).is_some();
    let (outcome, reason) = match window.closed {
        None if is_there => (Status::Pending.name(), None),
        None => (Status::Cancelled.name(), Some("its subscriber was deleted")),
        Some((_, by)) => (Status::Cancelled.name(), Some(cancelled_by(by))),
    };
    Line {
        subscriber: rule.subscriber_id.clone(),
        outcome,
        reason: reason.map(str::to_owned),
        window: Some(traced(window)),
        delivery: None,
        attempts: None,
    }
}

/// Why a window ended without a delivery.
fn cancelled_by(by: ClosedBy) -> &'static str {
    match by {
        ClosedBy::CancelOn => "an event that fulfils fold.cancel_on ended its window",
        ClosedBy::Cancelled => "its window was cancelled by request",
        ClosedBy::Deleted => "its subscriber was deleted",
        // The first event of a leading fold was sent alone, and nothing followed it.
        _ => "its window ended with nothing to send",
    }
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
        window: row.fold.as_ref().map(traced),
        delivery: Some(app.pipeline.mint.delivery(row.key())),
        attempts: Some(row.attempts),
    }
}

fn judged_line(project: ProjectNo, rule: TraceRule, event: &Event) -> Line {
    let (outcome, reason) = judge(project, &rule, event);
    let (window, delivery, attempts) = (None, None, None);
    Line { subscriber: rule.subscriber_id, outcome, reason: Some(reason), window, delivery, attempts }
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
        Ok(Judgement::Matched(route)) if rule.is_behind && route.fold.is_some() && route.lane.is_some() => {
            (Status::Pending.name(), "it waits behind the backfill of its subscriber".to_owned())
        }
        Ok(Judgement::Matched { .. }) => ("unmatched", "its delivery is no longer kept".to_owned()),
        Err(problem) => ("unmatched", format!("its definition of that time can not be read: {problem}")),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_core::time::Timestamp;

    use super::*;

    fn told(definition: &Value, is_behind: bool) -> (&'static str, String) {
        let rule = TraceRule {
            subscriber: 1,
            subscriber_id: "s".to_owned(),
            definition: Some(definition.to_string()),
            is_behind,
        };
        let event = Event {
            id: "e".to_owned(),
            source: "shop".to_owned(),
            type_name: "order.paid".to_owned(),
            subject: None,
            time: Timestamp::from_ms(0),
            body: Bytes::from_static(br#"{"data":{"k":1}}"#),
        };
        judge(1, &rule, &event)
    }

    #[test]
    fn what_is_left_to_a_backfill_is_pending() {
        let mut definition = serde_json::json!({
            "name": "s", "destination": {"url": "https://hooks.example/s"},
            "fold": {"mode": "window"}, "order": {"by": "data.k"},
        });
        let (outcome, reason) = told(&definition, true);
        assert_eq!(outcome, "pending");
        assert!(reason.contains("backfill"), "{reason}");
        assert_eq!(told(&definition, false).0, "unmatched", "the backfill has passed it");
        definition["order"] = serde_json::json!({"by": "none"});
        assert_eq!(told(&definition, true).0, "unmatched", "what is not ordered is never left to one");
    }
}
