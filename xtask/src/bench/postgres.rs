//! The figures of a store that processes share: a throw-away PostgreSQL and Redis on the same cores as everything else.

use std::time::Duration;

use anyhow::{Context, Result};

use super::bare::{self, Ids};
use super::figures::{
    FIRST_DELIVERIES, Figure, Flow, WAITING_SUBSCRIBERS, first_deliveries_ms, gentle, paused, seconds_between,
};
use super::generator::Load;
use super::stage::Stage;
use super::table::Goal::{AtLeast, AtMost, None as NoGoal};
use super::table::{Row, median};
use crate::server::Server;

/// Processes that share a store, at most.
const REPLICAS_MAX: usize = 3;

/// All groups, in the order in which they run.
pub(super) const FIGURES: [(&str, Figure); 11] = [
    ("e2e1", e2e1),
    ("batch", batch),
    ("latency", latency),
    ("replicas", replicas),
    ("waiting", waiting),
    ("folds-join", super::folds::append),
    ("folds-close", super::folds::close),
    ("folds-time", super::folds::timing),
    ("folds-many", super::folds::many_to_few),
    ("folds-lanes", super::lanes::lanes),
    ("observe-count", super::observe::count),
];

fn e2e1(stage: &mut Stage) -> Result<Vec<Row>> {
    let flow = Flow::measure(stage, 1, 60_000)?;
    Ok(vec![
        Row::new("e2e1", "generator straight to receiver", flow.loopback, "req/s", NoGoal),
        Row::new("e2e1", "event to one subscriber, end to end", flow.rate, "/s", AtLeast(15_000.0)),
        Row::new("e2e1", "create p99, 64 connections", flow.create_p99_ms, "ms", NoGoal),
        Row::new("e2e1", "CPU per 1 000 deliveries, databases included", flow.cpu, "s", AtMost(0.08)),
        Row::new("e2e1", "refused requests", flow.refused, "", AtMost(0.0)),
    ])
}

/// Batches of 1 000, against a plain loop of inserts of the same rows; and, to tell what random ids cost everybody, of rows
/// whose ids are in order.
fn batch(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let events = stage.count(200_000);
    let url = stage.services()?.postgres_url();
    let (mut plain, mut ordered, mut ours) = (vec![], vec![], vec![]);
    for _ in 0..stage.rounds() {
        plain.push(bare::unnest_rate(&url, events, Ids::AsSent)?);
        ours.push(stage.fill(&server, events)?.rate());
        ordered.push(bare::unnest_rate(&url, events, Ids::InOrder)?);
    }
    stage.give_back(server);
    let (plain, ordered, ours) = (median(plain), median(ordered), median(ours));
    Ok(vec![
        Row::new("batch", "plain UNNEST loop of the same rows", plain, "rows/s", NoGoal),
        Row::new("batch", "events in batches of 1 000", ours, "/s", NoGoal),
        Row::new("batch", "share of the plain loop", ours / plain, "", AtLeast(0.5)),
        Row::new("batch", "plain loop with ids in order", ordered, "rows/s", NoGoal),
        Row::new("batch", "share of that", ours / ordered, "", NoGoal),
    ])
}

/// From event to receiver at a gentle rate, beside a bare commit, which is most of it.
fn latency(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.take_filled()?;
    let created = stage.subscribe(&server, 1)?;
    let url = stage.services()?.postgres_url();
    settle(stage)?;
    let (mut p50s, mut p99s, mut bare_p50s, mut bare_p99s) = (vec![], vec![], vec![], vec![]);
    for _ in 0..stage.many_rounds() {
        let (bare_p50, bare_p99) = bare::paced_insert_ms(&url, 1_000, Duration::from_millis(5))?;
        bare_p50s.push(bare_p50);
        bare_p99s.push(bare_p99);
        let received = gentle(stage, &server)?;
        p50s.push(received.p50_ms);
        p99s.push(received.p99_ms);
    }
    stage.unsubscribe(&server, &created)?;
    stage.give_back(server);
    Ok(vec![
        Row::new("latency", "one row inserted and committed, 200/s, p50", median(bare_p50s), "ms", NoGoal),
        Row::new("latency", "one row inserted and committed, 200/s, p99", median(bare_p99s), "ms", NoGoal),
        Row::new("latency", "event to receiver at 200/s, p50", median(p50s), "ms", AtMost(1.0)),
        Row::new("latency", "event to receiver at 200/s, p99", median(p99s), "ms", AtMost(3.0)),
    ])
}

