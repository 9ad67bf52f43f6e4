//! What an operator can set: by file, by environment, by flag; the later wins.
//!
//! [`File`] is what was written, everything optional and unknown keys refused with their line. [`Settings`] is what
//! the server runs with: complete and checked, never looked up again. What concerns the store stands in [`store`].

mod observe;
pub mod store;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use serde::Deserialize;
use tidegate_core::egress::{IpNet, Policy};
use tidegate_core::key;
use tidegate_core::limits::{ORIGIN_BYTES_MAX, RETENTION_MAX};
use tidegate_core::retention::Retention;
use tidegate_core::subscriber::Rate;
use tidegate_core::time::Span;

use crate::api::RequestRates;
use crate::listen::Terms;
use crate::listen::tls::TlsFiles;
use crate::observing;
use crate::spans::{Collector, OtlpSection};
pub use observe::ObserveSection;
pub(crate) use store::parse_master_key;
use store::{GivenKeys, RedisSection, Secrets, StoreAt, StoreSection};

/// Where the server listens unless told otherwise.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:8700";
/// Where the data is unless told otherwise.
pub const DATA_DIR_DEFAULT: &str = "./tidegate-data";

/// What endpoints are told unless an operator names this installation.
pub const ORIGIN_DEFAULT: &str = "tidegate";

/// What the file and the command line may say; the command line wins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// `HOST:PORT`.
    pub listen: Option<String>,
    /// The directory of the embedded store.
    pub data_dir: Option<PathBuf>,
    /// Where the master key is kept.
    pub master_key_file: Option<PathBuf>,
    /// Where the store is.
    pub store: StoreSection,
    /// Where Redis is.
    pub redis: RedisSection,
    /// Where deliveries may go.
    pub egress: EgressSection,
    /// How to log.
    pub log: LogSection,
    /// Whether anything is sent.
    pub deliver: DeliverSection,
    /// The certificate to listen with.
    pub tls: TlsSection,
    /// How many may come.
    pub limits: LimitsSection,
    /// How long they may take.
    pub timeouts: TimeoutsSection,
    /// Where spans go.
    pub otlp: OtlpSection,
    /// How long things are kept.
    pub retention: RetentionSection,
    /// How events are counted.
    pub observe: ObserveSection,
}

/// `egress:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressSection {
    /// Ranges that are not public, or may be reached by plain http.
    pub allow: Vec<String>,
    /// The name by which endpoints are asked for their consent.
    pub origin: Option<String>,
}

/// `deliver:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeliverSection {
    /// `false` accepts and keeps everything and sends nothing.
    pub enabled: Option<bool>,
}

/// `log:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// `text` or `json`.
    pub format: Option<LogFormat>,
}

/// `tls:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    /// The certificate chain, PEM. Absent means plain http.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
}

/// `limits:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// Connections at once.
    pub connections: Option<usize>,
    /// Connections of one address at once.
    pub connections_per_address: Option<usize>,
    /// TLS handshakes at once.
    pub handshakes: Option<usize>,
    /// Requests of one key, such as `100/s`; absent means any number.
    pub requests_per_key: Option<Rate>,
    /// Requests of one address.
    pub requests_per_address: Option<Rate>,
}

/// `timeouts:` of connections; what they mean stands with [`Terms`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutsSection {
    /// The TLS handshake.
    pub handshake: Option<Span>,
    /// The first byte of the first request.
    pub first_byte: Option<Span>,
    /// A request's head.
    pub head: Option<Span>,
    /// The pause between two requests.
    pub idle: Option<Span>,
    /// An answer that is not read.
    pub stall: Option<Span>,
}

/// `retention:`; what the terms mean stands with [`Retention`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSection {
    /// Events.
    pub events: Option<Span>,
    /// Finished deliveries.
    pub deliveries: Option<Span>,
    /// What could not be delivered.
    pub undelivered: Option<Span>,
    /// What was counted.
    pub rollups: Option<Span>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// What the server runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where the store is.
    pub store: StoreAt,
    /// Where the data of an embedded store is.
    pub data_dir: PathBuf,
    /// Where deliveries may go.
    pub policy: Policy,
    /// Who we are to endpoints that want to know before they agree.
    pub origin: HeaderValue,
    /// How long things are kept.
    pub retention: Retention,
    /// How events are counted.
    pub observing: observing::Terms,
    /// How to log.
    pub log_format: LogFormat,
    /// Whether anything is sent.
    pub delivers: bool,
    /// Bytes on the disk that new events must leave; absent means all of it may be used.
    pub disk_reserve: Option<u64>,
    /// The first admin key, given by the operator.
    pub admin_key: Option<String>,
    /// The master key, given by the operator; else it is a file beside the data.
    pub master_key: GivenKeys,
    /// The certificate to listen with; absent means plain http.
    pub tls: Option<TlsFiles>,
    /// What is asked of connections.
    pub terms: Terms,
    /// How often one may ask.
    pub rates: RequestRates,
    /// Where spans go; absent means that none are recorded.
    pub collector: Option<Collector>,
}

