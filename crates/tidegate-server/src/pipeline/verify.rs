//! Verify: asks an endpoint whether it wants what it would get, before it gets anything.
//!
//! Whoever creates a subscriber, moves its URL or asks for it only marks the verification as pending, in the same
//! transaction; this finds what is pending whenever the configuration changed, and at the start. What a verification
//! means is decided in `tidegate_core::verification`.
//!
//! Promises: few tries, further and further apart, counted in the store; an answer counts only for the round it was
//! asked in, so an answer of the old URL never opens the new one. Nothing runs while nothing is pending. Of processes that
//! share a store only the one that leads asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::json;
use tidegate_core::id::{SubscriberNo, prefixed};
use tidegate_core::verification::{Consent, Verification, VerificationStatus};
use tidegate_core::verification::{judge_challenge, judge_handshake, next_try_in};
use tidegate_destinations::Answer;
use tidegate_store::{Change, Error, SubscriberUpdate, VerificationRow, VerificationUpdate};

use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::probe::Prober;
use crate::roster::{Endpoint, Roster, Rosters};
use crate::standing::Standing;

pub(super) static ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
static RATE: HeaderName = HeaderName::from_static("webhook-request-rate");

/// Asks endpoints for their consent.
pub struct Verify {
    rosters: Arc<Rosters>,
    prober: Prober,
    clock: Clock,
    entropy: Entropy,
    origin: HeaderValue,
    standing: Arc<Standing>,
    /// The rounds that were begun in this life: they end by themselves.
    begun: Mutex<BTreeMap<SubscriberNo, i64>>,
}

impl Verify {
    pub(super) fn new(parts: &Parts) -> Arc<Self> {
        Arc::new(Self {
            rosters: Arc::clone(&parts.rosters),
            prober: Prober::new(parts),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            origin: parts.origin.clone(),
            standing: Arc::clone(&parts.standing),
            begun: Mutex::default(),
        })
    }

    /// Begins, or goes on with, every verification that is pending.
    pub(super) fn resume_all(self: &Arc<Self>, roster: &Roster) {
        for endpoint in roster.endpoints() {
            if let Some(row) = pending(endpoint) {
                self.start(endpoint.rule.no, row.round);
            }
        }
    }

    fn start(self: &Arc<Self>, subscriber: SubscriberNo, round: i64) {
        let before = self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(subscriber, round);
        if before == Some(round) {
            return;
        }
        let (verify, clock) = (Arc::downgrade(self), self.clock.clone());
        let standing = Arc::clone(&self.standing);
        tokio::spawn(async move {
            standing.lead().await;
            // Asked for anew each time, so that a pause does not keep a stopped pipeline alive.
            while let Some(delay) = step(&verify, subscriber, round).await {
                clock.pause(delay).await;
                standing.lead().await;
            }
        });
    }

    /// One try. Says when the next is due, if there is one.
    async fn attempt(&self, subscriber: SubscriberNo, round: i64) -> Option<Duration> {
        let roster = self.rosters.current();
        let endpoint = roster.endpoint(subscriber)?;
        let row = pending(endpoint).filter(|row| row.round == round)?;
        let outcome = self.ask(endpoint).await;
        let delay = next_try_in(row.tries + 1);
        let id = endpoint.rule.id.as_str();
        match &outcome {
            Ok(_) => tracing::info!(subscriber = id, "the endpoint is verified"),
            Err(detail) => tracing::warn!(subscriber = id, detail, "the endpoint is not verified"),
        }
        let has_consent = outcome.is_ok();
        let tried = VerificationUpdate::Tried { round, outcome, is_last: delay.is_none() };
        let update = SubscriberUpdate { verification: Some(tried), ..SubscriberUpdate::default() };
        let change = Change::UpdateSubscriber { project: endpoint.rule.project, no: subscriber, update };
        match self.rosters.change(change, self.clock.now()).await {
            Ok(_) if has_consent => None,
            Ok(_) => delay,
            // Another round has begun, or the subscriber is gone.
            Err(Error::Conflict(_) | Error::NotFound) => None,
            Err(error) => {
                tracing::warn!(%error, "a verification waits for the store");
                Some(STORE_RETRY)
            }
        }
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<Consent, String> {
        match endpoint.definition().verification {
            Verification::None => Ok(Consent::default()),
            Verification::Challenge => self.challenge(endpoint).await,
            Verification::Cloudevents => self.shake_hands(endpoint).await,
        }
    }

    async fn challenge(&self, endpoint: &Endpoint) -> Result<Consent, String> {
        let challenge = prefixed("chl_", self.entropy.u128());
        let body = json!({ "type": "tidegate.verification", "challenge": challenge }).to_string();
        let answer = self.probe(endpoint, Method::POST, body.into(), HeaderMap::new()).await?;
        judge_challenge(answer.status, &answer.head.body, &challenge)
    }

    async fn shake_hands(&self, endpoint: &Endpoint) -> Result<Consent, String> {
        let mut headers = HeaderMap::from_iter([(ORIGIN.clone(), self.origin.clone())]);
        if let Some(rate) = endpoint.definition().limits.rate {
            headers.insert(RATE.clone(), HeaderValue::from(rate.per_minute()));
        }
        let answer = self.probe(endpoint, Method::OPTIONS, Bytes::new(), headers).await?;
        let origin = self.origin.to_str().unwrap_or_default();
        let grant = answer.grant.unwrap_or_default();
        judge_handshake(grant.origin.as_deref(), grant.rate.as_deref(), origin)
    }

    async fn probe(
        &self,
        endpoint: &Endpoint,
        method: Method,
        body: Bytes,
        headers: HeaderMap,
    ) -> Result<Answer, String> {
        let probed = self.prober.send(endpoint, &self.prober.id("vfy_"), method, body, headers).await;
        probed.exchange.result.map_err(|failure| failure.detail)
    }
}

async fn step(verify: &Weak<Verify>, subscriber: SubscriberNo, round: i64) -> Option<Duration> {
    verify.upgrade()?.attempt(subscriber, round).await
}

fn pending(endpoint: &Endpoint) -> Option<&VerificationRow> {
    endpoint.verification.as_ref().filter(|row| row.status == VerificationStatus::Pending)
}
