//! The HTTP API: one file per resource, errors as RFC 9457, every route in one table.

mod attributes;
mod audit;
mod auth;
mod backfills;
mod catalog;
mod census;
mod declare;
mod deliveries;
mod encoding;
mod errors;
mod events;
mod gates;
mod health;
mod intake;
mod jobs;
mod keys;
mod master_key;
mod members;
mod objects;
mod openapi;
mod pages;
mod problem;
mod projects;
mod quarantine;
mod query;
mod rates;
mod replay;
mod replicas;
mod request;
mod rotate;
mod sample;
mod seeds;
mod site;
#[cfg(test)]
mod stage;
mod stream;
mod strict;
mod subscribers;
#[cfg(test)]
mod tests;
mod trace;
mod trigger;
mod vitals;
mod windows;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::handler::Handler;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde::Serialize;
use tidegate_core::limits::QUERIES_AT_ONCE;

use crate::disk::Disk;
use crate::listen::tls::Certificate;
use crate::master_key::MasterKey;
use crate::pipeline::{Parts, Pipeline};
use crate::settings::store::Address;
use census::Census;
use health::{Refusal, Troubles};
use problem::{Answer, Problem};
pub use rates::{Peer, RequestRates, limited};
use strict::{Answering, Strict, Takes};
use vitals::Vitals;

/// What every handler can reach.
pub struct App {
    /// The running pipeline.
    pub pipeline: Pipeline,
    /// What it is made of.
    pub parts: Parts,
    /// The disk that the data is on.
    pub disk: Disk,
    /// Whether anything is sent.
    pub delivers: bool,
    /// The process is on its way out.
    pub is_stopping: AtomicBool,
    /// What the door shows; absent means plain http.
    pub certificate: Option<Arc<Certificate>>,
    /// What secrets are sealed with; absent where nobody may change it.
    pub master_key: Option<Arc<MasterKey>>,
    /// Where Redis is, if there is one.
    pub redis: Option<Address>,
    /// What it last said when it could not be used.
    redis_refusal: Refusal,
    /// What `/readyz` last found in the store.
    troubles: Troubles,
    /// What `/metrics` last counted in the store.
    census: Census,
    /// Held from reading a subscriber to writing its patched definition: two patches at once must not undo each other.
    patching: tokio::sync::Mutex<()>,
    /// How the store is doing.
    vitals: Vitals,
    /// Tests of subscribers under way.
    samples: sample::Samples,
    /// Turns of those who ask what was counted.
    questions: tokio::sync::Semaphore,
}

impl App {
    /// For a running pipeline.
    pub fn new(pipeline: Pipeline, parts: Parts) -> Self {
        Self {
            pipeline,
            parts,
            disk: Disk::new(Path::new("."), None),
            delivers: true,
            redis: None,
            redis_refusal: Refusal::default(),
            troubles: Troubles::default(),
            census: Census::default(),
            is_stopping: AtomicBool::new(false),
            certificate: None,
            master_key: None,
            patching: tokio::sync::Mutex::default(),
            vitals: Vitals::default(),
            samples: sample::Samples::default(),
            questions: tokio::sync::Semaphore::new(QUERIES_AT_ONCE),
        }
    }
}

/// How often a change is made anew that somebody else overtook.
const PATCH_TRIES: usize = 4;

impl App {
    /// Reads something and changes it: within the process nobody else does at the same time, and when another process was
    /// quicker it is done anew.
    async fn patch<F: Future<Output = Answer>>(&self, once: impl Fn() -> F) -> Answer {
        let _one_at_a_time = self.patching.lock().await;
        for _ in 1..PATCH_TRIES {
            let answer = once().await;
            if !answer.as_ref().is_err_and(Problem::is_overtaken) {
                return answer;
            }
            self.parts.rosters.refresh().await?;
        }
        once().await
    }
}

/// One row of the API: what is asked for, and who answers.
struct Route {
    method: Method,
    path: &'static str,
    /// The query parameters it knows.
    takes: Takes,
    /// It runs to its end even if the client hangs up.
    is_finished: bool,
    /// Answers requests of the given method with these parameters, to the end or not.
    handler: Box<dyn FnOnce(MethodFilter, Takes, bool) -> MethodRouter<Arc<App>>>,
}

