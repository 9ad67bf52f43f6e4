//! `tidegate serve`: the server itself.
//!
//! This file only names the flags and their environment variables; what they mean together with the
//! configuration file is decided where the server boots.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tidegate_server::boot;
use tidegate_server::settings::{self, File};

const EXAMPLES: &str = "\
Examples:
  tidegate serve
      everything in ./tidegate-data, on 127.0.0.1:8700; prints an admin key when it first starts
  tidegate serve --listen 0.0.0.0:8700 --data-dir /var/lib/tidegate --log-format json
  tidegate serve --egress-allow 127.0.0.1/32
      lets webhooks reach this machine over plain http, for example a `tidegate sink`

Only from the environment, because other users of a machine can read command lines:
  TIDEGATE_ADMIN_KEY   the first admin key (tgk_…, 32 to 128 characters) instead of a generated one
  TIDEGATE_MASTER_KEY  32 bytes in base64 that encrypt secrets at rest; otherwise a file beside the data

SIGTERM stops gracefully: nothing new is accepted, what is under way is finished.";

/// Flags of `serve`. What is absent is left to the configuration file and then to the defaults.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:8700]
    #[arg(long, env = "TIDEGATE_LISTEN", value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// Where the data lives, created when missing [default: ./tidegate-data]
    #[arg(long, env = "TIDEGATE_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The store of record, for example postgres://…; without it SQLite in the data directory
    #[arg(long, env = "TIDEGATE_STORE", value_name = "URL", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Redis for wake-ups and gate tokens between replicas; it never holds an event
    #[arg(long, env = "TIDEGATE_REDIS", value_name = "URL", hide_env_values = true)]
    pub(crate) redis: Option<String>,
    /// A range that webhooks may reach although it is not public (repeatable; comma separated in the variable)
    #[arg(long, env = "TIDEGATE_EGRESS_ALLOW", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) egress_allow: Vec<String>,
    /// The configuration file; flags and variables win over it
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How log lines look [default: text]
    #[arg(long, env = "TIDEGATE_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Runs the server until it is told to stop.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let file = match &args.config {
        Some(path) => File::read(path)?,
        None => File::default(),
    };
    let admin_key = std::env::var("TIDEGATE_ADMIN_KEY").ok().filter(|key| !key.is_empty());
    let master_key = std::env::var("TIDEGATE_MASTER_KEY").ok().filter(|key| !key.is_empty());
    let settings = file.overridden_by(flags(args)).settle(admin_key, master_key.as_deref())?;
    let data_dir = settings.data_dir.display().to_string();
    boot::run(settings, |address, first_key| announce(address, &data_dir, first_key))?;
    Ok(ExitCode::SUCCESS)
}

/// What the command line says, in the shape of the file.
fn flags(args: ServeArgs) -> File {
    let format = args.log_format.map(|format| match format {
        LogFormat::Text => settings::LogFormat::Text,
        LogFormat::Json => settings::LogFormat::Json,
    });
    File {
        listen: args.listen,
        data_dir: args.data_dir,
        store: settings::StoreSection { url: args.store },
        redis: settings::RedisSection { url: args.redis },
        egress: settings::EgressSection { allow: args.egress_allow },
        log: settings::LogSection { format },
    }
}

/// The first words of a server; with the first key, the next step.
fn announce(address: SocketAddr, data_dir: &str, first_key: Option<&str>) {
    println!("tidegate {} listens at http://{address}, data in {data_dir}", env!("CARGO_PKG_VERSION"));
    let Some(key) = first_key else { return };
    println!();
    println!("admin key, shown this once:  {key}");
    println!();
    println!("next, in another terminal:");
    println!("  export TIDEGATE_KEY={key}");
    println!("  tidegate send --source shop --type order.paid --data '{{\"total\": 42}}'");
}
