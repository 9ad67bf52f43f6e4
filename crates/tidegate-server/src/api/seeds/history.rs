//! `/v1/webhooks/subscribers/{id}/deliveries`: deliveries in four words.
//!
//! `FAILED` is one that failed and is tried again at `nextRetryAt`, or, without that, one that was given up.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde_json::{Value, json};
use tidegate_core::delivery::Status;
use tidegate_store::{DeliveryFilter, DeliveryRow};

use super::webhooks::find;
use crate::api::App;
use crate::api::auth::Caller;
use crate::api::deliveries::{count, last_events};
use crate::api::pages::Pages;
use crate::api::problem::{Answer, Problem};
use crate::api::request::{Query, Segment};

/// A subscriber's deliveries, newest first.
pub(in crate::api) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let endpoint = find(&app, &caller, &id)?;
    let pages = Pages::of(&app, &caller, &format!("history of {id}"), &query);
    let filter = DeliveryFilter {
        subscriber: Some(endpoint.rule.no),
        before: pages.position(&mut query)?,
        limit: query.limit()?,
        ..DeliveryFilter::default()
    };
    let page = app.parts.store.deliveries(caller.project, filter).await?;
    let attempts_max = endpoint.definition().retry.schedule.len() + 1;
    let mut items = Vec::with_capacity(page.items.len());
    for row in &page.items {
        items.push(shown(&app, &caller, row, attempts_max).await?);
    }
    Ok(pages.answer(&items, page.next))
}

async fn shown(app: &App, caller: &Caller, row: &DeliveryRow, attempts_max: usize) -> Result<Value, Problem> {
    let is_again = row.status == Status::Retrying;
    Ok(json!({
        "id": app.pipeline.mint.delivery(row.key()),
        "status": word(app.status(row)),
        "attemptCount": row.attempts,
        "maxAttempts": attempts_max,
        "nextRetryAt": is_again.then_some(row.due_at),
        "lastError": last_error(app, caller, row).await?,
        "createdAt": row.created_at,
        "deliveredAt": row.finished_at.filter(|_| row.status == Status::Delivered),
        "eventCount": count(row),
        "events": last_events(row),
    }))
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Pending | Status::Held => "PENDING",
        Status::Sending => "DELIVERING",
        Status::Delivered => "SUCCESS",
        _ => "FAILED",
    }
}

/// Asked only of those that failed: each is a question of its own to the store.
async fn last_error(app: &App, caller: &Caller, row: &DeliveryRow) -> Result<Option<String>, Problem> {
    if row.attempts == 0 || row.status == Status::Delivered {
        return Ok(None);
    }
    let found = app.parts.store.delivery(caller.project, row.no).await?;
    let last = found.and_then(|(_, attempts)| attempts.into_iter().last());
    Ok(last.map(|row| row.attempt.detail).filter(|detail| !detail.is_empty()))
}
