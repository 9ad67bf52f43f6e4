//! The figures: each sets the stage, measures the product and the bare pieces in turn, and answers rows.
//!
//! What is compared is measured in the same run, alternating, and the median of the rounds counts: absolute numbers
//! of a shared machine mean little, their ratios keep.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::generator::Load;
use super::process::{self, Counters, Usage};
use super::stage::{Part, Stage, straight};
use super::table::Goal::{AtLeast, AtMost, None as NoGoal};
use super::table::{Row, median};
use super::{bare, receiver};
use crate::clock::{self, Stopwatch};
use crate::server::Server;

/// How long an idle server is watched, twice.
const IDLE_WATCH: Duration = Duration::from_secs(5);
/// How long it may take to become idle after load.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);
/// What an idle server uses.
const NOTHING: Usage = Usage { cpu_ticks: 0, context_switches: 0, write_bytes: 0 };
/// How long nothing may arrive before a paused subscriber counts as quiet.
const CALM: Duration = Duration::from_millis(200);
/// Deliveries whose arrival shows that claiming works.
pub(super) const FIRST_DELIVERIES: u64 = 4_096;
/// Subscribers that share the waiting deliveries.
pub(super) const WAITING_SUBSCRIBERS: usize = 4;

/// Measures one group of figures.
pub(super) type Figure = fn(&mut Stage) -> Result<Vec<Row>>;

/// All groups, in the order in which they run.
pub(super) const FIGURES: [(&str, Figure); 16] = [
    ("e2e1", e2e1),
    ("e2e5", e2e5),
    ("ingest", ingest),
    ("batch", batch),
    ("backlog", backlog),
    ("latency", latency),
    ("idle", idle),
    ("waiting", waiting),
    ("folds-join", super::folds::append),
    ("folds-close", super::folds::close),
    ("folds-time", super::folds::timing),
    ("folds-many", super::folds::many_to_few),
    ("folds-lanes", super::lanes::lanes),
    ("observe-count", super::observe::count),
    ("observe-query", super::questions::ask),
    ("observe-search", super::searches::search),
];

fn e2e1(stage: &mut Stage) -> Result<Vec<Row>> {
    let flow = Flow::measure(stage, 1, 100_000)?;
    Ok(vec![
        Row::new("e2e1", "generator straight to receiver", flow.loopback, "req/s", NoGoal),
        Row::new("e2e1", "event to one subscriber, end to end", flow.rate, "/s", AtLeast(25_000.0)),
        Row::new("e2e1", "share of straight to receiver", flow.share(), "", AtLeast(0.16)),
        Row::new("e2e1", "create p99, 64 connections", flow.create_p99_ms, "ms", AtMost(10.0)),
        Row::new("e2e1", "server CPU per 1 000 deliveries", flow.cpu, "s", AtMost(0.05)),
        Row::new("e2e1", "refused requests", flow.refused, "", AtMost(0.0)),
    ])
}

fn e2e5(stage: &mut Stage) -> Result<Vec<Row>> {
    let flow = Flow::measure(stage, 5, 50_000)?;
    Ok(vec![
        Row::new("e2e5", "deliveries to five subscribers", flow.rate, "/s", AtLeast(50_000.0)),
        Row::new("e2e5", "share of straight to receiver", flow.share(), "", AtLeast(0.33)),
        Row::new("e2e5", "create p99, 64 connections", flow.create_p99_ms, "ms", NoGoal),
        Row::new("e2e5", "server CPU per 1 000 deliveries", flow.cpu, "s", NoGoal),
        Row::new("e2e5", "refused requests", flow.refused, "", AtMost(0.0)),
    ])
}

/// Events through the whole server, medians of the rounds.
pub(super) struct Flow {
    pub(super) loopback: f64,
    /// Deliveries per second, from the first request to the last arrival.
    pub(super) rate: f64,
    pub(super) create_p99_ms: f64,
    /// Seconds per 1 000 deliveries.
    pub(super) cpu: f64,
    pub(super) refused: f64,
}

impl Flow {
    pub(super) fn measure(stage: &mut Stage, subscribers: usize, events: u64) -> Result<Self> {
        let server = stage.take_filled()?;
        let created = stage.subscribe(&server, subscribers)?;
        let (mut loopback, mut rates, mut p99s, mut cpus) = (vec![], vec![], vec![], vec![]);
        let mut refused = 0;
        for _ in 0..stage.rounds() {
            loopback.push(stage.loopback_rate()?);
            stage.reset(0)?;
            let cpu_before = stage.cpu_seconds(&server)?;
            let sent = stage.generate(&stage.load(&server, stage.count(events)))?;
            let expected = sent.accepted * subscribers as u64;
            let received = stage.wait_for(expected)?;
            let cpu = stage.cpu_seconds(&server)? - cpu_before;
            rates.push(expected as f64 / seconds_between(sent.started_at, received.last_at));
            p99s.push(sent.p99_ms);
            cpus.push(cpu * 1000.0 / expected as f64);
            refused += sent.refused;
        }
        stage.unsubscribe(&server, &created)?;
        stage.give_back(server);
        Ok(Self {
            loopback: median(loopback),
            rate: median(rates),
            create_p99_ms: median(p99s),
            cpu: median(cpus),
            refused: refused as f64,
        })
    }

