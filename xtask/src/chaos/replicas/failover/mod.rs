//! A failover that loses commits: PostgreSQL dies while its asynchronous standby is behind, and the standby takes its place.
//!
//! Two processes name both servers in their address and are never restarted; two tenants send to three subscribers each. In every
//! round the standby is cut off for a while, the primary is killed and the standby is promoted. What was acknowledged
//! meanwhile may be gone, for so the operator chose, but only as a whole; everything else is delivered as promised, and what the
//! database drew a second time is never taken for what was lost. For that, answers to deliveries of the lost time are held back until
//! new events have been accepted, and new deliveries are refused until those answers have been given. In the end one tenant sends
//! again what may be lost, as operating.md advises.
//!
//! A run that lost nothing proves nothing, and fails.

mod repeat;
mod senders;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;

use self::repeat::Repeated;
use self::senders::{Acknowledged, Ledger, Senders};
use super::build_sabotaged;
use super::cluster::Cluster;
use super::verdict::{Window, unexplained};
use crate::cargo::{self, Profile};
use crate::chaos::checker::api::Asked;
use crate::chaos::checker::{self, Event, Findings, History, Promise, Trace};
use crate::chaos::receiver::{Manner, Receiver};
use crate::chaos::scene::{self, Build};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::{Scratch, Server};
use crate::services::Services;

const PROCESSES: usize = 2;
const TENANTS: [&str; 2] = ["north", "south"];
/// Of each tenant; key `n` belongs to tenant `n / KEYS`.
const KEYS: usize = 6;
/// The subscribers of each tenant: two in any order, one in the order of the keys.
const NAMES: [&str; 3] = ["plain", "other", "ordered"];
const ORDERED: usize = 2;
/// By tenant.
const AUDIENCES: [&[usize]; 2] = [&[0, 1, 2], &[3, 4, 5]];
/// Requests under way to each subscriber of a tenant.
const CONCURRENCY: u64 = 40;
const MANNER: Manner = Manner { fail_one_in: 50, slowness: |_| Duration::from_millis(5) };

/// The load runs for so long before the standby falls behind, and after each round.
const STEADY: Duration = Duration::from_secs(1);
/// How long the standby is behind, and when in that time receivers begin to hold their answers back.
const LAG: Duration = Duration::from_millis(1_500);
const HELD_AFTER: Duration = Duration::from_millis(300);
/// Longer than a round takes.
const HELD_MAX: Duration = Duration::from_secs(90);
/// How many events are accepted by the promoted one before the answers are given: more than were lost.
const NEW_EVENTS: usize = 300;
/// How long processes may take until they accept events again.
const BACK_PATIENCE: Duration = Duration::from_secs(60);
/// Between the answers and the end of refusing what is new.
const SETTLED: Duration = Duration::from_millis(1_500);
/// A delivery whose result was lost was begun at most so long before the standby fell behind.
const UNDER_WAY_MAX: Duration = Duration::from_secs(3);
/// The drain is given up when nothing has come for this long.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time for copies that should not come to come after all.
const AFTERMATH: Duration = Duration::from_secs(1);

/// How many cases of what is wrong are told.
const EXAMPLES_MAX: usize = 5;

/// How often.
#[derive(Args)]
pub(crate) struct Failover {
    /// How many failovers come, each to a new standby
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Decides who sends what when
    #[arg(long)]
    seed: Option<u64>,
    /// Switch off a protecting line; the run is good when that was found
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
    #[command(flatten)]
    build: Build,
}

/// A line that this campaign must find switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sabotage {
    /// Nobody notices that the database went back in time
    Rewind,
}

/// One failover.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// What was acknowledged before this is on the standby.
    safe: Duration,
    /// The primary is no more: what is begun from here on reaches the promoted one.
    killed: Duration,
    /// The answers that were held back have been given.
    released: Duration,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Failover) -> Result<()> {
    let binary = match args.sabotage {
        Some(_) if !args.build.is_given() => build_sabotaged()?,
        _ => args.build.binary()?,
    };
    let plan = Plan { binary, rounds: args.rounds, sabotage: args.sabotage };
    plan.carry_out(&mut scene::seeded(args.seed))
}

