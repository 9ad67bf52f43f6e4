//! Request limits: how often one key, and one address, may ask.
//!
//! Off until configured; then nothing here runs. When on, every answer says what is allowed and what is left
//! (`ratelimit-policy` and `ratelimit`, in the spelling of the current IETF draft), and whoever asks too often is told
//! when to come back. Only keys that exist have a bucket; whoever has none is counted by address alone.
//!
//! Promises: memory is bounded. Buckets are kept in two generations, and whoever is forgotten starts with a full one.
//! Does not: limit `/livez` and `/readyz`, which tell an orchestrator whether to restart us.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use tidegate_core::limits::RATE_BUCKETS_MAX;
use tidegate_core::schedule::Bucket;
use tidegate_core::subscriber::Rate;
use tidegate_core::time::Timestamp;

use super::App;
use super::auth::presented;
use super::problem::Problem;

/// What an operator allows; absent means any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestRates {
    /// Of one API key.
    pub per_key: Option<Rate>,
    /// Of one client address; of one /64 network with IPv6.
    pub per_address: Option<Rate>,
}

impl RequestRates {
    /// Whether there is anything to limit.
    pub fn is_any(&self) -> bool {
        self.per_key.is_some() || self.per_address.is_some()
    }
}

/// Where a request came from, as the door saw it.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The same API within limits.
pub fn limited(router: Router, app: &Arc<App>, rates: RequestRates) -> Router {
    let limiter = Limiter {
        app: Arc::clone(app),
        per_key: rates.per_key.map(|rate| Policy::new("key", rate)),
        per_address: rates.per_address.map(|rate| Policy::new("address", rate)),
    };
    router.layer(from_fn_with_state(Arc::new(limiter), limit))
}

struct Limiter {
    app: Arc<App>,
    per_key: Option<Policy<[u8; 32]>>,
    per_address: Option<Policy<IpAddr>>,
}

async fn limit(State(limiter): State<Arc<Limiter>>, request: Request, next: Next) -> Response {
    if matches!(request.uri().path(), "/livez" | "/readyz") {
        return next.run(request).await;
    }
    let taken = limiter.take(&request);
    let wait = taken.iter().filter_map(|taken| taken.wait).max();
    let mut response = match wait {
        None => next.run(request).await,
        Some(wait) => {
            limiter.app.parts.metrics.request_limited();
            too_many(wait)
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [("ratelimit-policy", policies(&taken)), ("ratelimit", rests(&taken))] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn too_many(wait: Duration) -> Response {
    let detail =
        "too many requests from here: wait as long as `retry-after` says, or ask the operator for more";
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail);
    let mut response = problem.into_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds(wait).max(1)));
    response
}

fn policies(taken: &[Taken]) -> String {
    let mut text = String::new();
    for Taken { name, rate, .. } in taken {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}\"{name}\";q={};w={}", rate.count, rate.per.as_secs());
    }
    text
}

fn rests(taken: &[Taken]) -> String {
    let mut text = String::new();
    for Taken { name, left, full_in, .. } in taken {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}\"{name}\";r={left};t={}", seconds(*full_in));
    }
    text
}

/// Rounded up: coming back too early is coming back in vain.
fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

impl Limiter {
    fn take(&self, request: &Request) -> Vec<Taken> {
        let now = self.app.parts.clock.now();
        let key = || {
            let hash = presented(request.headers())?;
            self.app.parts.rosters.current().holder(&hash).map(|_| hash)
        };
        let by_key = self.per_key.as_ref().and_then(|policy| Some(policy.take(key()?, now)));
        let peer = || request.extensions().get::<Peer>().map(|peer| peer.0);
        let by_address = self.per_address.as_ref().and_then(|policy| Some(policy.take(peer()?, now)));
        [by_key, by_address].into_iter().flatten().collect()
    }
}

/// What one bucket said to a request.
struct Taken {
    name: &'static str,
    rate: Rate,
    left: u32,
    full_in: Duration,
    /// It was empty; come back later.
    wait: Option<Duration>,
}

struct Policy<K> {
    name: &'static str,
    rate: Rate,
    buckets: Mutex<Buckets<K>>,
}

struct Buckets<K> {
    young: HashMap<K, Bucket>,
    old: HashMap<K, Bucket>,
}

impl<K: Hash + Eq> Policy<K> {
    fn new(name: &'static str, rate: Rate) -> Self {
        let buckets = Buckets { young: HashMap::new(), old: HashMap::new() };
        Self { name, rate, buckets: Mutex::new(buckets) }
    }

    fn take(&self, key: K, now: Timestamp) -> Taken {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.of(key, || Bucket::new(self.rate, now));
        let wait = bucket.take(now).err().map(|at| at.since(now));
        Taken {
            name: self.name,
            rate: self.rate,
            left: bucket.left(now),
            full_in: bucket.refilled_in(now),
            wait,
        }
    }
}

impl<K: Hash + Eq> Buckets<K> {
    fn of(&mut self, key: K, fresh: impl FnOnce() -> Bucket) -> &mut Bucket {
        if self.young.len() >= RATE_BUCKETS_MAX / 2 && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.old.remove(&key);
        self.young.entry(key).or_insert_with(|| known.unwrap_or_else(fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000_000);

    #[test]
    fn each_has_a_bucket_of_its_own() {
        let policy = Policy::new("key", Rate::parse("2/s").unwrap());
        assert!(policy.take(1, NOW).wait.is_none() && policy.take(1, NOW).wait.is_none());
        let refused = policy.take(1, NOW);
        assert_eq!((refused.left, refused.wait.map(seconds)), (0, Some(1)));
        assert!(policy.take(2, NOW).wait.is_none());
        assert_eq!(policies(&[refused]), "\"key\";q=2;w=1");
    }

    #[test]
    fn a_crowd_is_forgotten_and_memory_is_bounded() {
        let policy = Policy::new("address", Rate::parse("1/h").unwrap());
        for key in 0..3 * RATE_BUCKETS_MAX {
            assert!(policy.take(key, NOW).wait.is_none());
            // Whoever keeps coming is remembered.
            assert_eq!(policy.take(0, NOW).wait.is_some(), key > 0 || policy.take(0, NOW).wait.is_some());
            let buckets = policy.buckets.lock().unwrap();
            assert!(buckets.young.len() + buckets.old.len() <= RATE_BUCKETS_MAX);
        }
    }
}
