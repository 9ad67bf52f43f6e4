//! `tidegate windows`: what folds hold, and what ends it before its time.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tidegate_core::time::Timestamp;

use crate::clock;
use crate::commands::Globals;
use crate::commands::resource::{Column, Page, Session};
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  tidegate windows                                        what is held, since when, until when
  tidegate windows --subscriber sub_01J8ZQ4WAV
  tidegate windows flush                                  deliver everything that is held, now
  tidegate windows flush --subscriber sub_01J8ZQ4WAV --fold-key type=order.paid
  tidegate windows cancel --subscriber sub_01J8ZQ4WAV --fold-key '{\"data.plan\":\"7\"}'
  tidegate windows cancel --all

Flush and cancel need an admin key. What is cancelled is not delivered; its events stay, and `tidegate replay` sends them.";

const COLUMNS: [Column; 8] = [
    ("SUBSCRIBER", "subscriber"),
    ("MODE", "mode"),
    ("COUNT", "count"),
    ("BYTES", "bytes"),
    ("OPENED", "opened_at"),
    ("DUE IN", "due_in"),
    ("KEY", "key"),
    ("REASON", "reason"),
];

/// Flags of `windows`.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct WindowsArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Only those of one subscriber
    #[arg(long, value_name = "ID")]
    subscriber: Option<String>,
    #[command(flatten)]
    page: Page,
}

