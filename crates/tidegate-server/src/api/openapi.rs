//! `/openapi.json`: the API described, OpenAPI 3.1. Written by hand beside the handlers, one fragment per resource in
//! `openapi/`; tests hold it to the routes.
//!
//! The fragments are put together when the description is first asked for. Members keep the order in which they were
//! written, because people read them too.

use std::sync::LazyLock;

use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use serde_json::value::RawValue;

use super::errors::ERRORS;
use super::json_text;
use super::members::Members;

/// `base.json` says what the others share; each of them has its own tag, paths and components.
const FRAGMENTS: &[&str] = &[
    include_str!("openapi/base.json"),
    include_str!("openapi/events.json"),
    include_str!("openapi/subscribers.json"),
    include_str!("openapi/windows.json"),
    include_str!("openapi/sending.json"),
    include_str!("openapi/seeds.json"),
    include_str!("openapi/deliveries.json"),
    include_str!("openapi/stream.json"),
    include_str!("openapi/replay.json"),
    include_str!("openapi/catalog.json"),
    include_str!("openapi/query.json"),
    include_str!("openapi/observing.json"),
    include_str!("openapi/objects.json"),
    include_str!("openapi/gates.json"),
    include_str!("openapi/quarantine.json"),
    include_str!("openapi/projects.json"),
    include_str!("openapi/keys.json"),
    include_str!("openapi/master_key.json"),
    include_str!("openapi/replicas.json"),
    include_str!("openapi/health.json"),
    include_str!("openapi/site.json"),
];

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let fragments = FRAGMENTS.iter().map(|text| serde_json::from_str(text).expect("a fragment is JSON"));
    let mut whole: Description = fragments.fold(Description::default(), Description::with);
    whole.components.schemas.0.push(("ProblemCode".to_owned(), problem_codes()));
    serde_json::to_string(&whole).expect("a description is JSON")
});

/// Every code, from the table that also makes the page about them.
fn problem_codes() -> Box<RawValue> {
    let codes: Vec<&str> = ERRORS.iter().map(|error| error.code).collect();
    let schema = json!({ "description": "Stable name of the reason, for programs. See `/docs/errors`.", "enum": codes });
    RawValue::from_string(schema.to_string()).expect("a schema is JSON")
}

/// The description, as it is served.
pub(super) fn text() -> &'static str {
    &TEXT
}

/// The description of the API.
pub(super) async fn get() -> Response {
    json_text(StatusCode::OK, text().to_owned())
}

/// A description, or a fragment of one.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Description {
    /// `openapi`, `info` and so on: the whole document's, in `base.json` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    openapi: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    info: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    servers: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<Box<RawValue>>,
    tags: Vec<Box<RawValue>>,
    paths: Members,
    webhooks: Members,
    components: Components,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Components {
    security_schemes: Members,
    parameters: Members,
    responses: Members,
    schemas: Members,
}

impl Description {
    fn with(mut self, other: Self) -> Self {
        self.openapi = self.openapi.or(other.openapi);
        self.info = self.info.or(other.info);
        self.servers = self.servers.or(other.servers);
        self.security = self.security.or(other.security);
        self.tags.extend(other.tags);
        self.paths.extend(other.paths);
        self.webhooks.extend(other.webhooks);
        self.components.security_schemes.extend(other.components.security_schemes);
        self.components.parameters.extend(other.components.parameters);
        self.components.responses.extend(other.components.responses);
        self.components.schemas.extend(other.components.schemas);
        self
    }
}

impl Members {
    fn extend(&mut self, other: Self) {
        for (name, value) in other.0 {
            assert!(self.0.iter().all(|(known, _)| *known != name), "{name} is described twice");
            self.0.push((name, value));
        }
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
