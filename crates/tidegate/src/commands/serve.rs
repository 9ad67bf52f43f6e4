//! `tidegate serve`: the server itself.
//!
//! This file only names the flags and their environment variables; what they mean together with the
//! configuration file is decided where the server boots.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tidegate_core::subscriber::Rate;
use tidegate_core::time::Span;
use tidegate_server::boot;
use tidegate_server::settings::store::{Address, RedisSection, Secrets, StoreSection};
use tidegate_server::settings::{self, File};
use tidegate_server::spans::OtlpSection;

const EXAMPLES: &str = "\
Examples:
  tidegate serve
      everything in ./tidegate-data, on 127.0.0.1:8700; prints an admin key when it first starts
  tidegate serve --listen 0.0.0.0:8700 --data-dir /var/lib/tidegate --log-format json
  tidegate serve --egress-allow 127.0.0.1/32
      lets webhooks reach this machine over plain http, for example a `tidegate sink`
  TIDEGATE_STORE=postgres://tidegate:secret@db/tidegate TIDEGATE_MASTER_KEY=… tidegate serve
      one of any number of processes that share a PostgreSQL database

Only from the environment, because other users of a machine can read command lines:
  TIDEGATE_ADMIN_KEY   the first admin key (tgk_…, 32 to 128 characters) instead of a generated one
  TIDEGATE_MASTER_KEY  32 bytes in base64 that encrypt secrets at rest; otherwise a file beside the data.
                       With PostgreSQL it is required, the same for all
  TIDEGATE_MASTER_KEY_PREVIOUS  the one before it, until the log says that everything is sealed with the new one
  TIDEGATE_MASTER_KEY_NEXT      the one after it, for all that share a store before the first of them changes

SIGTERM stops gracefully: nothing new is accepted, what is under way is finished. SIGHUP reads the certificate again.";

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
    /// The store of record: postgres://… (better as the variable, for its password), or SQLite in the data directory; TLS (sslmode, sslrootcert) and several servers: docs/operating.md
    #[arg(long, env = "TIDEGATE_STORE", value_name = "URL", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Redis for wake-ups and shared rates between processes that share PostgreSQL; it never holds an event
    #[arg(long, env = "TIDEGATE_REDIS", value_name = "URL", hide_env_values = true)]
    pub(crate) redis: Option<String>,
    /// A file with the master key, instead of the variable
    #[arg(long, env = "TIDEGATE_MASTER_KEY_FILE", value_name = "FILE")]
    pub(crate) master_key_file: Option<PathBuf>,
    /// A range that webhooks may reach although it is not public (repeatable; comma separated in the variable)
    #[arg(long, env = "TIDEGATE_EGRESS_ALLOW", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) egress_allow: Vec<String>,
    /// The host name by which endpoints are asked for their consent [default: tidegate]
    #[arg(long, env = "TIDEGATE_EGRESS_ORIGIN", value_name = "NAME")]
    pub(crate) egress_origin: Option<String>,
    /// Space on the disk that new events must leave, or off [default: 256MiB]
    #[arg(long, env = "TIDEGATE_STORE_DISK_RESERVE", value_name = "SIZE")]
    pub(crate) disk_reserve: Option<String>,
    /// Accept and keep everything, but send nothing until a start without this
    #[arg(long)]
    pub(crate) no_deliver: bool,
    /// Whether anything is sent; false accepts and keeps everything [default: true]
    #[arg(long, env = "TIDEGATE_DELIVER_ENABLED", hide = true, value_name = "BOOL")]
    pub(crate) deliver_enabled: Option<bool>,
    /// The configuration file; flags and variables win over it
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Send spans to an OpenTelemetry collector, for example http://127.0.0.1:4318 (OTEL_EXPORTER_OTLP_ENDPOINT too)
    #[arg(long, env = "TIDEGATE_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    /// Of requests without a trace context, the share that begins a trace [default: 1]
    #[arg(long, env = "TIDEGATE_OTLP_SAMPLE", value_name = "SHARE")]
    pub(crate) otlp_sample: Option<f64>,
    /// How log lines look [default: text]
    #[arg(long, env = "TIDEGATE_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    #[command(flatten)]
    pub(crate) door: DoorArgs,
    #[command(flatten)]
    pub(crate) keeping: KeepingArgs,
    #[command(flatten)]
    pub(crate) counting: ObserveArgs,
}