impl Settings {
    /// Where the data is, for people; without a secret.
    pub fn place(&self) -> String {
        match &self.store {
            StoreAt::Embedded => self.data_dir.display().to_string(),
            StoreAt::Postgres { url, .. } => url.place(),
        }
    }
}

/// Settings that can not be used; the text says which and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsettled(pub(crate) String);

impl File {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self, Unsettled> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Unsettled(format!("cannot read {shown}: {error}")))?;
        Self::parse(&text).map_err(|Unsettled(problem)| Unsettled(format!("{shown}: {problem}")))
    }

    /// What the text of a configuration file says.
    pub fn parse(text: &str) -> Result<Self, Unsettled> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| {
            // The rest is a picture of the lines around it.
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Unsettled(first.trim_start_matches("error: ").to_owned())
        })
    }

    /// What `over` says wins over what this says.
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            listen: over.listen.or(self.listen),
            data_dir: over.data_dir.or(self.data_dir),
            master_key_file: over.master_key_file.or(self.master_key_file),
            store: StoreSection {
                url: over.store.url.or(self.store.url),
                disk_reserve: over.store.disk_reserve.or(self.store.disk_reserve),
            },
            redis: RedisSection { url: over.redis.url.or(self.redis.url) },
            egress: EgressSection {
                allow: if over.egress.allow.is_empty() { self.egress.allow } else { over.egress.allow },
                origin: over.egress.origin.or(self.egress.origin),
            },
            log: LogSection { format: over.log.format.or(self.log.format) },
            deliver: DeliverSection { enabled: over.deliver.enabled.or(self.deliver.enabled) },
            tls: TlsSection { cert: over.tls.cert.or(self.tls.cert), key: over.tls.key.or(self.tls.key) },
            limits: self.limits.overridden_by(&over.limits),
            timeouts: self.timeouts.overridden_by(&over.timeouts),
            otlp: self.otlp.overridden_by(over.otlp),
            retention: RetentionSection {
                events: over.retention.events.or(self.retention.events),
                deliveries: over.retention.deliveries.or(self.retention.deliveries),
                undelivered: over.retention.undelivered.or(self.retention.undelivered),
                rollups: over.retention.rollups.or(self.retention.rollups),
            },
            observe: self.observe.overridden_by(over.observe),
        }
    }

    /// Checks everything.
    pub fn settle(self, secrets: Secrets) -> Result<Settings, Unsettled> {
        let (store, folder) = store::store_at(self.store.url, self.redis.url)?;
        let master_key = GivenKeys::settle(&secrets, self.master_key_file)?;
        let admin_key = secrets.admin_key;
        let listen = self.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
        let address = listen.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        let listen = address.ok_or_else(|| {
            Unsettled(format!("listen: {listen} is not HOST:PORT, for example {LISTEN_DEFAULT}"))
        })?;
        if admin_key.as_deref().is_some_and(|key| !key::is_acceptable(key)) {
            return Err(Unsettled(
                "TIDEGATE_ADMIN_KEY must be tgk_ and 28 to 124 more characters".to_owned(),
            ));
        }
        Ok(Settings {
            listen,
            store,
            data_dir: self.data_dir.or(folder).unwrap_or_else(|| DATA_DIR_DEFAULT.into()),
            policy: policy(&self.egress.allow)?,
            origin: origin(self.egress.origin.as_deref().unwrap_or(ORIGIN_DEFAULT))?,
            retention: retention(self.retention)?,
            observing: self.observe.settle()?,
            log_format: self.log.format.unwrap_or_default(),
            delivers: self.deliver.enabled.unwrap_or(true),
            disk_reserve: store::disk_reserve(self.store.disk_reserve.as_deref())?,
            admin_key,
            master_key,
            tls: self.tls.settle()?,
            terms: terms(&self.limits, &self.timeouts)?,
            rates: RequestRates {
                per_key: self.limits.requests_per_key,
                per_address: self.limits.requests_per_address,
            },
            collector: self.otlp.settle().map_err(Unsettled)?,
        })
    }
}

/// A host name, as far as its characters tell.
fn origin(name: &str) -> Result<HeaderValue, Unsettled> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let value = HeaderValue::from_str(name)
        .ok()
        .filter(|_| (1..=ORIGIN_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fine));
    value.ok_or_else(|| {
        Unsettled(format!("egress.origin: {name:?} is not a host name such as events.example.com"))
    })
}

impl TlsSection {
    fn settle(self) -> Result<Option<TlsFiles>, Unsettled> {
        match (self.cert, self.key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key })),
            (Some(_), None) => Err(Unsettled("tls.cert needs tls.key beside it".to_owned())),
            (None, Some(_)) => Err(Unsettled("tls.key needs tls.cert beside it".to_owned())),
        }
    }
}

impl LimitsSection {
    fn overridden_by(&self, over: &Self) -> Self {
        Self {
            connections: over.connections.or(self.connections),
            connections_per_address: over.connections_per_address.or(self.connections_per_address),
            handshakes: over.handshakes.or(self.handshakes),
            requests_per_key: over.requests_per_key.or(self.requests_per_key),
            requests_per_address: over.requests_per_address.or(self.requests_per_address),
        }
    }
}

