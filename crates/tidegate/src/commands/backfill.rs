//! `tidegate backfill`: events that were accepted before a metric was declared are counted too.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::clock;
use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};
use crate::failure::{Exit, Failure};
use crate::output::cell;

const EXAMPLES: &str = "\
Examples:
  tidegate backfill shop order.paid                     everything that the type counts or indexes
  tidegate backfill shop order.paid --metric by_country
  tidegate backfill shop order.paid --metric 'order data.status'   a state: its object and attribute
  tidegate backfill                                     what was asked for, and how far it is
  tidegate backfill --stop 3                            of states: they stay as they were

It needs an admin key. Each event is counted once, whatever is stopped in between. A state is counted anew from all types
that tell of it, and shown as it was until that is done.";

const COLUMNS: [Column; 8] = [
    ("ID", "id"),
    ("SERVICE", "service"),
    ("TYPE", "type"),
    ("STATUS", "status"),
    ("PROGRESS", "progress"),
    ("EVENTS", "events"),
    ("STARTED", "started_at"),
    ("METRICS", "metrics"),
];

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks in a row that may find nobody there: a minute, in which a server starts again.
const LOOKS_LOST_MAX: u32 = 300;

/// Flags of `backfill`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BackfillArgs {
    /// The source of the events; without it, backfills are listed
    #[arg(requires = "type_name")]
    service: Option<String>,
    /// Their type
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Only this counter, histogram, state or indexed attribute (repeatable)
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Stop the backfill of states with this id
    #[arg(long, value_name = "ID", conflicts_with_all = ["service", "metric"])]
    stop: Option<u64>,
    /// Do not wait for its end
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    page: Page,
}

/// Begins a backfill and shows how far it is, or lists them.
pub(crate) async fn run(args: BackfillArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    if let Some(id) = args.stop.map(|id| id.to_string()) {
        session.confirm(Method::POST, &["v1", "backfills", &id, "stop"], "stopped", &id).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(service), Some(type_name)) = (&args.service, &args.type_name) else {
        let empty = "No backfills. Begin one: tidegate backfill SERVICE TYPE";
        session.list(&["v1", "backfills"], &[], &args.page, &COLUMNS, empty).await?;
        return Ok(ExitCode::SUCCESS);
    };
    let body = if args.metric.is_empty() { json!({}) } else { json!({ "metrics": args.metric }) };
    let path = ["v1", "catalog", "services", service, "types", type_name, "backfill"];
    let mut row = session.create(&path, &body).await?.json()?;
    if !args.no_wait {
        row = follow(&mut session, row).await?;
    }
    if session.output.json {
        session.output.line(&row.to_string())?;
    } else if row["status"] == "done" {
        session.done(&format!("{} events of {service} {type_name} counted", row["events"]))?;
    } else if row["status"] == "running" {
        session.output.line("It goes on in the background: tidegate backfill")?;
    } else {
        session.output.line(&format!("It was stopped: {}", cell(&row, "reason")))?;
    }
    Ok(ExitCode::from(if row["status"] == "stopped" { Exit::Failed as u8 } else { 0 }))
}

/// Shows how far a backfill is until it ends or somebody presses Ctrl-C. It goes on after a restart of the server, and so
/// does this.
async fn follow(session: &mut Session, mut row: Value) -> Result<Value, Failure> {
    let target =
        if session.output.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1000), target);
    let style = ProgressStyle::with_template("{bar:32} {percent:>3} %  {msg}");
    bar.set_style(style.expect("the template is a constant"));
    let mut lost = 0;
    while row["status"] == "running" {
        bar.set_position((row["progress"].as_f64().unwrap_or(0.0) * 1000.0) as u64);
        let note = if lost > 0 { "; the server does not answer" } else { "" };
        bar.set_message(format!("{} events{note}", row["events"]));
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => break,
            () = clock::wait(LOOK_EVERY) => {}
        }
        let list = match session.get(&["v1", "backfills"]).await.and_then(|answer| answer.json()) {
            Ok(list) => list,
            Err(failure) if failure.exit == Exit::Later && lost < LOOKS_LOST_MAX => {
                lost += 1;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        lost = 0;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        match items.into_iter().find(|item| item["id"] == row["id"]) {
            Some(found) => row = found,
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(row)
}