    fn share(&self) -> f64 {
        self.rate / self.loopback
    }
}

/// Accepting without anyone to deliver to, against a bare handler.
fn ingest(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let axum = Part::start("bench-axum")?;
    let requests = stage.count(150_000);
    let (mut bare, mut ours) = (vec![], vec![]);
    for _ in 0..stage.rounds() {
        bare.push(stage.generate(&Load { requests, ..straight(axum.address) })?.rate());
        ours.push(stage.generate(&stage.load(&server, requests))?.rate());
    }
    stage.give_back(server);
    let (bare, ours) = (median(bare), median(ours));
    Ok(vec![
        Row::new("ingest", "bare axum handler", bare, "req/s", NoGoal),
        Row::new("ingest", "durable accept, no subscriber", ours, "req/s", NoGoal),
        Row::new("ingest", "share of the bare handler", ours / bare, "", AtLeast(0.38)),
    ])
}

/// Batches of 1 000, against a plain loop.
fn batch(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let events = stage.count(300_000);
    let (mut bare, mut plain, mut ours) = (vec![], vec![], vec![]);
    for _ in 0..stage.rounds() {
        bare.push(bare::sqlite_append_rate(stage.folder(), events)?);
        plain.push(bare::sqlite_rate(stage.folder(), events)?);
        ours.push(stage.fill(&server, events)?.rate());
    }
    stage.give_back(server);
    let (bare, plain, ours) = (median(bare), median(plain), median(ours));
    Ok(vec![
        Row::new("batch", "plain rusqlite loop, sequential keys", plain, "rows/s", NoGoal),
        Row::new("batch", "the same without its keys", bare, "rows/s", NoGoal),
        Row::new("batch", "events in batches of 1 000", ours, "/s", NoGoal),
        Row::new("batch", "share of the plain loop", ours / plain, "", AtLeast(0.45)),
        Row::new("batch", "share of the loop without keys", ours / bare, "", NoGoal),
    ])
}

/// A backlog delivered after a pause, against a bare client.
fn backlog(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let created = stage.subscribe(&server, 1)?;
    let deliveries = stage.count(200_000);
    let (mut bare, mut ours) = (vec![], vec![]);
    for _ in 0..stage.rounds() {
        bare.push(stage.hyper_rate(deliveries)?);
        act(&server, &created[0].id, "pause")?;
        stage.fill(&server, deliveries)?;
        stage.reset(0)?;
        let resumed_at = clock::wall_nanos();
        act(&server, &created[0].id, "resume")?;
        let received = stage.wait_for(deliveries)?;
        ours.push(deliveries as f64 / seconds_between(resumed_at, received.last_at));
    }
    stage.unsubscribe(&server, &created)?;
    stage.give_back(server);
    let (bare, ours) = (median(bare), median(ours));
    Ok(vec![
        Row::new("backlog", "bare hyper client", bare, "req/s", NoGoal),
        Row::new("backlog", "a backlog delivered", ours, "/s", NoGoal),
        Row::new("backlog", "share of the bare client", ours / bare, "", AtLeast(0.5)),
    ])
}

/// From event to receiver at a gentle rate, against one sync of the disk.
fn latency(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let created = stage.subscribe(&server, 1)?;
    stage.settle()?;
    let (mut syncs, mut p50s, mut p99s) = (vec![], vec![], vec![]);
    let (mut bare_p50s, mut bare_p99s) = (vec![], vec![]);
    for _ in 0..stage.many_rounds() {
        syncs.push(bare::fdatasync_ms(stage.folder(), 1_000)?);
        let (bare_p50, bare_p99) = bare::paced_commit_ms(stage.folder(), 1_000, Duration::from_millis(5))?;
        bare_p50s.push(bare_p50);
        bare_p99s.push(bare_p99);
        let received = gentle(stage, &server)?;
        p50s.push(received.p50_ms);
        p99s.push(received.p99_ms);
    }
    stage.unsubscribe(&server, &created)?;
    stage.give_back(server);
    let sync = median(syncs);
    Ok(vec![
        Row::new("latency", "one fdatasync, p50", sync, "ms", NoGoal),
        Row::new("latency", "a commit's bytes synced, 200/s, p50", median(bare_p50s), "ms", NoGoal),
        Row::new("latency", "a commit's bytes synced, 200/s, p99", median(bare_p99s), "ms", NoGoal),
        Row::new("latency", "event to receiver at 200/s, p50", median(p50s), "ms", AtMost(sync + 0.4)),
        Row::new("latency", "event to receiver at 200/s, p99", median(p99s), "ms", AtMost(1.5)),
    ])
}

