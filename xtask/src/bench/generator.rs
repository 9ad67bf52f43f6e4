//! The load generator, a process of its own: posts 500-byte events over keep-alive connections.
//!
//! One thread and a hand-written client, because generator, server and receiver share the machine's cores and
//! every microsecond spent here is missing there. Closed loop: each connection sends its next request when the last
//! is answered. With a rate: each connection sends on its own beat, whatever became of the others. Prints one JSON
//! report when done.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::histogram::Histogram;
use super::process;
use super::template::{Attribute, Template};
use super::wire;
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

/// Answers to batches of 1 000 list 1 000 results.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// What to send where.
#[derive(Args, Clone)]
pub(crate) struct Load {
    #[arg(long)]
    pub(crate) address: SocketAddr,
    #[arg(long, default_value = "/v1/events")]
    pub(crate) path: String,
    #[arg(long, default_value = "none")]
    pub(crate) key: String,
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: u64,
    /// Requests in total
    #[arg(long)]
    pub(crate) requests: u64,
    /// Events in each request
    #[arg(long, default_value_t = 1)]
    pub(crate) batch: usize,
    /// Requests per second over all connections; as fast as they are answered without it
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Different values of `data.key`
    #[arg(long, default_value_t = 0)]
    pub(crate) keys: u64,
    /// More attributes, and how many different values each has
    #[arg(long = "attribute", value_name = "NAME=VALUES")]
    pub(crate) attributes: Vec<Attribute>,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What became of it.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Report {
    /// Events in requests that were answered 2xx.
    pub(crate) accepted: u64,
    /// Requests answered otherwise.
    pub(crate) refused: u64,
    /// When the first request was sent, in nanoseconds since 1970.
    pub(crate) started_at: u64,
    /// Until the last answer.
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// The generator's own CPU time for each request.
    pub(crate) cpu_us: f64,
}

impl Report {
    /// Accepted events per second.
    pub(crate) fn rate(&self) -> f64 {
        self.accepted as f64 / self.seconds
    }
}

/// The tally that all connections share.
struct Tally {
    left: Cell<u64>,
    accepted: Cell<u64>,
    refused: Cell<u64>,
    latencies: RefCell<Histogram>,
}

/// Sends the load and prints the report.
pub(crate) fn run(load: Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = LocalSet::new().block_on(&runtime, generate(load))?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

async fn generate(load: Load) -> Result<Report> {
    let tally = Rc::new(Tally {
        left: Cell::new(load.requests),
        accepted: Cell::new(0),
        refused: Cell::new(0),
        latencies: RefCell::new(Histogram::new()),
    });
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(load.address).await.context("the target does not listen")?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let load = Rc::new(load);
    let started_at = clock::wall_nanos();
    let watch = Stopwatch::start();
    let connections = streams.into_iter().zip(0..);
    let tasks: Vec<_> = connections
        .map(|(stream, index)| {
            tokio::task::spawn_local(
                Connection::new(stream, index, &load, &tally).run(Rc::clone(&load), watch),
            )
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let seconds = watch.seconds();
    let latencies = tally.latencies.borrow();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(Report {
        accepted: tally.accepted.get(),
        refused: tally.refused.get(),
        started_at,
        seconds,
        p50_ms: ms(latencies.quantile(0.5)),
        p99_ms: ms(latencies.quantile(0.99)),
        max_ms: ms(latencies.max()),
        cpu_us: process::cpu_seconds(std::process::id())? * 1e6 / latencies.total().max(1) as f64,
    })
}

/// One connection and what it needs to send.
struct Connection {
    stream: TcpStream,
    index: u64,
    template: Template,
    prng: Prng,
    answer: Vec<u8>,
    batch: u64,
    tally: Rc<Tally>,
}

impl Connection {
    fn new(stream: TcpStream, index: u64, load: &Load, tally: &Rc<Tally>) -> Self {
        Self {
            stream,
            index,
            template: Template::new(&load.path, &load.key, load.batch, load.keys, &load.attributes),
            prng: Prng::new(load.seed.wrapping_mul(1_000_003).wrapping_add(index)),
            answer: vec![0; 4096],
            batch: load.batch as u64,
            tally: Rc::clone(tally),
        }
    }

    async fn run(mut self, load: Rc<Load>, watch: Stopwatch) -> Result<()> {
        let beat = load.rate.map(|rate| load.connections as f64 / rate);
        let mut sent = 0;
        while let Some(left) = self.tally.left.get().checked_sub(1) {
            self.tally.left.set(left);
            if let Some(beat) = beat {
                // Connections take turns, so that the whole is as even as its parts.
                let turn = self.index as f64 / load.connections as f64 + f64::from(sent);
                clock::rest(Duration::from_secs_f64(turn * beat).saturating_sub(watch.elapsed())).await;
            }
            self.exchange().await?;
            sent += 1;
        }
        Ok(())
    }

    /// One request and its answer.
    async fn exchange(&mut self) -> Result<()> {
        let now = clock::wall_nanos();
        let watch = Stopwatch::start();
        self.stream.write_all(self.template.fill(&mut self.prng, now)).await?;
        let status = self.answered().await?;
        self.tally.latencies.borrow_mut().add(u64::try_from(watch.elapsed().as_nanos())?);
        if (200..300).contains(&status) {
            self.tally.accepted.set(self.tally.accepted.get() + self.batch);
        } else {
            self.tally.refused.set(self.tally.refused.get() + 1);
        }
        Ok(())
    }

    async fn answered(&mut self) -> Result<u16> {
        let mut filled = 0;
        loop {
            if filled == self.answer.len() {
                self.answer.resize(filled * 2, 0);
            }
            let read = self.stream.read(&mut self.answer[filled..]).await?;
            if read == 0 || filled > ANSWER_BYTES_MAX {
                bail!("the connection ended inside an answer");
            }
            filled += read;
            if wire::message(&self.answer[..filled]).is_some() {
                return Ok(wire::status(&self.answer));
            }
        }
    }
}
