//! `POST /v1/audit`: every kept event of a type counted again, and compared with what was counted.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::catalog::EventType;
use tidegate_core::id::{MetricNo, ProjectNo};
use tidegate_core::limits::AUDIT_CELLS_MAX;
use tidegate_core::observe::audit::{Comparison, Difference, compare};
use tidegate_core::observe::page::{CellRef, cells};
use tidegate_core::observe::{Grain, Kept, Kind, Rise, Slab, Switches};
use tidegate_core::time::Timestamp;
use tidegate_store::{BackfillRow, EventRow, Metric, Recount, Recounted, Recounter, Rollups};

use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::{parse, read_body};
use super::{App, json_answer};
use crate::observing::{Past, Terms, Types};

/// What is audited, on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    service: String,
    #[serde(rename = "type")]
    type_name: String,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
}

/// Counts again.
pub(super) async fn run(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_read()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let asked: Asked = parse(&body)?;
    let event_type = app.event_type(&caller, &asked.service, &asked.type_name)?;
    let of_kinds = |kinds: &[Kind]| -> Vec<MetricNo> {
        let found = event_type.metrics.iter().filter(|(kind, ..)| kinds.contains(kind));
        found.map(|(.., no)| *no).collect()
    };
    let counted = of_kinds(&[Kind::Counter, Kind::Histogram]);
    let states = of_kinds(&[Kind::State]);
    let range = (asked.from.map_or(i64::MIN, Timestamp::as_ms), asked.to.map_or(i64::MAX, Timestamp::as_ms));
    let again = Again::new(&app, caller.project).await?;
    let recount = Recount {
        project: caller.project,
        service: asked.service,
        type_name: asked.type_name,
        range,
        metrics: counted,
        states,
    };
    app.pipeline.observe.catch_up().await?;
    let recounted = app.parts.store.recount(recount, Box::new(again)).await?;
    let Recounted { recounter, kept_since, rollups, objects } = recounted;
    let again = recounter.into_any().downcast::<Again>().expect("it was lent");
    if again.is_full {
        let detail =
            format!("there are more than {AUDIT_CELLS_MAX} cells to compare: narrow `from` and `to`");
        return Err(Problem::invalid("audit_too_large", "from", detail));
    }
    let events = again.events;
    let mut found =
        Found { expected: again.expected(), rollups, objects, metrics: Vec::new(), differences: Vec::new() };
    // What happened before may have lost some of its events.
    let since = kept_since.map_or(i64::MIN, |at| at.as_ms() + 1);
    found.compare(&event_type, (range.0.max(since), range.1), |kind, name| {
        app.kept(&event_type, kind, name)
    })?;
    let agrees = found.differences.is_empty();
    let answer = json!({ "events": events, "agrees": agrees, "metrics": found.metrics, "differences": found.differences });
    Ok(json_answer(StatusCode::OK, &answer))
}

impl App {
    /// What of a metric is kept now.
    fn kept(&self, event_type: &EventType, kind: Kind, name: &str) -> Kept {
        let own = event_type.definition.observing.retention(kind, name);
        Kept::new(kind, own.unwrap_or(self.parts.retention.rollups), self.parts.clock.now())
    }
}

/// Who counts again: as the observer does, and as backfills did.
struct Again {
    project: ProjectNo,
    terms: Terms,
    types: Types,
    pasts: Vec<(BackfillRow, Past)>,
    slab: Slab,
    events: u64,
    /// There was too much.
    is_full: bool,
}

impl Again {
    async fn new(app: &App, project: ProjectNo) -> Result<Self, Problem> {
        let off = Some(false);
        let switches = Switches { index: off, states: off, ..app.parts.observing.switches };
        let terms = Terms { switches, ..app.parts.observing };
        let mut types = Types::new(terms);
        types.refresh(&*app.parts.store).await?;
        let slab = Slab::new(app.parts.entropy.u64());
        Ok(Self { project, terms, types, pasts: Vec::new(), slab, events: 0, is_full: false })
    }

    /// What each metric should have.
    fn expected(self) -> BTreeMap<MetricNo, Vec<Rise>> {
        let mut by_metric: BTreeMap<MetricNo, Vec<Rise>> = BTreeMap::new();
        for rise in self.slab.into_delta().rises() {
            by_metric.entry(rise.metric).or_default().push(rise);
        }
        by_metric
    }
}

