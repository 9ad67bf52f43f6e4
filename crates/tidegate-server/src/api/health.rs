//! `/livez`, `/readyz`, `/metrics`: for those who watch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::problem::Answer;
use super::request::Query;
use super::{App, json_answer};

/// The process runs.
pub(super) async fn livez() -> Response {
    json_answer(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Events are accepted.
pub(super) async fn readyz(State(app): State<Arc<App>>, RawQuery(raw): RawQuery) -> Answer {
    let is_verbose = Query::parse(raw.as_deref(), &["verbose"])?.take("verbose").is_some();
    let checks = [
        ("store", app.pipeline.persist.is_healthy()),
        ("accepting", !app.is_stopping.load(Ordering::Relaxed)),
    ];
    // What does not keep events from being accepted makes it degraded, not unavailable.
    let tls = app.certificate.as_ref().map(|certificate| ("tls", certificate.is_current()));
    let is_ready = checks.iter().all(|(_, is_fine)| *is_fine);
    let is_sound = tls.is_none_or(|(_, is_fine)| is_fine);
    let (status, word) = match (is_ready, is_sound) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        (true, false) => (StatusCode::OK, "degraded"),
        (true, true) => (StatusCode::OK, "ready"),
    };
    let mut answer = json!({ "status": word });
    if is_verbose || word != "ready" {
        let name = |is_fine| Value::from(if is_fine { "ok" } else { "failing" });
        let all = checks.into_iter().chain(tls);
        answer["checks"] = all.map(|(check, is_fine)| (check.to_owned(), name(is_fine))).collect();
    }
    Ok(json_answer(status, &answer))
}

/// Everything that is counted, in the text format of Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Answer {
    let backlog = app.parts.store.backlog().await?;
    let text =
        app.parts.metrics.render(app.pipeline.desk.in_flight(), app.pipeline.desk.breakers_open(), backlog);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind)], text).into_response())
}
