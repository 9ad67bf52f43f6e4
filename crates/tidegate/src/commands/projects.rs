//! `tidegate projects`: the tenants of an installation.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::json;

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};

const EXAMPLES: &str = "\
Examples:
  tidegate projects create p1
  tidegate projects create p2 --catalog strict    events that the catalog does not know are quarantined
  tidegate projects list

These need the installation's admin key.";

const COLUMNS: [Column; 3] = [("ID", "id"), ("CATALOG", "catalog"), ("CREATED", "created_at")];

/// Flags of `projects`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ProjectsArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a project
    Create {
        /// Its id
        id: String,
        /// What happens to events that the catalog does not know
        #[arg(long, value_enum)]
        catalog: Option<Catalog>,
    },
    /// Change a project
    Update {
        /// Its id
        id: String,
        /// What becomes of types that nobody declared: open accepts them, strict quarantines them
        #[arg(long, value_enum)]
        catalog: Catalog,
    },
    /// List projects
    List {
        #[command(flatten)]
        page: Page,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Catalog {
    Open,
    Strict,
}

impl Catalog {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Strict => "strict",
        }
    }
}

/// Makes, changes or lists projects.
pub(crate) async fn run(args: ProjectsArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::Create { id, catalog } => create(&mut session, &id, catalog).await?,
        Verb::Update { id, catalog } => {
            let body = json!({ "catalog": catalog.name() });
            let path = ["v1", "projects", id.as_str()];
            session.confirm_with(Method::PATCH, &path, Some(&body), "changed", &id).await?;
        }
        Verb::List { page } => {
            let empty = "No projects yet. Make one: tidegate projects create p1";
            session.list(&["v1", "projects"], &[], &page, &COLUMNS, empty).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(session: &mut Session, id: &str, catalog: Option<Catalog>) -> anyhow::Result<()> {
    let mut body = json!({"id": id});
    if let Some(catalog) = catalog {
        body["catalog"] = catalog.name().into();
    }
    let answer = session.create(&["v1", "projects"], &body).await?;
    if session.output.json {
        return Ok(session.output.raw(&answer.body)?);
    }
    session.done(&format!("made {id}"))?;
    let next = format!("Give it a key: tidegate keys create --project {id} --role publisher");
    Ok(session.output.line(&next)?)
}
