//! Pages for people: `/`, `/docs` and `/docs/errors`. They need no network but this server.
//!
//! `/docs` draws `/openapi.json` in the browser and can try an operation with a key, which stays in the tab. The
//! content security policy allows nothing but our own files, and the script writes text, never markup: what an API
//! answers can not run.

use std::fmt::Write as _;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

use super::errors::ERRORS;

const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";

/// The way to everything else.
pub(super) async fn index() -> Response {
    page(HTML, include_str!("index.html").to_owned())
}

/// The API, operation by operation.
pub(super) async fn docs() -> Response {
    page(HTML, include_str!("docs.html").to_owned())
}

/// What draws it.
pub(super) async fn script() -> Response {
    page("text/javascript; charset=utf-8", include_str!("docs.js").to_owned())
}

/// How it looks.
pub(super) async fn style() -> Response {
    page("text/css; charset=utf-8", include_str!("docs.css").to_owned())
}

/// What a browser shows beside the title.
pub(super) async fn icon() -> Response {
    page("image/svg+xml", include_str!("icon.svg").to_owned())
}

/// Every error code, each with a place that a problem's `type` points to.
pub(super) async fn errors() -> Response {
    let mut entries = String::new();
    for error in ERRORS {
        let (code, cause, remedy) = (error.code, marked(error.cause), marked(error.remedy));
        // Writing to a string does not fail.
        let _ = writeln!(
            entries,
            "<section class=\"code\" id=\"{code}\"><h2><a href=\"#{code}\">{code}</a></h2><p>{cause}</p><p><b>Remedy:</b> {remedy}</p></section>"
        );
    }
    page(HTML, include_str!("errors.html").replace("<!-- entries -->", &entries))
}

/// Our own words as HTML: backquotes become code.
fn marked(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let parts = escaped.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() }).collect()
}

fn page(kind: &'static str, text: String) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    (StatusCode::OK, headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_need_nothing_from_elsewhere_and_run_nothing_inline() {
        for page in [include_str!("index.html"), include_str!("docs.html"), include_str!("errors.html")] {
            for foreign in
                ["http://", "https://", "//cdn", "<style", "style=", "onclick", "onload", "javascript:"]
            {
                assert!(!page.contains(foreign), "{foreign}");
            }
            assert_eq!(
                page.matches("<script").count(),
                page.matches("<script src=\"/docs/docs.js\"").count()
            );
        }
        let script = include_str!("docs.js");
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"]
        {
            assert!(!script.contains(way), "{way}");
        }
    }

    #[test]
    fn words_become_html() {
        assert_eq!(marked("a < `b`."), "a &lt; <code>b</code>.");
    }
}
