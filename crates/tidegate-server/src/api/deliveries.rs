//! `/v1/deliveries`: list, read with attempts, retry by hand.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_core::delivery::Status;
use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::DELIVERY_EVENTS_LISTED_MAX;
use tidegate_store::{AttemptRow, DeliveryFilter, DeliveryRow, FoldRow, RetryOutcome};

use super::auth::Caller;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, Segment};
use super::windows::key_value;
use super::{App, json_answer};

/// A project's deliveries, newest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let status = take_status(&mut query)?;
    let subscriber = take_subscriber(&app, &caller, &mut query)?;
    list_page(&app, &caller, status, subscriber, query).await
}

/// Deliveries whose every attempt failed, newest first.
pub(super) async fn list_dead_letters(
    State(app): State<Arc<App>>,
    caller: Caller,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let subscriber = take_subscriber(&app, &caller, &mut query)?;
    list_page(&app, &caller, Some(Status::Exhausted), subscriber, query).await
}

/// A subscriber's deliveries, newest first.
pub(super) async fn list_of_subscriber(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let status = take_status(&mut query)?;
    let subscriber = app.endpoint(&caller, &id)?.rule.no;
    list_page(&app, &caller, status, Some(subscriber), query).await
}

fn take_status(query: &mut Query) -> Result<Option<Status>, Problem> {
    query.take("status").map(|name| parse_status(&name)).transpose()
}

fn take_subscriber(app: &App, caller: &Caller, query: &mut Query) -> Result<Option<SubscriberNo>, Problem> {
    let id = query.take("subscriber");
    id.map(|id| app.endpoint(caller, &id).map(|endpoint| endpoint.rule.no)).transpose()
}

/// `query` has been emptied of its filters, so the list's name tells them.
async fn list_page(
    app: &App,
    caller: &Caller,
    status: Option<Status>,
    subscriber: Option<SubscriberNo>,
    mut query: Query,
) -> Answer {
    let name = format!("deliveries {} {}", status.map_or("all", Status::name), subscriber.unwrap_or(0));
    let pages = Pages::of(app, caller, &name, &query);
    let filter = DeliveryFilter {
        status,
        in_hand: matches!(status, Some(Status::Pending | Status::Retrying)),
        subscriber,
        before: pages.position(&mut query)?,
        limit: query.limit()?,
    };
    let page = app.parts.store.deliveries(caller.project, filter).await?;
    let is_meant = |row: &&DeliveryRow| status.is_none_or(|wanted| wanted == app.status(row));
    let items: Vec<Value> = page.items.iter().filter(is_meant).map(|row| listed(app, row)).collect();
    Ok(pages.answer(&items, page.next))
}

fn parse_status(name: &str) -> Result<Status, Problem> {
    Status::parse(name).ok_or_else(|| {
        let known = Status::ALL.map(Status::name).join(", ");
        Problem::invalid("status_unknown", "status", format!("expected one of {known}"))
    })
}

/// One delivery, with every attempt.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_read()?;
    let (row, attempts) = find(&app, &caller, &id).await?;
    let mut value = shown(&app, &row);
    value["attempt_log"] = attempts.iter().map(attempt).collect();
    Ok(json_answer(StatusCode::OK, &value))
}

/// One attempt now, then the rest of a fresh schedule, under the same id.
pub(super) async fn retry(State(app): State<Arc<App>>, caller: Caller, Segment(id): Segment) -> Answer {
    caller.must_change()?;
    let no = find(&app, &caller, &id).await?.0.no;
    let now = app.parts.clock.now();
    match app.parts.store.retry(caller.project, no, now).await? {
        RetryOutcome::NotFound => return Err(Problem::not_found("delivery")),
        RetryOutcome::Refused(status) => {
            let found = app.parts.store.delivery(caller.project, no).await?;
            return Err(refused(status, found.and_then(|(row, _)| app.reason(&row))));
        }
        RetryOutcome::Queued => {}
        RetryOutcome::Due { subscriber } => app.pipeline.herald().is_asked_for(subscriber, no),
    }
    let found = app.parts.store.delivery(caller.project, no).await?;
    let (row, _) = found.ok_or_else(|| Problem::not_found("delivery"))?;
    Ok(json_answer(StatusCode::ACCEPTED, &shown(&app, &row)))
}

