//! `tidegate subscribers`: who gets what, and where.
//!
//! Flags cover the common subscriber; `--file` takes the whole JSON of the API, so that no field is out of reach.

mod fold;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Map, Value, json};

use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session, from_file};
use crate::failure::{Exit, Failure};
use crate::output::{cell, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate subscribers create --name billing --to https://example.com/hook --types 'order.*'
  tidegate subscribers create --name local --to http://127.0.0.1:8701/     needs serve --egress-allow 127.0.0.1/32
  tidegate subscribers create --name eu --to https://example.com/eu --where \"data.country == 'DE'\"
  tidegate subscribers create --name digest --to https://example.com/d --fold window:60s --fold-by type,data.plan
  tidegate subscribers create --name user --to https://example.com/u --fold quiet:10s,max_wait=2m --fold-by data.user
  tidegate subscribers create --name notion --to https://example.com/n --gate notion --fold quiet:10s,adaptive
  tidegate subscribers create --name batch --to https://example.com/b --fold batch:30s,max_events=1000
  tidegate subscribers create --file subscriber.json
  tidegate subscribers rotate-secret sub_01J8ZQ4WAV --grace 24h     both secrets sign for a day
  tidegate subscribers test sub_01J8ZQ4WAV                          sends a signed sample and shows the answer
  tidegate subscribers list
  tidegate subscribers pause sub_01J8ZQ4WAV       deliveries are held, in order, until `resume`";

const COLUMNS: [Column; 7] = [
    ("ID", "id"),
    ("ACTIVE", "active"),
    ("WHY NOT", "inactive_reason"),
    ("BREAKER", "breaker.state"),
    ("NAME", "name"),
    ("TYPES", "match.types"),
    ("URL", "destination.url"),
];

const LINES: [Column; 34] = [
    ("id", "id"),
    ("name", "name"),
    ("active", "active"),
    ("inactive", "inactive_reason"),
    ("destination", "destination.kind"),
    ("url", "destination.url"),
    ("types", "match.types"),
    ("sources", "match.sources"),
    ("where", "match.where"),
    ("fold", "fold.mode"),
    ("window", "fold.window"),
    ("quiet", "fold.quiet"),
    ("max wait", "fold.max_wait"),
    ("every", "fold.every"),
    ("fold by", "fold.by"),
    ("max events", "fold.max_events"),
    ("max bytes", "fold.max_bytes"),
    ("leading", "fold.leading"),
    ("bypass", "fold.bypass"),
    ("cancel on", "fold.cancel_on"),
    ("adaptive", "fold.adaptive"),
    ("order by", "order.by"),
    ("on failure", "order.on_failure"),
    ("gate", "gate"),
    ("signing", "signing.algorithm"),
    ("public key", "public_key"),
    ("verification", "verification_status"),
    ("refusal", "verification_detail"),
    ("grace until", "grace_until"),
    ("failing since", "failing_since"),
    ("breaker", "breaker.state"),
    ("since", "breaker.since"),
    ("next probe", "breaker.next_probe_at"),
    ("created", "created_at"),
];

/// Flags of `subscribers`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubscribersArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a subscriber and print its signing secret, once
    Create(Box<CreateArgs>),
    /// List subscribers
    List {
        #[command(flatten)]
        page: Page,
    },
    /// Show one subscriber
    #[command(alias = "show")]
    Get {
        /// Its id
        id: String,
    },
    /// Delete a subscriber; what it had not received is cancelled
    Delete {
        /// Its id
        id: String,
    },
    /// Stop sending to it; deliveries are held
    Pause {
        /// Its id
        id: String,
    },
    /// Send a signed sample now and show what came back, also when it is paused
    Test(TestArgs),
    /// Ask its endpoint for consent again; deliveries are held until it has agreed
    Verify {
        /// Its id
        id: String,
    },
    /// Replace the signing secret and print the new one, once
    RotateSecret(RotateArgs),
    /// Send again, beginning with what was held
    Resume {
        /// Its id
        id: String,
    },
}

