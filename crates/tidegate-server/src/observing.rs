//! Declared types as those need them who count: each as it was at each version, compiled when an event of it comes.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::catalog::Definition;
use tidegate_core::id::{ProjectNo, Version};
use tidegate_core::observe::{Extractor, Slab, Switches};
use tidegate_store::{BackfillRow, EventRow, Metric, Store, TypeVersion};

/// How events are observed.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an event waits to be counted at most.
    pub interval: Duration,
    /// Events that are counted in one transaction at most; as many that wait are counted at once.
    pub batch: usize,
    /// What is observed at all.
    pub switches: Switches,
}

impl Default for Terms {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), batch: 30_000, switches: Switches::default() }
    }
}

/// By service, then by type: what it was, from which version on.
type Services = BTreeMap<String, BTreeMap<String, Vec<(Version, Since)>>>;

/// What a type was from some version on.
enum Since {
    /// It declared nothing that is counted.
    Nothing,
    /// As it was declared; compiled when the first event comes.
    Declared(Box<TypeVersion>),
    Compiled(Box<Extractor>, Vec<Metric>),
}

/// All declared types that have, or had, metrics.
pub(crate) struct Types {
    terms: Terms,
    version: Version,
    projects: BTreeMap<ProjectNo, Services>,
}

impl Types {
    pub(crate) fn new(terms: Terms) -> Self {
        Self { terms, version: 0, projects: BTreeMap::new() }
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
        for changed in store.type_versions(self.version).await? {
            self.put(changed);
        }
        self.version = version;
        Ok(())
    }

    fn put(&mut self, changed: TypeVersion) {
        let types = self.projects.get(&changed.project).and_then(|services| services.get(&changed.service));
        let is_known = types.is_some_and(|types| types.contains_key(&changed.type_name));
        if changed.metrics.is_empty() && !is_known {
            return;
        }
        let services = self.projects.entry(changed.project).or_default();
        let types = services.entry(changed.service.clone()).or_default();
        let versions = types.entry(changed.type_name.clone()).or_default();
        let since = if changed.metrics.is_empty() {
            (changed.version, Since::Nothing)
        } else {
            (changed.version, Since::Declared(Box::new(changed)))
        };
        // What was read may be read again when a version came in between.
        if versions.last().is_none_or(|(version, _)| *version < since.0) {
            versions.push(since);
        }
    }

    /// Adds what an event says, by the rules of its day.
    pub(crate) fn observe(&mut self, project: ProjectNo, event: &EventRow, slab: &mut Slab) {
        let switches = self.terms.switches;
        let Some(since) = self.since(project, event) else { return };
        if let Since::Declared(declared) = since {
            *since = compile(&declared.definition, &declared.metrics, switches);
        }
        if let Since::Compiled(extractor, _) = since {
            extractor.observe(&event.sighting(), slab);
        }
    }

    /// Which of these metrics did not count an event when it came.
    pub(crate) fn missed(&mut self, project: ProjectNo, event: &EventRow, metrics: &[Metric]) -> Vec<Metric> {
        let then: &[Metric] = match self.since(project, event) {
            Some(Since::Declared(declared)) => &declared.metrics,
            Some(Since::Compiled(_, metrics)) => metrics,
            Some(Since::Nothing) | None => &[],
        };
        metrics.iter().filter(|metric| !then.contains(metric)).cloned().collect()
    }

    fn since(&mut self, project: ProjectNo, event: &EventRow) -> Option<&mut Since> {
        let types = self.projects.get_mut(&project)?.get_mut(&event.source)?;
        let versions = types.get_mut(&event.type_name)?;
        let since = versions.iter_mut().rev().find(|(version, _)| *version <= event.version);
        since.map(|(_, since)| since)
    }
}

/// What counts the past of a type: by which metrics missed an event when it came.
pub(crate) struct Past {
    switches: Switches,
    row: BackfillRow,
    by_missed: Vec<(Vec<Metric>, Since)>,
}

impl Past {
    pub(crate) fn new(terms: Terms, row: BackfillRow) -> Self {
        Self { switches: terms.switches, row, by_missed: Vec::new() }
    }

    /// Adds what an event says that nobody has counted.
    pub(crate) fn observe(&mut self, types: &mut Types, event: &EventRow, slab: &mut Slab) {
        let missed = types.missed(self.row.project, event, &self.row.metrics);
        let known = self.by_missed.iter().position(|(metrics, _)| *metrics == missed);
        let place = known.unwrap_or_else(|| {
            let definition = Some(self.row.definition.clone());
            let since = compile(&definition, &missed, self.switches);
            self.by_missed.push((missed, since));
            self.by_missed.len() - 1
        });
        if let Since::Compiled(extractor, _) = &self.by_missed[place].1 {
            extractor.observe(&event.sighting(), slab);
        }
    }
}

/// What can not be read is not counted: it was checked when it was declared.
fn compile(definition: &Option<String>, metrics: &[Metric], switches: Switches) -> Since {
    let definition = definition.as_deref().map(serde_json::from_str::<Definition>);
    let problem = match definition {
        Some(Ok(definition)) => match Extractor::compile(&definition.observing, metrics, switches) {
            Ok(extractor) => return Since::Compiled(Box::new(extractor), metrics.to_vec()),
            Err(problem) => problem,
        },
        Some(Err(problem)) => problem.to_string(),
        None => return Since::Nothing,
    };
    tracing::error!(problem, "events of a type can not be counted");
    Since::Nothing
}
