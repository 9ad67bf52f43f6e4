//! `tidegate deliveries`: what was sent, what was not, and why.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;
use tidegate_core::delivery::Status;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session, table_text};
use crate::output::cell;

const EXAMPLES: &str = "\
Examples:
  tidegate deliveries list --status exhausted
  tidegate deliveries list --subscriber sub_01J8ZQ4WAV
  tidegate deliveries get dlv_01J8ZQ4WAV          with every attempt
  tidegate deliveries retry dlv_01J8ZQ4WAV        one attempt now, then a fresh schedule";

const COLUMNS: [Column; 7] = [
    ("ID", "id"),
    ("STATUS", "status"),
    ("ATTEMPTS", "attempts"),
    ("DUE", "due_at"),
    ("SUBSCRIBER", "subscriber"),
    ("COUNT", "count"),
    ("EVENTS", "events"),
];

const LINES: [Column; 15] = [
    ("id", "id"),
    ("status", "status"),
    ("subscriber", "subscriber"),
    ("count", "count"),
    ("events", "events"),
    ("fold", "fold.mode"),
    ("key", "fold.key"),
    ("opened", "fold.opened_at"),
    ("closed", "fold.closed_at"),
    ("closed by", "fold.closed_by"),
    ("created", "created_at"),
    ("due", "due_at"),
    ("ended", "finished_at"),
    ("out of order", "out_of_order"),
    ("reason", "reason"),
];

const ATTEMPT_COLUMNS: [Column; 5] = [
    ("AT", "at"),
    ("STATUS", "status"),
    ("ERROR", "error"),
    ("MICROSECONDS", "phases.total_us"),
    ("DETAIL", "detail"),
];

/// Flags of `deliveries`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeliveriesArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List deliveries
    List {
        /// Only those that stand like this
        #[arg(long, value_parser = statuses(), conflicts_with = "subscriber")]
        status: Option<String>,
        /// Only those of one subscriber
        #[arg(long, value_name = "ID")]
        subscriber: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Show one delivery with its attempts
    #[command(alias = "show")]
    Get {
        /// Its id
        id: String,
    },
    /// Try one delivery again, now
    Retry {
        /// Its id
        id: String,
    },
}

fn statuses() -> PossibleValuesParser {
    PossibleValuesParser::new(Status::ALL.map(Status::name))
}

/// Lists, shows or retries deliveries.
pub(crate) async fn run(args: DeliveriesArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::List { status, subscriber, page } => {
            let of_subscriber =
                subscriber.as_ref().map(|id| ["v1", "subscribers", id.as_str(), "deliveries"]);
            let path = of_subscriber.as_ref().map_or(&["v1", "deliveries"][..], |path| &path[..]);
            let empty = "No deliveries. Send an event: tidegate send --help";
            let filters = [("status", status.as_deref())];
            session.list_edited(path, &filters, &page, &COLUMNS, empty, &name_few).await?;
        }
        Verb::Get { id } => get(&mut session, &id).await?,
        Verb::Retry { id } => {
            session.confirm(Method::POST, &["v1", "deliveries", &id, "retry"], "retrying", &id).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// People read a few ids; the rest is told as a number.
pub(crate) fn few_events(delivery: &Value) -> String {
    const FEW: usize = 3;
    let ids: Vec<&str> =
        delivery["events"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let more = delivery["count"].as_u64().unwrap_or(0).saturating_sub(FEW as u64);
    match more {
        1.. if ids.len() > FEW => format!("{} and {more} more", ids[..FEW].join(",")),
        _ => cell(delivery, "events"),
    }
}

fn name_few(delivery: &mut Value) {
    delivery["events"] = few_events(delivery).into();
}

async fn get(session: &mut Session, id: &str) -> anyhow::Result<()> {
    let answer = session.get(&["v1", "deliveries", id]).await?;
    let Some(delivery) = session.show_edited(&answer, &LINES, &name_few)? else { return Ok(()) };
    match delivery.get("attempt_log").and_then(Value::as_array) {
        Some(attempts) if !attempts.is_empty() => {
            session.output.line("")?;
            session.output.line(&table_text(attempts, &ATTEMPT_COLUMNS, None))?;
        }
        _ => session.output.line("\nNo attempt yet.")?,
    }
    Ok(())
}
