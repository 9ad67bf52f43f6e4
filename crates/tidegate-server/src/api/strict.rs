//! Requests without surprises: a parameter that a route does not know is refused before anything is done, and a change that
//! has begun is finished even if its client hangs up.
//!
//! A misspelt filter must not look like an empty result, and one that belongs elsewhere must not turn "these" into "all".
//! What a route takes is declared with it, in the table of routes; handlers read what they are given.
//!
//! A handler that changes the store tells the pipeline afterward what is due now. Dropped in between, the work would stay
//! due in the store and nobody would look for it.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{FromRequestParts as _, Request};
use axum::handler::Handler;
use axum::response::{IntoResponse as _, Response};
use http::Method;

use super::App;
use super::auth::Caller;
use super::problem::Problem;

/// What every handler that is a function returns.
pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// The query parameters that a route takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    /// These.
    Only(&'static [&'static str]),
    /// Whatever comes is left aside: probes and links carry all sorts of things, and nothing depends on them.
    Anything,
}

impl Takes {
    /// The first parameter that is not among them.
    fn stranger(self, query: &str) -> Option<String> {
        let Self::Only(known) = self else { return None };
        let mut names = url::form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name);
        names.find(|name| !known.contains(&&**name)).map(std::borrow::Cow::into_owned)
    }

    fn told(self, method: &Method) -> String {
        match self {
            Self::Only(known) if !known.is_empty() => format!("known parameters: {}", known.join(", ")),
            _ if method == Method::GET || method == Method::DELETE => {
                "no parameters are known here".to_owned()
            }
            _ => "no parameters are known here: what it acts on is said in the body".to_owned(),
        }
    }
}

/// A handler behind its check.
#[derive(Clone)]
pub(super) struct Strict<H> {
    pub(super) handler: H,
    pub(super) takes: Takes,
    /// It runs to its end, whatever becomes of the client.
    pub(super) is_finished: bool,
}

impl<H, T> Handler<T, Arc<App>> for Strict<H>
where
    H: Handler<T, Arc<App>, Future = Answering>,
    T: 'static,
{
    type Future = Answering;

    fn call(self, request: Request, app: Arc<App>) -> Answering {
        match request.uri().query().and_then(|query| self.takes.stranger(query)) {
            None if self.is_finished => Box::pin(finish(self.handler.call(request, app))),
            None => self.handler.call(request, app),
            Some(name) => Box::pin(refuse(request, app, self.takes, name)),
        }
    }
}

async fn finish(answering: Answering) -> Response {
    tokio::spawn(answering).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a request ended early");
        let detail = "the request ended early: check what it did, then send it again";
        Problem::unavailable("store_unavailable", detail).into_response()
    })
}

/// Whoever has no key is told that, and nothing about the API.
async fn refuse(request: Request, app: Arc<App>, takes: Takes, name: String) -> Response {
    let (mut parts, _body) = request.into_parts();
    if let Err(problem) = Caller::from_request_parts(&mut parts, &app).await
        && needs_key(parts.uri.path())
    {
        return problem.into_response();
    }
    Problem::invalid("parameter_unknown", &name, takes.told(&parts.method)).into_response()
}

/// Whether a path is for those with a key.
pub(super) fn needs_key(path: &str) -> bool {
    path.starts_with("/v1/") || path.starts_with("/api/") || path == "/asyncapi.json"
}
