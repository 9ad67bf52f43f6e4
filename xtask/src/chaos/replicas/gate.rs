//! A gate that three processes share: first in turn, then under a storm of refusals.
//!
//! First some lanes become ready one after the other, at one process after the other, a little faster than their gate lets them
//! through: they come out in that order. Then there are sixty lanes of two subscribers, and one rate for all of them. Every lane has more to send than the gate lets through, and now and then the receiver answers nothing but 429. Judged by what
//! the receiver saw: no second sees more than the rate and a burst, every lane gets its share, each lane keeps its order, and
//! in the end nothing is missing. A storm that nobody noticed proves nothing, and fails.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::cluster::Cluster;
use crate::bench::wire;
use crate::cargo::{self, Profile};
use crate::chaos::scene::Build;
use crate::clock::{self, Stopwatch};
use crate::server::Scratch;
use crate::services::Services;

const LANES: usize = 60;
/// The lanes of each subscriber.
const SHARE: usize = LANES / 2;
const NAMES: [&str; 2] = ["first", "second"];
/// Events of one request.
const BATCH: usize = 500;
/// What `retry-after` says in a storm, and how long one lasts.
const STORM: Duration = Duration::from_secs(1);
/// A pause of the gate, and half a minute until it is as before.
const RECOVERY: Duration = Duration::from_secs(32);
/// A token is used within 100 ms or not at all; the rest is the way to the receiver.
const LATE: Duration = Duration::from_millis(150);
/// How even the lanes' shares must be: 1 is all alike.
const JAIN_MIN: f64 = 0.95;
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

/// Lanes that become ready one after the other, how far apart, and what their gate lets through.
const QUEUE: usize = 36;
const QUEUE_GAP: Duration = Duration::from_millis(100);
const QUEUE_RATE: &str = "4/s";
/// How many of them may be overtaken, and by how many each: a process that is too busy to come for its token is not waited for.
const OVERTAKEN_MAX: usize = QUEUE / 9;
const OVERTAKEN_BY_MAX: usize = 2;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";

/// How long, and how fast.
#[derive(Args)]
pub(crate) struct Gate {
    /// How long the lanes are watched
    #[arg(long, default_value_t = 150)]
    seconds: u64,
    /// What the gate lets through in a second, and at once
    #[arg(long, default_value_t = 3)]
    rate: u32,
    /// How many storms come
    #[arg(long, default_value_t = 3)]
    storms: u32,
    #[command(flatten)]
    build: Build,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Gate) -> Result<()> {
    let plan = Plan {
        binary: args.build.binary()?,
        span: Duration::from_secs(args.seconds),
        rate: args.rate,
        storms: args.storms,
    };
    plan.carry_out(&mut Services::start_own()?)
}

/// A short version for every test run, at a higher rate. Answers a remark.
pub(crate) fn short(services: &mut Services) -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    println!("-- gate --");
    let watch = Stopwatch::start();
    Plan { binary, span: Duration::from_secs(8), rate: 60, storms: 1 }.carry_out(services)?;
    Ok(format!("gate {:.0} s", watch.seconds()))
}

struct Plan {
    binary: PathBuf,
    span: Duration,
    rate: u32,
    storms: u32,
}

/// One request that came.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    lane: usize,
    seq: u32,
    ok: bool,
}

impl Plan {
    fn carry_out(&self, services: &mut Services) -> Result<()> {
        let mut scratch = Scratch::new("gate")?;
        let mut cluster = Cluster::start(services, &self.binary, scratch.path(), &[])?;
        let outcome = self.campaign(&mut cluster);
        if outcome.is_err() {
            eprintln!("{}", cluster.log_tails());
            scratch.keep();
        }
        outcome
    }

    fn campaign(&self, cluster: &mut Cluster<'_>) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        queue_up(cluster, &runtime.block_on(Receiver::start())?)?;
        let receiver = runtime.block_on(Receiver::start())?;
        self.set_gate(cluster, self.rate)?;
        for (index, name) in NAMES.into_iter().enumerate() {
            let rest = json!({
                "match": {"types": [name]}, "order": {"by": "data.lane"}, "gate": "cap",
                "limits": {"concurrency": SHARE}, "retry": {"schedule": vec!["200ms"; 20]},
            });
            cluster.replicas[0].subscribe(name, &format!("http://{}/{index}", receiver.address), &rest)?;
        }
        let per_lane = self.publish(cluster)?;
        self.storm(&receiver);
        let watched = receiver.arrivals();
        // The rest goes faster: whether anything is missing does not depend on how long it takes.
        self.set_gate(cluster, 2_000)?;
        let wanted = LANES * per_lane as usize;
        let is_drained = clock::wait_until(DRAIN_PATIENCE, || receiver.taken() >= wanted);
        let lost = wanted - receiver.taken().min(wanted);
        ensure!(is_drained && lost == 0, "{lost} of {wanted} deliveries are missing");
        cluster.stop()?;
        self.judge(&watched, &receiver.arrivals())
    }