/// A row that takes no query parameters. What changes something runs to its end.
fn route<H, T>(method: Method, path: &'static str, handler: H) -> Route
where
    H: Handler<T, Arc<App>, Future = Answering>,
    T: 'static,
{
    let handler = Box::new(|filter, takes, is_finished| on(filter, Strict { handler, takes, is_finished }));
    let is_finished = method != Method::GET;
    Route { method, path, takes: Takes::Only(&[]), is_finished, handler }
}

impl Route {
    /// It takes these query parameters.
    fn with(self, parameters: &'static [&'static str]) -> Self {
        Self { takes: Takes::Only(parameters), ..self }
    }

    /// It ends when the client hangs up: it changes nothing, or nothing that others wait to hear of.
    fn ending_with_its_client(self) -> Self {
        Self { is_finished: false, ..self }
    }

    /// It is asked with any parameters, and minds none.
    fn with_anything(self) -> Self {
        Self { takes: Takes::Anything, ..self }
    }
}

/// The parameters of a list that has no filters.
const PAGES: &[&str] = &["limit", "cursor"];

/// Everything that is answered. `/openapi.json` describes exactly this; a test compares.
fn routes() -> Vec<Route> {
    use Method as M;
    let mut routes = vec![
        route(M::POST, "/v1/events", events::publish).ending_with_its_client(),
        route(M::GET, "/v1/events", events::list)
            .with(&["source", "type", "subject", "from", "to", "where", "limit", "cursor"]),
        route(M::GET, "/v1/events/{id}", events::get).with(&["source"]),
        route(M::GET, "/v1/events/{id}/trace", trace::get).with(&["source"]),
        route(M::GET, "/v1/stream", stream::get).with(&["types", "sources", "subscriber", "kinds", "after"]),
        route(M::POST, "/v1/events/{id}/replay", replay::event).with(&["source"]),
        route(M::POST, "/v1/subscribers", subscribers::create),
        route(M::GET, "/v1/subscribers", subscribers::list).with(PAGES),
        route(M::GET, "/v1/subscribers/{id}", subscribers::get),
        route(M::PUT, "/v1/subscribers/{id}", declare::put).with(&["dry_run"]),
        route(M::PATCH, "/v1/subscribers/{id}", subscribers::patch),
        route(M::DELETE, "/v1/subscribers/{id}", subscribers::delete),
        route(M::POST, "/v1/subscribers/{id}/pause", subscribers::pause),
        route(M::POST, "/v1/subscribers/{id}/resume", subscribers::resume),
        route(M::POST, "/v1/subscribers/{id}/rotate-secret", rotate::rotate),
        route(M::POST, "/v1/subscribers/{id}/test", sample::test).ending_with_its_client(),
        route(M::POST, "/v1/subscribers/{id}/verify", subscribers::verify),
        route(M::GET, "/v1/subscribers/{id}/deliveries", deliveries::list_of_subscriber)
            .with(&["status", "limit", "cursor"]),
        route(M::POST, "/v1/trigger", trigger::trigger),
        route(M::POST, "/v1/webhooks/subscribers", seeds::webhooks::register),
        route(M::GET, "/v1/webhooks/subscribers", seeds::webhooks::list).with(PAGES),
        route(M::GET, "/v1/webhooks/subscribers/{id}", seeds::webhooks::get),
        route(M::PATCH, "/v1/webhooks/subscribers/{id}", seeds::webhooks::change),
        route(M::DELETE, "/v1/webhooks/subscribers/{id}", subscribers::delete),
        route(M::GET, "/v1/webhooks/subscribers/{id}/deliveries", seeds::history::list).with(PAGES),
        route(M::POST, "/v1/webhooks/trigger", trigger::trigger),
        route(M::POST, "/api/events/publish", events::publish).ending_with_its_client(),
        route(M::GET, "/v1/deliveries", deliveries::list).with(&["status", "subscriber", "limit", "cursor"]),
        route(M::GET, "/v1/deliveries/{id}", deliveries::get),
        route(M::POST, "/v1/deliveries/{id}/retry", deliveries::retry),
        route(M::POST, "/v1/subscribers/{id}/replay", jobs::replay_past).with(&["dry_run"]),
        route(M::GET, "/v1/dead-letters", deliveries::list_dead_letters).with(&[
            "subscriber",
            "limit",
            "cursor",
        ]),
        route(M::POST, "/v1/dead-letters/replay", jobs::replay_letters).with(&["dry_run"]),
        route(M::GET, "/v1/jobs", jobs::list).with(PAGES),
        route(M::GET, "/v1/jobs/{id}", jobs::get),
        route(M::POST, "/v1/jobs/{id}/stop", jobs::stop),
        route(M::POST, "/v1/projects", projects::create),
        route(M::GET, "/v1/projects", projects::list).with(PAGES),
        route(M::PATCH, "/v1/projects/{id}", projects::patch),
        route(M::DELETE, "/v1/projects/{id}", projects::delete),
        route(M::GET, "/v1/catalog/services", catalog::services).with(PAGES),
        route(M::GET, "/v1/catalog/services/{service}", catalog::types).with(PAGES),
        route(M::PUT, "/v1/catalog/services/{service}/types/{type}", catalog::put).with(&["dry_run"]),
        route(M::GET, "/v1/catalog/services/{service}/types/{type}", catalog::get),
        route(M::DELETE, "/v1/catalog/services/{service}/types/{type}", catalog::delete),
        route(M::GET, "/v1/quarantine", quarantine::list)
            .with(&["reason", "source", "type", "limit", "cursor"]),
        route(M::POST, "/v1/quarantine/release", quarantine::release),
        route(M::POST, "/v1/quarantine/discard", quarantine::discard),
        route(M::POST, "/v1/keys", keys::create),
        route(M::GET, "/v1/keys", keys::list).with(PAGES),
        route(M::DELETE, "/v1/keys/{id}", keys::delete),
        route(M::GET, "/v1/master-key", master_key::get),
        route(M::POST, "/v1/master-key/rotate", master_key::rotate),
        route(M::GET, "/v1/replicas", replicas::list),
    ];
    routes.extend(window_routes());
    routes.extend(gate_routes());
    routes.extend(observe_routes());
    routes.extend(site_routes());
    routes
}

