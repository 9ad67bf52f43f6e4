//! `POST /v1/audit`: every kept event of a type counted again, and compared with what was counted.

mod again;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::catalog::EventType;
use tidegate_core::id::MetricNo;
use tidegate_core::limits::AUDIT_CELLS_MAX;
use tidegate_core::observe::audit::{Comparison, Difference, compare, compare_lengths};
use tidegate_core::observe::page::{CellRef, cells};
use tidegate_core::observe::{Grain, Kept, Kind};
use tidegate_core::time::Timestamp;
use tidegate_store::{Metric, Recount, Recounted, Rollups};

use self::again::{Again, Lists, Outcome};
use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::{parse, read_body};
use super::{App, json_answer};

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
    let counted = of_kinds(&[Kind::Counter, Kind::Histogram, Kind::Transition]);
    let (states, indexes) = (of_kinds(&[Kind::State]), of_kinds(&[Kind::Index]));
    let range = (asked.from.map_or(i64::MIN, Timestamp::as_ms), asked.to.map_or(i64::MAX, Timestamp::as_ms));
    let named = (asked.type_name.as_str(), &*event_type);
    let again = Again::new(&app, caller.project, &asked.service, named, range.1).await?;
    let recount = Recount {
        project: caller.project,
        service: asked.service,
        type_name: asked.type_name,
        range,
        metrics: counted,
        states,
        followed: again.followed(),
        indexes,
    };
    app.pipeline.observe.catch_up().await?;
    let recounted = app.parts.store.recount(recount, Box::new(again)).await?;
    let Recounted { recounter, kept_since, rollups } = recounted;
    let again = *recounter.into_any().downcast::<Again>().expect("it was lent");
    if again.is_full() {
        let detail =
            format!("there are more than {AUDIT_CELLS_MAX} cells to compare: narrow `from` and `to`");
        return Err(Problem::invalid("audit_too_large", "from", detail));
    }
    // What happened before may have lost some of its events.
    let since = kept_since.map_or(i64::MIN, |at| at.as_ms() + 1);
    let (events, recount) = again.finish();
    let mut found = Found {
        again: recount,
        range,
        whole: (range.0.max(since), range.1),
        metrics: Vec::new(),
        differences: Vec::new(),
    };
    found.compare(&event_type, rollups, |kind, name| app.kept(&event_type, kind, name))?;
    found.compare_lists(&event_type);
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

/// What is compared, and what came out of it.
struct Found {
    again: Outcome,
    /// What was asked about.
    range: (i64, i64),
    /// The part of it of which all events are there.
    whole: (i64, i64),
    metrics: Vec<Value>,
    differences: Vec<Value>,
}

impl Found {
    fn compare(
        &mut self,
        event_type: &EventType,
        rollups: Vec<(MetricNo, Rollups)>,
        kept: impl Fn(Kind, &str) -> Kept,
    ) -> Result<(), Problem> {
        for (metric, rollups) in rollups {
            let Some(named) = event_type.metrics.iter().find(|(.., no)| *no == metric) else { continue };
            let kept = kept(named.0, &named.1);
            if named.0 == Kind::State {
                self.compare_state(named, &rollups, &kept)?;
                continue;
            }
            let expected = self.again.expected.remove(&metric).unwrap_or_default();
            let Rollups { keys, pages } = &rollups;
            let found = if named.0 == Kind::Transition {
                // Changes go when they are as old as the term.
                let told = (self.range.0.max(began(&kept)), self.range.1);
                let told = self.again.compare_transitions(metric, &expected, &rollups, (told, &kept));
                let lengths = compare_lengths(keys, pages, self.range, &kept);
                told.and_then(|told| Ok(told.and(lengths?)))
            } else {
                compare(&expected, keys, pages, self.whole, &kept)
            };
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

    /// The objects in a state are as many as came into it less those that left, each as the events say, and whatever
    /// came and went is in buckets of all lengths.
    fn compare_state(&mut self, named: &Metric, rollups: &Rollups, kept: &Kept) -> Result<(), Problem> {
        let (kind, name, no) = named;
        let mut counts: BTreeMap<String, [i64; 2]> = BTreeMap::new();
        for (state, count) in self.again.objects.remove(no).unwrap_or_default() {
            counts.entry(state.to_string()).or_default()[0] = count;
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
        let lengths = compare_lengths(&rollups.keys, &rollups.pages, self.range, kept);
        let lengths = lengths.map_err(|_| unreadable())?;
        // Of keys that found no number of their own nobody knows which states they are.
        if counts.contains_key("(other)") {
            let sum = |side: usize| counts.values().map(|pair| pair[side]).sum();
            counts = BTreeMap::from([("(other)".to_owned(), [sum(0), sum(1)])]);
        }
        let wrong = counts.iter().filter(|(_, [expected, counted])| expected != counted);
        let mut told: Vec<Value> = wrong
            .map(|(state, [expected, counted])| json!({ "metric": name, "key": [state], "expected": expected, "counted": counted }))
            .collect();
        let (objects, wrong) = self.again.wrong_objects(*no, began(kept));
        told.extend(wrong.into_iter().map(|(object, expected, counted)| {
            json!({ "metric": name, "object": object, "expected": expected, "counted": counted })
        }));
        self.tell(named, &lengths);
        if let Some(metric) = self.metrics.last_mut() {
            let (cells, count) =
                (lengths.cells + (counts.len() + objects) as u64, lengths.count + told.len() as u64);
            *metric = json!({ "kind": kind, "name": name, "cells": cells, "differences": count });
        }
        self.differences.extend(told);
        Ok(())
    }

    /// Every value of an event is in its index, and nothing else is.
    fn compare_lists(&mut self, event_type: &EventType) {
        for (kind, name, no) in event_type.metrics.iter().filter(|(kind, ..)| *kind == Kind::Index) {
            let Lists { expected, counted, differences } = self.again.lists.remove(no).unwrap_or_default();
            self.metrics
                .push(json!({ "kind": kind, "name": name, "cells": expected, "differences": differences }));
            if differences > 0 {
                self.differences.push(json!({ "metric": name, "expected": expected, "counted": counted }));
            }
        }
    }
}

/// When the term began that a metric is kept for now.
fn began(kept: &Kept) -> i64 {
    let term = i64::try_from(kept.term().as_millis()).unwrap_or(i64::MAX);
    kept.now().as_ms().saturating_sub(term)
}

fn unreadable() -> Problem {
    Problem::unavailable("store_unavailable", "what was counted can not be read; see the server's log")
}
