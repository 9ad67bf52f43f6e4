//! `tidegate jobs`: what is being sent again, and how far it is.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};

const EXAMPLES: &str = "\
Examples:
  tidegate jobs list
  tidegate jobs get job_01J8ZQ4WAV
  tidegate jobs stop job_01J8ZQ4WAV               what it sent again stays";

const COLUMNS: [Column; 7] = [
    ("ID", "id"),
    ("KIND", "kind"),
    ("STATUS", "status"),
    ("DONE", "done"),
    ("TOTAL", "total"),
    ("SENT AGAIN", "matched"),
    ("STARTED", "started_at"),
];

/// What is said about one job.
pub(crate) const LINES: [Column; 11] = [
    ("id", "id"),
    ("kind", "kind"),
    ("status", "status"),
    ("reason", "reason"),
    ("subscriber", "selector.subscriber"),
    ("types", "selector.types"),
    ("looked at", "done"),
    ("of about", "total"),
    ("sent again", "matched"),
    ("started", "started_at"),
    ("ended", "finished_at"),
];

/// Flags of `jobs`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobsArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List jobs
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Show one job
    #[command(alias = "show")]
    Get {
        /// Its id
        id: String,
    },
    /// Stop a job where it is
    Stop {
        /// Its id
        id: String,
    },
}

/// Lists, shows or stops jobs.
pub(crate) async fn run(args: JobsArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::List { page } => {
            let empty = "No jobs. Begin one: tidegate replay --help";
            session.list(&["v1", "jobs"], &[], &page, &COLUMNS, empty).await?;
        }
        Verb::Get { id } => {
            let answer = session.get(&["v1", "jobs", &id]).await?;
            session.show(&answer, &LINES)?;
        }
        Verb::Stop { id } => {
            session.confirm(Method::POST, &["v1", "jobs", &id, "stop"], "stopped", &id).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