    fn set_gate(&self, cluster: &Cluster<'_>, rate: u32) -> Result<()> {
        let body = json!({"rate": format!("{rate}/s"), "burst": self.rate});
        cluster.replicas[0].api("PUT", "/v1/gates/cap", &body).map(drop)
    }

    /// More for every lane than it can get while it is watched, posted to all processes.
    fn publish(&self, cluster: &Cluster<'_>) -> Result<u32> {
        let all = u64::from(self.rate) * (self.span.as_secs() + 3);
        let per_lane = u32::try_from(all / LANES as u64 + 3)?;
        let events = (0..per_lane).flat_map(|seq| (0..LANES).map(move |lane| event(lane, seq)));
        let events: Vec<Value> = events.collect();
        for (n, batch) in events.chunks(BATCH).enumerate() {
            let server = &cluster.replicas[n % cluster.replicas.len()];
            server.api("POST", "/v1/events", &Value::Array(batch.to_vec()))?;
        }
        Ok(per_lane)
    }

    /// Storms come as soon as the one before is forgotten, or evenly where there is less time.
    fn storm(&self, receiver: &Receiver) {
        let watch = Stopwatch::start();
        let apart = (self.span / (self.storms + 1)).min(RECOVERY + Duration::from_secs(8));
        for n in 1..=self.storms {
            clock::pause((apart * n).saturating_sub(watch.elapsed()));
            receiver.storm(STORM);
        }
        clock::pause(self.span.saturating_sub(watch.elapsed()));
    }

    /// The rate's worth of a second, a burst, and what may have been on its way for a moment.
    fn allowed(&self) -> usize {
        let rate = self.rate as usize;
        2 * rate + rate * LATE.as_millis() as usize / 1_000
    }

    fn judge(&self, watched: &[Arrival], all: &[Arrival]) -> Result<()> {
        let refused = watched.iter().filter(|arrival| !arrival.ok).count();
        let (most, allowed) = (most_in_a_second(watched), self.allowed());
        let mut shares = vec![0_u32; LANES];
        watched.iter().filter(|arrival| arrival.ok).for_each(|arrival| shares[arrival.lane] += 1);
        let (jain, disordered) = (jain(&shares), disordered(all));
        println!(
            "{} requests in {} s, {refused} of them refused; {most} in one second at most, {allowed} allowed",
            watched.len(),
            self.span.as_secs()
        );
        let (least, largest) = (shares.iter().min().unwrap_or(&0), shares.iter().max().unwrap_or(&0));
        println!(
            "a lane got {least} to {largest}; Jain's index {jain:.3}; {} arrivals, none missing",
            all.len()
        );
        ensure!(most <= allowed, "the gate's rate was broken");
        ensure!(refused >= self.storms as usize, "a storm met nobody: this run proves nothing");
        ensure!(*least > 0, "a lane starves");
        ensure!(jain >= JAIN_MIN, "the lanes' shares are uneven: {shares:?}");
        ensure!(disordered == 0, "{disordered} deliveries of a lane came out of order");
        println!("every promise was kept");
        Ok(())
    }
}

/// First come, first served, wherever they came.
fn queue_up(cluster: &Cluster<'_>, receiver: &Receiver) -> Result<()> {
    let first = &cluster.replicas[0];
    first.api("PUT", "/v1/gates/queue", &json!({"rate": QUEUE_RATE, "burst": 1}))?;
    let rest = json!({"match": {"types": ["queue"]}, "order": {"by": "data.lane"}, "gate": "queue"});
    first.subscribe("queue", &format!("http://{}/queue", receiver.address), &rest)?;
    let watch = Stopwatch::start();
    for lane in 0..QUEUE {
        clock::pause((QUEUE_GAP * u32::try_from(lane)?).saturating_sub(watch.elapsed()));
        let event = json!({
            "id": format!("queue-{lane}"), "source": "chaos", "type": "queue",
            "data": {"lane": format!("{lane}"), "seq": 0},
        });
        cluster.replicas[lane % cluster.replicas.len()].api("POST", "/v1/events", &event)?;
    }
    let is_served = clock::wait_until(DRAIN_PATIENCE, || receiver.taken() >= QUEUE);
    let order: Vec<usize> = receiver.arrivals().iter().map(|arrival| arrival.lane).collect();
    let (overtaken, most) = overtaken(&order);
    println!(
        "{QUEUE} lanes one after the other: {overtaken} overtaken ({OVERTAKEN_MAX} allowed), by {most} at most"
    );
    ensure!(is_served, "{} of {QUEUE} lanes were served", order.len());
    let is_in_turn = overtaken <= OVERTAKEN_MAX && most <= OVERTAKEN_BY_MAX;
    ensure!(is_in_turn, "first come was not first served: {order:?}");
    Ok(())
}