/// 200 events a second, and what the receiver says of their times.
pub(super) fn gentle(stage: &mut Stage, server: &Server) -> Result<receiver::Report> {
    stage.reset(0)?;
    let requests = stage.count(2_000).min(2_000);
    let load = Load { rate: Some(200.0), connections: 16, ..stage.load(server, requests) };
    let sent = stage.generate(&load)?;
    stage.wait_for(sent.accepted)
}

/// A server with nothing to do does nothing, twice in a row: a thread that ends after load may, a slow timer not.
fn idle(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let created = stage.subscribe(&server, 1)?;
    let watch = Stopwatch::start();
    let mut before = usage_during(&server, IDLE_WATCH)?;
    let mut used = usage_during(&server, IDLE_WATCH)?;
    while (before != NOTHING || used != NOTHING) && watch.elapsed() < IDLE_PATIENCE {
        before = used;
        used = usage_during(&server, IDLE_WATCH)?;
    }
    let settled = watch.elapsed().saturating_sub(2 * IDLE_WATCH).as_secs_f64();
    let used = used.plus(&before);
    stage.unsubscribe(&server, &created)?;
    stage.give_back(server);
    Ok(vec![
        Row::new("idle", "until idle after load", settled, "s", NoGoal),
        Row::new("idle", "CPU in 10 s", used.cpu_ticks as f64, "ticks", AtMost(0.0)),
        Row::new("idle", "context switches in 10 s", used.context_switches as f64, "", AtMost(0.0)),
        Row::new("idle", "written in 10 s", used.write_bytes as f64, "bytes", AtMost(0.0)),
    ])
}

fn usage_during(server: &Server, span: Duration) -> Result<Usage> {
    let before = Counters::of(server.pid())?;
    clock::pause(span);
    Ok(Counters::of(server.pid())?.since(&before))
}

/// Millions of deliveries that wait: memory, restart, and whether the first ones still come at once.
fn waiting(stage: &mut Stage) -> Result<Vec<Row>> {
    let (mut server, ids) = paused(stage)?;
    let shared = WAITING_SUBSCRIBERS as u64;
    let (few, many) = (stage.count(200_000).max(40_000), stage.count(2_000_000));
    stage.fill(&server, few / shared)?;
    let first_of_few = first_deliveries_ms(stage, &server, &ids)?;
    let rest = (many - few) / shared + 2 * FIRST_DELIVERIES;
    stage.fill(&server, rest)?;
    let resident = process::resident_mb(server.pid())?;
    server.stop()?;
    let ready = server.resume()?;
    let resident = resident.max(process::resident_mb(server.pid())?);
    let first_of_many = first_deliveries_ms(stage, &server, &ids)?;
    let resident_after = process::resident_mb(server.pid())?;
    Ok(vec![
        Row::new("waiting", format!("memory with {many} deliveries waiting"), resident, "MB", AtMost(100.0)),
        Row::new("waiting", "memory while they begin to flow", resident_after, "MB", NoGoal),
        Row::new("waiting", "ready after a restart", ready.as_secs_f64(), "s", AtMost(1.0)),
        Row::new("waiting", format!("first {FIRST_DELIVERIES} of {few}"), first_of_few, "ms", NoGoal),
        Row::new("waiting", format!("first {FIRST_DELIVERIES} of {many}"), first_of_many, "ms", NoGoal),
        Row::new("waiting", "growth of that time", first_of_many / first_of_few, "×", AtMost(1.5)),
    ])
}

/// An empty server with subscribers that wait, by their ids.
pub(super) fn paused(stage: &Stage) -> Result<(Server, Vec<String>)> {
    let server = stage.empty_server("waiting")?;
    let subscribers = stage.subscribe(&server, WAITING_SUBSCRIBERS)?;
    let ids: Vec<String> = subscribers.into_iter().map(|subscriber| subscriber.id).collect();
    for id in &ids {
        act(&server, id, "pause")?;
    }
    Ok((server, ids))
}

/// Lets each subscriber begin in turn; the median time until its first deliveries have come.
pub(super) fn first_deliveries_ms(stage: &Stage, server: &Server, ids: &[String]) -> Result<f64> {
    let mut times = Vec::new();
    for id in ids {
        stage.reset(FIRST_DELIVERIES)?;
        let resumed_at = clock::wall_nanos();
        act(server, id, "resume")?;
        let received = stage.wait_for(FIRST_DELIVERIES)?;
        act(server, id, "pause")?;
        stage.wait_for_calm(CALM)?;
        times.push(seconds_between(resumed_at, received.mark_at) * 1e3);
    }
    Ok(median(times))
}

fn act(server: &Server, subscriber: &str, action: &str) -> Result<()> {
    server.api("POST", &format!("/v1/subscribers/{subscriber}/{action}"), &Value::Null)?;
    Ok(())
}

pub(super) fn seconds_between(from_nanos: u64, to_nanos: u64) -> f64 {
    to_nanos.saturating_sub(from_nanos) as f64 / 1e9
}
