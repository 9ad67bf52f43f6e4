//! `tidegate quarantine`: what the catalog did not let in.

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use tidegate_core::catalog::Reason;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};
use crate::output::cell;

const EXAMPLES: &str = "\
Examples:
  tidegate quarantine list --reason SCHEMA_VIOLATION
  tidegate quarantine release 8f1c 77ab                  these events, whatever the catalog says
  tidegate quarantine release --type order.paid
  tidegate quarantine release --all
  tidegate quarantine discard --source test

Release and discard work through everything that matches, a thousand at a time. A released event whose id is taken
by other content stays in quarantine.";

const COLUMNS: [Column; 6] = [
    ("AT", "at"),
    ("ID", "id"),
    ("SOURCE", "source"),
    ("TYPE", "type"),
    ("REASON", "reason"),
    ("DETAIL", "detail"),
];

/// Flags of `quarantine`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuarantineArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List quarantined events, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        page: Page,
    },
    /// Accept events now, whatever the catalog says
    Release(Selector),
    /// Take events away for good
    Discard(Selector),
}

#[derive(Args)]
struct Filter {
    /// Only with this reason
    #[arg(long, value_parser = reasons())]
    reason: Option<String>,
    /// Only from this source
    #[arg(long)]
    source: Option<String>,
    /// Only of this type
    #[arg(long)]
    r#type: Option<String>,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["ids", "reason", "source", "type", "all"]))]
struct Selector {
    /// Ids of events
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Everything that is quarantined
    #[arg(long, conflicts_with_all = ["ids", "reason", "source", "type"])]
    all: bool,
}

fn reasons() -> PossibleValuesParser {
    PossibleValuesParser::new(Reason::ALL.map(Reason::name))
}

/// Lists, releases or discards what is quarantined.
pub(crate) async fn run(args: QuarantineArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::List { filter, page } => {
            let filters = [
                ("reason", filter.reason.as_deref()),
                ("source", filter.source.as_deref()),
                ("type", filter.r#type.as_deref()),
            ];
            let empty = "Nothing is quarantined.";
            session.list(&["v1", "quarantine"], &filters, &page, &COLUMNS, empty).await?;
        }
        Verb::Release(selector) => all(&mut session, "release", "released", selector).await?,
        Verb::Discard(selector) => all(&mut session, "discard", "discarded", selector).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Calls until nothing is left; each answer is printed.
async fn all(session: &mut Session, verb: &str, done: &str, selector: Selector) -> anyhow::Result<()> {
    let mut body = selector.body();
    loop {
        let answer = session.create(&["v1", "quarantine", verb], &Value::Object(body.clone())).await?;
        let told = answer.json()?;
        if session.output.json {
            session.output.raw(&answer.body)?;
        } else {
            let words = [(done, done), ("duplicates", "there already"), ("conflicts", "in conflict, kept")];
            let words = words.iter().filter(|(name, _)| !matches!(cell(&told, name).as_str(), "-" | "0"));
            let counts: Vec<String> =
                words.map(|(name, word)| format!("{} {word}", cell(&told, name))).collect();
            session.done(&if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") })?;
        }
        match told.get("next").and_then(Value::as_str) {
            Some(next) => body.insert("cursor".to_owned(), next.into()),
            None => return Ok(()),
        };
    }
}

impl Selector {
    fn body(self) -> Map<String, Value> {
        let mut body = Map::new();
        if !self.ids.is_empty() {
            body.insert("ids".to_owned(), self.ids.into());
        }
        for (name, value) in
            [("reason", self.filter.reason), ("source", self.filter.source), ("type", self.filter.r#type)]
        {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.into());
            }
        }
        if self.all {
            body.insert("all".to_owned(), true.into());
        }
        body
    }
}
