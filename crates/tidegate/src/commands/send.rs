//! `tidegate send`: one event from flags, or any number from a file.
//!
//! A thread reads and cuts batches (`events.rs`), workers post them, a bounded channel lies between: memory does
//! not grow with the file. With one worker (the default) the server sees the events in the order of the file.
//! What the server refuses for now (429, 503) is sent again after its `Retry-After`, a bounded number of times.
//! Does not: repeat a request whose fate is unknown. Events with ids can simply be sent again.

mod events;
mod tally;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use http::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use self::events::Batch;
use self::tally::Tally;
use crate::client::{Answer, Client};
use crate::clock;
use crate::commands::Globals;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Times one request is sent again after the server refused it for now.
const REFUSALS_MAX: u32 = 8;
/// The longest `Retry-After` a terminal waits for; beyond it the command ends and says when to come back.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  tidegate send --type order.paid --source shop --data '{\"total\":12}'
  tidegate send --type order.paid --source shop --id order-17-paid --data @order.json
  tidegate send --file events.ndjson
  generate | tidegate send --file - --parallel 4

A file holds NDJSON, one JSON array, or one JSON object. Each event looks like
  {\"id\":\"optional\",\"source\":\"shop\",\"type\":\"order.paid\",\"subject\":\"order/17\",\"data\":{\"total\":12}}

Give events an id of your own and sending them again is safe: a repeat counts as a duplicate. An event whose id is
taken by other content is a conflict: nothing changes and the exit code is 1.";

/// Flags of `send`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SendArgs {
    /// What happened, for example order.paid
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "file", conflicts_with = "file")]
    type_name: Option<String>,
    /// The service that says so
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    source: Option<String>,
    /// The event's id, unique within its source; the server makes one otherwise
    #[arg(long, conflicts_with = "file")]
    id: Option<String>,
    /// What it happened to
    #[arg(long, conflicts_with = "file")]
    subject: Option<String>,
    /// When it happened (RFC 3339); otherwise when the server accepts it
    #[arg(long, conflicts_with = "file")]
    time: Option<String>,
    /// The payload: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    data: Option<String>,
    /// Send the events of a file; - for stdin
    #[arg(long, short, value_name = "FILE")]
    file: Option<String>,
    /// Requests in flight; more than 1 gives up the file's order
    #[arg(long, value_name = "N", default_value_t = 1, requires = "file",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
}

/// Sends and counts.
pub(crate) async fn run(args: SendArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let output = Output::new(globals.json);
    let client = Client::new(globals)?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    let tally = match &args.file {
        Some(file) => send_file(&client, file, usize::from(args.parallel), &bar).await?,
        None => send_one(client, &args, &bar).await?,
    };
    bar.finish_and_clear();
    output.line(&if output.json { tally.json().to_string() } else { tally.text(output.paint) })?;
    Ok(if tally.conflicts > 0 { ExitCode::from(Exit::Failed as u8) } else { ExitCode::SUCCESS })
}

async fn send_one(mut client: Client, args: &SendArgs, bar: &ProgressBar) -> anyhow::Result<Tally> {
    let data = args.data.as_deref().map(read_data).transpose()?;
    let body = events::render(&events::Fields {
        id: args.id.as_deref(),
        source: args.source.as_deref(),
        type_name: args.type_name.as_deref(),
        subject: args.subject.as_deref(),
        time: args.time.as_deref(),
        data: data.as_deref(),
    })?;
    let mut tally = Tally::default();
    let answer = post(&mut client, &Batch { first: 1, events: 1, body: body.into() }, bar).await?;
    tally.add(&answer)?;
    Ok(tally)
}

/// `--data` as JSON, byte for byte.
fn read_data(argument: &str) -> anyhow::Result<Box<RawValue>> {
    let text = match argument.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("can not read {path}"))?,
        None if argument == "-" => io::read_to_string(io::stdin()).context("can not read stdin")?,
        None => argument.to_owned(),
    };
    RawValue::from_string(text).map_err(|error| {
        Failure::usage("--data is not JSON")
            .detail(error.to_string())
            .fix("put it in single quotes: --data '{\"total\":12}', or in a file: --data @order.json")
            .into()
    })
}

type Batches = Arc<Mutex<Option<mpsc::Receiver<Batch>>>>;

