//! The receiver of a campaign: notes every request as it came and answers as it is told to, a little late and now and then
//! with 500.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::checker::{Arrival, Event, Journal};
use crate::bench::wire;
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

/// A hold that is given up early is noticed within this.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How it answers.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// Every so many requests are answered 500; 0 for none.
    pub(super) fail_one_in: u64,
    /// How long an answer to a subscriber takes, at most; it takes at least half of that.
    pub(super) slowness: fn(usize) -> Duration,
}

/// What came, and where it may come.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    watch: Stopwatch,
    notes: Arc<Mutex<Notes>>,
}

struct Notes {
    manner: Manner,
    mood: Mood,
    journal: Journal,
    prng: Prng,
}

/// What it is told for a while.
#[derive(Default)]
struct Mood {
    /// Requests are neither noted nor answered.
    is_deaf: bool,
    /// Added to the time of every answer.
    slowness: Duration,
    /// No answer is begun before this.
    held_until: Duration,
    /// Everything is answered 429 until this.
    busy_until: Duration,
    /// Whatever carries other events than these is answered 500.
    known_only: Option<HashSet<Event>>,
}

/// A request whose answer is still to come.
struct Noted {
    place: usize,
    status: u16,
    answer_at: Duration,
}

impl Receiver {
    /// Listens on a free port; each subscriber has the path `/<place>`. Times are those of `watch`.
    pub(super) async fn start(watch: Stopwatch, manner: Manner, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (mood, journal, prng) = (Mood::default(), Journal::default(), Prng::new(seed));
        let notes = Arc::new(Mutex::new(Notes { manner, mood, journal, prng }));
        let receiver = Self { address: listener.local_addr()?, watch, notes };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        Ok(receiver)
    }

    /// Lets every answer come so much later from now on.
    pub(super) fn slow(&self, slowness: Duration) {
        self.with(|notes| notes.mood.slowness = slowness);
    }

    /// Takes nothing in from now on, as if nobody had sent it; or does so again.
    pub(super) fn deafen(&self, is_deaf: bool) {
        self.with(|notes| notes.mood.is_deaf = is_deaf);
    }

    /// Holds all answers back for so long, counted from now; a shorter hold takes the place of a longer one.
    pub(super) fn hold(&self, span: Duration) {
        let until = self.watch.elapsed() + span;
        self.with(|notes| notes.mood.held_until = until);
    }

    /// Answers 429 for so long.
    pub(super) fn be_busy(&self, span: Duration) {
        let until = self.watch.elapsed() + span;
        self.with(|notes| notes.mood.busy_until = until);
    }

    /// Refuses every event that has not come to anybody before now, under whatever id, until [`Self::take_new`].
    pub(super) fn refuse_new(&self) {
        self.with(|notes| {
            let known = notes.journal.arrivals().iter().flat_map(|arrival| &arrival.events);
            notes.mood.known_only = Some(known.copied().collect());
        });
    }

    /// Takes whatever comes.
    pub(super) fn take_new(&self) {
        self.with(|notes| notes.mood.known_only = None);
    }

    /// How many events were taken so far, each once for every subscriber.
    pub(super) fn taken(&self) -> usize {
        self.with(|notes| notes.journal.taken())
    }

    /// How many requests came so far.
    pub(super) fn count(&self) -> usize {
        self.with(|notes| notes.journal.arrivals().len())
    }

    /// Everything that came, in order.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        self.with(|notes| notes.journal.arrivals().to_vec())
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut buffer = Vec::with_capacity(4096);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let noted = match self.note(&request, message.body) {
                    Ok(Some(noted)) => noted,
                    Ok(None) => return,
                    Err(error) => {
                        let request = String::from_utf8_lossy(&request);
                        eprintln!("a request that is no delivery came ({error:#}): {request}");
                        return;
                    }
                };
                self.bide(noted.answer_at).await;
                // Noted before the first byte goes: whatever it leads to comes after this.
                let now = self.watch.elapsed();
                self.with(|notes| notes.journal.answered(noted.place, now));
                if stream.write_all(answer(noted.status)).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    /// Waits until an answer may go.
    async fn bide(&self, answer_at: Duration) {
        loop {
            let until = self.with(|notes| notes.mood.held_until).max(answer_at);
            let left = until.saturating_sub(self.watch.elapsed());
            if left.is_zero() {
                return;
            }
            clock::rest(left.min(LOOK_EVERY)).await;
        }
    }

    /// Notes a request and decides its answer, if there is to be one.
    fn note(&self, request: &[u8], body: usize) -> Result<Option<Noted>> {
        let subscriber = wire::path(request).trim_start_matches('/').parse().context("no subscriber")?;
        let mut arrival = Arrival::read(request, body, subscriber, Duration::ZERO)?;
        Ok(self.with(|notes| {
            if notes.mood.is_deaf {
                return None;
            }
            // Read under the lock, so that the notes are in order of time.
            arrival.at = self.watch.elapsed();
            arrival.status = notes.status(&arrival);
            let slowness = (notes.manner.slowness)(subscriber);
            let half_us = u64::try_from(slowness.as_micros() / 2).unwrap_or(u64::MAX);
            let delay = slowness / 2 + Duration::from_micros(notes.prng.below(half_us.max(1)));
            let (status, answer_at) = (arrival.status, arrival.at + delay + notes.mood.slowness);
            Some(Noted { place: notes.journal.note(arrival), status, answer_at })
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Notes {
    fn status(&mut self, arrival: &Arrival) -> u16 {
        let fail_one_in = self.manner.fail_one_in;
        let is_unlucky = fail_one_in > 0 && self.prng.below(fail_one_in) == 0;
        let is_known = |known: &HashSet<Event>| arrival.events.iter().all(|event| known.contains(event));
        let is_new = self.mood.known_only.as_ref().is_some_and(|known| !is_known(known));
        match () {
            () if arrival.at < self.mood.busy_until => 429,
            () if is_unlucky || is_new => 500,
            () => 200,
        }
    }
}

fn answer(status: u16) -> &'static [u8] {
    match status {
        200 => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        429 => b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
        _ => b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
    }
}
