//! What counting costs: the same events, sent to a type that declares nothing and to one that is observed.
//!
//! Both are measured until they are done: without metrics that is the last answer, with them it is when the last event
//! has been counted.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::figures::seconds_between;
use super::generator::{Load, Report};
use super::stage::{FILL_BATCH, FILL_CONNECTIONS, Stage};
use super::table::Goal::{AtLeast, None as NoGoal};
use super::table::{Row, median};
use super::template::Attribute;
use crate::clock::{self, Stopwatch};
use crate::server::Server;

const TYPE: &str = "/v1/catalog/services/bench/types/order.paid";
/// Values of each dimension: two of them make 10 000 keys.
const VALUES: u64 = 100;
/// Objects whose state is told.
const OBJECTS: u64 = 100_000;
const STATES: u64 = 5;
/// Values that are summed and measured.
const AMOUNTS: u64 = 1_000_000;
/// Counting that does not come to an end is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Servers that take in the same and count differently much of it.
struct Servers {
    plain: Server,
    counting: Server,
    indexing: Server,
}

/// Single events and batches of 1 000, with metrics and with indexes on top of them.
pub(super) fn count(stage: &mut Stage) -> Result<Vec<Row>> {
    let servers = Servers {
        plain: stage.empty_server("plain")?,
        counting: stage.empty_server("counting")?,
        indexing: stage.empty_server("indexing")?,
    };
    servers.counting.api("PUT", TYPE, &metrics())?;
    servers.indexing.api("PUT", TYPE, &indexed())?;
    let mut rows = Vec::new();
    let batch = usize::try_from(FILL_BATCH)?;
    let events = stage.count(200_000);
    rows.extend(shares(stage, &servers, "batches of 1 000", |server, stage| Load {
        requests: events / FILL_BATCH,
        batch,
        connections: FILL_CONNECTIONS,
        ..stage.load(server, 0)
    })?);
    let events = stage.count(100_000);
    rows.extend(shares(stage, &servers, "single events", |server, stage| stage.load(server, events))?);
    Ok(rows)
}

/// Three counters of 10 000 keys each, a histogram of 100, and the states of objects.
fn metrics() -> Value {
    json!({
        "counters": {
            "sold": {"dimensions": ["data.shop", "data.plan"]},
            "earned": {"dimensions": ["data.shop", "data.region"], "sum": "data.key"},
            "planned": {"dimensions": ["data.plan", "data.region"]},
        },
        "histograms": {"total": {"value": "data.key", "dimensions": ["data.region"]}},
        "states": [{"object": "order", "id": "data.order", "attributes": ["data.status"]}],
    })
}

fn indexed() -> Value {
    let mut all = metrics();
    all["index"] = json!(["data.shop", "data.plan", "data.region", "data.order", "data.status"]);
    all
}

fn attributes() -> Vec<Attribute> {
    let attributes =
        [("shop", VALUES), ("plan", VALUES), ("region", VALUES), ("order", OBJECTS), ("status", STATES)];
    attributes.into_iter().map(|(name, values)| Attribute::new(name, values)).collect()
}

fn shares(
    stage: &mut Stage,
    servers: &Servers,
    how: &str,
    load: impl Fn(&Server, &Stage) -> Load,
) -> Result<Vec<Row>> {
    let (mut plain, mut counting, mut indexing) = (vec![], vec![], vec![]);
    for round in 0..=stage.rounds() {
        let load = |server: &Server, stage: &Stage| Load {
            keys: AMOUNTS,
            attributes: attributes(),
            ..load(server, stage)
        };
        let without = stage.generate(&load(&servers.plain, stage))?.rate();
        let counted = counted_rate(stage, &servers.counting, &load(&servers.counting, stage))?;
        let indexed = counted_rate(stage, &servers.indexing, &load(&servers.indexing, stage))?;
        // The first round meets every key for the first time.
        if round > 0 {
            plain.push(without);
            counting.push(counted / without);
            indexing.push(indexed / without);
        }
    }
    Ok(vec![
        Row::new("observe", format!("{how}, nothing declared"), median(plain), "/s", NoGoal),
        Row::new("observe", format!("{how}, all counted, share of that"), median(counting), "", AtLeast(0.7)),
        Row::new(
            "observe",
            format!("{how}, indexed too, share of that"),
            median(indexing),
            "",
            AtLeast(0.45),
        ),
    ])
}

/// Events per second from the first request until all are counted.
fn counted_rate(stage: &mut Stage, server: &Server, load: &Load) -> Result<f64> {
    let before = observed(server)?;
    let sent = stage.generate(load)?;
    let counted_at = counted_at(server, before, &sent)?;
    Ok(sent.accepted as f64 / seconds_between(sent.started_at, counted_at))
}

/// When the last event of a load was counted.
fn counted_at(server: &Server, before: u64, sent: &Report) -> Result<u64> {
    let watch = Stopwatch::start();
    let question = json!({
        "service": "bench", "object": "order", "attribute": "data.status",
    });
    while observed(server)? < before + sent.accepted {
        ensure!(watch.elapsed() < PATIENCE, "only {} events were counted", observed(server)? - before);
        // Whoever asks is answered when everything is counted.
        server.api("POST", "/v1/query/states", &question)?;
    }
    Ok(clock::wall_nanos())
}

fn observed(server: &Server) -> Result<u64> {
    server.metric("tidegate_observed_events_total")
}