#[derive(Subcommand)]
enum Verb {
    /// List open windows, oldest first; the same as no verb
    List {
        /// Only those of one subscriber
        #[arg(long, value_name = "ID")]
        subscriber: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// Close windows now and deliver what they hold; all of them unless told which
    Flush(Selector),
    /// End windows without a delivery
    #[command(group = clap::ArgGroup::new("whose").required(true).args(["subscriber", "all"]))]
    Cancel {
        #[command(flatten)]
        selector: Selector,
        /// Every window of the project
        #[arg(long, conflicts_with = "fold_key")]
        all: bool,
    },
}

#[derive(Args)]
struct Selector {
    /// Only those of one subscriber
    #[arg(long, value_name = "ID")]
    subscriber: Option<String>,
    /// Only with this key: its JSON as the list shows it, or PATH=VALUE for each member (repeatable)
    #[arg(long, value_name = "KEY")]
    fold_key: Vec<String>,
}

/// Lists windows or ends them.
pub(crate) async fn run(args: WindowsArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    match args.verb {
        None => list(&mut session, args.subscriber.as_deref(), &args.page).await?,
        Some(Verb::List { subscriber, page }) => list(&mut session, subscriber.as_deref(), &page).await?,
        Some(Verb::Flush(selector)) => end(&mut session, "flush", "closed", body(&selector, false)?).await?,
        Some(Verb::Cancel { selector, all }) => {
            end(&mut session, "cancel", "cancelled", body(&selector, all)?).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(session: &mut Session, subscriber: Option<&str>, page: &Page) -> anyhow::Result<()> {
    let empty = "No window is open. Fold events: tidegate subscribers create --name digest --to URL --fold window:60s";
    let now = clock::now();
    let tell = |item: &mut Value| item["due_in"] = due_in(item, now).into();
    session.list_edited(&["v1", "windows"], &[("subscriber", subscriber)], page, &COLUMNS, empty, &tell).await
}

/// How long a window still has, by this machine's clock.
fn due_in(item: &Value, now: Timestamp) -> String {
    if item.get("closed_at").is_some() {
        return "closed".to_owned();
    }
    let Some(due_at) = item["due_at"].as_str().and_then(Timestamp::parse) else { return "-".to_owned() };
    match due_at.since(now).as_secs() {
        0 => "now".to_owned(),
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Calls until nothing is left.
async fn end(session: &mut Session, verb: &str, done: &str, body: Value) -> anyhow::Result<()> {
    let mut windows = 0;
    loop {
        let answer = session.create(&["v1", "windows", verb], &body).await?.json()?;
        windows += answer["windows"].as_u64().unwrap_or(0);
        if answer["complete"] != false {
            break;
        }
    }
    if session.output.json {
        session.output.line(&json!({ "windows": windows, "complete": true }).to_string())?;
    } else if windows == 0 {
        let hint = hint(&body).unwrap_or_default();
        session.output.line(&format!("No such window is open.{hint} See what is: tidegate windows"))?;
    } else {
        session.done(&counted(windows, done))?;
    }
    Ok(())
}

/// A member that was read as a number or the like may have been meant as a text.
fn hint(body: &Value) -> Option<String> {
    let (path, value) = body["key"].as_object()?.iter().find(|(_, value)| !value.is_string())?;
    let kind = match value {
        Value::Number(_) => "the number",
        Value::Object(_) | Value::Array(_) => return None,
        _ => "the value",
    };
    Some(format!(
        " `{path}` was read as {kind} {value}; as a text it is written --fold-key '{path}=\"{value}\"'."
    ))
}

/// `1 window closed`, `2 windows closed`.
pub(crate) fn counted(windows: u64, done: &str) -> String {
    format!("{windows} window{} {done}", if windows == 1 { "" } else { "s" })
}

fn body(selector: &Selector, all: bool) -> Result<Value, Failure> {
    let mut body = Map::new();
    if let Some(subscriber) = &selector.subscriber {
        body.insert("subscriber".to_owned(), subscriber.as_str().into());
    }
    if !selector.fold_key.is_empty() {
        body.insert("key".to_owned(), key(&selector.fold_key)?.into());
    }
    if all {
        body.insert("all".to_owned(), true.into());
    }
    Ok(Value::Object(body))
}

/// A key as one JSON object, or member by member. A member's value is JSON where it reads as such, else a text.
fn key(given: &[String]) -> Result<Map<String, Value>, Failure> {
    let wrong = |text: &str| {
        Failure::usage(format!("--fold-key {text} is no key"))
            .detail("write its JSON as `tidegate windows` shows it, or PATH=VALUE for each member")
    };
    if let [whole] = given
        && whole.trim_start().starts_with('{')
    {
        return serde_json::from_str(whole).map_err(|_| wrong(whole));
    }
    let mut members = Map::new();
    for text in given {
        let (path, value) = text.split_once('=').ok_or_else(|| wrong(text))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        if members.insert(path.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("--fold-key names {path} twice"))
                .detail("a key has one value for each of its members; ask once for each window"));
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_json_or_its_members() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let read = |given: &[&str]| key(&texts(given)).ok().map(Value::Object);
        let both = Some(json!({"type": "order.paid", "data.plan": 7}));
        assert_eq!(read(&[r#"{"data.plan":7,"type":"order.paid"}"#]), both);
        assert_eq!(read(&["type=order.paid", "data.plan=7"]), both);
        assert_eq!(
            read(&["data.plan=\"7\"", "data.x=null"]),
            Some(json!({"data.plan": "7", "data.x": null}))
        );
        assert_eq!(read(&["subject=a=b"]), Some(json!({"subject": "a=b"})));
        assert_eq!((read(&["type"]), read(&["{"])), (None, None));
        assert_eq!(read(&["type=a", "type=b"]), None, "which one is meant?");
    }

    #[test]
    fn a_key_that_found_nothing_may_have_been_meant_as_a_text() {
        let told = hint(&json!({ "key": { "type": "t", "data.plan": 7 } })).unwrap();
        assert!(told.contains("the number 7") && told.contains("--fold-key 'data.plan=\"7\"'"), "{told}");
        assert_eq!(hint(&json!({ "key": { "data.plan": "7" } })), None);
        assert_eq!(hint(&json!({})), None);
    }

    #[test]
    fn what_is_left_is_told_in_two_units_at_most() {
        let now = Timestamp::parse("2026-01-31T09:30:00Z").unwrap();
        for (due_at, expected) in [
            ("2026-01-31T09:29:00Z", "now"),
            ("2026-01-31T09:30:00.900Z", "now"),
            ("2026-01-31T09:30:42Z", "42s"),
            ("2026-01-31T09:31:05Z", "1m 5s"),
            ("2026-01-31T11:45:00Z", "2h 15m"),
        ] {
            assert_eq!(due_in(&json!({ "due_at": due_at }), now), expected, "{due_at}");
        }
    }
}
