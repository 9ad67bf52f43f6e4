//! A crowd of receivers, each with a port of its own, that behave well or badly as they are told.
//!
//! Good ones note how long after its sending an event came. Bad ones do what real endpoints do on a bad day: say
//! nothing, drip an answer byte by byte, hang up, or never end their answer. When they are told to be good again they
//! drop the connections on which they were bad, so that nothing of one phase reaches into the next.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bench::wire;
use crate::clock::{self, Stopwatch};

/// Between two bytes of a dripping answer.
const DRIP_EVERY: Duration = Duration::from_secs(1);
/// Written at once by an endless answer.
const ENDLESS_PIECE: [u8; 16 * 1024] = [b'x'; 16 * 1024];

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const LONG: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";

/// How a receiver behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mood {
    Good,
    /// Takes the request and says nothing.
    Hangs,
    /// Answers a byte a second.
    Drips,
    /// Ends the connection instead of answering.
    Resets,
    /// Answers with a body that does not end.
    Endless,
}

/// The bad ones, in turn.
pub(super) const BAD: [Mood; 4] = [Mood::Hangs, Mood::Drips, Mood::Resets, Mood::Endless];

/// One receiver.
pub(super) struct Member {
    pub(super) address: SocketAddr,
    mood: watch::Sender<Mood>,
}

impl Member {
    /// Changes how it behaves from the next request on, and ends what it was doing if it was bad.
    pub(super) fn be(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }
}

/// When each event was sent, and when it came to whom.
#[derive(Default)]
struct Notes {
    sent: Vec<Duration>,
    /// Receiver, event, time on the way.
    arrivals: Vec<(usize, usize, Duration)>,
}

/// All receivers and what they noted.
#[derive(Clone)]
pub(super) struct Crowd {
    notes: Arc<Mutex<Notes>>,
    watch: Stopwatch,
}

impl Crowd {
    /// Lets `size` receivers listen, all of them good.
    pub(super) async fn start(size: usize) -> Result<(Self, Vec<Member>)> {
        let crowd = Self { notes: Arc::default(), watch: Stopwatch::start() };
        let mut members = Vec::with_capacity(size);
        for index in 0..size {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let (mood, moods) = watch::channel(Mood::Good);
            members.push(Member { address: listener.local_addr()?, mood });
            let crowd = crowd.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(crowd.clone().serve(index, stream, moods.clone()));
                }
            });
        }
        Ok((crowd, members))
    }

    /// Gives the next event its number; it counts as sent now.
    pub(super) fn number(&self) -> usize {
        let now = self.watch.elapsed();
        self.with(|notes| {
            notes.sent.push(now);
            notes.sent.len() - 1
        })
    }

    /// How many events were sent.
    pub(super) fn sent(&self) -> usize {
        self.with(|notes| notes.sent.len())
    }

    /// How long the events from number `from` on took to the receivers below `below`, for each first arrival.
    pub(super) fn times(&self, from: usize, below: usize) -> Vec<Duration> {
        self.with(|notes| {
            let mut seen = std::collections::BTreeSet::new();
            let concerns = |(receiver, event): &(usize, usize)| *receiver < below && *event >= from;
            notes
                .arrivals
                .iter()
                .filter(|(receiver, event, _)| {
                    concerns(&(*receiver, *event)) && seen.insert((*receiver, *event))
                })
                .map(|(_, _, time)| *time)
                .collect()
        })
    }

    async fn serve(self, index: usize, mut stream: TcpStream, mut moods: watch::Receiver<Mood>) {
        let mut buffer = Vec::with_capacity(4096);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let mood = *moods.borrow_and_update();
                if mood != Mood::Good {
                    tokio::select! {
                        _ = moods.changed() => {}
                        () = misbehave(&mut stream, mood) => {}
                    }
                    return;
                }
                self.note(index, &request[message.body..]);
                if stream.write_all(OK).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    fn note(&self, receiver: usize, body: &[u8]) {
        let now = self.watch.elapsed();
        let event: Value = serde_json::from_slice(body).unwrap_or_default();
        let Some(number) = event["data"]["number"].as_u64().and_then(|number| usize::try_from(number).ok())
        else {
            return;
        };
        self.with(|notes| {
            if let Some(sent) = notes.sent.get(number) {
                notes.arrivals.push((receiver, number, now.saturating_sub(*sent)));
            }
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns when the connection shall end.
async fn misbehave(stream: &mut TcpStream, mood: Mood) {
    match mood {
        Mood::Good | Mood::Resets => {}
        Mood::Hangs => std::future::pending().await,
        Mood::Drips => {
            let mut is_open = true;
            for byte in LONG.iter().chain(std::iter::repeat(&b'x')) {
                is_open = is_open && stream.write_all(&[*byte]).await.is_ok();
                if !is_open {
                    return;
                }
                clock::rest(DRIP_EVERY).await;
            }
        }
        Mood::Endless => {
            let mut is_open = stream.write_all(LONG).await.is_ok();
            while is_open {
                is_open = stream.write_all(&ENDLESS_PIECE).await.is_ok();
            }
        }
    }
}
