//! `tidegate serve`: the server itself.
//!
//! This file only names the flags and their environment variables; what they mean together with the
//! configuration file is decided where the server boots.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

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
#[expect(clippy::needless_pass_by_value, reason = "the server keeps what it is given")]
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not wired yet: {args:?}")
}