/// The same load on one, two and three processes, in turn. Those that are not loaded do not run.
fn replicas(stage: &mut Stage) -> Result<Vec<Row>> {
    let mut servers = vec![stage.replica("replicas", 0)?];
    let created = stage.subscribe(&servers[0], 1)?;
    settle(stage)?;
    let (mut alone, mut shares) = (vec![], vec![Vec::new(); REPLICAS_MAX]);
    for _ in 0..stage.rounds() {
        let mut of_one = 0.0;
        for count in 1..=REPLICAS_MAX {
            if count > servers.len() {
                servers.push(stage.replica("replicas", count - 1)?);
            }
            // What the processes know of each other is up to a second old: the first load only tells them.
            shared_rate(stage, &servers)?;
            let rate = shared_rate(stage, &servers)?;
            of_one = if count == 1 { rate } else { of_one };
            shares[count - 1].push(rate / of_one);
        }
        alone.push(of_one);
        servers.drain(1..).try_for_each(|mut server| server.stop())?;
    }
    stage.unsubscribe(&servers[0], &created)?;
    let shares: Vec<f64> = shares.into_iter().map(median).collect();
    let deadlocks = bare::deadlocks(&stage.services()?.postgres_url())?;
    Ok(vec![
        Row::new("replicas", "one process, end to end", median(alone), "/s", NoGoal),
        Row::new("replicas", "two processes", shares[1], "×", AtLeast(0.8)),
        Row::new("replicas", "three processes", shares[2], "×", AtLeast(0.8)),
        Row::new("replicas", "deadlocks", deadlocks, "", AtMost(0.0)),
    ])
}

/// What the figure before has left to be written is not what the next one is about.
fn settle(stage: &mut Stage) -> Result<()> {
    bare::settle(&stage.services()?.postgres_url())?;
    stage.settle()
}

/// Deliveries per second of one load that is spread over these servers.
fn shared_rate(stage: &mut Stage, servers: &[Server]) -> Result<f64> {
    stage.reset(0)?;
    let share = servers.len() as u64;
    let loads: Vec<Load> = servers
        .iter()
        .map(|server| Load { connections: 64 / share, ..stage.load(server, stage.count(40_000) / share) })
        .collect();
    let reports = stage.generate_all(&loads)?;
    let expected = reports.iter().map(|report| report.accepted).sum();
    let received = stage.wait_for(expected)?;
    let began = reports.iter().map(|report| report.started_at).min().context("somebody sends")?;
    Ok(expected as f64 / seconds_between(began, received.last_at))
}

/// Millions of deliveries that wait: whether the first ones still come at once.
fn waiting(stage: &mut Stage) -> Result<Vec<Row>> {
    let (server, ids) = paused(stage)?;
    let shared = WAITING_SUBSCRIBERS as u64;
    let (few, many) = (stage.count(200_000).max(40_000), stage.count(2_000_000));
    stage.fill(&server, few / shared)?;
    let first_of_few = first_deliveries_ms(stage, &server, &ids)?;
    stage.fill(&server, (many - few) / shared + 2 * FIRST_DELIVERIES)?;
    let first_of_many = first_deliveries_ms(stage, &server, &ids)?;
    Ok(vec![
        Row::new("waiting", format!("first {FIRST_DELIVERIES} of {few}"), first_of_few, "ms", NoGoal),
        Row::new("waiting", format!("first {FIRST_DELIVERIES} of {many}"), first_of_many, "ms", NoGoal),
        Row::new("waiting", "growth of that time", first_of_many / first_of_few, "×", AtMost(1.5)),
    ])
}
