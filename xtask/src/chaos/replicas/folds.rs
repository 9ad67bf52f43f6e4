//! Windows under fire: three processes fold the same keys while one after the other is killed.
//!
//! The judge knows what was acknowledged and what arrived: every event must be in exactly one delivery of each subscriber,
//! no delivery may change once it was sent, and of a key later deliveries carry later events.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::audience::Kind;
use super::cluster::Cluster;
use super::producers::Producers;
use super::verdict::Sent;
use crate::bench::wire;
use crate::cargo::{self, Profile};
use crate::chaos::scene::{self, Build};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{Scratch, Server};
use crate::services::Services;

/// Every so many requests are answered 500.
const FAIL_ONE_IN: u64 = 20;
/// Everything has arrived when nothing came for so long: longer than a process is missed, a window and a retry.
const CALM: Duration = Duration::from_secs(12);
/// A run is given up after this long without an end.
const PATIENCE: Duration = Duration::from_secs(90);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// How long, and how often.
#[derive(Args)]
pub(crate) struct Folds {
    /// How long processes are killed
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// About how many milliseconds lie between two kills
    #[arg(long, default_value_t = 2_000)]
    every: u64,
    /// Decides who is killed when
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    build: Build,
}

/// One who folds.
struct Folder {
    name: &'static str,
    is_ordered: bool,
}

const FOLDERS: [Folder; 3] = [
    Folder { name: "window", is_ordered: false },
    Folder { name: "quiet", is_ordered: true },
    Folder { name: "batch", is_ordered: false },
];

fn definition(folder: &Folder) -> Value {
    let fold = match folder.name {
        "window" => json!({"mode": "window", "window": "1s", "by": ["data.key"]}),
        "quiet" => {
            json!({"mode": "quiet", "quiet": "400ms", "max_wait": "2s", "by": ["data.key"], "max_events": 20})
        }
        _ => json!({"mode": "batch", "every": "1s", "max_events": 25}),
    };
    let mut definition = json!({
        "match": {"types": [Kind::Keyed.name()]},
        "retry": {"schedule": vec!["200ms"; 40]},
        "breaker": "off",
        "fold": fold,
    });
    if folder.is_ordered {
        definition["order"] = json!({"by": "data.key"});
    }
    definition
}

/// A delivery as it arrived.
#[derive(Clone)]
struct Arrival {
    folder: usize,
    delivery: String,
    /// Key and place of each event.
    events: Vec<(usize, u32)>,
    ok: bool,
}

#[derive(Clone)]
struct Receivers {
    address: SocketAddr,
    arrivals: Arc<Mutex<(Vec<Arrival>, Prng)>>,
}

impl Receivers {
    async fn start(seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let arrivals = Arc::new(Mutex::new((Vec::new(), Prng::new(seed))));
        let receivers = Self { address: listener.local_addr()?, arrivals };
        let serving = receivers.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        Ok(receivers)
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut buffer = Vec::with_capacity(16 * 1024);
        loop {
            while let Some(message) = wire::message(&buffer) {
                let request: Vec<u8> = buffer.drain(..message.end).collect();
                let Ok(ok) = self.note(&request, message.body) else {
                    eprintln!("a request that is no fold came: {}", String::from_utf8_lossy(&request));
                    return;
                };
                if stream.write_all(if ok { OK } else { FAILED }).await.is_err() {
                    return;
                }
            }
            if !matches!(stream.read_buf(&mut buffer).await, Ok(read) if read > 0) {
                return;
            }
        }
    }

    fn note(&self, request: &[u8], body: usize) -> Result<bool> {
        let parsed: Value = serde_json::from_slice(&request[body..])?;
        let folder = wire::path(request).trim_start_matches('/').parse().context("no subscriber")?;
        let delivery = wire::header(&request[..body], "webhook-id").context("no webhook-id")?.to_owned();
        ensure!(parsed["delivery"] == delivery.as_str(), "the body names another delivery");
        let number = |event: &Value, field: &str| event["data"][field].as_str()?.parse::<u32>().ok();
        let members = parsed["events"].as_array().context("no events")?;
        let events =
            members.iter().map(|event| Some((number(event, "key")? as usize, number(event, "seq")?)));
        let events = events.collect::<Option<Vec<_>>>().context("an event without a place")?;
        let mut notes = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let ok = notes.1.below(FAIL_ONE_IN) != 0;
        notes.0.push(Arrival { folder, delivery, events, ok });
        Ok(ok)
    }

    fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// What went wrong, counted.
#[derive(Default, Debug, PartialEq, Eq)]
struct Findings {
    members: u64,
    deliveries: u64,
    lost: u64,
    in_two: u64,
    changed: u64,
    out_of_order: u64,
    strangers: u64,
}

/// Compares what was acknowledged with what arrived.
fn judge(sent: &[Sent], arrivals: &[Arrival]) -> Findings {
    let mut findings = Findings::default();
    for (place, folder) in FOLDERS.iter().enumerate() {
        let mut homes: BTreeMap<(usize, u32), BTreeSet<&str>> = BTreeMap::new();
        let mut taken = BTreeSet::new();
        let mut bodies: BTreeMap<&str, &[(usize, u32)]> = BTreeMap::new();
        let mut newest: BTreeMap<usize, u32> = BTreeMap::new();
        for arrival in arrivals.iter().filter(|arrival| arrival.folder == place) {
            let is_first = !bodies.contains_key(arrival.delivery.as_str());
            let before = *bodies.entry(&arrival.delivery).or_insert(&arrival.events);
            findings.changed += u64::from(before != arrival.events);
            for event in &arrival.events {
                homes.entry(*event).or_default().insert(&arrival.delivery);
                if arrival.ok {
                    taken.insert(*event);
                }
                let last = newest.entry(event.0).or_insert(0);
                findings.out_of_order += u64::from(folder.is_ordered && is_first && event.1 <= *last);
                *last = (*last).max(event.1);
            }
        }
        findings.deliveries += bodies.len() as u64;
        findings.in_two += homes.values().filter(|homes| homes.len() > 1).count() as u64;
        let wanted =
            |key: usize| sent.get(key).filter(|sent| sent.kind == Kind::Keyed).map_or(0, |sent| sent.last);
        findings.strangers += homes.keys().filter(|(key, seq)| *seq > wanted(*key)).count() as u64;
        for key in 0..sent.len() {
            findings.members += u64::from(wanted(key));
            findings.lost += (1..=wanted(key)).filter(|seq| !taken.contains(&(key, *seq))).count() as u64;
        }
    }
    findings
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Folds) -> Result<()> {
    let plan = Plan {
        binary: args.build.binary()?,
        span: Duration::from_secs(args.seconds),
        every_ms: args.every,
        prng: scene::seeded(args.seed),
    };
    plan.carry_out(&mut Services::start_own()?)
}

/// A short version for every test run. Answers a remark.
pub(crate) fn short(services: &mut Services) -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    println!("-- folds --");
    let watch = Stopwatch::start();
    let plan = Plan { binary, span: Duration::from_secs(6), every_ms: 1_500, prng: scene::seeded(None) };
    plan.carry_out(services)?;
    Ok(format!("folds {:.0} s", watch.seconds()))
}

struct Plan {
    binary: PathBuf,
    span: Duration,
    every_ms: u64,
    prng: Prng,
}

impl Plan {
    fn carry_out(self, services: &mut Services) -> Result<()> {
        let mut scratch = Scratch::new("folds")?;
        let mut cluster = Cluster::start(services, &self.binary, scratch.path(), &[])?;
        let outcome = campaign(self, &mut cluster);
        if outcome.is_err() {
            eprintln!("{}", cluster.log_tails());
            scratch.keep();
        }
        outcome
    }
}

