//! Spans: what took how long and belongs together, for an OpenTelemetry collector.
//!
//! Three kinds: a request that brought events, the group commit that wrote them (linked to its requests), and each
//! attempt (a child of the request, found through the context that the event carries). A finished span goes into a
//! bounded queue; [`export`] sends what gathers there.
//!
//! Promises: nothing ever waits for a collector. When the queue is full, spans are dropped and counted. Without a
//! collector nothing is recorded; a context that came along is passed on unchanged.

pub mod attempt;
mod config;
mod encode;
mod export;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tidegate_core::span::{Carried, SpanContext};
use tidegate_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::entropy::Entropy;
pub use config::{Collector, OtlpSection};

/// Finished spans that wait for their export: a few hundred kilobytes.
const QUEUE_SPANS_MAX: usize = 4096;
/// How long a stopping process waits for its last spans to be sent.
const FLUSH: Duration = Duration::from_secs(2);
/// Spans that one commit is linked to; a group of thousands needs no more to be found.
pub const LINKS_MAX: usize = 64;

/// Records spans, if there is somebody to send them to.
#[derive(Default)]
pub struct Spans {
    recorder: Option<Recorder>,
    counts: Arc<Counts>,
}

struct Recorder {
    queue: mpsc::Sender<Message>,
    clock: Clock,
    entropy: Entropy,
    /// Of requests that bring no context: those whose chance is below this are recorded.
    threshold: u64,
}

enum Message {
    Span(Box<Span>),
    /// Everything before this shall be sent; then say so.
    Flush(oneshot::Sender<()>),
}

/// What became of spans.
#[derive(Default)]
pub struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

/// A span that has begun.
pub struct Open {
    /// What others refer to it by.
    pub context: SpanContext,
    parent: Option<u64>,
    began: Duration,
    at: Timestamp,
}

/// What a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work of our own.
    Internal = 1,
    /// An answer to a request.
    Server = 2,
    /// A request to somebody else.
    Client = 3,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Int(i64),
    /// A text of our own; never one of a user.
    Text(String),
}

/// A finished span.
pub struct Span {
    context: SpanContext,
    parent: Option<u64>,
    name: &'static str,
    kind: Kind,
    at: Timestamp,
    took: Duration,
    attributes: Vec<(&'static str, Value)>,
    links: Vec<SpanContext>,
    has_failed: bool,
}

/// What is said about a span when it ends.
pub struct Ending {
    /// What it was.
    pub name: &'static str,
    /// What it was about.
    pub kind: Kind,
    /// What is known about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whom it worked for.
    pub links: Vec<SpanContext>,
    /// It did not work.
    pub has_failed: bool,
}

impl Spans {
    /// Records spans for a collector, and starts to send them.
    pub fn to(collector: Collector, clock: &Clock, entropy: &Entropy) -> Self {
        let (queue, spans) = mpsc::channel(QUEUE_SPANS_MAX);
        let counts = Arc::new(Counts::default());
        let threshold = collector.threshold();
        tokio::spawn(export::run(spans, collector, clock.clone(), Arc::clone(&counts)));
        let recorder = Recorder { queue, clock: clock.clone(), entropy: entropy.clone(), threshold };
        Self { recorder: Some(recorder), counts }
    }

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Spans that were sent, and those that were dropped.
    pub fn counts(&self) -> (u64, u64) {
        (self.counts.exported.load(Ordering::Relaxed), self.counts.dropped.load(Ordering::Relaxed))
    }

    /// Begins a span below `parent`, or at the head of a new trace; `None` if it is not recorded. Whoever began a
    /// trace decides whether it is; for new ones chance does.
    pub fn begin(&self, parent: Option<SpanContext>) -> Option<Open> {
        let recorder = self.recorder.as_ref()?;
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => recorder.entropy.u64() <= recorder.threshold,
        };
        is_sampled.then(|| recorder.open(parent))
    }

    /// Begins a span of its own, whatever chance says.
    pub fn begin_linked(&self) -> Option<Open> {
        self.recorder.as_ref().map(|recorder| recorder.open(None))
    }

    /// Ends a span.
    pub fn end(&self, open: &Open, ending: Ending) {
        let Some(recorder) = &self.recorder else { return };
        let Ending { name, kind, attributes, links, has_failed } = ending;
        let took = recorder.clock.elapsed().saturating_sub(open.began);
        let Open { context, parent, at, .. } = *open;
        let span = Span { context, parent, name, kind, at, took, attributes, links, has_failed };
        if recorder.queue.try_send(Message::Span(Box::new(span))).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for a while until everything recorded so far is sent.
    pub async fn flush(&self) {
        let Some(recorder) = &self.recorder else { return };
        let (done, flushed) = oneshot::channel();
        let flushing = async {
            if recorder.queue.send(Message::Flush(done)).await.is_ok() {
                // Without an answer the exporter is gone, and with it what it had.
                let _ = flushed.await;
            }
        };
        if tokio::time::timeout(FLUSH, flushing).await.is_err() {
            tracing::warn!("the last spans could not be sent in time");
        }
    }
}

impl Recorder {
    fn open(&self, parent: Option<SpanContext>) -> Open {
        let trace = parent.map_or_else(|| self.entropy.u128().max(1), |parent| parent.trace);
        let context = SpanContext { trace, span: self.entropy.u64().max(1), is_sampled: true };
        let parent = parent.map(|parent| parent.span);
        Open { context, parent, began: self.clock.elapsed(), at: self.clock.wall() }
    }
}

/// The context that a request brings along. One that is not recorded anywhere is not worth keeping.
pub fn brought_by(headers: &HeaderMap) -> Option<Carried> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let carried = Carried::new(text("traceparent")?, text("tracestate"))?;
    carried.context.is_sampled.then_some(carried)
}

#[cfg(test)]
mod tests;
