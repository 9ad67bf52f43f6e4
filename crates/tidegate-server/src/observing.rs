//! Declared types as those need them who count: each as it was at each version, compiled when an event of it comes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::catalog::Definition;
use tidegate_core::id::{MetricNo, ProjectNo, Version};
use tidegate_core::observe::state::Policy;
use tidegate_core::observe::{Extractor, Kind, Slab, Switches, counting, telling};
use tidegate_core::time::Timestamp;
use tidegate_store::{BackfillRow, Change, EventRow, Metric, Store, TypeVersion};

use crate::roster::Rosters;

/// How events are observed.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an event waits to be counted at most.
    pub interval: Duration,
    /// Events that are counted in one transaction at most; as many that wait are counted at once.
    pub batch: usize,
    /// Threads that read them.
    pub workers: usize,
    /// What is observed at all.
    pub switches: Switches,
}

impl Default for Terms {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), batch: 30_000, workers: 1, switches: Switches::default() }
    }
}

/// By service, then by type: what it was, from which version on.
type Services = BTreeMap<String, BTreeMap<String, Vec<(Version, Since)>>>;

/// What a type was from some version on.
enum Since {
    /// It declared nothing that is counted.
    Nothing,
    /// As it was declared, of its metrics those that count; all of them; compiled when the first event comes.
    Declared(Box<TypeVersion>, Vec<Metric>, Compiled),
}

/// What counts, if it could be made and there is anything.
enum Compiled {
    NotYet,
    Done(Option<Arc<Extractor>>),
}

/// All declared types that have, or had, metrics.
pub(crate) struct Types {
    terms: Terms,
    /// What is looked at; what counts is said by the versions.
    only: Switches,
    /// What the installation switches off, as of the last version.
    switches: Switches,
    version: Version,
    projects: BTreeMap<ProjectNo, Services>,
}

impl Types {
    pub(crate) fn new(terms: Terms) -> Self {
        Self::only(terms, Switches::default())
    }

    /// To look at some kinds only.
    pub(crate) fn only(terms: Terms, only: Switches) -> Self {
        Self { terms, only, switches: Switches::default(), version: 0, projects: BTreeMap::new() }
    }

    /// Up to which version it knows everything.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// No type has ever had a metric.
    pub(crate) fn is_empty(&self) -> bool {
        self.projects.is_empty()
    }

    /// Whether any type has a metric now.
    pub(crate) fn is_observing(&self) -> bool {
        let types = self.projects.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        types.filter_map(|versions| versions.last()).any(|(_, since)| !matches!(since, Since::Nothing))
    }

    /// Hears of what changed.
    pub(crate) async fn refresh(&mut self, store: &dyn Store) -> tidegate_store::Result<()> {
        let version = store.version().await?;
        if version == self.version {
            return Ok(());
        }
        // What was declared in versions that a database lost when it went back in time is not in force.
        if !store.descends_from(self.version).await? {
            (self.version, self.switches) = (0, Switches::default());
            self.projects.clear();
        }
        for changed in store.type_versions(self.version).await? {
            self.put(changed);
        }
        self.version = version;
        Ok(())
    }

    /// What the installation switches off is another version of all types.
    fn switch(&mut self, version: Version, switches: Switches) {
        self.switches = switches;
        let types = self.projects.values_mut().flat_map(BTreeMap::values_mut).flat_map(BTreeMap::values_mut);
        for versions in types {
            let Some((last, Since::Declared(declared, all, _))) = versions.last() else { continue };
            if *last < version {
                let changed = TypeVersion { version, metrics: all.clone(), ..TypeVersion::clone(declared) };
                versions.push((version, since(changed, switches)));
            }
        }
    }

    fn put(&mut self, changed: TypeVersion) {
        if let Some(switches) = changed.switches() {
            return self.switch(changed.version, switches);
        }
        let types = self.projects.get(&changed.project).and_then(|services| services.get(&changed.service));
        let is_known = types.is_some_and(|types| types.contains_key(&changed.type_name));
        if changed.metrics.is_empty() && !is_known {
            return;
        }
        let services = self.projects.entry(changed.project).or_default();
        let types = services.entry(changed.service.clone()).or_default();
        let versions = types.entry(changed.type_name.clone()).or_default();
        // What was read may be read again when a version came in between.
        if versions.last().is_none_or(|(version, _)| *version < changed.version) {
            versions.push((changed.version, since(changed, self.switches)));
        }
    }

    /// Adds what an event says, by the rules of its day.
    pub(crate) fn observe(&mut self, project: ProjectNo, event: &EventRow, slab: &mut Slab) {
        if let Some(extractor) = self.extractor(project, event) {
            extractor.observe(&event.sighting(), slab);
        }
    }