impl Recounter for Again {
    fn begin(&mut self, backfills: Vec<BackfillRow>) {
        let terms = self.terms;
        self.pasts = backfills.into_iter().map(|row| (row.clone(), Past::new(terms, row))).collect();
    }

    fn event(&mut self, event: &EventRow) -> bool {
        self.events += 1;
        self.types.observe(self.project, event, &mut self.slab);
        for (row, past) in self.pasts.iter_mut().filter(|(row, _)| event.seq <= row.after) {
            debug_assert_eq!(row.project, self.project);
            past.observe(&mut self.types, event, &mut self.slab);
        }
        self.is_full = self.slab.len() > AUDIT_CELLS_MAX;
        !self.is_full
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// What is compared, and what came out of it.
struct Found {
    expected: BTreeMap<MetricNo, Vec<Rise>>,
    rollups: Vec<(MetricNo, Rollups)>,
    objects: Vec<(MetricNo, String, i64)>,
    metrics: Vec<Value>,
    differences: Vec<Value>,
}

impl Found {
    fn compare(
        &mut self,
        event_type: &EventType,
        range: (i64, i64),
        kept: impl Fn(Kind, &str) -> Kept,
    ) -> Result<(), Problem> {
        for (metric, rollups) in std::mem::take(&mut self.rollups) {
            let Some(named) = event_type.metrics.iter().find(|(.., no)| *no == metric) else { continue };
            if named.0 == Kind::State {
                self.compare_objects(named, &rollups)?;
                continue;
            }
            let expected = self.expected.remove(&metric).unwrap_or_default();
            let kept = kept(named.0, &named.1);
            let found = compare(&expected, &rollups.keys, &rollups.pages, range, &kept);
            self.tell(named, &found.map_err(|_| unreadable())?);
        }
        Ok(())
    }

    fn tell(&mut self, (kind, name, _): &Metric, found: &Comparison) {
        let metric = json!({ "kind": kind, "name": name, "cells": found.cells, "differences": found.count });
        self.metrics.push(metric);
        for Difference { grain, bucket, key, expected, counted } in &found.differences {
            let key: Option<Value> = key.as_ref().and_then(|key| serde_json::from_str(key).ok());
            self.differences.push(json!({
                "metric": name,
                "every": grain.name(),
                "from": Timestamp::from_ms(*bucket),
                "key": key,
                "expected": expected,
                "counted": counted,
            }));
        }
    }

    /// The objects in a state are as many as came into it less those that left.
    fn compare_objects(&mut self, named: &Metric, rollups: &Rollups) -> Result<(), Problem> {
        let mut counts: BTreeMap<String, [i64; 2]> = BTreeMap::new();
        for (_, state, count) in self.objects.iter().filter(|(metric, ..)| *metric == named.2) {
            counts.entry(state.clone()).or_default()[0] = *count;
        }
        let names: BTreeMap<_, _> = rollups.keys.iter().map(|(no, key)| (*no, key)).collect();
        for (_, _, page) in rollups.pages.iter().filter(|(grain, ..)| *grain == Grain::D7) {
            for cell in cells(page).map_err(|_| unreadable())? {
                let (key, CellRef::Count { count, .. }) = cell.map_err(|_| unreadable())? else { continue };
                let key = names.get(&key).and_then(|key| serde_json::from_str::<[String; 1]>(key).ok());
                let state = key.map_or_else(|| "(other)".to_owned(), |[state]| state);
                counts.entry(state).or_default()[1] += count;
            }
        }
        let (kind, name, _) = named;
        let wrong = counts.iter().filter(|(_, [expected, counted])| expected != counted);
        let told: Vec<Value> = wrong
            .map(|(state, [expected, counted])| json!({ "metric": name, "key": [state], "expected": expected, "counted": counted }))
            .collect();
        self.metrics
            .push(json!({ "kind": kind, "name": name, "cells": counts.len(), "differences": told.len() }));
        self.differences.extend(told);
        Ok(())
    }
}

fn unreadable() -> Problem {
    Problem::unavailable("store_unavailable", "what was counted can not be read; see the server's log")
}
