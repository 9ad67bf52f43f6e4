//! `/v1/trigger`: what folds hold is sent now, and what waits for a later try is tried now.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tidegate_core::fold::ClosedBy;
use tidegate_core::limits::END_WINDOWS_MAX;
use tidegate_store::{EndWindows, WindowsEnd};

use super::auth::Caller;
use super::problem::Answer;
use super::request::{parse, read_body};
use super::{App, json_answer};

/// It acts on everything, so a body that wants less is refused rather than left aside.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {}

/// Closes windows and makes retrying deliveries due. What is held stays held.
pub(super) async fn trigger(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let Asked {} = parse(&body)?;
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