fn campaign(plan: Plan, cluster: &mut Cluster<'_>) -> Result<()> {
    let Plan { span, every_ms, mut prng, .. } = plan;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let receivers = runtime.block_on(Receivers::start(prng.next()))?;
    subscribe(&cluster.replicas[0], receivers.address)?;
    let producers = {
        let _inside = runtime.enter();
        Producers::start(&cluster.addresses(), &mut prng)
    };
    let watch = Stopwatch::start();
    let mut kills = 0;
    while watch.elapsed() < span {
        clock::pause(Duration::from_millis(every_ms / 2 + prng.below(every_ms)));
        let victim = usize::try_from(prng.below(cluster.replicas.len() as u64))?;
        cluster.kill(victim)?;
        clock::pause(Duration::from_millis(prng.pick(&[0, 300])));
        cluster.replicas[victim].resume()?;
        kills += 1;
    }
    let sent = runtime.block_on(producers.finish())?;
    drain(&receivers, &sent);
    let (deadlocks, unfinished) = (cluster.deadlocks()?, cluster.unfinished()?);
    cluster.stop()?;
    report(kills, &judge(&sent, &receivers.arrivals()), deadlocks, unfinished)
}

fn subscribe(server: &Server, receivers: SocketAddr) -> Result<()> {
    for (place, folder) in FOLDERS.iter().enumerate() {
        server.subscribe(folder.name, &format!("http://{receivers}/{place}"), &definition(folder))?;
    }
    Ok(())
}

/// Waits until everything has arrived, or nothing comes any more.
fn drain(receivers: &Receivers, sent: &[Sent]) {
    let (all, mut calm, mut seen) = (Stopwatch::start(), Stopwatch::start(), 0);
    while all.elapsed() < PATIENCE && calm.elapsed() < CALM {
        clock::pause(Duration::from_millis(200));
        let arrivals = receivers.arrivals();
        if arrivals.len() > seen {
            (seen, calm) = (arrivals.len(), Stopwatch::start());
        }
        if judge(sent, &arrivals).lost == 0 {
            // Time for what should not come to come after all.
            clock::pause(Duration::from_secs(1));
            return;
        }
    }
}

fn report(kills: u64, findings: &Findings, deadlocks: u64, unfinished: u64) -> Result<()> {
    let Findings { members, deliveries, .. } = *findings;
    println!("kills                   {kills}");
    println!("members                 {members} in {deliveries} deliveries");
    let zeros = [
        ("members lost", findings.lost),
        ("members in two deliveries", findings.in_two),
        ("deliveries that changed", findings.changed),
        ("out of order", findings.out_of_order),
        ("made-up members", findings.strangers),
        ("deadlocks", deadlocks),
        ("unfinished deliveries", unfinished),
    ];
    for (name, count) in zeros {
        println!("{name:<25} {count} (must be 0)");
    }
    let broken: Vec<String> =
        zeros.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if !broken.is_empty() {
        bail!("a promise was broken: {}", broken.join(", "));
    }
    ensure!(kills > 0 && members > 0 && deliveries < members, "nothing was folded: the run proves nothing");
    println!("every promise was kept");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(folder: usize, delivery: &str, events: &[(usize, u32)]) -> Arrival {
        Arrival { folder, delivery: delivery.to_owned(), events: events.to_vec(), ok: true }
    }

    #[test]
    fn liars_are_found() {
        let sent = [Sent { kind: Kind::Keyed, last: 2 }];
        let honest: Vec<Arrival> =
            (0..3).map(|folder| arrival(folder, &format!("d{folder}"), &[(0, 1), (0, 2)])).collect();
        let fine = Findings { members: 6, deliveries: 3, ..Findings::default() };
        assert_eq!(judge(&sent, &honest), fine);
        assert_eq!(judge(&sent, &honest[1..]).lost, 2);
        let with = |more: Arrival| judge(&sent, &[honest.clone(), vec![more]].concat());
        assert_eq!(with(arrival(1, "other", &[(0, 2)])).in_two, 1);
        assert_eq!(with(arrival(1, "other", &[(0, 2)])).out_of_order, 1);
        assert_eq!(with(arrival(1, "d1", &[(0, 2)])).changed, 1);
        assert_eq!(with(arrival(0, "new", &[(0, 3)])).strangers, 1);
    }
}
