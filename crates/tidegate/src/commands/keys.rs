//! `tidegate keys`: API keys of a project. The key itself is shown once, when it is made.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::json;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};
use crate::output::{cell, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate keys create --project p1 --role publisher --name shop
  tidegate keys list --project p1
  tidegate keys delete key_01J8ZQ4WAV --project p1
  tidegate keys rotate-master

Roles: admin (everything in its project), publisher (sends events), viewer (reads).
All of these need an admin key.";

const COLUMNS: [Column; 6] = [
    ("ID", "id"),
    ("PROJECT", "project"),
    ("ROLE", "role"),
    ("PREFIX", "prefix"),
    ("CREATED", "created_at"),
    ("NAME", "name"),
];

/// Flags of `keys`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a key for --project (or the project `default`) and print it, once
    Create {
        /// What the key may do
        #[arg(long, value_enum)]
        role: Role,
        /// A label, to know it by later
        #[arg(long)]
        name: Option<String>,
    },
    /// List keys, without the keys themselves
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Change the master key, which secrets are sealed with, while deliveries go on
    RotateMaster,
    /// Delete a key; requests with it are refused from then on
    Delete {
        /// The key's id, not the key
        id: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Admin,
    Publisher,
    Viewer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Publisher => "publisher",
            Self::Viewer => "viewer",
        }
    }
}

/// Makes, lists or deletes keys.
pub(crate) async fn run(args: KeysArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::Create { role, name } => create(&mut session, globals, role, name).await?,
        Verb::List { page } => {
            let empty = "No keys yet. Make one: tidegate keys create --role publisher --name shop";
            session.list(&["v1", "keys"], &[], &page, &COLUMNS, empty).await?;
        }
        Verb::RotateMaster => rotate_master(&mut session).await?,
        Verb::Delete { id } => {
            session.confirm(Method::DELETE, &["v1", "keys", &id], "deleted", &id).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn rotate_master(session: &mut Session) -> anyhow::Result<()> {
    let answer = session.create(&["v1", "master-key", "rotate"], &json!({})).await?;
    if session.output.json {
        return Ok(session.output.raw(&answer.body)?);
    }
    let made = answer.json()?;
    let (moved, id) = (cell(&made, "moved"), cell(&made, "id"));
    Ok(session.done(&format!("sealed {moved} secrets with the new master key {id}"))?)
}

async fn create(
    session: &mut Session,
    globals: &Globals,
    role: Role,
    name: Option<String>,
) -> anyhow::Result<()> {
    let project = globals.project.as_deref().unwrap_or("default");
    let mut body = json!({"project": project, "role": role.name()});
    if let Some(name) = name {
        body["name"] = name.into();
    }
    let answer = session.create(&["v1", "keys"], &body).await?;
    if session.output.json {
        return Ok(session.output.raw(&answer.body)?);
    }
    let made = answer.json()?;
    session.done(&format!("made {} ({} of {project})", cell(&made, "id"), role.name()))?;
    let key = plain(&cell(&made, "key"));
    Ok(session
        .output
        .line(&format!("\n  {key}\n\nIt is not shown again. Use it: export TIDEGATE_KEY={key}"))?)
}
