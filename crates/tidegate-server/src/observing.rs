//! Declared types as the observer needs them: each as it was at each version, compiled when an event of it comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::catalog::Definition;
use tidegate_core::id::{ProjectNo, Version};
use tidegate_core::observe::{Extractor, Switches, Slab};
use tidegate_store::{EventRow, Store, TypeVersion};

/// How events are observed.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an event waits to be counted at most.
    pub interval: Duration,
    /// Events that are counted in one transaction at most; as many that wait are counted at once.
    pub batch: usize,
    /// Threads that read events.
    pub workers: usize,
    /// What is observed at all.
    pub switches: Switches,
}

impl Default for Terms {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), batch: 10_000, workers: 1, switches: Switches::default() }
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
    Compiled(Arc<Extractor>),
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
        let services = self.projects.get_mut(&project);
        let types = services.and_then(|services| services.get_mut(&event.source));
        let Some(versions) = types.and_then(|types| types.get_mut(&event.type_name)) else { return };
        let since = versions.iter_mut().rev().find(|(version, _)| *version <= event.version);
        let Some((_, since)) = since else { return };
        if let Since::Declared(declared) = since {
            *since = compile(declared, self.terms.switches);
        }
        if let Since::Compiled(extractor) = since {
            extractor.observe(&event.sighting(), slab);
        }
    }
}

/// What can not be read is not counted: it was checked when it was declared.
fn compile(declared: &TypeVersion, switches: Switches) -> Since {
    let definition = declared.definition.as_deref().map(serde_json::from_str::<Definition>);
    match definition {
        Some(Ok(definition)) => match Extractor::compile(&definition, &declared.metrics, switches) {
            Ok(extractor) => Since::Compiled(Arc::new(extractor)),
            Err(problem) => told(declared, &problem),
        },
        Some(Err(problem)) => told(declared, &problem.to_string()),
        None => Since::Nothing,
    }
}

fn told(declared: &TypeVersion, problem: &str) -> Since {
    let (service, type_name) = (&declared.service, &declared.type_name);
    tracing::error!(service, r#type = type_name, problem, "events of a type can not be observed");
    Since::Nothing
}
