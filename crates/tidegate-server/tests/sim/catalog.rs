//! Catalogs in the simulation: projects that turn strict and open again, types that are declared and taken back, and
//! the quarantine that fills and is released meanwhile.
//!
//! The truth is kept at the store, change by change; whatever a commit let in or kept out is compared with it there.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::catalog::Mode;
use tidegate_core::event::Fingerprint;
use tidegate_core::id::ProjectNo;
use tidegate_store::{Admission, Change, QuarantineFilter, RoutedUnit, UnitStatus};

use super::acts::Site;
use super::counts::Shape;
use super::dice::Dice;
use super::history::{EventKey, History};
use super::plan::{Act, END_T, TYPES};

/// What somebody does to a catalog.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit {
    Turn(Mode),
    Declare(&'static str),
    TakeBack(&'static str),
    /// Declares a type whose events are kept for so many milliseconds, if not as long as others.
    Keep(&'static str, Option<i64>),
    /// Declares a type whose events are counted.
    Count(&'static str, Shape),
    /// Wants what came before counted too.
    CountPast(&'static str),
    Release,
}

/// One project's catalog as it really is.
#[derive(Default)]
pub(crate) struct Cataloged {
    is_strict: bool,
    types: BTreeSet<String>,
    /// The shortest time that anybody wanted events of a type to be kept for, in milliseconds.
    pub(crate) shortest_keep: Option<i64>,
}

/// What is quarantined, as far as commits told.
pub(crate) type Quarantined = BTreeSet<(EventKey, Fingerprint)>;

/// Plans the edits of a run that has any.
pub(crate) fn plan(seed: u64, projects: &[&'static str], acts: &mut Vec<(i64, Act)>) {
    let mut dice = Dice::new(seed, "catalog");
    if !dice.percent(30) {
        return;
    }
    for _ in 0..dice.below(12) + 4 {
        let edit = match dice.below(8) {
            0 | 1 => Edit::Turn(Mode::Strict),
            2 => Edit::Turn(Mode::Open),
            3 | 4 => Edit::Declare(dice.pick(&TYPES)),
            5 => Edit::TakeBack(dice.pick(&TYPES)),
            _ => Edit::Release,
        };
        let project = dice.pick(projects);
        acts.push((dice.between(100, END_T - 1_000), Act::Catalog { project, edit }));
    }
}

impl Site {
    /// What the API does with an edit.
    pub(crate) async fn edit(&self, project: ProjectNo, edit: Edit) {
        let service = "shop".to_owned();
        match edit {
            Edit::Turn(catalog) => {
                self.change(Change::UpdateProject { no: project, catalog }).await;
            }
            Edit::Declare(name) => self.edit_type(project, name, None).await,
            Edit::Keep(name, keep_ms) => self.edit_type(project, name, keep_ms).await,
            Edit::Count(name, shape) => self.count(project, name, shape).await,
            Edit::CountPast(name) => self.count_past(project, name).await,
            Edit::TakeBack(name) => {
                let type_name = name.to_owned();
                self.change(Change::DeleteType { project, service, type_name }).await;
            }
            Edit::Release => {
                let filter = QuarantineFilter { limit: 3, ..QuarantineFilter::default() };
                if let Ok(mut picked) = self.parts.store.pick(project, filter).await {
                    // Whether it came in is seen at the commit.
                    let _ = self.pipeline.ingest.release(project, &mut picked.units).await;
                }
            }
        }
    }
}

impl Site {
    async fn edit_type(&self, project: ProjectNo, name: &str, keep_ms: Option<i64>) {
        let (service, type_name, definition) = ("shop".to_owned(), name.to_owned(), "{}".to_owned());
        let metrics = Vec::new();
        self.change(Change::PutType { project, service, type_name, definition, metrics, keep_ms }).await;
    }
}

/// Takes over a change.
pub(crate) fn note_change(catalogs: &mut BTreeMap<ProjectNo, Cataloged>, change: &Change) {
    match change {
        Change::UpdateProject { no, catalog } => {
            catalogs.entry(*no).or_default().is_strict = *catalog == Mode::Strict;
        }
        Change::PutType { project, type_name, keep_ms, .. } => {
            let catalog = catalogs.entry(*project).or_default();
            catalog.types.insert(type_name.clone());
            catalog.shortest_keep = [catalog.shortest_keep, *keep_ms].into_iter().flatten().min();
        }
        Change::DeleteType { project, type_name, .. } => {
            catalogs.entry(*project).or_default().types.remove(type_name);
        }
        _ => {}
    }
}

impl Cataloged {
    fn admits(&self, routed: &RoutedUnit) -> bool {
        let is_own = routed.unit.events[0].source == tidegate_core::operator::SOURCE;
        is_own
            || !self.is_strict
            || routed.unit.events.iter().all(|event| self.types.contains(&event.type_name))
    }
}

/// Compares what a commit did to a unit with the catalog that was in force at that moment.
pub(crate) fn note_unit(history: &mut History, project: ProjectNo, routed: &RoutedUnit, status: UnitStatus) {
    let event = &routed.unit.events[0];
    let row = ((project, event.source.clone(), event.id.clone()), routed.unit.fingerprint);
    if matches!(routed.admission, Admission::Released(_)) {
        if matches!(status, UnitStatus::Accepted | UnitStatus::Duplicate) {
            history.quarantined.remove(&row);
            history.reach("a unit released");
        }
        return;
    }
    let admits = history.catalogs.get(&project).is_none_or(|catalog| catalog.admits(routed));
    let is_true = match status {
        UnitStatus::Accepted => admits,
        UnitStatus::Quarantined(_) => !admits,
        UnitStatus::Duplicate | UnitStatus::Conflict => true,
        UnitStatus::Gone => false,
    };
    if !is_true {
        history.violation(format!("{} is {status:?}, but the catalog admits it: {admits}", event.id));
    }
    if matches!(status, UnitStatus::Quarantined(_)) {
        history.quarantined.insert(row);
        history.reach("a unit quarantined");
    }
}

/// At the end: the quarantine holds exactly what commits put there and nobody took out.
pub(crate) async fn quarantine_is_kept(site: &Site, found: &mut Vec<String>) {
    let mut kept = Quarantined::new();
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let filter = QuarantineFilter { limit: 10_000, ..QuarantineFilter::default() };
        let picked = site.parts.store.pick(project, filter).await.expect("the store works again");
        kept.extend(picked.units.into_iter().map(|row| {
            let print = row.unit.map(|unit| unit.fingerprint).unwrap_or_default();
            ((project, row.source, row.id), print)
        }));
    }
    let history = site.history.lock();
    if kept != history.quarantined {
        let (expected, kept) = (history.quarantined.len(), kept.len());
        found.push(format!("P2 {expected} units were quarantined, {kept} are"));
    }
}
