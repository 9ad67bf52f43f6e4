//! The one place where development commands read clocks or wait.
//!
//! They measure real processes on real time, so nothing here can be simulated. Waiting is always for something
//! outside this process that offers no better signal than being asked again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often [`wait_until`] asks.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// Measures how long something takes.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins to measure.
    #[expect(clippy::disallowed_methods, reason = "development commands measure real time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Time since the start, in seconds.
    pub(crate) fn seconds(self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Nanoseconds since 1970, comparable between the processes of one machine.
#[expect(clippy::disallowed_methods, reason = "events carry their send time to another process")]
pub(crate) fn wall_nanos() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

/// Holds this thread for a while.
#[expect(clippy::disallowed_methods, reason = "a measuring interval is a length of real time")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Holds this task for a while.
#[expect(clippy::disallowed_methods, reason = "a scripted receiver answers late in real time")]
pub(crate) async fn rest(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Asks until the answer is yes; `false` when `patience` ran out first.
pub(crate) fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let watch = Stopwatch::start();
    loop {
        if done() {
            return true;
        }
        if watch.elapsed() > patience {
            return false;
        }
        pause(ASK_EVERY);
    }
}
