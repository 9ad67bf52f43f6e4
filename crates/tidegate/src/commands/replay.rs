//! `tidegate replay`: send again one event, a subscriber's past, or dead letters.
//!
//! One event is done at once; the others are jobs of the server, which this command follows to their end. Ctrl-C ends the
//! following, never the job.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use tidegate_core::time::{Span, Timestamp};

use crate::client::Answer;
use crate::clock;
use crate::commands::Globals;
use crate::commands::jobs::LINES;
use crate::commands::resource::Session;
use crate::failure::{Exit, Failure};

/// How often a running job is asked how far it is, at first and at most.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

const EXAMPLES: &str = "\
Examples:
  tidegate replay --event order-17-paid                        to every subscriber that wants it today
  tidegate replay --event order-17-paid --subscriber sub_01J8ZQ4WAV
  tidegate replay --subscriber sub_01J8ZQ4WAV --from 2h        what was accepted in the last two hours
  tidegate replay --subscriber sub_01J8ZQ4WAV --from 2026-01-31T09:00:00Z --to 2026-01-31T10:00:00Z --type 'order.*'
  tidegate replay --dead-letters --dry-run                     how many would be tried again
  tidegate replay --dead-letters --subscriber sub_01J8ZQ4WAV

A replay of events makes new deliveries, marked tidegate-replay: true. Dead letters are tried again under their own ids.
Ctrl-C stops following a job; the job goes on. See `tidegate jobs`.";

/// Flags of `replay`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").args(["event", "dead_letters", "from"]).required(true).multiple(true))]
pub(crate) struct ReplayArgs {
    /// Send one event again
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// The event's source, where several use its id
    #[arg(long, requires = "event")]
    source: Option<String>,
    /// Try exhausted deliveries again
    #[arg(long)]
    dead_letters: bool,
    /// Only to this subscriber
    #[arg(long, value_name = "ID")]
    subscriber: Option<String>,
    /// What was accepted since then: a time (RFC 3339), or how long ago (2h, 7d)
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// What was accepted before then
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only events of this type; repeatable, order.* works
    #[arg(long = "type", value_name = "TYPE", conflicts_with = "event")]
    types: Vec<String>,
    /// Only events whose delivery ended like this
    #[arg(long, value_parser = ["any", "delivered", "exhausted"], conflicts_with_all = ["event", "dead_letters"])]
    status: Option<String>,
    /// Say how many would be sent again, and send nothing
    #[arg(long, conflicts_with = "event")]
    dry_run: bool,
    /// Print the job and do not follow it
    #[arg(long, conflicts_with_all = ["event", "dry_run"])]
    no_wait: bool,
}

/// Sends again, and follows.
pub(crate) async fn run(args: ReplayArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    if let Some(event) = &args.event {
        return replay_event(&mut session, event, &args).await;
    }
    let body = selector(&args)?;
    let answer = match (&args.subscriber, args.dead_letters) {
        (_, true) => session.create(&["v1", "dead-letters", "replay"], &body).await?,
        (Some(id), false) => session.create(&["v1", "subscribers", id, "replay"], &body).await?,
        (None, false) => {
            return Err(Failure::usage("a replay of past events is for one subscriber")
                .fix("add --subscriber ID, or use --dead-letters")
                .into());
        }
    };
    if args.dry_run {
        return counted(&session, &answer);
    }
    let job = answer.json()?;
    if args.no_wait {
        session.show(&answer, &LINES)?;
        return Ok(ExitCode::SUCCESS);
    }
    follow(&mut session, job["id"].as_str().unwrap_or_default()).await
}

async fn replay_event(session: &mut Session, event: &str, args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    if args.from.is_some() || args.to.is_some() {
        return Err(Failure::usage("one event needs no --from or --to").fix("remove them").into());
    }
    let body = args.subscriber.as_ref().map_or_else(|| json!({}), |id| json!({ "subscriber": id }));
    let path = ["v1", "events", event, "replay"];
    let query: Vec<(&str, &str)> = args.source.iter().map(|source| ("source", source.as_str())).collect();
    let answer = session.create_with(&path, &query, &body).await?;
    if session.output.json {
        session.output.raw(&answer.body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = answer.json()?;
    for made in answer["deliveries"].as_array().into_iter().flatten() {
        let text = |name: &str| made[name].as_str().unwrap_or("-").to_owned();
        session.done(&format!("{event} goes to {} again as {}", text("subscriber"), text("id")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn selector(args: &ReplayArgs) -> Result<Value, Failure> {
    let mut body = Map::new();
    for (name, text) in [("from", &args.from), ("to", &args.to)] {
        if let Some(text) = text {
            body.insert(name.to_owned(), json!(instant(name, text)?));
        }
    }
    if !args.types.is_empty() {
        body.insert("types".to_owned(), json!(args.types));
    }
    if let Some(status) = &args.status {
        body.insert("status".to_owned(), json!(status));
    }
    if let Some(id) = args.subscriber.as_ref().filter(|_| args.dead_letters) {
        body.insert("subscriber".to_owned(), json!(id));
    }
    if args.dry_run {
        body.insert("dry_run".to_owned(), json!(true));
    }
    Ok(Value::Object(body))
}

/// A time, or how long ago.
fn instant(name: &str, text: &str) -> Result<Timestamp, Failure> {
    let ago = |span: Span| {
        let ms = i64::try_from(span.0.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_ms(clock::now().as_ms().saturating_sub(ms))
    };
    Timestamp::parse(text).or_else(|| Span::parse(text).map(ago)).ok_or_else(|| {
        Failure::usage(format!("--{name} is not a time: {text}"))
            .fix("write 2026-01-31T09:30:00Z, or how long ago: 30m, 2h, 7d")
    })
}

fn counted(session: &Session, answer: &Answer) -> anyhow::Result<ExitCode> {
    if session.output.json {
        session.output.raw(&answer.body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = answer.json()?;
    let text = if answer["complete"] == true {
        format!("{} would be sent again", answer["matched"])
    } else {
        format!("about {} would be sent again (judged by the first {})", answer["estimate"], answer["done"])
    };
    session.output.line(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows how far a job is until it ends or somebody presses Ctrl-C.
async fn follow(session: &mut Session, id: &str) -> anyhow::Result<ExitCode> {
    let bar = bar(session.output.json);
    let mut wait = LOOK_EVERY.0;
    loop {
        let answer = session.get(&["v1", "jobs", id]).await?;
        let job = answer.json()?;
        let number = |name: &str| job[name].as_u64();
        bar.set_length(number("total").unwrap_or(0).max(1));
        bar.set_position(number("done").unwrap_or(0));
        bar.set_message(format!("{} sent again", number("matched").unwrap_or(0)));
        if job["status"] != "running" {
            bar.finish_and_clear();
            session.show(&answer, &LINES)?;
            let code = if job["status"] == "failed" { Exit::Failed as u8 } else { 0 };
            return Ok(ExitCode::from(code));
        }
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => {
                bar.finish_and_clear();
                eprintln!("no longer following {id}; it goes on: `tidegate jobs get {id}`, `tidegate jobs stop {id}`");
                return Ok(ExitCode::SUCCESS);
            }
            () = clock::wait(wait) => wait = (wait * 2).min(LOOK_EVERY.1),
        }
    }
}

fn bar(is_hidden: bool) -> ProgressBar {
    let target = if is_hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    bar.set_style(
        ProgressStyle::with_template("{bar:32} {percent:>3} %  {msg}").expect("the template is a constant"),
    );
    bar
}