fn window_routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/windows", windows::list).with(&["subscriber", "limit", "cursor"]),
        route(M::POST, "/v1/windows/flush", windows::flush),
        route(M::POST, "/v1/windows/cancel", windows::cancel),
    ]
}

fn gate_routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/gates", gates::list).with(PAGES),
        route(M::PUT, "/v1/gates/{name}", gates::put).with(&["dry_run"]),
        route(M::GET, "/v1/gates/{name}", gates::get),
        route(M::DELETE, "/v1/gates/{name}", gates::delete),
        route(M::POST, "/v1/gates/{name}/acquire", gates::acquire).with(&["wait"]).ending_with_its_client(),
        route(M::POST, "/v1/gates/{name}/penalize", gates::penalize),
        route(M::DELETE, "/v1/gates/{name}/penalty", gates::lift),
    ]
}

/// What is counted, and found by what was indexed.
fn observe_routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/catalog/attributes/{service}", attributes::names).with(PAGES),
        route(M::GET, "/v1/catalog/attributes/{service}/{attribute}", attributes::values)
            .with(&["prefix", "limit", "cursor"]),
        route(M::POST, "/v1/catalog/services/{service}/types/{type}/backfill", backfills::start),
        route(M::GET, "/v1/backfills", backfills::list).with(PAGES),
        route(M::POST, "/v1/backfills/{id}/stop", backfills::stop),
        route(M::POST, "/v1/audit", audit::run).ending_with_its_client(),
        route(M::GET, "/v1/objects/{object}", objects::changes).with(&[
            "service",
            "attribute",
            "id",
            "from",
            "to",
            "late",
            "limit",
            "cursor",
        ]),
        route(M::GET, "/v1/objects/{object}/{id}", objects::get).with(&["service"]),
        route(M::POST, "/v1/query/counters", query::counters).ending_with_its_client(),
        route(M::POST, "/v1/query/histograms", query::histograms).ending_with_its_client(),
        route(M::POST, "/v1/query/states", query::states).ending_with_its_client(),
        route(M::POST, "/v1/query/transitions", query::transitions).ending_with_its_client(),
    ]
}

/// What tells about the server itself.
fn site_routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/livez", health::livez).with_anything(),
        route(M::GET, "/readyz", health::readyz).with(&["verbose"]),
        route(M::GET, "/metrics", health::metrics).with_anything(),
        route(M::GET, "/openapi.json", openapi::get).with_anything(),
        route(M::GET, "/asyncapi.json", catalog::asyncapi),
        route(M::GET, "/", site::index).with_anything(),
        route(M::GET, "/docs", site::docs).with_anything(),
        route(M::GET, "/docs/docs.js", site::script).with_anything(),
        route(M::GET, "/docs/docs.css", site::style).with_anything(),
        route(M::GET, "/docs/icon.svg", site::icon).with_anything(),
        route(M::GET, "/docs/errors", site::errors).with_anything(),
    ]
}

/// The API as a service.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for Route { method, path, takes, is_finished, handler } in routes() {
        let filter = MethodFilter::try_from(method).expect("an ordinary method");
        router = router.route(path, handler(filter, takes, is_finished));
    }
    router
        .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "path_unknown", "see /docs for all paths") })
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
