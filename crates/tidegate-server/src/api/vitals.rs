//! How the store itself is doing, asked no more often than every [`LOOK_EVERY`], however many ask.

use std::time::Duration;

use tidegate_store::{Store, Vital};
use tokio::sync::Mutex;

use crate::clock::Clock;

/// What changes slowly need not be looked at often.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// What was last found.
#[derive(Default)]
pub(super) struct Vitals(Mutex<Option<(Duration, Vec<Vital>)>>);

impl Vitals {
    /// As fresh as may be; what was known before, if the store does not answer.
    pub(super) async fn look(&self, store: &dyn Store, clock: &Clock) -> Vec<Vital> {
        let mut known = self.0.lock().await;
        let now = clock.elapsed();
        if let Some((at, vitals)) = known.as_ref()
            && now < *at + LOOK_EVERY
        {
            return vitals.clone();
        }
        match store.health().await {
            Ok(vitals) => {
                *known = Some((now, vitals.clone()));
                vitals
            }
            Err(error) => {
                tracing::debug!(%error, "the store does not say how it is doing");
                known.as_ref().map(|(_, vitals)| vitals.clone()).unwrap_or_default()
            }
        }
    }
}
