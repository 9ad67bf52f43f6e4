//! The only place of the command line that reads the clock or waits for it.
//!
//! The server has its own, which simulation drives; a command at a terminal lives in real time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::time::Timestamp;

/// This instant, by the machine's clock.
#[expect(clippy::disallowed_methods, reason = "a command at a terminal lives in real time")]
pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Waits; a wait of zero does not even yield.
#[expect(clippy::disallowed_methods, reason = "a command at a terminal lives in real time")]
pub(crate) async fn wait(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}
