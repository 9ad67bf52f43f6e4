//! The transport: sends one request and reports what happened. The only outbound sockets of the product.
//!
//! Called by the delivery workers with an [`Outbound`]; answers with an [`Exchange`], always: a receiver that is
//! slow, broken or hostile is data, never an error.
//! Promises:
//! 1. No address is dialled that the policy does not allow, whatever the URL or the name system says (`connect`).
//! 2. One deadline covers everything: look-up, connecting, TLS, sending, the answer's head and its body.
//! 3. A request that may have been written is never sent twice. One that certainly was not, because the receiver
//!    had closed a reused connection, is sent at once on a fresh one.
//! 4. Whoever sends is asked once more when the connection stands, right before the first byte: connecting may take long, and
//!    what was theirs to send may be another's by then.
//! 5. Memory per answer is bounded: its head by the parser's limits, its body by what is kept.
//! 6. No text here repeats a blocked address, a path, a query or a header.
//!
//! Does not: follow redirects, use proxies of the environment, decompress answers, or skip the verification of
//! certificates. There is no code for any of these.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use rustls::pki_types::CertificateDer;
use tidegate_core::attempt::{ErrorClass, Phases, ResponseHead};
use tidegate_core::egress::Policy;
use tokio::time::Instant;

use crate::answer;
use crate::connect::Connector;
use crate::failure::Step;
use crate::pool::Connection;
use crate::resolve::Resolve;
use crate::target::Target;

/// One request to be sent.
pub struct Outbound {
    /// Where to.
    pub target: Arc<Target>,
    /// Usually POST.
    pub method: Method,
    /// All headers but `host` and `content-length`, which are the transport's.
    pub headers: HeaderMap,
    /// The exact bytes to send.
    pub body: Bytes,
    /// How long everything together may take.
    pub timeout: Duration,
}

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// How long each part took.
    pub phases: Phases,
    /// The answer, or why there is none.
    pub result: Result<Answer, Failure>,
}

/// A complete answer, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The header `retry-after` as sent, when it is short and readable.
    pub retry_after: Option<String>,
    /// What is kept of the answer.
    pub head: ResponseHead,
    /// What an answer to OPTIONS allows; answers to other requests are not asked.
    pub grant: Option<Box<Grant>>,
}

/// The headers by which a receiver allows webhooks, as the CloudEvents webhook specification names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// `webhook-allowed-origin`.
    pub origin: Option<String>,
    /// `webhook-allowed-rate`.
    pub rate: Option<String>,
}

/// Why there is no complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For machines.
    pub class: ErrorClass,
    /// For people. Free of secrets, and the same for every blocked address.
    pub detail: String,
}

/// Sends requests. The pipeline's simulation has its own, with scripted receivers.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and waits for the whole answer, a failure, or the deadline; unless it may not leave any more when its
    /// first byte could: then nothing of it was sent.
    async fn send_if(&self, outbound: Outbound, may_leave: MayLeave<'_>) -> Option<Exchange>;

    /// The same for what may always leave.
    async fn send(&self, outbound: Outbound) -> Exchange {
        self.send_if(outbound, &|| true).await.expect("nothing keeps it back")
    }
}

/// Asked right before the first byte.
pub type MayLeave<'a> = &'a (dyn Fn() -> bool + Sync);

/// Why there is no answer.
enum Unsent {
    Failed(Failure),
    /// It may not leave any more.
    Withheld,
}

impl From<Failure> for Unsent {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The real transport: HTTP/1.1 over TCP and TLS.
pub struct HttpTransport {
    connector: Connector,
}

impl HttpTransport {
    /// Trusts the public certificate authorities.
    pub fn new(policy: Policy, resolver: Arc<dyn Resolve>) -> Self {
        Self { connector: Connector::new(policy, resolver, &[]).expect("no certificate was added") }
    }

    /// Trusts these certificate authorities besides the public ones.
    pub fn with_roots(
        policy: Policy,
        resolver: Arc<dyn Resolve>,
        roots: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        Connector::new(policy, resolver, roots).map(|connector| Self { connector })
    }

    async fn exchange(
        &self,
        outbound: Outbound,
        progress: &mut Progress,
        may_leave: MayLeave<'_>,
    ) -> Result<Answer, Unsent> {
        let Outbound { target, method, headers, body, .. } = outbound;
        let mut request = target.request(method, headers, body)?;
        if !may_leave() {
            return Err(Unsent::Withheld);
        }
        if let Some(connection) = target.idle().take(progress.started) {
            match send_on(connection, &target, request, progress).await {
                Ok(answer) => return Ok(answer),
                Err(Unanswered { unsent: Some(unsent), .. }) => request = *unsent,
                Err(Unanswered { failure, unsent: None }) => return Err(failure.into()),
            }
        }
        // Boxed, because the state of a handshake is large, and every request would carry room for it along.
        let connection = Box::pin(self.connector.connect(&target, progress)).await?;
        if !may_leave() {
            return Err(Unsent::Withheld);
        }
        send_on(connection, &target, request, progress).await.map_err(|unanswered| unanswered.failure.into())
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send_if(&self, outbound: Outbound, may_leave: MayLeave<'_>) -> Option<Exchange> {
        let timeout = outbound.timeout;
        let mut progress = Progress::new(timeout);
        let exchange = self.exchange(outbound, &mut progress, may_leave);
        let result = match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Unsent::Failed(failure))) => Err(failure),
            Ok(Err(Unsent::Withheld)) => return None,
            Err(_) => Err(progress.step.timed_out(timeout)),
        };
        progress.phases.total_us = micros_since(progress.started);
        Some(Exchange { phases: progress.phases, result })
    }
}

/// How far a try has come, readable after the deadline cut it off.
pub(crate) struct Progress {
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) step: Step,
    pub(crate) phases: Phases,
}

impl Progress {
    fn new(timeout: Duration) -> Self {
        let started = now();
        let deadline = started.checked_add(timeout).unwrap_or(started);
        Self { started, deadline, step: Step::Send, phases: Phases::default() }
    }
}

/// A request without an answer.
struct Unanswered {
    failure: Failure,
    /// The request itself, when no byte of it was written. Otherwise the receiver may have it.
    unsent: Option<Box<Request<Full<Bytes>>>>,
}

async fn send_on(
    mut connection: Connection,
    target: &Arc<Target>,
    request: Request<Full<Bytes>>,
    progress: &mut Progress,
) -> Result<Answer, Unanswered> {
    progress.step = Step::Send;
    let began = now();
    let is_question = request.method() == Method::OPTIONS;
    let response = match connection.sender.try_send_request(request).await {
        Ok(response) => response,
        Err(mut error) => {
            let unsent = error.take_message().map(Box::new);
            return Err(Unanswered { failure: progress.step.failed(error.error()), unsent });
        }
    };
    let answered = now();
    progress.phases.wait_us = Some(micros(answered.saturating_duration_since(began)));
    progress.step = Step::Read;
    let received = answer::read(response, is_question)
        .await
        .map_err(|error| Unanswered { failure: progress.step.failed(&error), unsent: None })?;
    if received.is_complete {
        connection.allow_idle(received.idle_max);
        target.give_back(connection, answered);
    }
    Ok(received.answer)
}

#[expect(
    clippy::disallowed_methods,
    reason = "sockets live in real time; the simulation replaces the transport as a whole"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn micros_since(began: Instant) -> u32 {
    micros(now().saturating_duration_since(began))
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
