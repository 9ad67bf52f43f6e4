//! A receiver hangs while a process joins and another leaves: all others go on being served.
//!
//! Two processes serve a hundred receivers, one of which takes requests and says nothing, so that all of its places are occupied.
//! The others have one place each, whose owner changes with every process that comes or goes. Judged by order, not by time:
//! whatever is sent after a process has joined must reach all others while those requests are still open, and again after one
//! has begun to leave, which has not ended because it waits for its own. A request that has ended before proves nothing, and fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use tokio::runtime::Runtime;

use super::super::crowd::{Crowd, Member, Mood};
use super::cluster::Cluster;
use crate::cargo::{self, Profile};
use crate::chaos::checker::api::Asked;
use crate::chaos::scene::Build;
use crate::clock::{self, Stopwatch};
use crate::server::{PROJECT, Scratch, Server};
use crate::services::Services;

const CROWD: usize = 100;
/// The one that hangs, and those that do not.
const HUNG: usize = CROWD - 1;
/// Requests that it takes at once. Of three processes none may have as many of them as each of two.
const HUNG_PLACES: u64 = 4;
/// How long an answer is waited for: longer than anything here takes, also on a slow machine.
const HUNG_TIMEOUT: &str = "110s";
/// Events that are sent at each turn.
const EVENTS: usize = 6;
/// Between two turns.
const ROUND: Duration = Duration::from_millis(200);
/// An end for a run in which nothing comes.
const PATIENCE: Duration = Duration::from_secs(100);

/// What to run.
#[derive(Args)]
pub(crate) struct Joining {
    #[command(flatten)]
    build: Build,
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Joining) -> Result<()> {
    carry_out(&args.build.binary()?, &mut Services::start_own()?)
}

/// The same for every test run. Answers a remark.
pub(crate) fn short(services: &mut Services) -> Result<String> {
    let binary = cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate");
    println!("-- joining --");
    let watch = Stopwatch::start();
    carry_out(&binary, services)?;
    Ok(format!("joining {:.0} s", watch.seconds()))
}

fn carry_out(binary: &Path, services: &mut Services) -> Result<()> {
    let mut scratch = Scratch::new("joining")?;
    let mut cluster = Cluster::start(services, binary, scratch.path(), &[])?;
    let outcome = campaign(&mut cluster);
    if outcome.is_err() {
        eprintln!("{}", cluster.log_tails());
        scratch.keep();
    }
    outcome
}

fn campaign(cluster: &mut Cluster<'_>) -> Result<()> {
    let runtime: Runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (crowd, members) = runtime.block_on(Crowd::start(CROWD))?;
    cluster.end(2)?;
    let subscribe = |(index, member)| subscribe(&cluster.replicas[0], index, member);
    let subscribers: Vec<String> = members.iter().enumerate().map(subscribe).collect::<Result<_>>()?;
    members[HUNG].be(Mood::Hangs);
    let (first, second) = (&cluster.replicas[0], &cluster.replicas[1]);
    send(&crowd, &[first, second])?;
    let hanging = || in_flight(first).unwrap_or(0) + in_flight(second).unwrap_or(0);
    let is_occupied = clock::wait_until(PATIENCE, || crowd.unanswered(HUNG) == HUNG_PLACES);
    ensure!(is_occupied, "the receiver that hangs did not get its requests");
    all_served(&crowd, "two processes", || hanging() >= HUNG_PLACES)?;

    cluster.replicas[2].resume()?;
    let (first, second, third) = (&cluster.replicas[0], &cluster.replicas[1], &cluster.replicas[2]);
    let hanging = || in_flight(first).unwrap_or(0) + in_flight(second).unwrap_or(0);
    // Until the newcomer serves somebody too: then all have agreed who has which places.
    while third.metric("tidegate_deliveries_delivered_total")? == 0 {
        send(&crowd, &[first, second, third])?;
        all_served(&crowd, "one has joined", || hanging() >= HUNG_PLACES)?;
        clock::pause(ROUND);
    }

    first.signal("-TERM")?;
    ensure!(clock::wait_until(PATIENCE, || in_flight(first).is_err()), "it does not stop listening");
    send(&crowd, &[second, third])?;
    let first = &mut cluster.replicas[0];
    // It listens no more; that it is still there says that its requests are open.
    all_served(&crowd, "one is leaving", || !first.has_ended())?;
    let asked = Asked { server: &cluster.replicas[1], project: PROJECT, subscribers: &subscribers };
    crowd.check(&asked, HUNG)?;
    members[HUNG].be(Mood::Good);
    for server in &mut cluster.replicas {
        server.stop()?;
    }
    println!("every promise was kept");
    Ok(())
}

fn subscribe(server: &Server, index: usize, member: &Member) -> Result<String> {
    let url = format!("http://{}/", member.address);
    let limits = match index {
        HUNG => json!({"concurrency": HUNG_PLACES, "timeout": HUNG_TIMEOUT}),
        _ => json!({"concurrency": 1}),
    };
    // What has failed does not come again while somebody looks.
    let rest = json!({"limits": limits, "retry": {"schedule": ["1h"]}, "breaker": "off"});
    server.subscribe(&format!("member {index}"), &url, &rest).map(|made| made.id)
}

fn in_flight(server: &Server) -> Result<u64> {
    server.metric("tidegate_attempts_in_flight")
}

/// Some events, to these in turn.
fn send(crowd: &Crowd, servers: &[&Server]) -> Result<()> {
    for server in servers.iter().cycle().take(EVENTS) {
        server.api("POST", "/v1/events", &crowd.event())?;
    }
    Ok(())
}

/// Everything has come to all others, while requests to the one that hangs are open.
fn all_served(crowd: &Crowd, when: &str, mut is_open: impl FnMut() -> bool) -> Result<()> {
    let (watch, wanted) = (Stopwatch::start(), crowd.sent() * HUNG);
    let arrived = || crowd.times(0, HUNG).len();
    clock::wait_until(PATIENCE, || arrived() == wanted || !is_open());
    let count = arrived();
    println!("{when}: {count} of {wanted} arrived within {:.1} s", watch.seconds());
    ensure!(is_open(), "a request that hung has ended, with {count} of {wanted} arrived: {when}");
    ensure!(count == wanted, "only {count} of {wanted} arrived while a receiver hung: {when}");
    Ok(())
}
