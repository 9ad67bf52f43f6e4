//! `tidegate tail`: events and results of attempts as they happen.
//!
//! Reads `GET /v1/stream` and prints a line for each. When the connection is lost it comes back and goes on where it
//! was: events are neither missed nor printed twice. Only the first connection may fail; later it tries again until it
//! is stopped, or until the server refuses the key.

mod frames;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use self::frames::{Frame, Frames};
use crate::client::Client;
use crate::clock::wait;
use crate::commands::Globals;
use crate::commands::deliveries::few_events;
use crate::failure::{Exit, Failure};
use crate::output::{Colour, Output, cell, plain};

/// The server gives a sign of life every 15 s; three missed ones mean that it is gone.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The first pause before coming back; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  tidegate tail
  tidegate tail --types 'order.*' --kinds event
  tidegate tail --subscriber sub_01J8ZQ4WAV --kinds delivery
  tidegate tail --after c0 --json | jq -c .data      everything that is kept, then what comes

In JSON each line is {\"kind\":\"event|delivery|gap\",\"id\":…,\"data\":{…}}; pass an id to --after to go on from there.";

/// Flags of `tail`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TailArgs {
    /// Only events of these types (patterns such as `order.*`, separated by commas)
    #[arg(long, value_name = "PATTERNS")]
    types: Option<String>,
    /// Only events of these sources
    #[arg(long, value_name = "PATTERNS")]
    sources: Option<String>,
    /// Only deliveries of this subscriber
    #[arg(long, value_name = "ID")]
    subscriber: Option<String>,
    /// `event`, `delivery` or both
    #[arg(long, value_name = "KINDS")]
    kinds: Option<String>,
    /// Go on after this id; `c0` begins with the oldest event that is kept
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// End after this many lines
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Follows until it is stopped, or until it has printed enough.
pub(crate) async fn run(args: TailArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let client = Client::new(globals)?;
    let mut tail = Tail {
        output: Output::new(globals.json),
        left: args.count.unwrap_or(u64::MAX),
        after: args.after.clone(),
        got_any: false,
    };
    let mut pause = PAUSE_MIN;
    let mut body = open(&client, &args, tail.after.as_deref()).await?;
    loop {
        tail.got_any = false;
        let reason = tail.follow(body).await?;
        if tail.left == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("the stream ended ({}); coming back", plain(&reason));
        body = loop {
            pause = if tail.got_any { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tail.got_any = false;
            wait(pause).await;
            match open(&client, &args, tail.after.as_deref()).await {
                Ok(body) => break body,
                Err(failure) if failure.exit == Exit::Later => {}
                Err(failure) => return Err(failure.into()),
            }
        };
    }
}

async fn open(client: &Client, args: &TailArgs, after: Option<&str>) -> Result<Incoming, Failure> {
    let filters = [
        ("types", args.types.as_deref()),
        ("sources", args.sources.as_deref()),
        ("subscriber", args.subscriber.as_deref()),
        ("kinds", args.kinds.as_deref()),
        ("after", after),
    ];
    let query: Vec<(&str, &str)> =
        filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    client.stream(&["v1", "stream"], &query).await
}

struct Tail {
    output: Output,
    /// Lines still to print.
    left: u64,
    /// The last id that was seen.
    after: Option<String>,
    /// Something came since the last connection.
    got_any: bool,
}

impl Tail {
    /// Prints what comes until enough is printed or the stream ends; then says why it ended.
    async fn follow(&mut self, mut body: Incoming) -> anyhow::Result<String> {
        let mut frames = Frames::default();
        loop {
            let piece = match timeout(SILENCE_MAX, body.frame()).await {
                Err(_) => return Ok("no sign of life".to_owned()),
                Ok(None) => return Ok("the server closed it".to_owned()),
                Ok(Some(Err(error))) => return Ok(error.to_string()),
                Ok(Some(Ok(piece))) => piece,
            };
            let Ok(bytes) = piece.into_data() else { continue };
            self.got_any = true;
            for frame in frames.feed(&bytes) {
                self.show(&frame)?;
                if self.left == 0 {
                    return Ok(String::new());
                }
            }
        }
    }

    fn show(&mut self, frame: &Frame) -> anyhow::Result<()> {
        if !frame.data.is_empty() {
            let text = if self.output.json { json_line(frame) } else { self.row(frame) };
            self.output.line(&text)?;
            self.left -= 1;
        }
        if !frame.id.is_empty() {
            self.after = Some(frame.id.clone());
        }
        Ok(())
    }

    /// One line for people; columns as wide as what they usually hold.
    fn row(&self, frame: &Frame) -> String {
        let data: Value = serde_json::from_str(&frame.data).unwrap_or(Value::Null);
        match frame.kind.as_str() {
            "event" => plain(&format!(
                "{:<24}  {:<9}  {:<24}  {:<16}  {}",
                cell(&data, "time"),
                "event",
                cell(&data, "type"),
                cell(&data, "source"),
                cell(&data, "id"),
            )),
            "delivery" => self.delivery_row(&data),
            _ => self
                .output
                .paint
                .text(Colour::Grey, "some results of attempts were missed: tidegate deliveries list"),
        }
    }

    fn delivery_row(&self, data: &Value) -> String {
        let status = cell(data, "status");
        let colour = match status.as_str() {
            "delivered" => Colour::Green,
            "exhausted" => Colour::Red,
            _ => Colour::Grey,
        };
        let answer = match cell(data, "attempt.status").as_str() {
            "-" => cell(data, "attempt.error"),
            status => status.to_owned(),
        };
        let took = data.pointer("/attempt/phases/total_us").and_then(Value::as_u64).unwrap_or(0);
        let detail = format!("#{} {answer} {} ms", cell(data, "attempt.n"), took.div_ceil(1_000));
        let (start, rest) = (
            format!("{:<24}  ", cell(data, "attempt.at")),
            format!(
                "  {:<24}  {}  {}  {}",
                detail,
                cell(data, "subscriber"),
                cell(data, "id"),
                few_events(data)
            ),
        );
        format!(
            "{}{}{}",
            plain(&start),
            self.output.paint.text(colour, &plain(&format!("{status:<9}"))),
            plain(&rest)
        )
    }
}

/// The data is JSON already and stays as it came, on one line: an event keeps the white space it was sent with.
fn json_line(frame: &Frame) -> String {
    let data = frame.data.replace('\n', " ");
    let text = |text: &str| serde_json::to_string(text).expect("text is always JSON");
    format!("{{\"kind\":{},\"id\":{},\"data\":{data}}}", text(&frame.kind), text(&frame.id))
}