/// A short version for every test run, on servers of its own: a kill leaves them changed. Answers a remark.
pub(super) fn short() -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    println!("-- failover --");
    let watch = Stopwatch::start();
    Plan { binary, rounds: 1, sabotage: None }.carry_out(&mut scene::seeded(None))?;
    Ok(format!("failover {:.0} s", watch.seconds()))
}

struct Plan {
    binary: PathBuf,
    rounds: u32,
    sabotage: Option<Sabotage>,
}

impl Plan {
    fn carry_out(&self, prng: &mut Prng) -> Result<()> {
        let mut scratch = Scratch::new("failover")?;
        let mut services = Services::start_own()?;
        services.add_standby()?;
        let url = services.both_url()?;
        let settings: &[(&str, &str)] = match self.sabotage {
            Some(Sabotage::Rewind) => &[("TIDEGATE_SABOTAGE", "rewind")],
            None => &[],
        };
        let mut cluster =
            Cluster::start_on(&mut services, &url, PROCESSES, &self.binary, scratch.path(), settings)?;
        let outcome = self.campaign(&mut cluster, prng);
        if outcome.is_err() {
            eprintln!("{}", cluster.log_tails());
            scratch.keep();
        }
        outcome
    }

    fn campaign(&self, cluster: &mut Cluster<'_>, prng: &mut Prng) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let watch = Stopwatch::start();
        let receiver = runtime.block_on(Receiver::start(watch, MANNER, prng.next()))?;
        let subscribers = subscribe(&cluster.replicas[0], receiver.address)?;
        let senders = {
            let _inside = runtime.enter();
            Senders::start(&cluster.addresses(), watch, prng)
        };
        let ledger = Arc::clone(&senders.ledger);
        let mut rounds = Vec::new();
        for round in 0..self.rounds {
            if round > 0 {
                cluster.services.add_standby()?;
            }
            clock::pause(STEADY);
            rounds.push(fail_over(cluster.services, &receiver, &ledger, watch)?);
        }
        clock::pause(STEADY);
        runtime.block_on(senders.finish())?;
        let promises = promises(&ledger.acknowledged(), &rounds);
        drain(cluster, &receiver, &promises)?;
        let before = traces(&cluster.replicas, &subscribers, &promises)?;
        let repeated = Repeated::send(&cluster.replicas, &promises, &before)?;
        let promises: Vec<Promise<'_>> = promises.iter().map(|promise| repeated.renew(promise)).collect();
        drain(cluster, &receiver, &promises)?;
        let traces = traces(&cluster.replicas, &subscribers, &promises)?;
        let unfinished = unfinished(cluster)?;
        report_processes(cluster)?;
        cluster.stop()?;
        let arrivals = receiver.arrivals();
        let history = History { promises: &promises, arrivals: &arrivals, traces: &traces, ends: &[] };
        let outcome = Outcome { history, rounds: &rounds, ledger: &ledger, repeated: &repeated, unfinished };
        let (lost, broken) = outcome.judge();
        match self.sabotage {
            None => conclude(lost, &broken),
            Some(_) => found(&broken),
        }
    }
}

/// The tenants and their subscribers; answers the ids by place.
fn subscribe(server: &Server, receiver: SocketAddr) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for tenant in TENANTS {
        server.api("POST", "/v1/projects", &json!({"id": tenant}))?;
        for (index, name) in NAMES.into_iter().enumerate() {
            let mut rest = json!({
                "limits": {"concurrency": CONCURRENCY, "timeout": "100s"},
                "retry": {"schedule": vec!["400ms"; 50]}, "breaker": "off",
            });
            if index == ORDERED {
                rest["order"] = json!({"by": "data.key"});
            }
            let url = format!("http://{receiver}/{}", ids.len());
            ids.push(server.subscribe_in(tenant, name, &url, &rest)?.id);
        }
    }
    Ok(ids)
}