/// How many came after one that was to come later, and how many such there were before one of them at most.
fn overtaken(order: &[usize]) -> (usize, usize) {
    let before = |place: usize| order[..place].iter().filter(|other| **other > order[place]).count();
    let each: Vec<usize> = (0..order.len()).map(before).collect();
    (each.iter().filter(|count| **count > 0).count(), each.into_iter().max().unwrap_or(0))
}

fn event(lane: usize, seq: u32) -> Value {
    json!({
        "id": format!("{lane}-{seq}"), "source": "chaos", "type": NAMES[lane / SHARE],
        "data": {"lane": format!("{lane}"), "seq": seq},
    })
}

/// The busiest second, wherever it begins.
fn most_in_a_second(arrivals: &[Arrival]) -> usize {
    let mut times: Vec<Duration> = arrivals.iter().map(|arrival| arrival.at).collect();
    times.sort_unstable();
    let within = |from: usize| {
        times[from..].iter().take_while(|at| **at < times[from] + Duration::from_secs(1)).count()
    };
    (0..times.len()).map(within).max().unwrap_or(0)
}

fn jain(shares: &[u32]) -> f64 {
    let sum: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let squares: f64 = shares.iter().map(|share| f64::from(*share).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Deliveries that were taken after a younger one of their lane.
fn disordered(arrivals: &[Arrival]) -> usize {
    let mut last = BTreeMap::<usize, u32>::new();
    let taken = arrivals.iter().filter(|arrival| arrival.ok);
    taken
        .filter(|arrival| {
            let newest = last.entry(arrival.lane).or_insert(0);
            let is_late = arrival.seq < *newest;
            *newest = (*newest).max(arrival.seq);
            is_late
        })
        .count()
}

/// Notes what comes and when; takes it, unless there is a storm.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    watch: Stopwatch,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    storm_until: Duration,
    arrivals: Vec<Arrival>,
}

impl Receiver {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let receiver =
            Self { address: listener.local_addr()?, watch: Stopwatch::start(), notes: Arc::default() };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        Ok(receiver)
    }

    /// Answers 429 for so long.
    fn storm(&self, span: Duration) {
        let until = self.watch.elapsed() + span;
        self.with(|notes| notes.storm_until = until);
    }

    /// Different deliveries that were taken.
    fn taken(&self) -> usize {
        let ok = |arrival: &&Arrival| arrival.ok;
        let key = |arrival: &Arrival| (arrival.lane, arrival.seq);
        self.with(|notes| {
            notes.arrivals.iter().filter(ok).map(key).collect::<std::collections::BTreeSet<_>>().len()
        })
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.with(|notes| notes.arrivals.clone())
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut buffer = Vec::with_capacity(4096);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let Ok(ok) = self.note(&request[message.body..]) else { return };
                if stream.write_all(if ok { OK } else { TOO_MANY }).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    fn note(&self, body: &[u8]) -> Result<bool> {
        let at = self.watch.elapsed();
        let event: Value = serde_json::from_slice(body)?;
        let lane = event["data"]["lane"].as_str().and_then(|lane| lane.parse().ok()).context("no lane")?;
        let seq = u32::try_from(event["data"]["seq"].as_u64().context("no seq")?)?;
        Ok(self.with(|notes| {
            let ok = at >= notes.storm_until;
            notes.arrivals.push(Arrival { at, lane, seq, ok });
            ok
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(ms: u64, lane: usize, seq: u32) -> Arrival {
        Arrival { at: Duration::from_millis(ms), lane, seq, ok: true }
    }

    #[test]
    fn the_busiest_second_may_begin_anywhere() {
        let arrivals: Vec<Arrival> =
            [0, 900, 1_000, 1_100, 1_899, 1_900].map(|ms| arrival(ms, 0, 0)).to_vec();
        assert_eq!(most_in_a_second(&arrivals), 4);
        assert_eq!(most_in_a_second(&[]), 0);
    }

    #[test]
    fn who_comes_after_a_later_one_was_overtaken() {
        assert_eq!(overtaken(&[0, 2, 1, 5, 3, 4]), (3, 1));
        assert_eq!(overtaken(&[3, 4, 0]), (1, 2));
        assert_eq!(overtaken(&[]), (0, 0));
    }

    #[test]
    fn even_shares_have_index_one() {
        assert!((jain(&[4, 4, 4, 4]) - 1.0).abs() < 1e-9);
        assert!((jain(&[8, 0, 0, 0]) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn only_a_younger_one_before_it_is_out_of_order() {
        let arrivals =
            [arrival(0, 1, 0), arrival(1, 2, 0), arrival(2, 1, 2), arrival(3, 1, 1), arrival(4, 1, 3)];
        assert_eq!(disordered(&arrivals), 1);
    }
}
