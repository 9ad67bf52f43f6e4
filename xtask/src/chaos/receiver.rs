//! The receiver of a chaos run: notes every arrival, answers a little late, and sometimes with 500.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::judge::Arrival;
use crate::bench::wire;
use crate::clock;
use crate::prng::Prng;

/// Answers come after zero up to this many microseconds: long enough for a kill to fall into a request.
const DELAY_US_MAX: u64 = 5_000;
/// Every so many requests are answered 500.
const FAIL_ONE_IN: u64 = 50;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// What came, and where it may come.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    notes: Arc<Mutex<Notes>>,
}

struct Notes {
    /// Requests are neither noted nor answered.
    is_deaf: bool,
    /// Added to the time of every answer.
    slowness: Duration,
    arrivals: Vec<Arrival>,
    prng: Prng,
}

impl Receiver {
    /// Listens on a free port; each subscriber has the path `/<index>`.
    pub(super) async fn start(seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let notes = Arc::new(Mutex::new(Notes {
            is_deaf: false,
            slowness: Duration::ZERO,
            arrivals: Vec::new(),
            prng: Prng::new(seed),
        }));
        let receiver = Self { address: listener.local_addr()?, notes };
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
        self.with(|notes| notes.slowness = slowness);
    }

    /// Takes nothing in from now on, as if nobody had sent it; or does so again.
    pub(super) fn deafen(&self, is_deaf: bool) {
        self.with(|notes| notes.is_deaf = is_deaf);
    }

    /// How many requests were answered 200 so far.
    pub(super) fn taken(&self) -> usize {
        self.with(|notes| notes.arrivals.iter().filter(|arrival| arrival.ok).count())
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
                let (ok, delay) = match self.note(&request, message.body) {
                    Ok(Some(answer)) => answer,
                    Ok(None) => return,
                    Err(_) => {
                        let request = String::from_utf8_lossy(&request);
                        eprintln!("a request that is no delivery came: {request}");
                        return;
                    }
                };
                clock::rest(delay).await;
                if stream.write_all(if ok { OK } else { FAILED }).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    /// Notes the arrival and decides its answer, if there is to be one.
    fn note(&self, request: &[u8], body: usize) -> Result<Option<(bool, Duration)>> {
        let event: Value = serde_json::from_slice(&request[body..])?;
        let number = |field: &str| event["data"][field].as_str().and_then(|text| text.parse::<u32>().ok());
        let subscriber = wire::path(request).trim_start_matches('/').parse().context("no subscriber")?;
        let delivery = wire::header(&request[..body], "webhook-id").context("no webhook-id")?;
        let key = usize::try_from(number("key").context("no key")?)?;
        let seq = number("seq").context("no seq")?;
        self.with(|notes| {
            if notes.is_deaf {
                return Ok(None);
            }
            let ok = notes.prng.below(FAIL_ONE_IN) != 0;
            let delay = notes.slowness + Duration::from_micros(notes.prng.below(DELAY_US_MAX));
            notes.arrivals.push(Arrival { subscriber, key, seq, delivery: delivery.to_owned(), ok });
            Ok(Some((ok, delay)))
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
