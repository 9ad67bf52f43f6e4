//! `/v1/trigger`: what folds hold is sent now, and what waits for a later try is tried now.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde_json::json;
use tidegate_core::fold::ClosedBy;
use tidegate_core::limits::END_WINDOWS_MAX;
use tidegate_store::{EndWindows, WindowsEnd};

use super::auth::Caller;
use super::problem::Answer;
use super::{App, json_answer};

/// Closes windows and makes retrying deliveries due. What is held stays held.
pub(super) async fn trigger(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_change()?;
    let ask = EndWindows {
        subscriber: None,
        key: None,
        limit: END_WINDOWS_MAX,
        end: WindowsEnd::Close(ClosedBy::Trigger),
    };
    let ended = app.end_windows(caller.project, ask).await?;
    let triggered = app.parts.store.trigger(caller.project, app.parts.clock.now()).await?;
    app.pipeline.herald().work_is_due(triggered.subscribers);
    let answer = json!({
        "windows": ended.windows,
        "triggered": triggered.deliveries,
        "complete": ended.is_complete && triggered.is_complete,
    });
    Ok(json_answer(StatusCode::ACCEPTED, &answer))
}
