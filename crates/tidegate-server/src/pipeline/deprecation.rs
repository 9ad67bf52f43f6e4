//! Deprecated types: accepted like all others, with a word to the sender and, now and then, to the operator.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::catalog::Catalog;
use tidegate_core::event::Unit;
use tidegate_core::id::ProjectNo;
use tidegate_core::time::Timestamp;

/// A type is logged once in this time, however often it comes.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Types whose last line is remembered; when there are more, some are logged earlier than they need be.
const REMEMBERED_MAX: usize = 1_000;

/// Project, service and type.
type Name = (ProjectNo, String, String);

/// What was logged when.
#[derive(Default)]
pub(super) struct Deprecations(Mutex<BTreeMap<Name, Timestamp>>);

impl Deprecations {
    /// What to tell the sender about each of these units; nothing at all when no type is deprecated, as usual.
    pub(super) fn warnings(
        &self,
        project: ProjectNo,
        catalog: &Catalog,
        units: &[Unit],
        now: Timestamp,
    ) -> Vec<Option<String>> {
        if !catalog.has_deprecated() {
            return Vec::new();
        }
        let warning = |unit: &Unit| {
            unit.events.iter().find_map(|event| {
                let warning = catalog.warning(&event.source, &event.type_name)?;
                self.log((project, event.source.clone(), event.type_name.clone()), now);
                Some(warning)
            })
        };
        units.iter().map(warning).collect()
    }

    fn log(&self, name: Name, now: Timestamp) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(&name).is_some_and(|last| last.plus(LOG_EVERY) > now) {
            return;
        }
        if logged.len() >= REMEMBERED_MAX {
            logged.clear();
        }
        tracing::warn!(
            project = name.0,
            service = name.1,
            r#type = name.2,
            "a deprecated type is still sent"
        );
        logged.insert(name, now);
    }
}
