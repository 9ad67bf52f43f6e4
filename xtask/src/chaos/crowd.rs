//! A crowd of receivers, each with a port of its own, that behave well or badly as they are told.
//!
//! Good ones note how long after its sending an event came. Bad ones do what real endpoints do on a bad day: say
//! nothing, drip an answer byte by byte, hang up, or never end their answer. When they are told to be good again they
//! drop the connections on which they were bad, so that nothing of one phase reaches into the next.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::checker::api::{self, Asked, SOURCE};
use super::checker::{self, Arrival, Event, History, Journal, Promise};
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

/// When each event was sent, and what came to whom.
#[derive(Default)]
struct Notes {
    sent: Vec<Duration>,
    journal: Journal,
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

    /// The next event; it counts as sent now.
    pub(super) fn event(&self) -> Value {
        let now = self.watch.elapsed();
        let seq = self.with(|notes| {
            notes.sent.push(now);
            notes.sent.len() - 1
        });
        json!({"id": event(seq).to_string(), "source": SOURCE, "type": "chaos.tick", "data": {}})
    }

    /// How many events were sent.
    pub(super) fn sent(&self) -> usize {
        self.with(|notes| notes.sent.len())
    }

    /// How many requests came to a receiver that gave them no answer.
    pub(super) fn unanswered(&self, receiver: usize) -> u64 {
        let is_it = |arrival: &&Arrival| arrival.subscriber == receiver && arrival.status == 0;
        self.with(|notes| notes.journal.arrivals().iter().filter(is_it).count() as u64)
    }

    /// How long the events from number `from` on took to the receivers below `below`, for each first arrival.
    pub(super) fn times(&self, from: usize, below: usize) -> Vec<Duration> {
        self.with(|notes| {
            let mut seen = BTreeSet::new();
            let mut times = Vec::new();
            let concerns = |arrival: &&Arrival| arrival.subscriber < below && arrival.is_taken();
            for arrival in notes.journal.arrivals().iter().filter(concerns) {
                for event in &arrival.events {
                    let number = event.seq as usize;
                    if number >= from && seen.insert((arrival.subscriber, number)) {
                        times.extend(notes.sent.get(number).map(|sent| arrival.at.saturating_sub(*sent)));
                    }
                }
            }
            times
        })
    }

    /// Checks what came to the receivers below `below`, which all want everything. Says what is broken.
    pub(super) fn check(&self, asked: &Asked<'_>, below: usize) -> Result<()> {
        let everybody: Vec<usize> = (0..below).collect();
        let promises: Vec<Promise<'_>> =
            (0..self.sent()).map(|seq| Promise::firm(event(seq), &everybody)).collect();
        let is_theirs = |arrival: &&Arrival| arrival.subscriber < below;
        let arrivals: Vec<Arrival> =
            self.with(|notes| notes.journal.arrivals().iter().filter(is_theirs).cloned().collect());
        let traces = api::traces(asked, &promises, &arrivals)?;
        let history = History { promises: &promises, arrivals: &arrivals, traces: &traces, ends: &[] };
        let findings = checker::check(&history);
        let broken = findings.report();
        ensure!(broken.is_empty(), "a promise was broken: {}", broken.join(", "));
        println!("{:<24} {} (nothing explains any)", "duplicates", findings.repeats.len());
        ensure!(findings.repeats.is_empty(), "deliveries came again although nobody had failed");
        Ok(())
    }

    async fn serve(self, index: usize, mut stream: TcpStream, mut moods: watch::Receiver<Mood>) {
        let mut buffer = Vec::with_capacity(4096);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let mood = *moods.borrow_and_update();
                self.note(index, &request, message.body, mood);
                if mood != Mood::Good {
                    tokio::select! {
                        _ = moods.changed() => {}
                        () = misbehave(&mut stream, mood) => {}
                    }
                    return;
                }
                if stream.write_all(OK).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    /// A bad one gives no answer that counts.
    fn note(&self, receiver: usize, request: &[u8], body: usize, mood: Mood) {
        let now = self.watch.elapsed();
        let (status, answered) = if mood == Mood::Good { (200, Some(now)) } else { (0, None) };
        match Arrival::read(request, body, receiver, now) {
            Ok(arrival) => self.with(|notes| {
                notes.journal.note(Arrival { status, answered, ..arrival });
            }),
            Err(error) => eprintln!("a request that is no delivery came: {error:#}"),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn event(number: usize) -> Event {
    Event { key: 0, seq: u32::try_from(number).unwrap_or(u32::MAX) }
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
