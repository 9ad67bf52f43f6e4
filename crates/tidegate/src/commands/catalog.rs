//! `tidegate catalog`: which services say what.
//!
//! Flags cover the common declaration; `--file` takes the whole JSON of the API.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session, from_file};

const EXAMPLES: &str = "\
Examples:
  tidegate catalog list                                  services
  tidegate catalog list shop                             the types of one
  tidegate catalog put shop order.paid --schema order.json
  tidegate catalog put shop order.payed --deprecated --replaced-by order.paid
  tidegate catalog get shop order.paid
  tidegate catalog delete shop order.payed

What a strict project does not find here, and what breaks its schema, is quarantined: tidegate quarantine list";

const SERVICES: [Column; 2] = [("SERVICE", "service"), ("TYPES", "types")];

const TYPES: [Column; 5] = [
    ("TYPE", "type"),
    ("SCHEMA", "has_schema"),
    ("REPLACED BY", "deprecated.replaced_by"),
    ("UPDATED", "updated_at"),
    ("DESCRIPTION", "description"),
];

const LINES: [Column; 13] = [
    ("service", "service"),
    ("type", "type"),
    ("description", "description"),
    ("deprecated", "deprecated"),
    ("schema", "schema"),
    ("retention", "retention"),
    ("index", "index"),
    ("counters", "counters"),
    ("histograms", "histograms"),
    ("states", "states"),
    ("observe", "observe"),
    ("created", "created_at"),
    ("updated", "updated_at"),
];

/// Flags of `catalog`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CatalogArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List services, or the types of one
    List {
        /// The service whose types to list
        service: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Show one type
    #[command(alias = "show")]
    Get {
        /// The source of its events
        service: String,
        /// Its name
        r#type: String,
    },
    /// Declare a type, or declare it anew
    Put(Box<PutArgs>),
    /// Take a type back
    Delete {
        /// The source of its events
        service: String,
        /// Its name
        r#type: String,
    },
}

#[derive(Args)]
struct PutArgs {
    /// The source of its events
    service: String,
    /// Its name
    r#type: String,
    /// A file with the JSON Schema of `data`; - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    schema: Option<String>,
    /// It should not be sent any more
    #[arg(long, conflicts_with = "file")]
    deprecated: bool,
    /// The type to send instead
    #[arg(long, value_name = "TYPE", requires = "deprecated")]
    replaced_by: Option<String>,
    /// What it is about
    #[arg(long, conflicts_with = "file")]
    description: Option<String>,
    /// A file with the whole definition; - is stdin
    #[arg(long, value_name = "FILE")]
    file: Option<String>,
}

/// Lists, shows, declares or takes back types.
pub(crate) async fn run(args: CatalogArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        Verb::List { service, page } => list(&mut session, service.as_deref(), &page).await?,
        Verb::Get { service, r#type } => {
            let answer = session.get(&path(&service, &r#type)).await?;
            session.show(&answer, &LINES)?;
        }
        Verb::Put(args) => {
            let body = definition(&args)?;
            let path = path(&args.service, &args.r#type);
            let name = format!("{} of {}", args.r#type, args.service);
            session.confirm_with(Method::PUT, &path, Some(&body), "declared", &name).await?;
        }
        Verb::Delete { service, r#type } => {
            let name = format!("{type} of {service}", r#type = r#type);
            session.confirm(Method::DELETE, &path(&service, &r#type), "deleted", &name).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn path<'a>(service: &'a str, name: &'a str) -> [&'a str; 6] {
    ["v1", "catalog", "services", service, "types", name]
}

async fn list(session: &mut Session, service: Option<&str>, page: &Page) -> anyhow::Result<()> {
    let empty = "Nothing is declared. Declare a type: tidegate catalog put shop order.paid";
    match service {
        None => session.list(&["v1", "catalog", "services"], &[], page, &SERVICES, empty).await,
        Some(name) => session.list(&["v1", "catalog", "services", name], &[], page, &TYPES, empty).await,
    }
}

fn definition(args: &PutArgs) -> anyhow::Result<Value> {
    if let Some(file) = &args.file {
        return from_file(file);
    }
    let mut body = Map::new();
    if let Some(file) = &args.schema {
        body.insert("schema".to_owned(), from_file(file)?);
    }
    if let Some(text) = &args.description {
        body.insert("description".to_owned(), text.as_str().into());
    }
    if args.deprecated {
        let replaced_by = args.replaced_by.as_ref().map(|name| json!({ "replaced_by": name }));
        body.insert("deprecated".to_owned(), replaced_by.unwrap_or_else(|| json!({})));
    }
    Ok(Value::Object(body))
}
