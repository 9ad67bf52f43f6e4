//! `tidegate replicas`: the processes that share a store.

use std::process::ExitCode;

use clap::Args;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};

const EXAMPLES: &str = "\
Examples:
  tidegate replicas
  tidegate replicas --json | jq '.items[].name'

LIFE is the number that /readyz, metrics and logs use; CLOCK MS by how much its clock is ahead of the database's.
This needs the installation's admin key.";

const COLUMNS: [Column; 9] = [
    ("LIFE", "incarnation"),
    ("NAME", "name"),
    ("SINCE", "began_at"),
    ("SEEN", "seen_at"),
    ("CLOCK MS", "clock_offset_ms"),
    ("IN FLIGHT", "in_flight"),
    ("QUEUED", "queued"),
    ("LEADS", "leads"),
    ("ANSWERS", "answers"),
];

/// Flags of `replicas`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplicasArgs {}

/// Lists the processes that share the store.
pub(crate) async fn run(_args: ReplicasArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let empty = "One process with a store of its own. More can share a PostgreSQL: tidegate serve --store postgres://…";
    session.list(&["v1", "replicas"], &[], &Page::whole(), &COLUMNS, empty).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_by_what_logs_and_metrics_call_it() {
        assert_eq!(COLUMNS[0].1, "incarnation");
        assert!(COLUMNS.iter().any(|(_, field)| *field == "clock_offset_ms"));
    }
}