/// One round.
fn fail_over(
    services: &mut Services,
    receiver: &Receiver,
    ledger: &Ledger,
    watch: Stopwatch,
) -> Result<Round> {
    let safe = watch.elapsed();
    services.catch_up_standby()?;
    services.cut_off_standby()?;
    let behind = watch.elapsed();
    clock::pause(HELD_AFTER);
    receiver.hold(HELD_MAX);
    clock::pause(LAG.saturating_sub(HELD_AFTER));
    services.kill_postgres()?;
    let killed = watch.elapsed();
    receiver.refuse_new();
    services.promote_standby()?;
    let promoted = watch.elapsed();
    let is_back = clock::wait_until(BACK_PATIENCE, || ledger.acknowledged_since(killed) > 0);
    ensure!(is_back, "no process accepts events after the failover");
    let back = watch.elapsed();
    let is_enough = clock::wait_until(BACK_PATIENCE, || ledger.acknowledged_since(killed) >= NEW_EVENTS);
    ensure!(is_enough, "hardly anything is accepted after the failover");
    receiver.hold(Duration::ZERO);
    clock::pause(SETTLED);
    receiver.take_new();
    let released = watch.elapsed();
    println!(
        "{:>7.1} s  the standby is behind for {:.1} s, promoted {:.1} s after the kill, events accepted again after {:.1} s",
        behind.as_secs_f64(),
        (killed - behind).as_secs_f64(),
        (promoted - killed).as_secs_f64(),
        (back - killed).as_secs_f64(),
    );
    Ok(Round { safe, killed, released })
}

/// What may be expected of each event, by when it was acknowledged.
fn promises(acknowledged: &[Acknowledged], rounds: &[Round]) -> Vec<Promise<'static>> {
    let promise = |acknowledged: &Acknowledged| {
        let Acknowledged { event, first, began, at } = *acknowledged;
        Promise {
            event,
            wanted: AUDIENCES[event.key / KEYS],
            may_be_lost: rounds.iter().any(|round| at >= round.safe && began <= round.killed),
            may_double: rounds.iter().any(|round| first <= round.killed && began > round.killed),
        }
    };
    acknowledged.iter().map(promise).collect()
}

/// What the API still lists as not finished.
fn unfinished(cluster: &Cluster<'_>) -> Result<Vec<String>> {
    let mut told = Vec::new();
    for tenant in TENANTS {
        told.extend(cluster.unfinished_in(tenant)?);
    }
    Ok(told)
}

/// Waits until everything that must come has been taken and nothing is unfinished, as long as something still arrives.
fn drain(cluster: &Cluster<'_>, receiver: &Receiver, promises: &[Promise<'_>]) -> Result<()> {
    let firm: HashSet<(usize, Event)> = promises
        .iter()
        .filter(|promise| !promise.may_be_lost)
        .flat_map(|promise| promise.wanted.iter().map(|place| (*place, promise.event)))
        .collect();
    let (mut stalled, mut seen) = (Stopwatch::start(), 0);
    loop {
        clock::pause(Duration::from_millis(500));
        let arrivals = receiver.arrivals();
        let taken = arrivals.iter().filter(|arrival| arrival.is_taken());
        let taken: HashSet<(usize, Event)> = taken
            .flat_map(|arrival| arrival.events.iter().map(|event| (arrival.subscriber, *event)))
            .collect();
        if firm.is_subset(&taken) && stalled.elapsed() > AFTERMATH && unfinished(cluster)?.is_empty() {
            return Ok(());
        }
        if arrivals.len() > seen {
            (seen, stalled) = (arrivals.len(), Stopwatch::start());
        } else if stalled.elapsed() > DRAIN_PATIENCE {
            return Ok(());
        }
    }
}

/// The traces of all events, asked for at both processes in turn.
fn traces(
    servers: &[Server],
    subscribers: &[String],
    promises: &[Promise<'_>],
) -> Result<BTreeMap<Event, Trace>> {
    let mut traces = BTreeMap::new();
    for (tenant, project) in TENANTS.into_iter().enumerate() {
        for (place, server) in servers.iter().enumerate() {
            let asked = Asked { server, project, subscribers };
            let events = promises.iter().map(|promise| promise.event);
            let is_asked =
                |event: &Event| event.key / KEYS == tenant && event.seq as usize % servers.len() == place;
            traces.extend(asked.traces(events.filter(is_asked))?);
        }
    }
    Ok(traces)
}

fn report_processes(cluster: &Cluster<'_>) -> Result<()> {
    let counts = cluster.counts()?;
    let mut rewinds = 0;
    for server in &cluster.replicas {
        rewinds += server.metric("tidegate_store_rewinds_total")?;
    }
    println!("{:<24} {rewinds}", "rewinds noticed");
    println!("{:<24} {}", "lives begun anew", counts.anew);
    println!("{:<24} {}", "stale results refused", counts.stale);
    println!("{:<24} {}", "taken over", counts.taken_over);
    Ok(())
}

/// Everything that is known after a run.
struct Outcome<'a> {
    history: History<'a>,
    rounds: &'a [Round],
    ledger: &'a Ledger,
    repeated: &'a Repeated,
    unfinished: Vec<String>,
}