#[derive(Args)]
struct CreateArgs {
    /// A label
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    /// The webhook's address
    #[arg(long, value_name = "URL", required_unless_present = "file", conflicts_with = "file")]
    to: Option<String>,
    /// Types it wants, for example order.* (repeatable, or comma separated); all when absent
    #[arg(long, value_delimiter = ',', conflicts_with = "file")]
    types: Vec<String>,
    /// Sources it wants (repeatable, or comma separated); all when absent
    #[arg(long, value_delimiter = ',', conflicts_with = "file")]
    sources: Vec<String>,
    /// A condition in CEL
    #[arg(long = "where", value_name = "CEL", conflicts_with = "file")]
    condition: Option<String>,
    /// What must stay in order: none, subscriber, or an attribute such as data.order_id
    #[arg(long, value_name = "BY", conflicts_with = "file")]
    order_by: Option<String>,
    /// How many become one: MODE[:TIME][,TERM=VALUE…], for example window:60s, quiet:10s,max_wait=2m or
    /// batch:30s,max_events=1000
    #[arg(long, value_name = "FOLD", value_parser = fold::parse, conflicts_with = "file")]
    fold: Option<Value>,
    /// What is folded apart, for example data.order_id (repeatable, or comma separated)
    #[arg(long, value_name = "PATH", value_delimiter = ',', conflicts_with = "file", requires = "fold")]
    fold_by: Vec<String>,
    /// The gate that its deliveries pass with all others that name it; see tidegate gates
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    gate: Option<String>,
    /// The whole subscriber as JSON; - for stdin
    #[arg(long, short)]
    file: Option<String>,
}

#[derive(Args)]
struct TestArgs {
    /// Its id
    id: String,
    /// The sample's type
    #[arg(long = "type", value_name = "TYPE")]
    type_name: Option<String>,
    /// The sample's data, as JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
}

#[derive(Args)]
struct RotateArgs {
    /// Its id
    id: String,
    /// For how long the old secret signs too, at most 7d; 0s ends it now
    #[arg(long, value_name = "DURATION", default_value = "24h")]
    grace: String,
    /// A secret of your own; a new one is made when absent
    #[arg(long, value_name = "whsec_…")]
    secret: Option<String>,
    /// Switch to another kind of key
    #[arg(long, value_parser = ["hmac", "ed25519"])]
    algorithm: Option<String>,
}

