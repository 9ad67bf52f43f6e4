//! The gates of all projects. Made anew from what changed, like everything in a roster.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::gate::{Flow, Gate};
use tidegate_core::id::{GateNo, ProjectNo};
use tidegate_core::time::Timestamp;
use tidegate_store::GateRow;

use crate::roster::Roster;

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

/// The gate that a subscriber names. Without it nothing would keep its rate, so nothing is sent.
pub(crate) fn find(gates: &Gates, project: ProjectNo, name: &str) -> Result<GateNo, String> {
    let found = gates.get(&project).and_then(|of_project| of_project.get(name));
    found.map(|entry| entry.no).ok_or_else(|| format!("its gate {name} is not there"))
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

impl Roster {
    /// A project's gate.
    pub fn gate(&self, project: ProjectNo, name: &str) -> Option<&GateEntry> {
        self.gates.get(&project)?.get(name)
    }

    /// Every gate, and what it allows.
    pub fn flows(&self) -> BTreeMap<GateNo, Flow> {
        self.all_gates().map(|(_, entry)| (entry.no, entry.gate.into())).collect()
    }

    /// What every gate is called.
    pub fn gate_names(&self) -> BTreeMap<GateNo, String> {
        self.all_gates().map(|(name, entry)| (entry.no, name.clone())).collect()
    }

    fn all_gates(&self) -> impl Iterator<Item = (&String, &GateEntry)> {
        self.gates.values().flat_map(|gates| gates.iter())
    }

    /// A project's gates, by name.
    pub fn gates(&self, project: ProjectNo) -> impl Iterator<Item = (&String, &GateEntry)> {
        self.gates.get(&project).into_iter().flat_map(|gates| gates.iter())
    }
}