    /// What counts an event.
    fn extractor(&mut self, project: ProjectNo, event: &EventRow) -> Option<&Arc<Extractor>> {
        let only = self.only;
        let Since::Declared(declared, _, compiled) = self.since(project, event)? else { return None };
        if let Compiled::NotYet = compiled {
            *compiled = Compiled::Done(compile(declared.definition.as_deref(), &declared.metrics, only));
        }
        let Compiled::Done(extractor) = compiled else { return None };
        extractor.as_ref()
    }

    /// The same of many, in as many pieces as there are workers: the pieces are added up in order, so the result is that
    /// of one.
    pub(crate) async fn observe_together(&mut self, events: Vec<(ProjectNo, EventRow)>, seed: u64) -> Slab {
        let length = events.len().div_ceil(self.terms.workers).max(1);
        let mut counted = events.into_iter().filter_map(|(project, event)| {
            let extractor = Arc::clone(self.extractor(project, &event)?);
            Some((extractor, event))
        });
        let mut working = Vec::new();
        loop {
            let piece: Vec<(Arc<Extractor>, EventRow)> = counted.by_ref().take(length).collect();
            if piece.is_empty() {
                break;
            }
            working.push(tokio::task::spawn_blocking(move || {
                let mut slab = Slab::new(seed);
                piece.iter().for_each(|(extractor, event)| extractor.observe(&event.sighting(), &mut slab));
                slab
            }));
        }
        let mut whole = Slab::new(seed);
        for worker in working {
            match worker.await {
                Ok(slab) => whole.merge(slab),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        whole
    }

    /// Whether changes into a state are counted from the state before and nothing else, by all that ever counted them
    /// under this number.
    pub(crate) fn is_plain(&self, project: ProjectNo, service: &str, (_, name, no): &Metric) -> bool {
        let types = self.projects.get(&project).and_then(|services| services.get(service));
        let versions = types.into_iter().flat_map(BTreeMap::values).flatten();
        let declared = versions.filter_map(|(_, since)| match since {
            Since::Declared(declared, ..) => Some(declared),
            Since::Nothing => None,
        });
        let mut counting =
            declared.filter(|declared| declared.metrics.iter().any(|(.., counted)| counted == no));
        counting.all(|declared| {
            let told = telling(declared.definition.as_deref(), name);
            told.iter().all(|(_, policy)| *policy == Policy::default())
        })
    }

    /// What an event's type was when it came, if anything was counted of it.
    fn then(&mut self, project: ProjectNo, event: &EventRow) -> Option<&TypeVersion> {
        match self.since(project, event)? {
            Since::Declared(declared, ..) => Some(declared),
            Since::Nothing => None,
        }
    }

    fn since(&mut self, project: ProjectNo, event: &EventRow) -> Option<&mut Since> {
        let types = self.projects.get_mut(&project)?.get_mut(&event.source)?;
        let versions = types.get_mut(&event.type_name)?;
        let since = versions.iter_mut().rev().find(|(version, _)| *version <= event.version);
        since.map(|(_, since)| since)
    }
}

/// What a type is from a version on, as it counts.
fn since(mut changed: TypeVersion, switches: Switches) -> Since {
    if changed.metrics.is_empty() {
        return Since::Nothing;
    }
    let all = changed.metrics.clone();
    changed.metrics = counting(changed.definition.as_deref(), changed.metrics);
    changed.metrics.retain(|(kind, ..)| switches.is_on(*kind));
    Since::Declared(Box::new(changed), all, Compiled::NotYet)
}

/// Lets the store know what this installation switches off, if that is something else than before: from then on events are
/// accepted by another configuration, so whoever counts them, now or ever, knows what was on in their day.
pub(crate) async fn settle(
    rosters: &Arc<Rosters>,
    store: &dyn Store,
    wanted: Switches,
    now: Timestamp,
) -> tidegate_store::Result<()> {
    let versions = store.type_versions(0).await?;
    let known = versions.iter().filter_map(TypeVersion::switches).next_back().unwrap_or_default();
    let kinds = [Kind::Counter, Kind::Histogram, Kind::State, Kind::Index];
    if kinds.into_iter().any(|kind| known.is_on(kind) != wanted.is_on(kind)) {
        rosters.change(Change::SwitchObserving(wanted), now).await?;
    }
    Ok(())
}

/// What counts the past of a type, and the states that are counted anew.
///
/// What an event did not count for when it came is counted by what its type was when the backfill began. So are states, of
/// events that were there then; other states that an event did count for are counted by what the type was in its day,
/// under their new numbers.
pub(crate) struct Past {
    switches: Switches,
    row: BackfillRow,
    /// Of which states each type told when the backfill began.
    told: BTreeMap<String, BTreeSet<String>>,
    /// By what the type is or was, and the metrics that count.
    compiled: Vec<(By, Vec<Metric>, Option<Arc<Extractor>>)>,
}

/// A type as it was in some version, or when the backfill began.
type By = (String, Option<Version>);

impl Past {
    pub(crate) fn new(terms: Terms, row: BackfillRow) -> Self {
        let told = row.rebuild.types.iter();
        let told = told.map(|(name, definition)| (name.clone(), states_of(definition))).collect();
        Self { switches: terms.switches, row, told, compiled: Vec::new() }
    }

    /// Whether everything that it counts is counted at all in this installation.
    pub(crate) fn is_on(&self) -> bool {
        self.row.metrics.iter().all(|(kind, ..)| self.switches.is_on(*kind))
    }

    /// Adds what an event says that nobody has counted.
    pub(crate) fn observe(&mut self, types: &mut Types, event: &EventRow, slab: &mut Slab) {
        let then = types.then(self.row.project, event);
        let counted = then.map_or(&[][..], |then| &then.metrics);
        let anew = self.anew(event, counted);
        let missed = self.missed(event, counted, &anew);
        if let Some(then) = then.filter(|_| !anew.is_empty()) {
            let by = (event.type_name.clone(), Some(then.version));
            self.count(by, then.definition.as_deref(), anew, event, slab);
        }
        if !missed.is_empty() {
            let definition = self.definition(&event.type_name).map(str::to_owned);
            self.count((event.type_name.clone(), None), definition.as_deref(), missed, event, slab);
        }
    }

    /// The states that an event counted for when it came and that count by its day, by their new numbers.
    fn anew(&self, event: &EventRow, counted: &[Metric]) -> Vec<Metric> {
        let told = self.told.get(&event.type_name).filter(|_| event.seq <= self.row.until);
        let is_of_its_day = |(_, name, _): &&Metric| told.is_none_or(|told| !told.contains(name));
        let anew = counted.iter().filter(is_of_its_day).filter_map(|(kind, name, no)| {
            self.row.rebuild.instead_of(*no).map(|new| (*kind, name.clone(), new))
        });
        anew.collect()
    }

    /// What it did not count for and should have.
    fn missed(&self, event: &EventRow, counted: &[Metric], anew: &[Metric]) -> Vec<Metric> {
        let is_before = event.seq <= self.row.until && event.version <= self.row.version;
        let is_own = event.type_name == self.row.type_name && is_before;
        let is_covered =
            |no: MetricNo| self.row.behind.iter().any(|(of, until)| *of == no && event.version <= *until);
        let is_missed = |metric: &&Metric| {
            if self.row.rebuild.makes(metric.2) {
                !anew.contains(metric)
            } else {
                is_own && !counted.contains(metric) && !is_covered(metric.2)
            }
        };
        self.row.metrics.iter().filter(is_missed).cloned().collect()
    }

    /// What a type was when the backfill began, if it is one of those that are looked at.
    fn definition(&self, type_name: &str) -> Option<&str> {
        if type_name == self.row.type_name {
            return Some(&self.row.definition);
        }
        let told = self.row.rebuild.types.iter().find(|(name, _)| name == type_name);
        told.map(|(_, definition)| definition.as_str())
    }

    fn count(
        &mut self,
        by: By,
        definition: Option<&str>,
        metrics: Vec<Metric>,
        event: &EventRow,
        slab: &mut Slab,
    ) {
        let known = self.compiled.iter().position(|(known, of, _)| *known == by && *of == metrics);
        let place = known.unwrap_or_else(|| {
            let extractor = compile(definition, &metrics, self.switches);
            self.compiled.push((by, metrics, extractor));
            self.compiled.len() - 1
        });
        if let Some(extractor) = &self.compiled[place].2 {
            extractor.observe(&event.sighting(), slab);
        }
    }
}

/// The states, by name, of which a declared type tells.
fn states_of(definition: &str) -> BTreeSet<String> {
    let specs = serde_json::from_str::<Definition>(definition).map(|definition| definition.specs());
    let states = specs.into_iter().flatten().filter(|spec| spec.kind == Kind::State);
    states.map(|spec| spec.name).collect()
}

/// What can not be read is not counted: it was checked when it was declared.
fn compile(definition: Option<&str>, metrics: &[Metric], switches: Switches) -> Option<Arc<Extractor>> {
    let definition = serde_json::from_str::<Definition>(definition?);
    let problem = match definition {
        Ok(definition) => match Extractor::compile(&definition.observing, metrics, switches) {
            Ok(extractor) => return Some(Arc::new(extractor)),
            Err(problem) => problem,
        },
        Err(problem) => problem.to_string(),
    };
    tracing::error!(problem, "events of a type can not be counted");
    None
}

#[cfg(test)]
mod tests;
