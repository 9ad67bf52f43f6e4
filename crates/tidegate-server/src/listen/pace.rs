//! The pace of one connection: what it waits for, since when, and when that is too long.
//!
//! [`Paced`] wraps the stream and notices first bytes and answers that nobody reads; the door says when a request
//! begins and ends. One atomic number holds it all, so that a request costs two stores and no timer: the watchman
//! ([`Pace::overdue`]) looks from time to time, and only while the connection lives.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Terms;
use crate::clock::Clock;

/// What a connection is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing came yet.
    Fresh,
    /// A head has begun and not ended.
    Head,
    /// A request is being answered.
    Working,
    /// The last request was answered, or its answer is on its way.
    Idle,
    /// An answer finds no room, because the client does not read.
    Stalled,
}

const PHASES: [Phase; 5] = [Phase::Fresh, Phase::Head, Phase::Working, Phase::Idle, Phase::Stalled];
const PHASE_BITS: u32 = 3;

/// The phase and since when, in one number: milliseconds above, phase below.
pub(super) struct Pace(AtomicU64);

impl Pace {
    pub(super) fn new(now: Duration) -> Self {
        Self(AtomicU64::new(pack(Phase::Fresh, now)))
    }

    /// A phase begins.
    pub(super) fn enter(&self, phase: Phase, now: Duration) {
        self.0.store(pack(phase, now), Ordering::Relaxed);
    }

    /// The phase, and since when.
    pub(super) fn phase(&self) -> (Phase, Duration) {
        let packed = self.0.load(Ordering::Relaxed);
        let index = usize::try_from(packed & ((1 << PHASE_BITS) - 1)).unwrap_or(0);
        (PHASES[index.min(PHASES.len() - 1)], Duration::from_millis(packed >> PHASE_BITS))
    }

    /// Returns when the connection has been in its phase for too long.
    pub(super) async fn overdue(&self, terms: &Terms, clock: &Clock) {
        // A phase can begin that ends earlier than the one now: nobody sleeps longer than the shortest.
        let longest = terms.head.min(terms.stall);
        loop {
            match self.left(terms, clock.elapsed()) {
                Some(Duration::ZERO) => return,
                left => clock.pause(left.map_or(longest, |left| left.min(longest))).await,
            }
        }
    }

    /// How much longer the phase may last; `None` while a request is under way, which has deadlines of its own.
    fn left(&self, terms: &Terms, now: Duration) -> Option<Duration> {
        let (phase, since) = self.phase();
        let allowed = match phase {
            Phase::Fresh => terms.first_byte,
            Phase::Head => terms.head,
            Phase::Working => return None,
            Phase::Idle => terms.idle,
            Phase::Stalled => terms.stall,
        };
        Some((since + allowed).saturating_sub(now))
    }

    fn has_read(&self, clock: &Clock) {
        if matches!(self.phase().0, Phase::Fresh | Phase::Idle) {
            self.enter(Phase::Head, clock.elapsed());
        }
    }

    /// An answer that flows for long, as a stream does, is not idle.
    fn has_written(&self, is_blocked: bool, clock: &Clock) {
        match (self.phase().0, is_blocked) {
            (Phase::Idle, true) => self.enter(Phase::Stalled, clock.elapsed()),
            (Phase::Idle | Phase::Stalled, false) => self.enter(Phase::Idle, clock.elapsed()),
            _ => {}
        }
    }
}

fn pack(phase: Phase, now: Duration) -> u64 {
    (u64::try_from(now.as_millis()).unwrap_or(0) << PHASE_BITS) | phase as u64
}

/// A stream whose pace is watched.
pub(super) struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
    clock: Clock,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, pace: Arc<Pace>, clock: Clock) -> Self {
        Self { stream, pace, clock }
    }

    fn note(&self, written: &Poll<std::io::Result<usize>>) {
        match written {
            Poll::Pending => self.pace.has_written(true, &self.clock),
            Poll::Ready(Ok(1..)) => self.pace.has_written(false, &self.clock),
            Poll::Ready(_) => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.pace.has_read(&self.clock);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.pace.has_written(true, &self.clock);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::Timestamp;

    use super::*;

    /// How many seconds this phase may last from now.
    async fn seconds(pace: &Pace, clock: &Clock) -> u64 {
        let before = clock.elapsed();
        pace.overdue(&Terms::default(), clock).await;
        (clock.elapsed() - before).as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn every_phase_but_work_ends_on_time() {
        let clock = Clock::simulated(Timestamp::from_ms(0));
        let pace = Pace::new(clock.elapsed());
        assert_eq!(seconds(&pace, &clock).await, 10, "no first byte");
        pace.enter(Phase::Fresh, clock.elapsed());
        pace.has_read(&clock);
        assert_eq!(seconds(&pace, &clock).await, 10, "no whole head");
        pace.enter(Phase::Idle, clock.elapsed());
        assert_eq!(seconds(&pace, &clock).await, 75, "no next request");
        pace.enter(Phase::Idle, clock.elapsed());
        pace.has_written(true, &clock);
        assert_eq!(seconds(&pace, &clock).await, 30, "nobody reads");
        pace.enter(Phase::Working, clock.elapsed());
        let day = Duration::from_secs(86_400);
        let working = tokio::time::timeout(day, pace.overdue(&Terms::default(), &clock)).await;
        assert!(working.is_err(), "work has deadlines of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn more_bytes_do_not_prolong_a_head_but_progress_prolongs_an_answer() {
        let clock = Clock::simulated(Timestamp::from_ms(0));
        let pace = Pace::new(clock.elapsed());
        pace.has_read(&clock);
        clock.pause(Duration::from_secs(7)).await;
        pace.has_read(&clock);
        assert_eq!(seconds(&pace, &clock).await, 3);
        pace.enter(Phase::Idle, clock.elapsed());
        clock.pause(Duration::from_secs(74)).await;
        pace.has_written(false, &clock);
        assert_eq!(seconds(&pace, &clock).await, 75);
        pace.has_written(true, &clock);
        assert_eq!(pace.phase().0, Phase::Stalled);
        pace.has_written(false, &clock);
        assert_eq!(pace.phase().0, Phase::Idle);
    }
}
