//! `/v1/trigger`: what waits for a later try is tried now.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde_json::json;

use super::auth::Caller;
use super::problem::Answer;
use super::{App, json_answer};

/// Makes retrying deliveries due. What is held stays held.
pub(super) async fn trigger(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_change()?;
    let now = app.parts.clock.now();
    let triggered = app.parts.store.trigger(caller.project, now).await?;
    app.pipeline.herald().work_is_due(triggered.subscribers);
    let answer = json!({ "triggered": triggered.deliveries, "complete": triggered.is_complete });
    Ok(json_answer(StatusCode::ACCEPTED, &answer))
}
