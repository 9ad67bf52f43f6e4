//! The commands, one file each, and what they share: where the API is and how to print.

mod apply;
mod audit;
mod backfill;
mod catalog;
mod chart;
mod completions;
mod config;
mod deliveries;
mod doctor;
mod export;
mod gates;
mod jobs;
mod keys;
mod objects;
mod projects;
mod quarantine;
mod query;
mod replay;
mod replicas;
mod resource;
mod send;
mod serve;
mod sink;
mod subscribers;
mod tail;
mod trace;
mod trigger;
mod verify;
mod windows;

#[cfg(test)]
mod deployed;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

const AFTER_HELP: &str = "\
Start here:
  tidegate serve --egress-allow 127.0.0.1/32     the server; prints an admin key when it first starts
  tidegate sink                                  in a second terminal: a receiver, and how to subscribe it
  tidegate send --type order.paid --source shop --data '{\"total\":12}'
  tidegate trace <event id>                      what became of it, subscriber by subscriber

Exit codes:
  0  done
  1  failed: the server refused it, a signature is wrong, an event conflicts
  2  the command line is wrong
  3  not found
  4  not allowed: no key, a wrong key, or a role that may not do this (401, 403)
  5  refused for now: too many requests, not ready, or unreachable (429, 503); try again later

Results go to stdout: tables on a terminal, JSON otherwise or with --json. Errors go to stderr.
NO_COLOR switches colours off.";

/// Takes in events, keeps them durably, and delivers them as signed webhooks, in order and in fair turn.
#[derive(Parser)]
#[command(name = "tidegate", version, after_help = AFTER_HELP, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// What every command that talks to the API needs.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Where the API is
    #[arg(long, global = true, env = "TIDEGATE_URL", default_value = "http://127.0.0.1:8700")]
    pub(crate) url: String,
    /// The API key; without it TIDEGATE_ADMIN_KEY is used
    #[arg(long, global = true, env = "TIDEGATE_KEY", hide_env_values = true, value_name = "tgk_…")]
    pub(crate) key: Option<String>,
    /// The project to act on; needs the installation's admin key, other keys have a project of their own
    #[arg(long, global = true, env = "TIDEGATE_PROJECT", value_name = "ID")]
    pub(crate) project: Option<String>,
    /// Trust the certificate authorities of this file (PEM) too, for a server with a private one
    #[arg(long, global = true, env = "TIDEGATE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON, also on a terminal
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<serve::ServeArgs>),
    /// Send one event, or the events of a file
    Send(send::SendArgs),
    /// Receive webhooks, check their signatures, answer as told
    Sink(sink::SinkArgs),
    /// Check a webhook's signature and say which part is wrong
    Verify(verify::VerifyArgs),
    /// Show what became of an event, subscriber by subscriber
    Trace(trace::TraceArgs),
    /// Follow events and results of attempts as they happen
    #[command(alias = "stream")]
    Tail(tail::TailArgs),
    /// Make, list, show, pause or delete subscribers
    Subscribers(subscribers::SubscribersArgs),
    /// List, show or retry deliveries
    Deliveries(deliveries::DeliveriesArgs),
    /// Send again an event, a subscriber's past, or dead letters
    Replay(replay::ReplayArgs),
    /// See what folds hold, deliver it now, or cancel it
    Windows(Box<windows::WindowsArgs>),
    /// Send now what folds hold, and try now what waits for a later try
    Trigger(trigger::TriggerArgs),
    /// List, show or stop the jobs that send again
    Jobs(jobs::JobsArgs),
    /// Declare the types of events that services send, and list them
    Catalog(catalog::CatalogArgs),
    /// Count events that were accepted before a metric was declared
    Backfill(backfill::BackfillArgs),
    /// Count kept events again and compare with what was counted
    Audit(audit::AuditArgs),
    /// Make, list, show or delete gates, the rates that subscribers share
    Gates(gates::GatesArgs),
    /// Ask what was counted: counters, histograms, states and transitions
    Query(Box<query::QueryArgs>),
    /// Show what is known of an object, or list what happened to objects
    Objects(objects::ObjectsArgs),
    /// List, release or discard what the catalog did not let in
    Quarantine(quarantine::QuarantineArgs),
    /// Make a project what files say
    Apply(apply::ApplyArgs),
    /// Print a project as files that `apply` takes
    Export(export::ExportArgs),
    /// Check a configuration file, or show the reference
    Config(config::ConfigArgs),
    /// Look for trouble: the server, its disk, its receivers
    Doctor(doctor::DoctorArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    Man,
    /// Make, list or delete API keys
    Keys(keys::KeysArgs),
    /// Make or list projects
    Projects(projects::ProjectsArgs),
    /// List the processes that share the store
    Replicas(replicas::ReplicasArgs),
}

/// Runs the command that was asked for.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { globals, command } = cli;
    match command {
        Command::Serve(args) => serve::serve(*args),
        Command::Send(args) => block_on(send::run(args, &globals)),
        Command::Sink(args) => block_on(sink::run(args, &globals)),
        Command::Verify(args) => verify::run(args, &globals),
        Command::Trace(args) => block_on(trace::run(args, &globals)),
        Command::Tail(args) => block_on(tail::run(args, &globals)),
        Command::Subscribers(args) => block_on(subscribers::run(args, &globals)),
        Command::Deliveries(args) => block_on(deliveries::run(args, &globals)),
        Command::Replay(args) => block_on(replay::run(args, &globals)),
        Command::Windows(args) => block_on(windows::run(*args, &globals)),
        Command::Trigger(args) => block_on(trigger::run(args, &globals)),
        Command::Jobs(args) => block_on(jobs::run(args, &globals)),
        Command::Catalog(args) => block_on(catalog::run(args, &globals)),
        Command::Backfill(args) => block_on(backfill::run(args, &globals)),
        Command::Audit(args) => block_on(audit::run(args, &globals)),
        Command::Gates(args) => block_on(gates::run(args, &globals)),
        Command::Query(args) => block_on(query::run(*args, &globals)),
        Command::Objects(args) => block_on(objects::run(args, &globals)),
        Command::Quarantine(args) => block_on(quarantine::run(args, &globals)),
        Command::Apply(args) => block_on(apply::run(args, &globals)),
        Command::Export(args) => block_on(export::run(args, &globals)),
        Command::Config(args) => config::run(&args, &globals),
        Command::Doctor(args) => block_on(doctor::run(args, &globals)),
        Command::Completions(args) => completions::run(&args),
        Command::Man => completions::man(),
        Command::Keys(args) => block_on(keys::run(args, &globals)),
        Command::Projects(args) => block_on(projects::run(args, &globals)),
        Command::Replicas(args) => block_on(replicas::run(args, &globals)),
    }
}

/// Every command but `serve` waits for one thing at a time: one thread is enough.
fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
