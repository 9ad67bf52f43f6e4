//! `tidegate sink`: a receiver for trying things out.
//!
//! Shows every request with the check of its signature, and answers as told: with a status, slowly, or failing now
//! and then. `receive.rs` speaks HTTP, `request.rs` is what one request was.
//! Does not: keep anything.

mod receive;
mod request;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tidegate_core::sign::Signer;
use tidegate_core::time::Span;
use tokio::net::TcpListener;

use self::receive::Receiver;
use crate::commands::Globals;
use crate::failure::{Exit, Failure};
use crate::output::{Colour, Output};

const EXAMPLES: &str = "\
Examples:
  tidegate sink
  tidegate sink --secret whsec_…                   checks every signature with it
  tidegate sink --status 503 --retry-after 5s      refuses everything for now
  tidegate sink --flaky 0.3 --delay 200ms          three answers in ten are 500, and each takes a while
  tidegate sink --listen 127.0.0.1:0 --count 3     any free port; ends after three requests

Prints one line per request on a terminal, otherwise one JSON object per line (the first says where it listens):
  at, method, path, id, timestamp, verified (true, false, or null without --secret), complaint, duplicate (this
  webhook-id was here before), status (the answer given), and body, or body_base64 when it is not JSON

Exit codes: 0, or 1 when --secret is given and a signature was wrong.";

/// Flags of `sink`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SinkArgs {
    /// Where to listen; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8701")]
    listen: String,
    /// A signing secret to check with (repeatable: one of them must fit)
    #[arg(long = "secret", value_name = "whsec_…", value_parser = parse_secret)]
    secrets: Vec<String>,
    /// The status to answer with
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,
    /// Wait this long before each answer, for example 200ms
    #[arg(long, value_name = "DURATION", value_parser = parse_span)]
    delay: Option<Span>,
    /// The share of answers that are 500 instead, from 0 to 1
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    flaky: Option<f64>,
    /// Send Retry-After with every answer that is not 2xx
    #[arg(long, value_name = "DURATION", value_parser = parse_span)]
    retry_after: Option<Span>,
    /// End after this many requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print no requests, only how many there were at the end
    #[arg(long, short)]
    quiet: bool,
    /// Makes --flaky repeatable
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn parse_secret(text: &str) -> Result<String, String> {
    Signer::parse(text).map(|_| text.to_owned()).map_err(|problem| problem.to_string())
}

fn parse_span(text: &str) -> Result<Span, &'static str> {
    Span::parse(text).ok_or("expected a duration such as 250ms, 5s or 1m")
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or("expected a share from 0 to 1, for example 0.3")
}

/// Receives until `--count` is reached or the user interrupts.
pub(crate) async fn run(args: SinkArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let output = Output::new(globals.json);
    let listener = TcpListener::bind(&args.listen).await.map_err(|error| {
        Failure::new(Exit::Failed, format!("can not listen on {}", args.listen))
            .detail(error.to_string())
            .fix("name another port: --listen 127.0.0.1:0 takes any free one")
    })?;
    let welcome = Welcome::new(listener.local_addr()?, globals);
    output.line(&if output.json { welcome.json() } else { welcome.text(&output) })?;
    let receiver = Receiver::new(args, output);
    let wrong = receiver.run(listener).await?;
    Ok(if wrong > 0 { ExitCode::from(Exit::Failed as u8) } else { ExitCode::SUCCESS })
}

/// Where the sink is, and how to make Tidegate send there.
struct Welcome {
    address: String,
    range: String,
    cli: String,
    curl: String,
}

impl Welcome {
    fn new(bound: SocketAddr, globals: &Globals) -> Self {
        // A sink on every address is reached on this machine by loopback.
        let ip = match bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let address = format!("http://{}/", SocketAddr::new(ip, bound.port()));
        let api = globals.url.trim_end_matches('/');
        let body = json!({"name": "sink", "destination": {"kind": "webhook", "url": address}});
        let (project_flag, project_header) = match &globals.project {
            Some(project) => {
                (format!(" --project {project}"), format!(" -H 'x-tidegate-project: {project}'"))
            }
            None => Default::default(),
        };
        Self {
            range: format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }),
            cli: format!("tidegate subscribers create --name sink --to {address} --url {api}{project_flag}"),
            curl: format!(
                "curl -sS {api}/v1/subscribers -H \"authorization: Bearer $TIDEGATE_KEY\"{project_header} \
                 -H 'content-type: application/json' -d '{body}'"
            ),
            address,
        }
    }

    fn note(&self) -> String {
        format!("plain http needs `tidegate serve --egress-allow {}`", self.range)
    }

    fn json(&self) -> String {
        json!({"listening": self.address, "cli": self.cli, "curl": self.curl, "note": self.note()})
            .to_string()
    }

    fn text(&self, output: &Output) -> String {
        let note = output.paint.text(Colour::Grey, &format!("({})", self.note()));
        format!(
            "listening on {}\n\nsubscribe it:\n  {}\nor:\n  {}\n{note}\n",
            self.address, self.cli, self.curl
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globals(project: Option<&str>) -> Globals {
        let url = "http://127.0.0.1:8700/".to_owned();
        Globals { url, key: None, project: project.map(str::to_owned), ca: None, json: false }
    }

    #[test]
    fn the_welcome_names_commands_that_work_as_they_stand() {
        let welcome = Welcome::new("127.0.0.1:8701".parse().expect("an address"), &globals(None));
        let cli =
            "tidegate subscribers create --name sink --to http://127.0.0.1:8701/ --url http://127.0.0.1:8700";
        assert_eq!(welcome.cli, cli);
        let curl = "curl -sS http://127.0.0.1:8700/v1/subscribers -H \"authorization: Bearer $TIDEGATE_KEY\" \
            -H 'content-type: application/json' \
            -d '{\"destination\":{\"kind\":\"webhook\",\"url\":\"http://127.0.0.1:8701/\"},\"name\":\"sink\"}'";
        assert_eq!(welcome.curl, curl);
        assert_eq!(welcome.note(), "plain http needs `tidegate serve --egress-allow 127.0.0.1/32`");
    }

    #[test]
    fn a_sink_on_every_address_is_named_by_loopback() {
        let welcome = Welcome::new("[::]:9".parse().expect("an address"), &globals(Some("p1")));
        assert_eq!(welcome.address, "http://[::1]:9/");
        assert_eq!(welcome.range, "::1/128");
        assert!(welcome.cli.ends_with(" --project p1"), "{}", welcome.cli);
        assert!(welcome.curl.contains("-H 'x-tidegate-project: p1'"), "{}", welcome.curl);
    }

    #[test]
    fn flags_are_checked() {
        assert!(parse_share("0.3").is_ok() && parse_share("1").is_ok());
        for bad in ["1.1", "-0.1", "NaN", "half"] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
        assert!(parse_secret("whsec_short").is_err());
        assert!(parse_span("5").is_err());
    }
}
