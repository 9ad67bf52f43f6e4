//! The gates of all projects. Made anew from what changed, like everything in a roster.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::gate::Gate;
use tidegate_core::id::{GateNo, ProjectNo};
use tidegate_core::time::Timestamp;
use tidegate_store::GateRow;

/// By project and name.
pub(crate) type Gates = BTreeMap<ProjectNo, Arc<BTreeMap<String, GateEntry>>>;

/// A gate as the configuration has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateEntry {
    /// Inside.
    pub no: GateNo,
    /// What it is.
    pub gate: Gate,
    /// Since when.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// The gates after a change.
pub(crate) fn follow(old: &Gates, changed: Vec<GateRow>) -> Gates {
    let mut gates = old.clone();
    for row in changed {
        apply(Arc::make_mut(gates.entry(row.project).or_default()), row);
    }
    gates.retain(|_, of_project| !of_project.is_empty());
    gates
}

fn apply(gates: &mut BTreeMap<String, GateEntry>, row: GateRow) {
    let Some(definition) = row.definition else {
        gates.remove(&row.name);
        return;
    };
    match Gate::parse(definition.as_bytes()) {
        Ok(gate) => {
            let (no, created_at, updated_at) = (row.no, row.created_at, row.updated_at);
            gates.insert(row.name, GateEntry { no, gate, created_at, updated_at });
        }
        // It was checked when it was made. What it was before holds on: going on without it would break its rate.
        Err(problem) => tracing::error!(gate = row.name, problem = problem.detail, "a gate can not be used"),
    }
}
