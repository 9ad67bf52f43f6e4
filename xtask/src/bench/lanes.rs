//! What it costs to stand in line: ten thousand lanes at one gate that never says no.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::figures::seconds_between;
use super::stage::Stage;
use super::table::Goal::{AtLeast, AtMost, None as NoGoal};
use super::table::{Row, median};
use crate::server::Server;

/// A gate that nobody ever waits for.
const GATE: &str = "wide";
const EVENTS: u64 = 50_000;

/// The turns alone, and events through the whole server with a gate and without.
pub(super) fn lanes(stage: &mut Stage) -> Result<Vec<Row>> {
    let turn_us = turns()?;
    let server = stage.take_filled()?;
    server.api("PUT", &format!("/v1/gates/{GATE}"), &json!({"rate": "100000/s", "burst": 100_000}))?;
    let (mut plain, mut gated) = (Vec::new(), Vec::new());
    for _ in 0..stage.rounds() {
        plain.push(flow(stage, &server, None)?);
        gated.push(flow(stage, &server, Some(GATE))?);
    }
    server.api("DELETE", &format!("/v1/gates/{GATE}"), &serde_json::Value::Null)?;
    stage.give_back(server);
    let rates = |flows: &[(f64, f64)]| median(flows.iter().map(|(rate, _)| *rate).collect());
    let costs = |flows: &[(f64, f64)]| median(flows.iter().map(|(_, cost)| *cost).collect());
    Ok(vec![
        Row::new("lanes", "one turn of 10 000 lanes at a gate", turn_us, "µs", AtMost(10.0)),
        Row::new("lanes", "deliveries, a lane each, without a gate", rates(&plain), "/s", NoGoal),
        Row::new("lanes", "deliveries, a lane each, through a gate", rates(&gated), "/s", NoGoal),
        Row::new(
            "lanes",
            "share of those without a gate",
            rates(&gated) / rates(&plain),
            "",
            stage.embedded(AtLeast(0.85)),
        ),
        Row::new(
            "lanes",
            "server CPU more per delivery",
            costs(&gated) - costs(&plain),
            "µs",
            stage.embedded(AtMost(10.0)),
        ),
    ])
}

/// The schedule without anything around it, as a program of its own crate.
fn turns() -> Result<f64> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--release", "--package", "tidegate-core", "--example", "lanes"]);
    let output = command.output().context("cargo does not run")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().with_context(|| format!("{text} is no number"))
}

/// Deliveries per second, and microseconds of the server's CPU for each. Every event is a lane of its own.
fn flow(stage: &mut Stage, server: &Server, gate: Option<&str>) -> Result<(f64, f64)> {
    let mut rest = json!({"limits": {"concurrency": 64}, "order": {"by": "data.at"}});
    if let Some(gate) = gate {
        rest["gate"] = gate.into();
    }
    let created = stage.subscribe_with(server, 1, &rest)?;
    stage.reset(0)?;
    let before = stage.cpu_seconds(server)?;
    let sent = stage.generate(&stage.load(server, stage.count(EVENTS)))?;
    let received = stage.wait_for(sent.accepted)?;
    let cpu = stage.cpu_seconds(server)? - before;
    stage.unsubscribe(server, &created)?;
    let seconds = seconds_between(sent.started_at, received.last_at);
    Ok((sent.accepted as f64 / seconds, cpu * 1e6 / sent.accepted as f64))
}
