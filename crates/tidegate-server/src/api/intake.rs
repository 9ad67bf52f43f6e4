//! The intake of a body: piece by piece, and only from those who keep up.
//!
//! Whoever sends has a while to begin with, then must have sent enough for the time it took, and has a last moment in
//! any case. So a connection over which a byte trickles now and then is not held open for long, and an honest sender
//! on a poor line is served.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use tidegate_core::limits::{BODY_BYTES_PER_SECOND_MIN, BODY_GRACE_MS, BODY_TIMEOUT_MS, REQUEST_BYTES_MAX};

use super::problem::Problem;
use crate::clock::Clock;

/// How much of a body that is too large is read and thrown away. Senders write first and read later: without this
/// they would see a broken connection instead of the answer.
const DISCARD_BYTES_MAX: u64 = 4 * REQUEST_BYTES_MAX as u64;

/// A body under way.
pub(super) struct Intake<'a> {
    body: Body,
    clock: &'a Clock,
    began: Duration,
    received: u64,
}

impl<'a> Intake<'a> {
    pub(super) fn new(body: Body, clock: &'a Clock) -> Self {
        Self { body, clock, began: clock.elapsed(), received: 0 }
    }

    /// The next piece, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        // Nearly every body is one piece, and then no clock is asked again.
        while !self.body.is_end_stream() {
            let spent = if self.received == 0 { Duration::ZERO } else { self.clock.elapsed() - self.began };
            let left = allowed(self.received).saturating_sub(spent);
            let frame = tokio::time::timeout(left, self.body.frame()).await.map_err(|_| too_slow())?;
            let Some(frame) = frame else { break };
            if let Ok(data) = frame.map_err(|_| cut_short())?.into_data() {
                self.received += data.len() as u64;
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads on for the sake of a sender that reads its answer only after the last byte.
    pub(super) async fn discard(mut self) {
        let before = self.received;
        while let Ok(Some(_)) = self.next().await {
            if self.received - before > DISCARD_BYTES_MAX {
                return;
            }
        }
    }
}

/// By when, from its beginning, more must have arrived than this.
fn allowed(received: u64) -> Duration {
    let kept_up = Duration::from_secs(received / BODY_BYTES_PER_SECOND_MIN);
    kept_up.clamp(Duration::from_millis(BODY_GRACE_MS), Duration::from_millis(BODY_TIMEOUT_MS))
}

fn too_slow() -> Problem {
    let detail = format!(
        "the body did not arrive in time: after {} seconds it must have come at {BODY_BYTES_PER_SECOND_MIN} bytes \
         per second at least, and after {} it must be complete",
        BODY_GRACE_MS / 1_000,
        BODY_TIMEOUT_MS / 1_000
    );
    Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", detail)
}

fn cut_short() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "body_incomplete", "the body was cut short")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper::body::Frame;
    use tidegate_core::time::Timestamp;
    use tokio::time::Interval;

    use super::*;

    /// A sender that sends a piece at a time, with pauses.
    struct Trickle {
        pulse: Interval,
        piece: usize,
        left: u32,
    }

    impl hyper::body::Body for Trickle {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            if self.pulse.poll_tick(context).is_pending() {
                return Poll::Pending;
            }
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![b' '; self.piece])))))
        }
    }

    /// After how many seconds it ended, and whether it was cut. The first piece comes at once.
    async fn sent(every: Duration, piece: usize, pieces: u32) -> (u64, bool) {
        let clock = Clock::simulated(Timestamp::from_ms(0));
        let body = Body::new(Trickle { pulse: tokio::time::interval(every), piece, left: pieces });
        let mut intake = Intake::new(body, &clock);
        loop {
            match intake.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return (clock.elapsed().as_secs(), false),
                Err(problem) => {
                    assert_eq!(problem.status(), 408);
                    return (clock.elapsed().as_secs(), true);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_trickles_is_cut_after_the_grace() {
        let second = Duration::from_secs(1);
        assert_eq!(sent(second, 1, 1_000).await, (10, true), "a byte a second");
        assert_eq!(sent(second, 1, 9).await, (8, false), "within the grace nothing is asked");
        assert_eq!(sent(Duration::from_hours(1), 1_000, 2).await, (10, true), "nothing more comes");
        assert_eq!(sent(second, 1_000, 1_000).await, (10, true), "a little too slow");
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_at_the_beginning_buys_no_more_than_it_weighs() {
        assert_eq!(sent(Duration::from_hours(1), 15 * 1024, 2).await, (15, true));
        assert_eq!(sent(Duration::from_hours(1), 1024 * 1024, 2).await, (30, true), "the last moment");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_keeps_up_has_until_the_last_moment() {
        let second = Duration::from_secs(1);
        assert_eq!(sent(second, 1_200, 29).await, (28, false));
        assert_eq!(sent(second, 1_200, 1_000).await, (30, true));
    }
}
