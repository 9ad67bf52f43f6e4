//! `tidegate objects`: what is known of an object, and what happened to objects.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session, table_text};

const EXAMPLES: &str = "\
Examples:
  tidegate objects get order 4711 --service shop
  tidegate objects changes order --service shop --attribute data.status --id 4711
  tidegate objects changes order --service shop --attribute data.status --late
  tidegate objects changes order --service shop --attribute data.status --from 2026-01-05T00:00:00Z

Which events tell of objects is declared in the catalog: tidegate catalog --help";

const STATES: [Column; 5] = [
    ("ATTRIBUTE", "attribute"),
    ("STATE", "state"),
    ("LAST SEEN", "last_seen"),
    ("EVENT", "event"),
    ("VISITED", "visited"),
];

const CHANGES: [Column; 6] = [
    ("TIME", "time"),
    ("ID", "id"),
    ("FROM", "from_state"),
    ("TO", "to_state"),
    ("LATE", "late"),
    ("EVENT", "event"),
];

/// Flags of `objects`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ObjectsArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show the states that an object is in
    #[command(alias = "show")]
    Get {
        /// The kind of object
        object: String,
        /// Which
        id: String,
        /// The service that tells of it
        #[arg(long, value_name = "NAME")]
        service: String,
    },
    /// List what happened to objects, the latest first
    Changes(Box<Changes>),
}

#[derive(Args)]
struct Changes {
    /// The kind of object
    object: String,
    /// The service that tells of them
    #[arg(long, value_name = "NAME")]
    service: String,
    /// The path of the state
    #[arg(long, value_name = "PATH")]
    attribute: String,
    /// Only of one object
    #[arg(long)]
    id: Option<String>,
    /// Since when
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Until when
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only those that came too late to change anything, or only the others
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    late: Option<bool>,
    #[command(flatten)]
    page: Page,
}

/// Shows an object, or lists changes.
pub(crate) async fn run(args: ObjectsArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::Get { object, id, service } => {
            let answer = session.get_with(&["v1", "objects", &object, &id], &[("service", &service)]).await?;
            if session.output.json {
                session.output.raw(&answer.body)?;
            } else {
                let answer = answer.json()?;
                let states = answer["states"].as_array().map_or(&[][..], Vec::as_slice);
                session.output.line(&table_text(states, &STATES, None))?;
            }
        }
        Verb::Changes(changes) => changes.list(&mut session).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Changes {
    async fn list(&self, session: &mut Session) -> anyhow::Result<()> {
        let filters = [
            ("service", Some(&*self.service)),
            ("attribute", Some(&*self.attribute)),
            ("id", self.id.as_deref()),
            ("from", self.from.as_deref()),
            ("to", self.to.as_deref()),
            ("late", self.late.map(|late| if late { "true" } else { "false" })),
        ];
        let empty = "Nothing happened. Which events tell of objects: tidegate catalog --help";
        session.list(&["v1", "objects", &self.object], &filters, &self.page, &CHANGES, empty).await
    }
}
