//! The receiver, a process of its own: answers every POST with an empty 200 and counts.
//!
//! One thread and a hand-written server, as cheap as it can be made, for the same reason as the generator. Asked
//! with `GET /__reset/<mark>` it forgets everything and remembers when the delivery number `mark` came; asked with
//! `GET /__report` it says what came since. Its first line of output is the port it listens on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::histogram::Histogram;
use super::template;
use super::wire::{self, Message};
use crate::clock;

const EMPTY_200: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// What came since the last reset.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Report {
    pub(crate) total: u64,
    /// How many came to each path.
    pub(crate) paths: BTreeMap<String, u64>,
    /// Nanoseconds since 1970; zero before anything came.
    pub(crate) last_at: u64,
    /// When the marked delivery came; zero until then.
    pub(crate) mark_at: u64,
    /// From the sending of the event to the arrival of its delivery.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

struct Tally {
    total: u64,
    paths: BTreeMap<String, u64>,
    last_at: u64,
    mark: u64,
    mark_at: u64,
    latencies: Histogram,
}

/// Serves until it is killed.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let tally = Rc::new(RefCell::new(Tally::new(0)));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::task::spawn_local(serve(stream, Rc::clone(&tally)));
        }
    })
}

/// One connection, until the peer closes it or breaks off.
async fn serve(mut stream: TcpStream, tally: Rc<RefCell<Tally>>) {
    let mut buffer = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        while let Some(message) = wire::message(&buffer[..filled]) {
            let answer = tally.borrow_mut().receive(&buffer[..message.end], &message);
            if let Some(answer) = answer {
                stream.write_all(&answer).await.ok();
                return;
            }
            if stream.write_all(EMPTY_200).await.is_err() {
                return;
            }
            buffer.copy_within(message.end..filled, 0);
            filled -= message.end;
        }
        if filled == buffer.len() {
            buffer.resize(filled * 2, 0);
        }
        match stream.read(&mut buffer[filled..]).await {
            Ok(read) if read > 0 => filled += read,
            _ => return,
        }
    }
}

impl Tally {
    fn new(mark: u64) -> Self {
        let latencies = Histogram::new();
        Self { total: 0, paths: BTreeMap::new(), last_at: 0, mark, mark_at: 0, latencies }
    }

    /// Takes one request. What asks about the receiver itself gets an answer, and its connection ends.
    fn receive(&mut self, request: &[u8], message: &Message) -> Option<Vec<u8>> {
        let path = wire::path(request);
        if let Some(mark) = path.strip_prefix("/__reset/") {
            *self = Self::new(mark.parse().unwrap_or(0));
            return Some(EMPTY_200.to_vec());
        }
        if path == "/__report" {
            return Some(self.answer());
        }
        self.total += 1;
        self.last_at = clock::wall_nanos();
        if self.total == self.mark {
            self.mark_at = self.last_at;
        }
        match self.paths.get_mut(path) {
            Some(count) => *count += 1,
            None => drop(self.paths.insert(path.to_owned(), 1)),
        }
        if let Some(sent_at) = template::sent_at(&request[message.body..]) {
            self.latencies.add(self.last_at.saturating_sub(sent_at));
        }
        None
    }

    fn answer(&self) -> Vec<u8> {
        let ms = |q: f64| self.latencies.quantile(q).as_secs_f64() * 1e3;
        let report = Report {
            total: self.total,
            paths: self.paths.clone(),
            last_at: self.last_at,
            mark_at: self.mark_at,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            max_ms: self.latencies.max().as_secs_f64() * 1e3,
        };
        let body = serde_json::to_string(&report).unwrap_or_default();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}
