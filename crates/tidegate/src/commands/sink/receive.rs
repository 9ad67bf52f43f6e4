//! The sink's HTTP side: accept, read, note down, answer.
//!
//! Promises: with `--count N` exactly N requests are printed, each of them gets its answer, then the sink ends.
//! Requests that come while it ends are turned away and not counted.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::SinkArgs;
use super::request::Request;
use crate::clock;
use crate::output::Output;

/// A body larger than this is refused: no delivery of ours comes near it.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Ids remembered in order to tell a repeat; the oldest is forgotten first.
const IDS_KEPT_MAX: usize = 100_000;

/// A sink that listens.
pub(super) struct Receiver {
    args: SinkArgs,
    output: Output,
    state: Mutex<State>,
    stop: watch::Sender<bool>,
}

struct State {
    rng: StdRng,
    ids: Ids,
    requests: u64,
    wrong: u64,
    duplicates: u64,
    failure: Option<io::Error>,
}

impl Receiver {
    /// Prepares the chances of `--flaky`.
    pub(super) fn new(args: SinkArgs, output: Output) -> Self {
        let rng = args.seed.map_or_else(rand::make_rng, StdRng::seed_from_u64);
        let ids = Ids::default();
        let state = State { rng, ids, requests: 0, wrong: 0, duplicates: 0, failure: None };
        Self { args, output, state: Mutex::new(state), stop: watch::Sender::new(false) }
    }

    /// Receives until it is enough. Returns how many signatures were wrong.
    pub(super) async fn run(self, listener: TcpListener) -> anyhow::Result<u64> {
        let receiver = Arc::new(self);
        let mut connections = JoinSet::new();
        // What is under way when it is enough gets its answer; an interrupt waits for nobody.
        tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => interrupted?,
            accepted = accept(listener, &receiver, &mut connections) => accepted?,
        }
        receiver.finish()
    }

    async fn receive(&self, request: http::Request<Incoming>) -> Response<Full<Bytes>> {
        let at = clock::now();
        let (parts, body) = request.into_parts();
        let (request, verdict) = match Limited::new(body, BODY_BYTES_MAX).collect().await {
            Ok(body) => (Request::new(&parts, body.to_bytes(), &self.args.secrets, at), None),
            Err(error) => {
                let unread = Request::unread(&parts, format!("the body was not read: {error}"), at);
                (unread, Some(StatusCode::PAYLOAD_TOO_LARGE.as_u16()))
            }
        };
        let status = self.note(request, verdict);
        if let Some(delay) = self.args.delay {
            clock::wait(delay.0).await;
        }
        self.answer(status)
    }

    /// Decides the answer, counts and prints. One request at a time, so that the lines are in the order of the
    /// decisions and a seed gives the same ones again.
    fn note(&self, mut request: Request, verdict: Option<u16>) -> u16 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.stop.borrow() {
            return StatusCode::SERVICE_UNAVAILABLE.as_u16();
        }
        request.duplicate = request.id.as_ref().is_some_and(|id| !state.ids.insert(id));
        let fails = self.args.flaky.is_some_and(|share| state.rng.random_bool(share));
        request.status = verdict.unwrap_or(if fails { 500 } else { self.args.status });
        state.requests += 1;
        state.wrong += u64::from(request.verified == Some(false));
        state.duplicates += u64::from(request.duplicate);
        if !self.args.quiet
            && let Err(error) = self.output.line(&self.line(&request))
        {
            state.failure = Some(error);
        }
        if state.failure.is_some() || self.args.count == Some(state.requests) {
            self.stop.send_replace(true);
        }
        request.status
    }

    fn line(&self, request: &Request) -> String {
        if self.output.json { request.json() } else { request.text(self.output.paint) }
    }

    fn answer(&self, status: u16) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::from_u16(status).expect("checked when the flags were read");
        if let Some(after) = self.args.retry_after
            && !response.status().is_success()
        {
            let seconds = after.0.as_millis().div_ceil(1000).to_string();
            let value = seconds.parse().expect("digits fit a header");
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }

    /// The sum, for people always and for programs when it is all they get.
    fn finish(&self) -> anyhow::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = state.failure.take() {
            return Err(failure.into());
        }
        let State { requests, wrong, duplicates, .. } = &*state;
        if !self.output.json {
            let text =
                format!("\n{requests} requests, {duplicates} of them repeats, {wrong} signatures wrong");
            self.output.line(&text)?;
        } else if self.args.quiet {
            let sum = json!({"requests": requests, "duplicates": duplicates, "wrong": wrong});
            self.output.line(&sum.to_string())?;
        }
        Ok(*wrong)
    }
}

/// Takes connections until the receiver has enough, then waits for those that are open.
async fn accept(
    listener: TcpListener,
    receiver: &Arc<Receiver>,
    connections: &mut JoinSet<()>,
) -> io::Result<()> {
    let mut stopped = receiver.stop.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, Arc::clone(receiver)))),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Serves one connection; when the sink ends, the request under way is answered and no other is read.
async fn converse(stream: TcpStream, receiver: Arc<Receiver>) {
    let mut stopped = receiver.stop.subscribe();
    let service = service_fn(move |request| {
        let receiver = Arc::clone(&receiver);
        async move { Ok::<_, Infallible>(receiver.receive(request).await) }
    });
    let mut connection =
        std::pin::pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    // A sender that breaks off is its own affair.
    let ended = tokio::select! {
        biased;
        _ = connection.as_mut() => true,
        _ = stopped.wait_for(|stopped| *stopped) => false,
    };
    if !ended {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// The ids that were here, bounded.
#[derive(Default)]
struct Ids {
    known: BTreeSet<String>,
    order: VecDeque<String>,
}

impl Ids {
    /// Remembers an id; false when it was known.
    fn insert(&mut self, id: &str) -> bool {
        if !self.known.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > IDS_KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_known_again_until_they_are_too_many() {
        let mut ids = Ids::default();
        assert!(ids.insert("first"));
        assert!(!ids.insert("first"));
        for n in 0..IDS_KEPT_MAX {
            assert!(ids.insert(&n.to_string()));
        }
        assert_eq!(ids.known.len(), IDS_KEPT_MAX);
        assert!(ids.insert("first"), "forgotten");
    }
}