/// What is asked of connections.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connections")]
pub(crate) struct DoorArgs {
    /// Listen with this certificate chain (PEM); read again when it changes
    #[arg(long, env = "TIDEGATE_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, env = "TIDEGATE_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Connections at once [default: 4096, at most half of the open files allowed]
    #[arg(long, env = "TIDEGATE_LIMITS_CONNECTIONS", value_name = "N")]
    pub(crate) connections: Option<usize>,
    /// Connections of one address at once; a proxy in front is one address [default: 1024]
    #[arg(long, env = "TIDEGATE_LIMITS_CONNECTIONS_PER_ADDRESS", value_name = "N")]
    pub(crate) connections_per_address: Option<usize>,
    /// TLS handshakes at once [default: 256]
    #[arg(long, env = "TIDEGATE_LIMITS_HANDSHAKES", value_name = "N", hide_short_help = true)]
    pub(crate) handshakes: Option<usize>,
    /// Requests of one API key, such as 100/s, 600/m or 5000/h [default: any number]
    #[arg(long, env = "TIDEGATE_LIMITS_REQUESTS_PER_KEY", value_name = "RATE", value_parser = rate)]
    pub(crate) requests_per_key: Option<Rate>,
    /// Requests of one address; a proxy in front is one address [default: any number]
    #[arg(long, env = "TIDEGATE_LIMITS_REQUESTS_PER_ADDRESS", value_name = "RATE", value_parser = rate)]
    pub(crate) requests_per_address: Option<Rate>,
    /// How long a TLS handshake may take [default: 10s]
    #[arg(long, env = "TIDEGATE_TIMEOUTS_HANDSHAKE", value_name = "TIME", value_parser = span, hide_short_help = true)]
    pub(crate) handshake_timeout: Option<Span>,
    /// How long a new connection may say nothing [default: 10s]
    #[arg(long, env = "TIDEGATE_TIMEOUTS_FIRST_BYTE", value_name = "TIME", value_parser = span, hide_short_help = true)]
    pub(crate) first_byte_timeout: Option<Span>,
    /// How long a request's head may take to arrive [default: 10s]
    #[arg(long, env = "TIDEGATE_TIMEOUTS_HEAD", value_name = "TIME", value_parser = span, hide_short_help = true)]
    pub(crate) head_timeout: Option<Span>,
    /// How long a connection is kept open between two requests [default: 75s]
    #[arg(long, env = "TIDEGATE_TIMEOUTS_IDLE", value_name = "TIME", value_parser = span, hide_short_help = true)]
    pub(crate) idle_timeout: Option<Span>,
    /// How long an answer waits for a client that does not read [default: 30s]
    #[arg(long, env = "TIDEGATE_TIMEOUTS_STALL", value_name = "TIME", value_parser = span, hide_short_help = true)]
    pub(crate) stall_timeout: Option<Span>,
}

fn rate(text: &str) -> Result<Rate, String> {
    Rate::parse(text).ok_or_else(|| "expected a rate above zero such as 100/s, 600/m or 5000/h".to_owned())
}

/// How long things are kept.
#[derive(Args, Debug)]
#[command(next_help_heading = "Keeping")]
pub(crate) struct KeepingArgs {
    /// How long events are kept, and longer while a delivery needs them [default: 7d]
    #[arg(long, env = "TIDEGATE_RETENTION_EVENTS", value_name = "TIME", value_parser = span)]
    pub(crate) retention_events: Option<Span>,
    /// How long finished deliveries are kept [default: 30d]
    #[arg(long, env = "TIDEGATE_RETENTION_DELIVERIES", value_name = "TIME", value_parser = span)]
    pub(crate) retention_deliveries: Option<Span>,
    /// How long held and exhausted deliveries are kept before they expire [default: 30d]
    #[arg(long, env = "TIDEGATE_RETENTION_UNDELIVERED", value_name = "TIME", value_parser = span)]
    pub(crate) retention_undelivered: Option<Span>,
    /// How long what was counted is kept; short buckets go sooner [default: 400d]
    #[arg(long, env = "TIDEGATE_RETENTION_ROLLUPS", value_name = "TIME", value_parser = span)]
    pub(crate) retention_rollups: Option<Span>,
}

