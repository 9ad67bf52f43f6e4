//! The receivers of a run with several processes: they note what comes when, and when they answered it.
//!
//! One request in fifty is answered 500. For a while all answers may be held back: what is under way then is known to
//! be under way when the nemesis strikes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::audience;
use super::verdict::Arrival;
use crate::bench::wire;
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

/// Every so many requests are answered 500.
const FAIL_ONE_IN: u64 = 50;

/// A hold that is given up early is noticed within this.
const LOOK_EVERY: Duration = Duration::from_millis(20);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// What came, and where it may come.
#[derive(Clone)]
pub(super) struct Receivers {
    pub(super) address: SocketAddr,
    watch: Stopwatch,
    notes: Arc<Mutex<Notes>>,
}

struct Notes {
    /// No answer is begun before this.
    held_until: Duration,
    arrivals: Vec<Arrival>,
    prng: Prng,
}

/// A request whose answer is still to come.
struct Noted {
    index: usize,
    ok: bool,
    answer_at: Duration,
}

impl Receivers {
    /// Listens on a free port; each subscriber has the path `/<index>`.
    pub(super) async fn start(watch: Stopwatch, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let notes = Notes { held_until: Duration::ZERO, arrivals: Vec::new(), prng: Prng::new(seed) };
        let receivers = Self { address: listener.local_addr()?, watch, notes: Arc::new(Mutex::new(notes)) };
        let serving = receivers.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        Ok(receivers)
    }

    /// Holds all answers back for so long, counted from now; a shorter hold takes the place of a longer one.
    pub(super) fn hold(&self, span: Duration) {
        let until = self.watch.elapsed() + span;
        self.with(|notes| notes.held_until = until);
    }

    /// How many requests came so far.
    pub(super) fn count(&self) -> usize {
        self.with(|notes| notes.arrivals.len())
    }

    /// Everything that came, in order.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        self.with(|notes| notes.arrivals.clone())
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut buffer = Vec::with_capacity(4096);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let Ok(noted) = self.note(&request, message.body) else {
                    eprintln!("a request that is no delivery came: {}", String::from_utf8_lossy(&request));
                    return;
                };
                self.bide(noted.answer_at).await;
                // Noted before the first byte goes: whatever it leads to comes after this.
                let now = self.watch.elapsed();
                self.with(|notes| notes.arrivals[noted.index].answered = Some(now));
                if stream.write_all(if noted.ok { OK } else { FAILED }).await.is_err() {
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
            let until = self.with(|notes| notes.held_until).max(answer_at);
            let left = until.saturating_sub(self.watch.elapsed());
            if left.is_zero() {
                return;
            }
            clock::rest(left.min(LOOK_EVERY)).await;
        }
    }

    fn note(&self, request: &[u8], body: usize) -> Result<Noted> {
        let event: Value = serde_json::from_slice(&request[body..])?;
        let number = |field: &str| event["data"][field].as_str().and_then(|text| text.parse::<u32>().ok());
        let subscriber = wire::path(request).trim_start_matches('/').parse().context("no subscriber")?;
        let delivery = wire::header(&request[..body], "webhook-id").context("no webhook-id")?;
        let key = usize::try_from(number("key").context("no key")?)?;
        let seq = number("seq").context("no seq")?;
        let slowness_us = u64::try_from(audience::slowness(subscriber).as_micros())?;
        self.with(|notes| {
            // Read under the lock, so that the notes are in order of time.
            let at = self.watch.elapsed();
            let ok = notes.prng.below(FAIL_ONE_IN) != 0;
            let delay = Duration::from_micros(slowness_us / 2 + notes.prng.below(slowness_us / 2));
            let delivery = delivery.to_owned();
            notes.arrivals.push(Arrival { subscriber, key, seq, delivery, ok, at, answered: None });
            Ok(Noted { index: notes.arrivals.len() - 1, ok, answer_at: at + delay })
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