async fn send_file(client: &Client, path: &str, parallel: usize, bar: &ProgressBar) -> anyhow::Result<Tally> {
    let reader = open(path, bar)?;
    let (sender, receiver) = mpsc::channel(parallel);
    // A thread of its own, not the runtime's: a failed command must be able to end while stdin stays open.
    let reading = thread::spawn(move || events::cut(reader, |batch| sender.blocking_send(batch).is_ok()));
    let batches: Batches = Arc::new(Mutex::new(Some(receiver)));
    let tally = Arc::new(std::sync::Mutex::new(Tally::default()));
    let mut workers = JoinSet::new();
    for _ in 0..parallel {
        let worker = work(client.another(), Arc::clone(&batches), Arc::clone(&tally), bar.clone());
        workers.spawn(worker);
    }
    let mut failure = None;
    while let Some(ended) = workers.join_next().await {
        failure = failure.or(ended?.err());
    }
    bar.finish_and_clear();
    let tally = std::mem::take(&mut *tally.lock().expect("no worker panicked"));
    if let Some(failure) = failure {
        return Err(with_progress(failure, &tally).into());
    }
    let read = reading.join().expect("the reader does not panic");
    let count = read.map_err(|error| with_progress(unreadable(path, &error), &tally))?;
    if count == 0 {
        return Err(Failure::usage(format!("no events in {path}")).fix("see `tidegate send --help`").into());
    }
    Ok(tally)
}

/// Shows nothing until a second batch makes the wait worth watching.
fn open(path: &str, bar: &ProgressBar) -> anyhow::Result<Box<dyn io::BufRead + Send>> {
    if path == "-" {
        bar.set_style(style("{spinner} {msg}"));
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    if let Ok(metadata) = file.metadata()
        && metadata.is_file()
    {
        bar.set_length(metadata.len());
    }
    bar.set_style(style("{bar:32} {percent:>3} %  {msg}"));
    let counted: Box<dyn Read + Send> = Box::new(bar.wrap_read(file));
    Ok(Box::new(BufReader::with_capacity(64 * 1024, counted)))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}

fn unreadable(path: &str, error: &io::Error) -> Failure {
    let what = if path == "-" { "stdin" } else { path };
    Failure::new(Exit::Failed, format!("can not read events from {what}")).detail(error.to_string())
}

/// Takes batches until there are none, or until someone failed and took the channel away.
async fn work(
    mut client: Client,
    batches: Batches,
    tally: Arc<std::sync::Mutex<Tally>>,
    bar: ProgressBar,
) -> Result<(), Failure> {
    loop {
        let batch = match &mut *batches.lock().await {
            Some(receiver) => receiver.recv().await,
            None => None,
        };
        let Some(batch) = batch else { return Ok(()) };
        let sent = match post(&mut client, &batch, &bar).await {
            Ok(answer) => tally.lock().expect("no worker panicked").add(&answer),
            Err(failure) => Err(failure.detail(batch.name())),
        };
        if sent.is_err() {
            *batches.lock().await = None;
            return sent;
        }
        let counted = tally.lock().expect("no worker panicked").counted();
        bar.set_message(format!("{counted} events"));
        if batch.first > 1 && bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

/// Posts one batch, waiting as often as the server asks for it, within bounds.
async fn post(client: &mut Client, batch: &Batch, bar: &ProgressBar) -> Result<Answer, Failure> {
    let mut refusals = 0;
    loop {
        let answer = client.send(Method::POST, &["v1", "events"], batch.body.clone()).await?;
        match answer.status {
            // A lone event in conflict: the results say so.
            StatusCode::CONFLICT if Tally::can_read(&answer) => return Ok(answer),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {}
            _ => return client.success(answer),
        }
        let wait = Duration::from_secs(answer.retry_after.unwrap_or(1 << refusals.min(5)));
        refusals += 1;
        if refusals > REFUSALS_MAX || wait > REFUSAL_WAIT_MAX {
            return Err(client.problem(&answer));
        }
        bar.suspend(|| eprintln!("refused for now ({}), waiting {} s", answer.status, wait.as_secs()));
        clock::wait(wait).await;
    }
}

fn with_progress(failure: Failure, tally: &Tally) -> Failure {
    match tally.counted() {
        0 => failure.detail("no event was accepted"),
        counted => failure.detail(format!(
            "{counted} other events were sent before; sending all again is safe if they have ids"
        )),
    }
}
