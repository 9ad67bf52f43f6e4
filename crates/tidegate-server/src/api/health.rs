//! `/livez`, `/readyz`, `/metrics`: for those who watch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::problem::Answer;
use super::request::Query;
use super::{App, json_answer};
use crate::metrics::scrape::Scrape;

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
pub(super) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Answer {
    let backlogs = app.parts.store.backlogs().await?;
    let sizes = app.parts.store.sizes().await?;
    let backlog = app.parts.store.backlog().await?;
    let mut text =
        app.parts.metrics.render(app.pipeline.desk.in_flight(), app.pipeline.desk.breakers_open(), backlog);
    let scrape = Scrape {
        roster: &app.parts.rosters.current(),
        backlogs: &backlogs,
        sizes: &sizes,
        streams: app.parts.watch.open(),
    };
    scrape.add(&mut text);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = if accepted.into_iter().any(|kinds| kinds.contains(OPENMETRICS)) {
        (format!("{OPENMETRICS}; version=1.0.0; charset=utf-8"), text.into_openmetrics())
    } else {
        ("text/plain; version=0.0.4; charset=utf-8".to_owned(), text.into_prometheus())
    };
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind)], text).into_response())
}

/// What scrapers that know it ask for.
const OPENMETRICS: &str = "application/openmetrics-text";
