//! Backfills of metrics in the simulation: asked for at any time, while everything else happens, and stopped by whatever
//! stops a process.
//!
//! The truth is kept at the store: which events each step looked at. What they must have added is reckoned in `counts.rs`,
//! by the rules that the product promises and not by its code.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::observe::Kind;
use tidegate_core::time::Timestamp;
use tidegate_store::{
    Advance, BackfillRow, Flush, LastStep, Metric, NewBackfill, Result, Slice, Store, TypeVersion,
};

use super::acts::Site;
use super::history::{EventKey, Fact, History};
use super::store::FaultyStore;

/// A backfill, and what it has looked at.
pub(crate) struct Past {
    row: BackfillRow,
    /// How many events had been accepted when it began.
    accepted: usize,
    looked: BTreeSet<EventKey>,
    /// What the next step will look at, if it begins there.
    next: (Seq, Vec<EventKey>),
}

/// What an event counts for.
pub(crate) struct Counting {
    pub(crate) metric: Metric,
    /// Beside a state.
    pub(crate) transition: Option<MetricNo>,
    /// By the key of the event, and with a sum.
    pub(crate) is_by_key: bool,
}

impl Site {
    /// What the API does when somebody wants the past counted.
    pub(crate) async fn count_past(&self, project: ProjectNo, name: &str) {
        let roster = self.parts.rosters.current();
        let Some(declared) = roster.catalog(project).and_then(|catalog| catalog.get("shop", name)) else {
            return;
        };
        let new = NewBackfill {
            project,
            service: "shop".to_owned(),
            type_name: name.to_owned(),
            metrics: declared.metrics.clone(),
            definition: serde_json::to_string(&declared.definition).expect("a definition is JSON"),
        };
        if self.parts.store.start_backfill(new, self.parts.clock.now()).await.is_ok() {
            self.ask().await;
        }
    }
}

fn keys(slice: &Slice) -> Vec<EventKey> {
    let key = |(project, event): &(ProjectNo, tidegate_store::EventRow)| {
        (*project, event.source.clone(), event.id.clone())
    };
    slice.events.iter().map(key).collect()
}

impl FaultyStore {
    pub(super) fn note_past(&self, row: &BackfillRow) {
        let mut history = self.history.lock();
        let accepted = history.accepted.len();
        let past = Past { row: row.clone(), accepted, looked: BTreeSet::new(), next: (0, Vec::new()) };
        history.pasts.insert(row.no, past);
    }

    pub(super) fn note_next(&self, of: &BackfillRow, slice: &Slice) {
        if let Some(past) = self.history.lock().pasts.get_mut(&of.no) {
            past.next = (of.after, keys(slice));
        }
    }

    pub(super) fn note_step(&self, flush: &Flush) {
        let Advance::Backfill { no, after, .. } = flush.advance else { return };
        let mut history = self.history.lock();
        history.reach("a past counted");
        if let Some(past) = history.pasts.get_mut(&no).filter(|past| past.next.0 == after) {
            past.looked.extend(std::mem::take(&mut past.next.1));
        }
    }

    pub(super) async fn finish_past(&self, of: BackfillRow, last: LastStep, now: Timestamp) -> Result<bool> {
        let (no, seen) = (of.no, Arc::new(Mutex::new(Vec::new())));
        let looked = Arc::clone(&seen);
        let told: LastStep = Box::new(move |slice| {
            *looked.lock().unwrap_or_else(PoisonError::into_inner) = keys(slice);
            last(slice)
        });
        let done = self.inner.finish_rebuild(of, told, now).await?;
        if done {
            let version = self.inner.version().await?;
            let known = self.history.lock().types.last().map_or(0, |last| last.version);
            let newer = self.inner.type_versions(known).await?;
            let mut history = self.history.lock();
            history.reach("a state counted anew");
            history.version = version;
            history.types.extend(newer.into_iter().filter(|newer| newer.version > known));
            if let Some(past) = history.pasts.get_mut(&no) {
                past.looked.extend(seen.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
            }
        }
        Ok(done)
    }
}

/// Everything that an event counts for: what its type declared in its day, and what backfills made of it.
pub(crate) fn counted(history: &History, then: Option<&TypeVersion>, place: usize) -> Vec<Counting> {
    let fact = &history.accepted[place];
    let day = then.map_or(&[][..], |then| &then.metrics);
    let definition = then.and_then(|then| then.definition.as_deref()).unwrap_or_default();
    let mut counted = countings(day, definition);
    for past in history.pasts.values().filter(|past| past.looked.contains(&fact.key)) {
        counted.extend(past.adds(fact, place, day));
    }
    counted
}

fn countings(metrics: &[Metric], definition: &str) -> Vec<Counting> {
    let transition = metrics.iter().find(|(kind, ..)| *kind == Kind::Transition).map(|(.., no)| *no);
    let is_by_key = definition.contains("\"sum\"");
    metrics.iter().map(|metric| Counting { metric: metric.clone(), transition, is_by_key }).collect()
}

impl Past {
    fn adds(&self, fact: &Fact, place: usize, day: &[Metric]) -> Vec<Counting> {
        let BackfillRow { type_name, rebuild, metrics, definition, .. } = &self.row;
        let is_state = |metric: &&Metric| matches!(metric.0, Kind::State | Kind::Transition);
        let is_own = fact.content.type_name == *type_name && place < self.accepted;
        let missed = metrics.iter().filter(|metric| !is_state(metric) && is_own && !day.contains(metric));
        let told_then = day.iter().any(|(.., no)| rebuild.replaced.iter().any(|(old, _)| old == no));
        let tells = told_then || rebuild.types.iter().any(|(name, _)| *name == fact.content.type_name);
        let anew = metrics.iter().filter(|metric| is_state(metric) && tells);
        countings(&missed.chain(anew).cloned().collect::<Vec<_>>(), definition)
    }
}
