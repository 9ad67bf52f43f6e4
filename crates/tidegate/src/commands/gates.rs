//! `tidegate gates`: named rates that subscribers and clients share.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::json;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};

const EXAMPLES: &str = "\
Examples:
  tidegate gates set notion --rate 3/s --burst 3
  tidegate gates                                   lists them
  tidegate gates show notion
  tidegate gates acquire notion --wait 10s && curl https://api.notion.com/…
  tidegate gates penalize notion --for 30s
  tidegate gates resume notion
  tidegate gates delete notion

A subscriber passes it with \"gate\": \"notion\" in its definition.";

const GATES: [Column; 4] =
    [("NAME", "name"), ("RATE", "rate"), ("BURST", "burst"), ("UPDATED", "updated_at")];

const LINES: [Column; 15] = [
    ("name", "name"),
    ("rate", "rate"),
    ("burst", "burst"),
    ("tokens", "tokens"),
    ("rate now", "effective_rate_per_second"),
    ("penalised", "penalized_until"),
    ("subscribers", "waiting.subscribers"),
    ("deliveries", "waiting.deliveries"),
    ("clients", "waiting.clients"),
    ("wait p50", "waits.p50"),
    ("wait p99", "waits.p99"),
    ("passed", "passed"),
    ("penalties", "penalties"),
    ("created", "created_at"),
    ("updated", "updated_at"),
];

/// Flags of `gates`.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct GatesArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    page: Page,
}

#[derive(Subcommand)]
enum Verb {
    /// List gates; the same as no verb
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Show one gate
    #[command(alias = "get")]
    Show {
        /// Which
        name: String,
    },
    /// Make a gate, or change it
    #[command(alias = "put")]
    Set {
        /// Which
        name: String,
        /// How many over time
        #[arg(long, value_name = "3/s")]
        rate: String,
        /// How many at once, after a rest; without it, one second's worth
        #[arg(long, value_name = "N")]
        burst: Option<u32>,
    },
    /// Take a token, or wait for one
    Acquire {
        /// Which
        name: String,
        /// How long to wait, 60s at most
        #[arg(long, value_name = "10s", default_value = "0s")]
        wait: String,
    },
    /// Pause a gate: somebody was told "too many"
    Penalize {
        /// Which
        name: String,
        /// For how long, 1h at most
        #[arg(long = "for", value_name = "30s", conflicts_with = "until")]
        lasts: Option<String>,
        /// Until when
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
    },
    /// Let a paused gate go on before its time
    Resume {
        /// Which
        name: String,
    },
    /// Delete a gate that no subscriber passes
    Delete {
        /// Which
        name: String,
    },
}

/// Lists, shows, makes, passes, pauses, resumes or deletes gates.
pub(crate) async fn run(args: GatesArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb.unwrap_or(Verb::List { page: args.page }) {
        Verb::List { page } => {
            let empty = "There are no gates. Make one: tidegate gates set notion --rate 3/s";
            session.list(&["v1", "gates"], &[], &page, &GATES, empty).await?;
        }
        Verb::Show { name } => {
            let answer = session.get(&["v1", "gates", &name]).await?;
            session.show(&answer, &LINES)?;
        }
        Verb::Set { name, rate, burst } => {
            let body = json!({ "rate": rate, "burst": burst });
            session.confirm_with(Method::PUT, &["v1", "gates", &name], Some(&body), "set", &name).await?;
        }
        Verb::Acquire { name, wait } => {
            let path = ["v1", "gates", &name, "acquire"];
            let answer = session.create_with(&path, &[("wait", &wait)], &json!({})).await?;
            session.show(&answer, &[("granted", "granted_at"), ("waited", "waited")])?;
        }
        Verb::Penalize { name, lasts, until } => {
            let body = json!({ "for": lasts, "until": until });
            let path = ["v1", "gates", &name, "penalize"];
            session.confirm_with(Method::POST, &path, Some(&body), "penalised", &name).await?;
        }
        Verb::Resume { name } => {
            let path = ["v1", "gates", &name, "penalty"];
            session.confirm(Method::DELETE, &path, "resumed", &name).await?;
        }
        Verb::Delete { name } => {
            session.confirm(Method::DELETE, &["v1", "gates", &name], "deleted", &name).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
