//! Errors of the API: RFC 9457, with a stable `code`, the field, and a sentence with the remedy.
//!
//! A [`Problem`] is for the caller. What is our own fault is logged and answered without detail.

use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};
use tidegate_core::ingest::{Refusal, RefusalKind};
use tidegate_core::subscriber::Invalid;

const OVERTAKEN: &str = "changed_meanwhile";

/// One error of the API.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
    /// Seconds after which it is worth asking again, where that is a question of time.
    retry_after: u64,
}

/// The answer of a handler.
pub(crate) type Answer = Result<Response, Problem>;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new(), retry_after: 1 }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Somebody else changed the same thing since it was read.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.code == OVERTAKEN
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no such {what} in this project"))
    }

    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn invalid(code: &'static str, field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail).with("field", field)
    }

    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = seconds;
        self
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }
}

/// What each status is called.
fn title(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "The request can not be read",
        401 => "A valid API key is needed",
        403 => "The key's role does not allow this",
        404 => "Not found",
        405 => "The method is not allowed here",
        408 => "The request took too long",
        409 => "It conflicts with what is there",
        413 => "The request is too large",
        415 => "The media type is not supported",
        422 => "A field is wrong",
        429 => "Too many requests",
        503 => "Not possible right now",
        _ => "Something went wrong on our side",
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": format!("/docs/errors#{}", self.code),
            "title": title(self.status),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut body {
            members.extend(self.more);
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from(self.retry_after));
            }
            StatusCode::UNSUPPORTED_MEDIA_TYPE if self.code == "encoding_unsupported" => {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd"));
            }
            _ => {}
        }
        response
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal.kind {
            RefusalKind::Unparsable | RefusalKind::TooDeep => StatusCode::BAD_REQUEST,
            RefusalKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RefusalKind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let mut problem = Self::new(status, refusal.code, refusal.detail);
        if let Some(index) = refusal.index {
            problem = problem.with("index", index);
        }
        match refusal.field {
            Some(field) => problem.with("field", field),
            None => problem,
        }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let status = if invalid.syntax { StatusCode::BAD_REQUEST } else { StatusCode::UNPROCESSABLE_ENTITY };
        let problem = Self::new(status, invalid.code, invalid.detail);
        match invalid.field {
            Some(field) => problem.with("field", field),
            None => problem,
        }
    }
}

impl From<tidegate_store::Error> for Problem {
    fn from(error: tidegate_store::Error) -> Self {
        use tidegate_store::Error;
        match error {
            Error::NotFound => Self::not_found("thing"),
            error @ Error::Unfinished => {
                Self::conflict("order_unfinished", error.to_string()).with("field", "order.by")
            }
            Error::Conflict(detail) => Self::conflict("conflict", detail),
            Error::Quota(detail) => Self::conflict("quota_exceeded", detail),
            Error::Stale { .. } => Self::conflict(OVERTAKEN, "somebody else changed it at the same moment"),
            Error::Fenced | Error::Unusable(_) | Error::Unavailable(_) => {
                tracing::error!(%error, "a request failed on the store");
                Self::unavailable("store_unavailable", "the store does not answer; try again shortly")
            }
        }
    }
}
