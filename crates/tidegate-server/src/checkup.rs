//! What `tidegate doctor` looks at on servers that a store lives on, without a running server of ours.

use std::time::Duration;

use tidegate_core::time::Timestamp;
pub use tidegate_store::doctor::{Severity, Symptom};
use tidegate_store::doctor::{postgres, redis};

use crate::clock::Clock;
use crate::settings::store::Address;

/// A server that does not answer for this long never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// Looks at PostgreSQL.
pub async fn database(url: &Address) -> Vec<Symptom> {
    let clock = Clock::system(Timestamp::from_ms(0));
    let looking = postgres::examine(&url.0, || clock.wall());
    tokio::select! {
        biased;
        symptoms = looking => symptoms,
        () = clock.pause(PATIENCE) => vec![Symptom {
            check: "database",
            severity: Severity::Failing,
            detail: "it does not answer".to_owned(),
            remedy: Some("look at its log and at the way to it".to_owned()),
        }],
    }
}

/// Why Redis can not be used, as it says itself.
pub async fn redis_refusal(url: &Address) -> Option<Symptom> {
    redis::refusal(&url.0).await
}

/// Looks at Redis.
pub async fn redis_server(url: &Address) -> Vec<Symptom> {
    redis::examine(&url.0).await
}
