//! `tidegate replicas`: the processes that share a store.

use std::process::ExitCode;

use clap::Args;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};

const EXAMPLES: &str = "\
Examples:
  tidegate replicas
  tidegate replicas --json | jq '.items[].name'

This needs the installation's admin key.";

const COLUMNS: [Column; 7] = [
    ("NAME", "name"),
    ("SINCE", "began_at"),
    ("SEEN", "seen_at"),
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
