//! What folding costs: appending to many windows, closing many at once, being in time, and many events in few deliveries.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::figures::seconds_between;
use super::generator::Load;
use super::process;
use super::stage::Stage;
use super::table::Goal::{AtLeast, AtMost, None as NoGoal};
use super::table::{Row, median};
use crate::clock::{self, Stopwatch};
use crate::server::Server;

/// Windows that are open at once.
const WINDOWS: u64 = 100_000;
/// Events that one delivery carries when many become few.
const EVENTS_PER_DELIVERY: u64 = 1_000;
/// How often closing is looked at; a look counts the open windows.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Closing that makes no progress for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// A window is in time if it closes no later than this after its time; a bound of the server's histogram.
const IN_TIME: &str = "0.05";

/// The same events with and without windows that they join.
pub(super) fn append(stage: &mut Stage) -> Result<Vec<Row>> {
    let (plain, folding) = (stage.empty_server("plain")?, stage.empty_server("folding")?);
    let windows = stage.count(WINDOWS);
    let fold = json!({"mode": "window", "window": "6h", "by": ["data.key"]});
    let subscriber = stage.subscribe_fold(&folding, &fold)?;
    for server in [&plain, &folding] {
        stage.fill_keyed(server, windows * 5, windows)?;
    }
    let (mut batches, mut singles) = (vec![], vec![]);
    let (events, requests) = (stage.count(300_000), stage.count(60_000));
    for _ in 0..stage.rounds() {
        let (without, with) =
            (stage.fill_keyed(&plain, events, windows)?, stage.fill_keyed(&folding, events, windows)?);
        batches.push(without.rate() / with.rate());
        let mut single = |server: &Server| {
            let load = Load { keys: windows, ..stage.load(server, requests) };
            stage.generate(&load).map(|report| report.rate())
        };
        singles.push(single(&plain)? / single(&folding)?);
    }
    let resident = process::resident_mb(folding.pid())?;
    stage.unsubscribe(&folding, &[subscriber])?;
    let what = |how: &str| format!("{how} joining {windows} windows, cost of plain ones");
    Ok(vec![
        Row::new(
            "folds",
            what("events in batches of 1 000"),
            median(batches),
            "×",
            stage.embedded(AtMost(1.3)),
        ),
        Row::new("folds", what("single events"), median(singles), "×", stage.embedded(AtMost(1.3))),
        Row::new(
            "folds",
            format!("memory with {windows} windows open"),
            resident,
            "MB",
            stage.embedded(AtMost(250.0)),
        ),
    ])
}

/// Many windows whose time comes at one instant.
pub(super) fn close(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.empty_server("closing")?;
    let windows = stage.count(WINDOWS);
    let fold = json!({"mode": "batch", "every": "40s", "by": ["data.key"]});
    let subscriber = stage.subscribe_fold(&server, &fold)?;
    stage.reset(0)?;
    let closed = || server.metric(r#"tidegate_windows_closed_total{reason="every"}"#);
    // A tick may come while they open; those that it closed open again.
    stage.fill_keyed(&server, windows * 6, windows)?;
    let before = closed()?;
    let (mut began, mut last, mut watch) = (None, before, Stopwatch::start());
    let mut seconds = 0.0;
    while watch.elapsed() < PATIENCE {
        clock::pause(LOOK_EVERY);
        let now = closed()?;
        if now > last {
            let start = *began.get_or_insert_with(|| (Stopwatch::start(), last));
            seconds = start.0.seconds() + LOOK_EVERY.as_secs_f64();
            (last, watch) = (now, Stopwatch::start());
        } else if began.is_some() && watch.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    let count = last - before;
    ensure!(count * 10 > windows * 9, "only {count} of {windows} windows closed");
    stage.wait_for(count)?;
    stage.unsubscribe(&server, &[subscriber])?;
    let what = format!("{count} windows due at once, all closed and handed over");
    Ok(vec![Row::new("folds", what, seconds, "s", stage.embedded(AtMost(5.0)))])
}

/// How late windows close while others send.
pub(super) fn timing(stage: &mut Stage) -> Result<Vec<Row>> {
    let server = stage.empty_server("timing")?;
    let fold = json!({"mode": "window", "window": "500ms", "by": ["data.key"]});
    let subscriber = stage.subscribe_fold(&server, &fold)?;
    let load = Load { keys: 1_000, rate: Some(5_000.0), ..stage.load(&server, stage.count(50_000)) };
    stage.generate(&load)?;
    clock::pause(Duration::from_secs(1));
    let in_time = server.metric(&format!(r#"tidegate_window_late_seconds_bucket{{le="{IN_TIME}"}}"#))?;
    let all = server.metric("tidegate_window_late_seconds_count")?;
    ensure!(all > 0, "no window closed by itself");
    stage.unsubscribe(&server, &[subscriber])?;
    let share = in_time as f64 / all as f64;
    Ok(vec![Row::new(
        "folds",
        "windows closed within 50 ms of their time, 5 000/s",
        share,
        "",
        stage.embedded(AtLeast(0.99)),
    )])
}

/// A million events become a thousand deliveries, against the same events that nobody gets. Each of the two goes first in
/// turn: what the one has left to be written, the other would pay for.
pub(super) fn many_to_few(stage: &mut Stage) -> Result<Vec<Row>> {
    let events = stage.count(1_000_000);
    let (mut alone, mut folded, mut shares) = (vec![], vec![], vec![]);
    for round in 0..stage.rounds() {
        let (without, with) = if round % 2 == 0 {
            let without = events_alone(stage, events, round)?;
            (without, events_into_few(stage, events, round)?)
        } else {
            let with = events_into_few(stage, events, round)?;
            (events_alone(stage, events, round)?, with)
        };
        alone.push(without);
        folded.push(with);
        shares.push(with / without);
    }
    let what = format!("{events} events into {} deliveries", events / EVENTS_PER_DELIVERY);
    Ok(vec![
        Row::new("folds", "events alone, in batches", median(alone), "/s", NoGoal),
        Row::new("folds", what, median(folded), "/s", NoGoal),
        Row::new("folds", "share of events alone", median(shares), "", stage.embedded(AtLeast(0.8))),
    ])
}

/// Events per second that an empty server takes in.
fn events_alone(stage: &mut Stage, events: u64, round: u32) -> Result<f64> {
    let mut server = stage.empty_server(&format!("alone{round}-"))?;
    stage.settle()?;
    let sent = stage.fill(&server, events)?;
    server.stop()?;
    Ok(sent.rate())
}

/// The same until the last of the deliveries that they become has come.
fn events_into_few(stage: &mut Stage, events: u64, round: u32) -> Result<f64> {
    let mut server = stage.empty_server(&format!("few{round}-"))?;
    let fold = json!({"mode": "batch", "every": "10m", "max_events": EVENTS_PER_DELIVERY});
    let subscriber = stage.subscribe_fold(&server, &fold)?;
    stage.settle()?;
    stage.reset(0)?;
    let sent = stage.fill(&server, events)?;
    let received = stage.wait_for(events / EVENTS_PER_DELIVERY)?;
    stage.unsubscribe(&server, &[subscriber])?;
    server.stop()?;
    Ok(events as f64 / seconds_between(sent.started_at, received.last_at))
}
