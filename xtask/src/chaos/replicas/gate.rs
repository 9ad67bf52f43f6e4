//! A gate that three processes share: first in turn, then under a storm of refusals.
//!
//! First some lanes become ready one after the other, at one process after the other, a little faster than their gate lets them
//! through: they come out in that order. Then there are sixty lanes of two subscribers, and one rate for all of them. Every lane has more to send than the gate lets through, and now and then the receiver answers nothing but 429. Judged by what
//! the receiver saw: no second sees more than the rate and a burst, every lane gets its share, each lane keeps its order, and
//! in the end nothing is missing. A storm that nobody noticed proves nothing, and fails.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::cargo::{self, Profile};
use crate::chaos::checker::api::{self, Asked, SOURCE};
use crate::chaos::checker::{self, Arrival, Event, History, Promise};
use crate::chaos::receiver::{Manner, Receiver};
use crate::chaos::scene::Build;
use crate::clock::{self, Stopwatch};
use crate::server::{PROJECT, Scratch};
use crate::services::Services;

const LANES: usize = 60;
/// The lanes of each subscriber.
const SHARE: usize = LANES / 2;
const NAMES: [&str; 2] = ["first", "second"];
const AUDIENCES: [&[usize]; 2] = [&[0], &[1]];
const MANNER: Manner = Manner { fail_one_in: 0, slowness: |_| Duration::ZERO };
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
        let receiver = || runtime.block_on(Receiver::start(Stopwatch::start(), MANNER, 0));
        queue_up(cluster, &receiver()?)?;
        let receiver = receiver()?;
        self.set_gate(cluster, self.rate)?;
        let mut subscribers = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            let rest = json!({
                "match": {"types": [name]}, "order": {"by": "data.lane"}, "gate": "cap",
                "limits": {"concurrency": SHARE}, "retry": {"schedule": vec!["200ms"; 20]},
            });
            let url = format!("http://{}/{index}", receiver.address);
            subscribers.push(cluster.replicas[0].subscribe(name, &url, &rest)?.id);
        }
        let promises = self.publish(cluster)?;
        self.storm(&receiver);
        let watched = receiver.arrivals();
        // The rest goes faster: whether anything is missing does not depend on how long it takes.
        self.set_gate(cluster, 2_000)?;
        clock::wait_until(DRAIN_PATIENCE, || receiver.taken() >= promises.len());
        let asked = Asked { server: &cluster.replicas[0], project: PROJECT, subscribers: &subscribers };
        let traces = api::traces(&asked, &promises, &receiver.arrivals())?;
        cluster.stop()?;
        let arrivals = &receiver.arrivals();
        let findings = checker::check(&History { promises: &promises, arrivals, traces: &traces, ends: &[] });
        let broken = findings.report();
        ensure!(broken.is_empty(), "a promise was broken: {}", broken.join(", "));
        self.judge(&watched, arrivals)
    }

    fn set_gate(&self, cluster: &Cluster<'_>, rate: u32) -> Result<()> {
        let body = json!({"rate": format!("{rate}/s"), "burst": self.rate});
        cluster.replicas[0].api("PUT", "/v1/gates/cap", &body).map(drop)
    }

    /// More for every lane than it can get while it is watched, posted to all processes.
    fn publish(&self, cluster: &Cluster<'_>) -> Result<Vec<Promise<'static>>> {
        let all = u64::from(self.rate) * (self.span.as_secs() + 3);
        let per_lane = u32::try_from(all / LANES as u64 + 3)?;
        let events = (1..=per_lane).flat_map(|seq| (0..LANES).map(move |key| Event { key, seq }));
        let promises: Vec<Promise<'_>> =
            events.map(|event| Promise::firm(event, AUDIENCES[event.key / SHARE])).collect();
        let events: Vec<Value> = promises.iter().map(|promise| event(promise.event)).collect();
        for (n, batch) in events.chunks(BATCH).enumerate() {
            let server = &cluster.replicas[n % cluster.replicas.len()];
            server.api("POST", "/v1/events", &Value::Array(batch.to_vec()))?;
        }
        Ok(promises)
    }

    /// Storms come as soon as the one before is forgotten, or evenly where there is less time.
    fn storm(&self, receiver: &Receiver) {
        let watch = Stopwatch::start();
        let apart = (self.span / (self.storms + 1)).min(RECOVERY + Duration::from_secs(8));
        for n in 1..=self.storms {
            clock::pause((apart * n).saturating_sub(watch.elapsed()));
            receiver.be_busy(STORM);
        }
        clock::pause(self.span.saturating_sub(watch.elapsed()));
    }

    /// The rate's worth of a second, a burst, and what may have been on its way for a moment.
    fn allowed(&self) -> usize {
        let rate = self.rate as usize;
        2 * rate + rate * LATE.as_millis() as usize / 1_000
    }

    fn judge(&self, watched: &[Arrival], all: &[Arrival]) -> Result<()> {
        let refused = watched.iter().filter(|arrival| !arrival.is_taken()).count();
        let times = watched.iter().map(|arrival| arrival.at).collect();
        let (most, allowed) = (most_in_a_second(times), self.allowed());
        let mut shares = vec![0_u32; LANES];
        let taken = watched.iter().filter(|arrival| arrival.is_taken());
        taken.flat_map(|arrival| &arrival.events).for_each(|event| shares[event.key] += 1);
        let disordered = (0..NAMES.len()).map(|place| checker::out_of_order(all, place, |_| true).count);
        let (jain, disordered) = (jain(&shares), disordered.sum::<u64>());
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
    first.subscribe("queue", &format!("http://{}/0", receiver.address), &rest)?;
    let watch = Stopwatch::start();
    for lane in 0..QUEUE {
        clock::pause((QUEUE_GAP * u32::try_from(lane)?).saturating_sub(watch.elapsed()));
        let event = json!({
            "id": Event { key: lane, seq: 1 }.to_string(), "source": "queue", "type": "queue",
            "data": {"lane": lane.to_string()},
        });
        cluster.replicas[lane % cluster.replicas.len()].api("POST", "/v1/events", &event)?;
    }
    let is_served = clock::wait_until(DRAIN_PATIENCE, || receiver.taken() >= QUEUE);
    let arrivals = receiver.arrivals();
    let order: Vec<usize> =
        arrivals.iter().flat_map(|arrival| &arrival.events).map(|event| event.key).collect();
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

fn event(event: Event) -> Value {
    json!({
        "id": event.to_string(), "source": SOURCE, "type": NAMES[event.key / SHARE],
        "data": {"lane": event.key.to_string()},
    })
}

/// The busiest second, wherever it begins.
fn most_in_a_second(mut times: Vec<Duration>) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_may_begin_anywhere() {
        let times = [0, 900, 1_000, 1_100, 1_899, 1_900].map(Duration::from_millis);
        assert_eq!(most_in_a_second(times.to_vec()), 4);
        assert_eq!(most_in_a_second(Vec::new()), 0);
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
}