impl Outcome<'_> {
    /// How many events are gone, and which promises were broken.
    fn judge(&self) -> (u64, Vec<String>) {
        let Self { history, rounds, repeated, .. } = self;
        let findings = checker::check(history);
        self.report(&findings);
        let mut broken = findings.report();
        let told = repeated.wrong.iter().chain(&self.unfinished).take(EXAMPLES_MAX);
        told.for_each(|wrong| println!("    {wrong}"));
        let zeros = [
            ("wrong about repeats", repeated.wrong.len() as u64),
            ("unexplained duplicates", unexplained(&findings.repeats, &windows(rounds))),
            ("order violations", self.out_of_order()),
            ("unfinished deliveries", self.unfinished.len() as u64),
            ("refused, no Retry-After", count(&self.ledger.without_retry_after)),
        ];
        for (name, count) in zeros {
            println!("{name:<24} {count} (must be 0){}", if count == 0 { "" } else { "  BROKEN" });
            if count > 0 {
                broken.push(format!("{name} {count}"));
            }
        }
        (findings.lost + repeated.accepted.len() as u64, broken)
    }

    fn report(&self, findings: &Findings) {
        let Self { history, rounds, ledger, repeated, .. } = self;
        let after = ledger.acknowledged_since(rounds.last().map_or(Duration::ZERO, |round| round.killed));
        let tell = |name: &str, value: String| println!("{name:<24} {value}");
        tell("acknowledged", format!("{}, {after} after the last kill", history.promises.len()));
        let (unanswered, refused) = (count(&ledger.unanswered), count(&ledger.refused));
        tell("failed attempts", format!("{unanswered} without an answer, {refused} refused"));
        tell("answered as duplicate", count(&ledger.duplicates).to_string());
        let (again, accepted) = (repeated.events.len(), repeated.accepted.len());
        tell("sent again at the end", format!("{again}, {accepted} of them had been lost"));
        tell("lost for good", format!("{} that nobody sent again", findings.lost));
        tell(
            "in two deliveries",
            format!("{} after they were lost and sent again", findings.doubled_allowed),
        );
        tell("duplicates", format!("{} in all", findings.repeats.len()));
    }

    /// Lanes keep their order; events that are lost, or come again at the end, have no place in it.
    fn out_of_order(&self) -> u64 {
        let is_known = |event| self.history.traces.get(&event).is_some_and(|trace| *trace != Trace::Unknown);
        let is_kept = |event: Event| is_known(event) && !self.repeated.accepted.contains(&event);
        let mut count = 0;
        for audience in AUDIENCES {
            let rule = checker::out_of_order(self.history.arrivals, audience[ORDERED], is_kept);
            rule.examples.iter().for_each(|example| println!("    {example}"));
            count += rule.count;
        }
        count
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn conclude(lost: u64, broken: &[String]) -> Result<()> {
    if !broken.is_empty() {
        bail!("a promise was broken: {}", broken.join(", "));
    }
    ensure!(lost > 0, "nothing was lost: the run proves nothing");
    println!("every promise was kept");
    Ok(())
}

/// A line was switched off.
fn found(broken: &[String]) -> Result<()> {
    ensure!(!broken.is_empty(), "nobody found out that a process does not notice what was lost");
    println!("found, without rewind: {}", broken.join(", "));
    Ok(())
}

/// What was under way, or whose result was lost, around a failover is sent again.
fn windows(rounds: &[Round]) -> Vec<Window> {
    let window =
        |round: &Round| Window { from: round.safe.saturating_sub(UNDER_WAY_MAX), until: round.released };
    rounds.iter().map(window).collect()
}
