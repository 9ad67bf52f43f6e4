//! Probe: one request to a subscriber's endpoint right now, outside the queue.
//!
//! For tests and for verification. Goes through the guarded transport with the subscriber's own headers, secrets and
//! deadline, on a connection of its own, so that what it measures is a whole connection and no worker's.
//! Does not: take part in turns, rates or retries, nor write anything down.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tidegate_core::id::prefixed;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{Exchange, Outbound, Target, Transport, webhook};

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::pipeline::Parts;
use crate::roster::Endpoint;

/// What was asked, and what came back.
pub(crate) struct Probed {
    /// What was sent, all but what the transport adds.
    pub(crate) headers: HeaderMap,
    /// When it began.
    pub(crate) at: Timestamp,
    /// How it went.
    pub(crate) exchange: Exchange,
}

/// Sends requests outside the queue.
pub(crate) struct Prober {
    transport: Arc<dyn Transport>,
    clock: Clock,
    entropy: Entropy,
}

impl Prober {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self {
            transport: Arc::clone(&parts.transport),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
        }
    }

    /// An id for a request; `kind` is how it begins.
    pub(crate) fn id(&self, kind: &str) -> String {
        prefixed(kind, self.entropy.u128())
    }

    /// Sends one signed request under this id; `more` comes along.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        id: &str,
        method: Method,
        body: Bytes,
        more: HeaderMap,
    ) -> Probed {
        let at = self.clock.now();
        let signers = endpoint.signers(at);
        let mut headers = webhook::render(id, self.clock.wall(), &body, signers, &endpoint.letterhead);
        headers.extend(more);
        let outbound = Outbound {
            target: Target::new(endpoint.target.url().clone()),
            method,
            headers: headers.clone(),
            body,
            timeout: endpoint.timeout,
        };
        Probed { headers, at, exchange: self.transport.send(outbound).await }
    }
}