impl TimeoutsSection {
    fn overridden_by(&self, over: &Self) -> Self {
        Self {
            handshake: over.handshake.or(self.handshake),
            first_byte: over.first_byte.or(self.first_byte),
            head: over.head.or(self.head),
            idle: over.idle.or(self.idle),
            stall: over.stall.or(self.stall),
        }
    }
}

fn terms(limits: &LimitsSection, timeouts: &TimeoutsSection) -> Result<Terms, Unsettled> {
    let defaults = Terms::default();
    let count = |name: &str, given: Option<usize>, default: usize| match given {
        Some(0) => Err(Unsettled(format!("limits.{name}: 0 would let nobody in; leave it out or say more"))),
        given => Ok(given.unwrap_or(default)),
    };
    let time = |name: &str, given: Option<Span>, default: Duration| match given {
        Some(span) if span.0.is_zero() => {
            Err(Unsettled(format!("timeouts.{name}: 0 would let nobody finish; leave it out or say more")))
        }
        given => Ok(given.map_or(default, |span| span.0)),
    };
    let per_address = limits.connections_per_address;
    Ok(Terms {
        connections: count("connections", limits.connections, defaults.connections)?,
        connections_per_address: count(
            "connections_per_address",
            per_address,
            defaults.connections_per_address,
        )?,
        handshakes: count("handshakes", limits.handshakes, defaults.handshakes)?,
        handshake: time("handshake", timeouts.handshake, defaults.handshake)?,
        first_byte: time("first_byte", timeouts.first_byte, defaults.first_byte)?,
        head: time("head", timeouts.head, defaults.head)?,
        idle: time("idle", timeouts.idle, defaults.idle)?,
        stall: time("stall", timeouts.stall, defaults.stall)?,
    })
}

fn retention(section: RetentionSection) -> Result<Retention, Unsettled> {
    let defaults = Retention::default();
    let term = |name: &str, given: Option<Span>, default| match given {
        Some(Span(Duration::ZERO)) => {
            Err(Unsettled(format!("retention.{name} is zero: give a time such as 7d")))
        }
        Some(Span(term)) if term > RETENTION_MAX => {
            Err(Unsettled(format!("retention.{name} is at most {}", Span(RETENTION_MAX))))
        }
        given => Ok(given.map_or(default, |span| span.0)),
    };
    let events = term("events", section.events, defaults.events)?;
    let deliveries = term("deliveries", section.deliveries, defaults.deliveries.max(events))?;
    let undelivered = term("undelivered", section.undelivered, defaults.undelivered.max(events))?;
    if undelivered < events {
        return Err(Unsettled(
            "retention.undelivered is shorter than retention.events: what could not be delivered would end before its \
             event does; make it at least as long"
                .to_owned(),
        ));
    }
    let rollups = term("rollups", section.rollups, defaults.rollups)?;
    Ok(Retention { events, deliveries, undelivered, rollups })
}

fn policy(allow: &[String]) -> Result<Policy, Unsettled> {
    let ranges = allow.iter().map(|text| {
        let text = text.trim();
        let range = text.parse::<IpNet>().or_else(|_| text.parse::<std::net::IpAddr>().map(IpNet::from));
        range.map_err(|_| Unsettled(format!("egress.allow: {text} is not a range such as 10.1.0.0/16")))
    });
    Ok(Policy::new(ranges.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(text: &str) -> Result<Settings, String> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        file.settle(Secrets::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_is_read_and_checked() {
        let settings = settle("listen: 127.0.0.1:9\negress:\n  allow: [127.0.0.0/8, '::1']\n").unwrap();
        assert_eq!(settings.listen.port(), 9);
        assert!(settings.policy.allows_loopback());
        assert_eq!((settings.delivers, settings.disk_reserve), (true, Some(256 << 20)));
        let said = settle("store:\n  disk_reserve: 2GiB\ndeliver:\n  enabled: false\n").unwrap();
        assert_eq!((said.delivers, said.disk_reserve), (false, Some(2 << 30)));
        assert_eq!(settle("store:\n  disk_reserve: off").unwrap().disk_reserve, None);
        for (text, part) in [
            ("lisen: x", "lisen"),
            ("listen: nowhere", "HOST:PORT"),
            ("egress:\n  allow: [ten]", "range"),
            ("store:\n  url: mysql://x", "store.url"),
            ("store:\n  disk_reserve: 0", "off"),
            ("store:\n  disk_reserve: much", "256MiB"),
            ("deliver:\n  enabled: maybe", "enabled"),
            ("tls:\n  cert: a.pem", "tls.key"),
            ("limits:\n  connections: 0", "limits.connections"),
            ("timeouts:\n  head: 0s", "timeouts.head"),
        ] {
            let problem = settle(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let problem = settle("listen: 127.0.0.1:9\negres:\n  allow: []\n").unwrap_err();
        assert!(problem.contains("egres") && problem.contains('2'), "{problem}");
    }
}
