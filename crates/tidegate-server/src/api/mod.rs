//! The HTTP API: one file per resource, errors as RFC 9457, every route in one table.

mod auth;
mod deliveries;
mod events;
mod health;
mod keys;
mod openapi;
mod problem;
mod projects;
mod request;
mod subscribers;
mod trace;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::Serialize;
use serde_json::json;

use crate::pipeline::{Parts, Pipeline};
use problem::Problem;
use request::cursor;

/// What every handler can reach.
pub struct App {
    /// The running pipeline.
    pub pipeline: Pipeline,
    /// What it is made of.
    pub parts: Parts,
    /// The process is on its way out.
    pub is_stopping: AtomicBool,
    /// Held from reading a subscriber to writing its patched definition: two patches at once must not undo each other.
    patching: tokio::sync::Mutex<()>,
}

impl App {
    /// For a running pipeline.
    pub fn new(pipeline: Pipeline, parts: Parts) -> Self {
        Self { pipeline, parts, is_stopping: AtomicBool::new(false), patching: tokio::sync::Mutex::default() }
    }
}

/// Every path, with its methods. `/openapi.json` must describe exactly these; a test compares.
fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/v1/events", post(events::publish).get(events::list)),
        ("/v1/events/{id}", get(events::get)),
        ("/v1/events/{id}/trace", get(trace::get)),
        ("/v1/subscribers", post(subscribers::create).get(subscribers::list)),
        ("/v1/subscribers/{id}", get(subscribers::get).patch(subscribers::patch).delete(subscribers::delete)),
        ("/v1/subscribers/{id}/pause", post(subscribers::pause)),
        ("/v1/subscribers/{id}/resume", post(subscribers::resume)),
        ("/v1/subscribers/{id}/deliveries", get(deliveries::list_of_subscriber)),
        ("/v1/deliveries", get(deliveries::list)),
        ("/v1/deliveries/{id}", get(deliveries::get)),
        ("/v1/deliveries/{id}/retry", post(deliveries::retry)),
        ("/v1/projects", post(projects::create).get(projects::list)),
        ("/v1/projects/{id}", delete(projects::delete)),
        ("/v1/keys", post(keys::create).get(keys::list)),
        ("/v1/keys/{id}", delete(keys::delete)),
        ("/livez", get(health::livez)),
        ("/readyz", get(health::readyz)),
        ("/metrics", get(health::metrics)),
        ("/openapi.json", get(openapi::get)),
    ]
}

/// The API as a service.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        router = router.route(path, methods);
    }
    router
        .fallback(|| async {
            Problem::new(StatusCode::NOT_FOUND, "path_unknown", "see /openapi.json for all paths")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "see the `allow` header")
        })
        .with_state(app)
}

fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

fn json_answer(status: StatusCode, value: &impl Serialize) -> Response {
    json_text(status, serde_json::to_string(value).expect("our own answers are always JSON"))
}

/// `{"items":[…],"next":…}`.
fn page_answer(items: &impl Serialize, next: Option<i64>) -> Response {
    json_answer(StatusCode::OK, &json!({ "items": items, "next": next.map(cursor) }))
}