/// How events are counted.
#[derive(Args, Debug)]
#[command(next_help_heading = "Counting")]
pub(crate) struct ObserveArgs {
    /// How long an accepted event waits to be counted at most [default: 5s]
    #[arg(long, env = "TIDEGATE_OBSERVE_INTERVAL", value_name = "TIME", value_parser = span)]
    pub(crate) observe_interval: Option<Span>,
    /// Events that are counted in one transaction at most [default: 30000]
    #[arg(long, env = "TIDEGATE_OBSERVE_BATCH", value_name = "N")]
    pub(crate) observe_batch: Option<usize>,
    /// Threads that read the events of one transaction; what is counted is the same [default: 1]
    #[arg(long, env = "TIDEGATE_OBSERVE_WORKERS", value_name = "N")]
    pub(crate) observe_workers: Option<usize>,
    /// `false` keeps all indexes of attributes as they are
    #[arg(long, env = "TIDEGATE_OBSERVE_INDEX", value_name = "BOOL", hide_short_help = true)]
    pub(crate) observe_index: Option<bool>,
    /// `false` keeps all counters as they are
    #[arg(long, env = "TIDEGATE_OBSERVE_COUNTERS", value_name = "BOOL", hide_short_help = true)]
    pub(crate) observe_counters: Option<bool>,
    /// `false` keeps all histograms as they are
    #[arg(long, env = "TIDEGATE_OBSERVE_HISTOGRAMS", value_name = "BOOL", hide_short_help = true)]
    pub(crate) observe_histograms: Option<bool>,
    /// `false` keeps all states as they are
    #[arg(long, env = "TIDEGATE_OBSERVE_STATES", value_name = "BOOL", hide_short_help = true)]
    pub(crate) observe_states: Option<bool>,
}

fn span(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| "expected a time such as 10s, 500ms or 2m".to_owned())
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
    let secret = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let secrets = Secrets {
        admin_key: secret("TIDEGATE_ADMIN_KEY"),
        master_key: secret("TIDEGATE_MASTER_KEY"),
        master_key_previous: secret("TIDEGATE_MASTER_KEY_PREVIOUS"),
        master_key_next: secret("TIDEGATE_MASTER_KEY_NEXT"),
    };
    let settings = otel_environment().overridden_by(file).overridden_by(flags(args)).settle(secrets)?;
    let place = settings.place();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    boot::run(settings, |address, first_key| announce(scheme, address, &place, first_key))?;
    Ok(ExitCode::SUCCESS)
}

/// What OpenTelemetry's own variables say; a file, our own variables and flags win over it.
fn otel_environment() -> File {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let endpoint = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    let headers = variable("OTEL_EXPORTER_OTLP_HEADERS");
    File { otlp: OtlpSection { endpoint, headers, sample: None }, ..File::default() }
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
        store: StoreSection { url: args.store.map(Address), disk_reserve: args.disk_reserve },
        redis: RedisSection { url: args.redis.map(Address) },
        master_key_file: args.master_key_file,
        egress: settings::EgressSection { allow: args.egress_allow, origin: args.egress_origin },
        log: settings::LogSection { format },
        deliver: settings::DeliverSection {
            enabled: if args.no_deliver { Some(false) } else { args.deliver_enabled },
        },
        tls: settings::TlsSection { cert: args.door.tls_cert, key: args.door.tls_key },
        limits: settings::LimitsSection {
            connections: args.door.connections,
            connections_per_address: args.door.connections_per_address,
            handshakes: args.door.handshakes,
            requests_per_key: args.door.requests_per_key,
            requests_per_address: args.door.requests_per_address,
        },
        timeouts: settings::TimeoutsSection {
            handshake: args.door.handshake_timeout,
            first_byte: args.door.first_byte_timeout,
            head: args.door.head_timeout,
            idle: args.door.idle_timeout,
            stall: args.door.stall_timeout,
        },
        otlp: OtlpSection { endpoint: args.otlp_endpoint, sample: args.otlp_sample, headers: None },
        retention: settings::RetentionSection {
            events: args.keeping.retention_events,
            deliveries: args.keeping.retention_deliveries,
            undelivered: args.keeping.retention_undelivered,
            rollups: args.keeping.retention_rollups,
        },
        observe: settings::ObserveSection {
            interval: args.counting.observe_interval,
            batch: args.counting.observe_batch,
            workers: args.counting.observe_workers,
            index: args.counting.observe_index,
            counters: args.counting.observe_counters,
            histograms: args.counting.observe_histograms,
            states: args.counting.observe_states,
        },
    }
}

/// The first words of a server; with the first key, the next step.
fn announce(scheme: &str, address: SocketAddr, place: &str, first_key: Option<&str>) {
    println!("tidegate {} listens at {scheme}://{address}, data in {place}", env!("CARGO_PKG_VERSION"));
    let Some(key) = first_key else { return };
    println!();
    println!("admin key, shown this once:  {key}");
    println!();
    println!("next, in another terminal:");
    println!("  export TIDEGATE_KEY={key}");
    println!("  tidegate send --source shop --type order.paid --data '{{\"total\": 42}}'");
}