/// Does one thing to subscribers.
pub(crate) async fn run(args: SubscribersArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let root = ["v1", "subscribers"];
    match args.verb {
        Verb::Create(args) => create(&mut session, &args).await?,
        Verb::List { page } => {
            let empty = "No subscribers yet. Make one: tidegate subscribers create --name local --to URL";
            session.list(&root, &[], &page, &COLUMNS, empty).await?;
        }
        Verb::Get { id } => {
            let answer = session.get(&[root[0], root[1], &id]).await?;
            session.show(&answer, &LINES)?;
        }
        Verb::Delete { id } => {
            session.confirm(Method::DELETE, &[root[0], root[1], &id], "deleted", &id).await?;
        }
        Verb::Pause { id } => {
            session.confirm(Method::POST, &[root[0], root[1], &id, "pause"], "paused", &id).await?;
        }
        Verb::Verify { id } => {
            session.confirm(Method::POST, &[root[0], root[1], &id, "verify"], "asked", &id).await?;
        }
        Verb::Test(args) => return test(&mut session, &args).await,
        Verb::RotateSecret(args) => rotate(&mut session, &args).await?,
        Verb::Resume { id } => {
            session.confirm(Method::POST, &[root[0], root[1], &id, "resume"], "resumed", &id).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(session: &mut Session, args: &CreateArgs) -> anyhow::Result<()> {
    let body = match &args.file {
        Some(path) => from_file(path)?,
        None => from_flags(args),
    };
    let answer = session.create(&["v1", "subscribers"], &body).await?;
    if session.output.json {
        return Ok(session.output.raw(&answer.body)?);
    }
    let made = answer.json()?;
    session.done(&format!("made {}", cell(&made, "id")))?;
    tell_secret(session, &made)
}

/// Prints what a receiver checks signatures with.
fn tell_secret(session: &Session, subscriber: &Value) -> anyhow::Result<()> {
    let key = |name: &str| plain(&cell(subscriber, name));
    let text = if subscriber.get("secret").is_some() {
        format!("{}\n\nIt signs every delivery and is not shown again.", key("secret"))
    } else if subscriber.get("public_key").is_some() {
        format!("{}\n\nThe receiver checks every delivery with it. It is no secret.", key("public_key"))
    } else {
        return Ok(());
    };
    Ok(session.output.line(&format!("\n  {text} Check one: tidegate verify --help"))?)
}

const REPORT: [Column; 9] = [
    ("verdict", "verdict"),
    ("status", "status"),
    ("error", "error"),
    ("detail", "detail"),
    ("dns µs", "phases.dns_us"),
    ("connect µs", "phases.connect_us"),
    ("tls µs", "phases.tls_us"),
    ("total µs", "phases.total_us"),
    ("answer", "response.body"),
];

/// Succeeds when the sample arrived.
async fn test(session: &mut Session, args: &TestArgs) -> anyhow::Result<ExitCode> {
    let mut body = json!({});
    if let Some(type_name) = &args.type_name {
        body["type"] = json!(type_name);
    }
    if let Some(data) = &args.data {
        body["data"] = serde_json::from_str(data)
            .map_err(|error| Failure::usage("--data is not JSON").detail(error.to_string()))?;
    }
    let answer = session.create(&["v1", "subscribers", &args.id, "test"], &body).await?;
    let has_arrived = answer.json()?["verdict"] == "delivered";
    session.show(&answer, &REPORT)?;
    Ok(if has_arrived { ExitCode::SUCCESS } else { ExitCode::from(Exit::Failed as u8) })
}

async fn rotate(session: &mut Session, args: &RotateArgs) -> anyhow::Result<()> {
    let mut body = json!({ "grace": args.grace });
    if let Some(secret) = &args.secret {
        body["secret"] = json!(secret);
    }
    if let Some(algorithm) = &args.algorithm {
        body["signing"] = json!({ "algorithm": algorithm });
    }
    let answer = session.create(&["v1", "subscribers", &args.id, "rotate-secret"], &body).await?;
    if session.output.json {
        return Ok(session.output.raw(&answer.body)?);
    }
    let rotated = answer.json()?;
    session.done(&match rotated.get("grace_until") {
        Some(_) => {
            format!("rotated {}; the old secret signs too until {}", args.id, cell(&rotated, "grace_until"))
        }
        None => format!("rotated {}; the old secret is over", args.id),
    })?;
    tell_secret(session, &rotated)
}

fn from_flags(args: &CreateArgs) -> Value {
    let mut wanted = Map::new();
    if !args.types.is_empty() {
        wanted.insert("types".to_owned(), json!(args.types));
    }
    if !args.sources.is_empty() {
        wanted.insert("sources".to_owned(), json!(args.sources));
    }
    if let Some(condition) = &args.condition {
        wanted.insert("where".to_owned(), json!(condition));
    }
    let mut body = json!({"name": args.name, "destination": {"kind": "webhook", "url": args.to}});
    if !wanted.is_empty() {
        body["match"] = Value::Object(wanted);
    }
    if let Some(fold) = &args.fold {
        body["fold"] = fold.clone();
        if !args.fold_by.is_empty() {
            body["fold"]["by"] = json!(args.fold_by);
        }
    }
    if let Some(by) = &args.order_by {
        body["order"] = json!({ "by": by });
    }
    if let Some(gate) = &args.gate {
        body["gate"] = json!(gate);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_a_subscriber_and_absent_ones_are_left_to_the_server() {
        let mut args = CreateArgs {
            name: Some("local".to_owned()),
            to: Some("http://127.0.0.1:8701/".to_owned()),
            types: Vec::new(),
            sources: Vec::new(),
            condition: None,
            order_by: None,
            fold: None,
            fold_by: Vec::new(),
            gate: None,
            file: None,
        };
        let bare = json!({"name":"local","destination":{"kind":"webhook","url":"http://127.0.0.1:8701/"}});
        assert_eq!(from_flags(&args), bare);
        args.types = vec!["a".to_owned(), "b.*".to_owned()];
        args.condition = Some("data.x > 1".to_owned());
        args.order_by = Some("subscriber".to_owned());
        args.fold = fold::parse("window:5s").ok();
        args.fold_by = vec!["type".to_owned()];
        args.gate = Some("notion".to_owned());
        let full = from_flags(&args);
        assert_eq!(full["match"], json!({"types":["a","b.*"],"where":"data.x > 1"}));
        assert_eq!((&full["order"], &full["gate"]), (&json!({"by":"subscriber"}), &json!("notion")));
        assert_eq!(full["fold"], json!({"mode":"window","window":"5s","by":["type"]}));
    }
}