fn refused(status: Status, reason: Option<String>) -> Problem {
    match status {
        Status::Delivered => Problem::conflict("delivery_delivered", "it was delivered already"),
        Status::Sending => {
            let detail = match reason {
                Some(waits) => {
                    format!("it is as good as on its way: it {waits}, and is sent as soon as that allows")
                }
                None => "an attempt is under way right now".to_owned(),
            };
            Problem::conflict("delivery_in_flight", detail)
        }
        Status::Expired => {
            Problem::conflict("delivery_expired", "it was kept undelivered for as long as retention allows")
        }
        _ => {
            let detail = reason.unwrap_or_else(|| "its subscriber was deleted".to_owned());
            Problem::conflict("delivery_cancelled", detail)
        }
    }
}

/// The delivery with a public id. One that got its number when the database had gone back has another id.
async fn find(app: &App, caller: &Caller, id: &str) -> Result<(DeliveryRow, Vec<AttemptRow>), Problem> {
    let unknown = || Problem::not_found("delivery");
    let parsed = app.pipeline.mint.parse_delivery(id).ok_or_else(unknown)?;
    let found = app.parts.store.delivery(caller.project, parsed.no).await?;
    found.filter(|(row, _)| app.pipeline.mint.names(parsed, row.key())).ok_or_else(unknown)
}

/// As it stands in a list: of many events the last alone are named.
fn listed(app: &App, row: &DeliveryRow) -> Value {
    let mut value = shown(app, row);
    value["events"] = json!(last_events(row));
    value
}

/// The events that are named where there may be many deliveries.
pub(super) fn last_events(row: &DeliveryRow) -> &[String] {
    &row.events[row.events.len().saturating_sub(DELIVERY_EVENTS_LISTED_MAX)..]
}

/// How many events a delivery carries, whether they are named or not.
pub(super) fn count(row: &DeliveryRow) -> u32 {
    row.fold.as_ref().map_or(1, |fold| fold.count)
}

fn shown(app: &App, row: &DeliveryRow) -> Value {
    let mut value = json!({
        "id": app.pipeline.mint.delivery(row.key()),
        "subscriber": row.subscriber_id,
        "status": app.status(row),
        "attempts": row.attempts,
        "count": count(row),
        "events": row.events,
        "due_at": row.due_at,
        "created_at": row.created_at,
    });
    if row.out_of_order {
        value["out_of_order"] = true.into();
    }
    if let Some(fold) = &row.fold {
        value["fold"] = folded(fold);
    }
    if row.replay {
        value["replay"] = true.into();
    }
    if let Some(at) = row.finished_at {
        value["finished_at"] = json!(at);
    }
    if let Some(reason) = app.reason(row) {
        value["reason"] = reason.into();
    }
    value
}

/// The window that a delivery was.
fn folded(fold: &FoldRow) -> Value {
    let mut value = json!({ "mode": fold.mode, "key": key_value(&fold.key), "opened_at": fold.opened_at });
    if let Some((at, by)) = fold.closed {
        value["closed_at"] = json!(at);
        value["closed_by"] = by.name().into();
    }
    value
}

impl App {
    /// Where a delivery stands, as far as this process knows: what it has claimed but not begun to send waits. What another
    /// process has in hand, only that one could tell.
    pub(super) fn status(&self, row: &DeliveryRow) -> Status {
        match row.status {
            Status::Sending if self.pipeline.desk.waits(row.subscriber, row.no).is_none() => Status::Sending,
            Status::Sending if row.attempts > 0 => Status::Retrying,
            Status::Sending => Status::Pending,
            known => known,
        }
    }

    /// Why a delivery ended undelivered, or what it waits for beyond its time.
    pub(super) fn reason(&self, row: &DeliveryRow) -> Option<String> {
        let waits = matches!(row.status, Status::Pending | Status::Retrying);
        let is_left_alone = || {
            let breaker = self.pipeline.desk.breaker(row.subscriber);
            breaker.is_some_and(|breaker| breaker.state != "closed")
        };
        if waits && !self.delivers {
            return Some("deliver.enabled is false".to_owned());
        }
        if row.status == Status::Sending {
            return self.pipeline.desk.waits(row.subscriber, row.no);
        }
        let behind =
            |first| format!("waits behind delivery {} of its lane", self.pipeline.mint.delivery(first));
        let is_open = || (waits && is_left_alone()).then(|| "breaker open".to_owned());
        row.reason.clone().or_else(is_open).or_else(|| row.behind.map(behind))
    }
}

fn attempt(row: &AttemptRow) -> Value {
    let attempt = &row.attempt;
    let mut value = json!({ "n": row.n, "at": attempt.at, "phases": attempt.phases });
    if let Some(status) = attempt.status {
        value["status"] = status.into();
    }
    if let Some(class) = attempt.error {
        value["error"] = class.name().into();
        value["detail"] = attempt.detail.as_str().into();
    }
    if let Some(response) = &attempt.response {
        value["response"] = json!(response);
    }
    value
}
