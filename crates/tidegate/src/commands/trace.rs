//! `tidegate trace`: what became of one event, subscriber by subscriber.
//!
//! Reads `GET /v1/events/{id}/trace`. On a terminal the event stands in one line above a table; otherwise the
//! answer is passed on as it came.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::commands::Globals;
use crate::output::{self, Output, cell, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate trace 01J8ZQ4WAV
  tidegate trace order-17-paid --source shop     when two sources use the same id
  tidegate trace order-17-paid --json | jq -r '.subscribers[] | select(.outcome == \"exhausted\").delivery'

Outcomes: delivered, pending, retrying, held (the subscriber is inactive), exhausted (all retries failed),
cancelled, expired, compacted, unmatched (its match says no, and why), skipped (no order attribute).";

/// Flags of `trace`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    /// The event's own id
    #[arg(value_name = "EVENT_ID")]
    id: String,
    /// The event's source, where several use the same id
    #[arg(long)]
    source: Option<String>,
}

/// Asks and prints.
pub(crate) async fn run(args: TraceArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let output = Output::new(globals.json);
    let query: Vec<(&str, &str)> = args.source.iter().map(|source| ("source", source.as_str())).collect();
    let answer = Client::new(globals)?.get(&["v1", "events", &args.id, "trace"], &query).await?;
    if output.json {
        output.raw(&answer.body)?;
    } else {
        output.line(&text(&answer.json()?, None))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(trace: &Value, width: Option<u16>) -> String {
    let event = trace.get("event").unwrap_or(&Value::Null);
    let subject = match cell(event, "subject").as_str() {
        "-" => String::new(),
        subject => format!("  about {subject}"),
    };
    let headline = plain(&format!(
        "{}  {}  from {}{subject}  at {}",
        cell(event, "id"),
        cell(event, "type"),
        cell(event, "source"),
        cell(event, "time"),
    ));
    let subscribers = trace.get("subscribers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if subscribers.is_empty() {
        return format!("{headline}\n\nNo subscriber existed. Make one: tidegate subscribers create --help");
    }
    let mut rows: Vec<Vec<String>> = subscribers.iter().map(row).collect();
    let mut header = vec!["SUBSCRIBER", "OUTCOME", "DELIVERY", "ATTEMPTS", "REASON"];
    // Where nothing is folded nobody needs to read about windows.
    if subscribers.iter().any(|entry| entry.get("window").is_some()) {
        header.insert(4, "WINDOW");
        for (row, entry) in rows.iter_mut().zip(subscribers) {
            row.insert(4, window(entry));
        }
    }
    format!("{headline}\n\n{}", output::table(&header, &rows, width))
}

/// The window that the event joined: its key, and until when it is open or what closed it.
fn window(entry: &Value) -> String {
    let Some(window) = entry.get("window") else { return "-".to_owned() };
    let end = match cell(window, "closed_by").as_str() {
        "-" => format!("open until {}", cell(window, "due_at")),
        "cancelled" | "cancel_on" | "deleted" => "cancelled".to_owned(),
        closed_by => format!("closed by {closed_by}"),
    };
    format!("{} {end}", cell(window, "key"))
}

/// `delivery` is an id, or an object that carries one together with its attempts.
fn row(entry: &Value) -> Vec<String> {
    let delivery = match cell(entry, "delivery.id").as_str() {
        "-" => cell(entry, "delivery"),
        id => id.to_owned(),
    };
    let attempts = match cell(entry, "attempts").as_str() {
        "-" => cell(entry, "delivery.attempts"),
        attempts => attempts.to_owned(),
    };
    vec![cell(entry, "subscriber"), cell(entry, "outcome"), delivery, attempts, cell(entry, "reason")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trace_reads_as_one_line_and_a_table() {
        let trace = json!({
            "event": {"id":"e1","source":"shop","type":"order.paid","subject":"order/17",
                      "time":"2026-01-31T09:30:00.000Z","data":{}},
            "subscribers": [
                {"subscriber":"sub_a","outcome":"delivered","delivery":"dlv_1","attempts":1},
                {"subscriber":"sub_b","outcome":"retrying","delivery":{"id":"dlv_2","attempts":3},"reason":"503"},
                {"subscriber":"sub_c","outcome":"unmatched","reason":"type is not in match.types"}
            ]
        });
        let expected = "\
e1  order.paid  from shop  about order/17  at 2026-01-31T09:30:00.000Z

SUBSCRIBER  OUTCOME    DELIVERY  ATTEMPTS  REASON
sub_a       delivered  dlv_1     1         -
sub_b       retrying   dlv_2     3         503
sub_c       unmatched  -         -         type is not in match.types";
        assert_eq!(text(&trace, Some(110)), expected);
    }

    #[test]
    fn a_trace_of_a_folded_event_shows_its_windows() {
        let window = |closed_by: &str| {
            let mut window = json!({"key":{"type":"a"},"opened_at":"now","due_at":"soon"});
            if !closed_by.is_empty() {
                window["closed_by"] = closed_by.into();
            }
            window
        };
        let trace = json!({"event": {"id":"e1","source":"s","type":"a","time":"now"}, "subscribers": [
            {"subscriber":"sub_a","outcome":"pending","window":window("")},
            {"subscriber":"sub_b","outcome":"delivered","delivery":"dlv_1","attempts":1,"window":window("quiet")},
            {"subscriber":"sub_c","outcome":"cancelled","window":window("cancelled"),"reason":"by request"},
            {"subscriber":"sub_d","outcome":"unmatched","reason":"no"}
        ]});
        let expected = "\
e1  a  from s  at now

SUBSCRIBER  OUTCOME    DELIVERY  ATTEMPTS  WINDOW                        REASON
sub_a       pending    -         -         {\"type\":\"a\"} open until soon  -
sub_b       delivered  dlv_1     1         {\"type\":\"a\"} closed by quiet  -
sub_c       cancelled  -         -         {\"type\":\"a\"} cancelled        by request
sub_d       unmatched  -         -         -                             no";
        assert_eq!(text(&trace, Some(110)), expected);
    }

    #[test]
    fn a_trace_without_subscribers_says_what_to_do() {
        let trace = json!({"event":{"id":"e1","source":"s","type":"t","time":"now"},"subscribers":[]});
        let expected = "e1  t  from s  at now\n\n\
            No subscriber existed. Make one: tidegate subscribers create --help";
        assert_eq!(text(&trace, None), expected);
    }
}
