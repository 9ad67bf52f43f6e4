//! The one place where coordination reads a clock or waits.
//!
//! It talks to real servers, which no simulation drives; what it decides with time takes it as a parameter. [`Local`](super::Local),
//! which simulations use, moves with tokio's time.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait after a failure.
const FIRST: Duration = Duration::from_millis(50);
/// The longest wait: how long a server that is back may stay unnoticed.
const LONGEST: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "measures how old an answer of a real server is")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "spaces out what is sent to real servers, and limits the wait for them"
)]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits twice as long after each failure in a row.
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    pub(super) fn reset(&mut self) {
        self.0 = FIRST;
    }

    pub(super) async fn wait(&mut self) {
        pause(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST);
    }
}

/// Microseconds, as buckets count them.
pub(super) fn us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The other way; nothing is below zero.
pub(super) fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}
