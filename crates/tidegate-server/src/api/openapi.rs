//! `/openapi.json`: the API described, OpenAPI 3.1. Written by hand beside the handlers; a test holds it to the routes.

use axum::response::Response;
use http::StatusCode;

use super::json_text;

/// The description, as it is served.
pub(super) const TEXT: &str = include_str!("openapi.json");

/// The description of the API.
pub(super) async fn get() -> Response {
    json_text(StatusCode::OK, TEXT.to_owned())
}
