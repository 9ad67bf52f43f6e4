//! `tidegate verify`: is this webhook's signature right, and if not, which part is wrong?
//!
//! Works offline, with the same code that signs. The body is taken byte for byte: what a parser printed again is
//! not what was signed.

use std::io::{self, Read};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tidegate_core::sign;
use tidegate_core::time::Timestamp;

use crate::clock;
use crate::commands::Globals;
use crate::failure::{Exit, Failure};
use crate::output::{Colour, Output, plain};

const EXAMPLES: &str = "\
Examples:
  tidegate verify --secret whsec_… --headers headers.txt --body @body.json
  tidegate verify --secret whpk_… --headers headers.txt --body @body.json       ed25519: the public key is enough
  tidegate verify --secret whsec_… --id dlv_01J8ZQ4WAV --timestamp 1764547200 --signature 'v1,…' --body - < body.json

headers.txt holds the request's headers as they came, a `name: value` on each line; only webhook-id,
webhook-timestamp and webhook-signature are looked at. The body must be the bytes as received.
An old request counts as wrong: name the time it arrived with --now.

Exit codes: 0 the signature is right, 1 it is not, 2 the command line is wrong.";

/// Flags of `verify`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// The subscriber's signing secret, or its public key
    #[arg(long, value_name = "whsec_…|whpk_…")]
    secret: String,
    /// The header webhook-id
    #[arg(long, required_unless_present = "headers", conflicts_with = "headers")]
    id: Option<String>,
    /// The header webhook-timestamp
    #[arg(long, required_unless_present = "headers", conflicts_with = "headers")]
    timestamp: Option<String>,
    /// The header webhook-signature
    #[arg(long, required_unless_present = "headers", conflicts_with = "headers")]
    signature: Option<String>,
    /// A file with the request's headers; - for stdin
    #[arg(long, value_name = "FILE")]
    headers: Option<String>,
    /// The body: @FILE, - for stdin, or the text itself
    #[arg(long)]
    body: String,
    /// Check as if it were this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    now: Option<Timestamp>,
}

fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    Timestamp::parse(text).ok_or("expected an RFC 3339 time such as 2026-01-31T09:30:00Z")
}

/// The three headers of a signed request; empty when missing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Signed {
    id: String,
    timestamp: String,
    signature: String,
}

/// Checks and says.
pub(crate) fn run(args: VerifyArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let output = Output::new(globals.json);
    let signed = match &args.headers {
        Some(path) if path == "-" && args.body == "-" => {
            return Err(Failure::usage("--headers and --body can not both come from stdin").into());
        }
        Some(path) => parse_headers(&read_headers(path)?),
        None => Signed {
            id: args.id.unwrap_or_default(),
            timestamp: args.timestamp.unwrap_or_default(),
            signature: args.signature.unwrap_or_default(),
        },
    };
    let body = read_body(&args.body)?;
    let now = args.now.unwrap_or_else(clock::now);
    let verdict = sign::verify(&args.secret, &signed.id, &signed.timestamp, &signed.signature, &body, now);
    let complaint = verdict.err().map(|complaint| complaint.to_string());
    let exit = if complaint.is_none() { ExitCode::SUCCESS } else { ExitCode::from(Exit::Failed as u8) };
    if output.json {
        let mut answer = json!({"verified": complaint.is_none(), "id": signed.id});
        if let Some(complaint) = complaint {
            answer["complaint"] = complaint.into();
        }
        output.line(&answer.to_string())?;
        return Ok(exit);
    }
    let line = match complaint {
        None => format!("{} the signature is right", output.paint.text(Colour::Green, "✓")),
        Some(complaint) => format!("{} {}", output.paint.text(Colour::Red, "✗"), plain(&complaint)),
    };
    output.line(&line)?;
    Ok(exit)
}

fn read_headers(path: &str) -> anyhow::Result<String> {
    match path {
        "-" => io::read_to_string(io::stdin()).context("can not read stdin"),
        path => std::fs::read_to_string(path).with_context(|| format!("can not read {path}")),
    }
}

fn read_body(argument: &str) -> anyhow::Result<Vec<u8>> {
    if argument == "-" {
        let mut body = Vec::new();
        io::stdin().read_to_end(&mut body).context("can not read stdin")?;
        return Ok(body);
    }
    match argument.strip_prefix('@') {
        Some(path) => std::fs::read(path).with_context(|| format!("can not read {path}")),
        None => Ok(argument.as_bytes().to_vec()),
    }
}

/// Finds the three headers among `name: value` lines; a request line and curl's `> ` do no harm.
fn parse_headers(text: &str) -> Signed {
    let mut signed = Signed::default();
    for line in text.lines() {
        let Some((name, value)) = line.trim_start_matches(['>', '<', ' ']).split_once(':') else { continue };
        let target = match name.trim().to_ascii_lowercase().as_str() {
            "webhook-id" => &mut signed.id,
            "webhook-timestamp" => &mut signed.timestamp,
            "webhook-signature" => &mut signed.signature,
            _ => continue,
        };
        value.trim().clone_into(target);
    }
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_whatever_their_case_and_surroundings() {
        let text = "POST /hook HTTP/1.1\r\nHost: example.com:8701\r\nWebhook-Id: dlv_1\r\n\
            > webhook-timestamp:1764547200\nWEBHOOK-SIGNATURE:  v1,abc= v1,def=  \nx: y\n\n";
        let expected = Signed {
            id: "dlv_1".to_owned(),
            timestamp: "1764547200".to_owned(),
            signature: "v1,abc= v1,def=".to_owned(),
        };
        assert_eq!(parse_headers(text), expected);
        assert_eq!(parse_headers("nothing here"), Signed::default());
    }
}
