//! Sends finished spans to the collector, many at once.
//!
//! The collector's address is the operator's own word, so the policy for subscribers' addresses does not apply to it;
//! the transport is the same one, with every address allowed. A batch that the collector does not take after a few
//! tries is dropped and counted, while the queue behind it fills and drops by itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use tidegate_core::egress::{IpNet, Policy};
use tidegate_destinations::{HttpTransport, Outbound, SystemResolver, Target, Transport};
use tokio::sync::{mpsc, oneshot};

use super::config::Collector;
use super::{Counts, Message, Span, encode};
use crate::clock::Clock;

/// Spans of one export.
const BATCH_SPANS_MAX: usize = 512;
/// How long the first span of a batch waits for company.
const GATHER: Duration = Duration::from_secs(1);
/// How long one export may take.
const TIMEOUT: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Runs until the recorder is gone.
pub(super) async fn run(
    mut queue: mpsc::Receiver<Message>,
    collector: Collector,
    clock: Clock,
    counts: Arc<Counts>,
) {
    let exporter = Exporter::new(&collector, clock.clone(), counts);
    while let Some(first) = queue.recv().await {
        let (batch, flushed) = gather(first, &mut queue, &clock).await;
        exporter.send(&batch).await;
        if let Some(flushed) = flushed {
            // Whoever waited may have gone.
            let _ = flushed.send(());
        }
    }
}

/// What comes within a moment, up to a whole batch. Somebody who waits is not kept waiting.
async fn gather(
    first: Message,
    queue: &mut mpsc::Receiver<Message>,
    clock: &Clock,
) -> (Vec<Span>, Option<oneshot::Sender<()>>) {
    let mut batch = Vec::new();
    let moment = clock.pause(GATHER);
    tokio::pin!(moment);
    let mut next = Some(first);
    loop {
        match next {
            Some(Message::Span(span)) => batch.push(*span),
            Some(Message::Flush(flushed)) => return (batch, Some(flushed)),
            None => return (batch, None),
        }
        if batch.len() == BATCH_SPANS_MAX {
            return (batch, None);
        }
        next = tokio::select! {
            biased;
            message = queue.recv() => message,
            () = &mut moment => None,
        };
    }
}

struct Exporter {
    transport: HttpTransport,
    target: Arc<Target>,
    headers: HeaderMap,
    clock: Clock,
    counts: Arc<Counts>,
}

impl Exporter {
    fn new(collector: &Collector, clock: Clock, counts: Arc<Counts>) -> Self {
        let everywhere = ["0.0.0.0/0", "::/0"].map(|range| range.parse::<IpNet>().expect("a range"));
        let transport =
            HttpTransport::new(Policy::new(everywhere.into()), Arc::new(SystemResolver::default()));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &collector.headers {
            match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => drop(headers.insert(name, value)),
                _ => tracing::warn!(name, "a header for the collector can not be sent"),
            }
        }
        Self { transport, target: Target::new(collector.url.clone()), headers, clock, counts }
    }

    async fn send(&self, spans: &[Span]) {
        if spans.is_empty() {
            return;
        }
        let body = bytes::Bytes::from(encode::request(spans));
        let count = spans.len() as u64;
        for left in (0..TRIES).rev() {
            let outbound = Outbound {
                target: Arc::clone(&self.target),
                method: Method::POST,
                headers: self.headers.clone(),
                body: body.clone(),
                timeout: TIMEOUT,
            };
            let problem = match self.transport.send(outbound).await.result {
                Ok(answer) if (200..300).contains(&answer.status) => {
                    self.counts.exported.fetch_add(count, Ordering::Relaxed);
                    return;
                }
                Ok(answer) => format!("it answered {}", answer.status),
                Err(failure) => failure.detail,
            };
            if left == 0 {
                tracing::warn!(problem, count, "the collector did not take spans: they are dropped");
            } else {
                self.clock.pause(TRY_AGAIN).await;
            }
        }
        self.counts.dropped.fetch_add(count, Ordering::Relaxed);
    }
}
