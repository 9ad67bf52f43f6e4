//! The catalogs of all projects, compiled. Made anew from what changed, like everything in a roster.
//!
//! A project whose catalog takes everything has no entry: judging its events is one look into a small map.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::catalog::{Catalog, Definition, EventType, Mode};
use tidegate_core::id::ProjectNo;
use tidegate_store::{ProjectRow, TypeRow};

/// By project.
pub(crate) type Catalogs = BTreeMap<ProjectNo, Arc<Catalog>>;

/// The catalogs after a change.
pub(crate) fn follow(old: &Catalogs, projects: &[ProjectRow], changed: Vec<TypeRow>) -> Catalogs {
    let mut catalogs = old.clone();
    for row in changed {
        apply(Arc::make_mut(catalogs.entry(row.project).or_default()), row);
    }
    for project in projects {
        let known = catalogs.get(&project.no).map_or(Mode::Open, |catalog| catalog.mode);
        if known != project.catalog {
            Arc::make_mut(catalogs.entry(project.no).or_default()).mode = project.catalog;
        }
    }
    let living: BTreeMap<ProjectNo, ()> = projects.iter().map(|project| (project.no, ())).collect();
    catalogs.retain(|no, catalog| living.contains_key(no) && !catalog.is_trivial());
    catalogs
}

fn apply(catalog: &mut Catalog, row: TypeRow) {
    let Some(definition) = row.definition else {
        return catalog.remove(&row.service, &row.type_name);
    };
    let compiled = serde_json::from_str::<Definition>(&definition)
        .map_err(|error| error.to_string())
        .and_then(|definition| EventType::compile(definition, row.created_at, row.updated_at));
    match compiled {
        Ok(event_type) => {
            let event_type = Arc::new(event_type.counting(row.metrics));
            catalog.put(&row.service, &row.type_name, event_type);
        }
        // It was checked when it was declared: one damaged row must not keep all the others from their events.
        Err(problem) => {
            tracing::error!(service = row.service, r#type = row.type_name, problem, "a type can not be used");
            catalog.remove(&row.service, &row.type_name);
        }
    }
}
