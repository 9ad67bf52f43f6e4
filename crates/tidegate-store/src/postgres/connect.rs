//! How a connection to PostgreSQL is made: from the URL to a session with the right settings.
//!
//! Beyond what PostgreSQL's own URLs know, `schema` names where the tables live (`tidegate` unless told otherwise). Several servers
//! may be named, of which the first that takes writes is used. Once TLS is asked for, the server's certificate is always
//! checked ([`tls`](super::tls)).

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use ring::digest;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Notification, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address;
use super::reach::{self, Answered};
use super::refusal::Refusal;
use super::tls::client_config;
use crate::coordination::timer::pause;
use crate::{Error, Result};

pub(super) const PORT_USUAL: u16 = 5432;
/// What can be wished for.
const SSL_MODES: &str = "use disable, prefer, require, verify-ca or verify-full";

/// How long to wait for a server that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// And for one that does to be ready to be asked.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// A server that is gone without a word is noticed within about this time, if something is on its way to it.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// If nothing is, it is asked after that time, so often and so many times: together that is less than what an answer may take.
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES_MAX: u32 = 3;

/// The same on the server's side: what a session holds whose machine is gone is free for others in the same time.
pub(super) const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = '15s';";

/// Settings of every session. Plans must not depend on how the tables looked when a statement was first prepared, which
/// is when they were empty: every question here is one that an index answers. Nothing of ours runs for long, and no
/// transaction waits for anything but the database.
const SETTINGS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET enable_bitmapscan = off; SET enable_material = off; SET jit = off; SET plan_cache_mode = force_generic_plan;
    SET default_transaction_isolation = 'read committed'; SET statement_timeout = '30s'; SET lock_timeout = '10s';
    SET idle_in_transaction_session_timeout = '10s'; SET client_min_messages = warning;";

/// Whether commits are on disk when they return, the last of a session's settings. What `synchronous_commit` says now it says
/// for as long as the session lives: whoever changes it and lets the server read its settings again changes it for sessions
/// to come, which are asked first. `fsync` can not be kept like that; every beat looks at it.
const KEEPING: &str = "SELECT set_config('synchronous_commit', current_setting('synchronous_commit'), false),
    current_setting('fsync')";

/// What is told of a server that does not flush.
pub(super) const FSYNC_OFF: &str = "fsync is off";

/// Where the database is and how it is reached.
#[derive(Clone)]
pub struct Target {
    /// At least one, in the order in which they are tried at first.
    servers: Vec<Config>,
    answered: Arc<Answered>,
    tls: Option<MakeRustlsConnect>,
    schema: String,
}

/// A session, and the task that moves its bytes.
pub struct Session {
    /// To ask questions with.
    pub client: Client,
    pump: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Target {
    /// Understands a URL, or says what is wrong with it. The password is in no message.
    pub fn parse(url: &str) -> Result<Self> {
        let address = address::parse(url)?;
        let schema = address.schema.unwrap_or_else(|| "tidegate".to_owned());
        check_schema(&schema)?;
        let mode = address.sslmode.as_deref().unwrap_or("prefer");
        let wants_tls = match mode {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            "require" | "verify-ca" | "verify-full" => SslMode::Require,
            _ => return Err(unusable(format!("sslmode={mode} in the URL of the store: {SSL_MODES}"))),
        };
        let servers = address.servers.iter().map(|server| {
            let mut config: Config = server.parse().map_err(|error: tokio_postgres::Error| {
                unusable(format!("the URL of the store can not be used: {}", innermost(&error)))
            })?;
            config
                .ssl_mode(wants_tls)
                .application_name("tidegate")
                .connect_timeout(CONNECT_TIMEOUT)
                .keepalives(true)
                .keepalives_idle(SILENCE_MAX)
                .keepalives_interval(PROBE_EVERY)
                .keepalives_retries(PROBES_MAX)
                .tcp_user_timeout(SILENCE_MAX);
            if address.servers.len() > 1 {
                // A standby is of no use here.
                config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            }
            Ok(config)
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let tls = match wants_tls {
            SslMode::Disable => None,
            _ => {
                let root = address.sslrootcert.as_deref();
                Some(MakeRustlsConnect::new(client_config(root, mode != "verify-ca")?))
            }
        };
        Ok(Self { servers, answered: Arc::default(), tls, schema })
    }

    /// The schema of the tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Tells installations in one database apart where names can not: advisory locks, channels.
    pub fn space(&self) -> i32 {
        let hash = digest::digest(&digest::SHA256, self.schema.as_bytes());
        i32::from_le_bytes(hash.as_ref()[..4].try_into().expect("SHA-256 has 32 bytes"))
    }

    /// The servers and the database, for people; without a secret.
    pub fn place(&self) -> String {
        let hosts: Vec<String> = self.servers.iter().map(host).collect();
        let config = &self.servers[0];
        let database = config.get_dbname().or(config.get_user()).unwrap_or("postgres");
        format!("{}/{database} (schema {})", hosts.join(","), self.schema)
    }

    /// A new session with the usual settings. Its bytes are moved on the loop that asks for it.
    pub async fn connect(&self) -> Result<Session> {
        let session = self.connect_plain().await?;
        let settings = format!("{SETTINGS} {KEEPALIVES} SET search_path = \"{}\"; {KEEPING}", self.schema);
        let asked = session.client.simple_query(&settings);
        let told = in_time(asked).await?.map_err(failed)?;
        let told = told.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((row.get(0)?, row.get(1)?)),
            _ => None,
        });
        check_durable(told.unwrap_or_default())?;
        Ok(session)
    }

    /// A new session as the server gives it.
    pub async fn connect_plain(&self) -> Result<Session> {
        self.connect_hearing(|_| {}).await
    }

    /// The same, that hears what it will listen to. `heard` is dropped when the session ends.
    pub(crate) async fn connect_hearing(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> Result<Session> {
        Ok(self.reach(heard).await?)
    }

    /// Tries the servers until one answers, see [`reach`](super::reach).
    pub(crate) async fn reach(
        &self,
        heard: impl FnMut(Notification) + Send + 'static,
    ) -> std::result::Result<Session, Refusal> {
        Ok(match &self.tls {
            Some(tls) => {
                let (client, connection) = reach::reach(&self.servers, tls.clone(), &self.answered).await?;
                Session::moved(client, pump(connection, heard))
            }
            None => {
                let (client, connection) = reach::reach(&self.servers, NoTls, &self.answered).await?;
                Session::moved(client, pump(connection, heard))
            }
        })
    }
}

impl Session {
    fn moved(client: Client, pump: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { client, pump: tokio::spawn(pump) }
    }
}

/// A server's name or address, with its port if that is not the usual one.
pub(super) fn host(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(PORT_USUAL);
    match config.get_hosts().first() {
        Some(Host::Tcp(name)) if port == PORT_USUAL => name.clone(),
        Some(Host::Tcp(name)) => format!("{name}:{port}"),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    }
}

/// A server may take a connection and then say nothing.
pub(crate) async fn in_time<T>(asked: impl Future<Output = T>) -> std::result::Result<T, Refusal> {
    tokio::select! {
        biased;
        answer = asked => Ok(answer),
        () = pause(GREETING_MAX) => Err(Refusal::silent()),
    }
}

/// A commit must be on disk when it returns, see [`KEEPING`].
fn check_durable((synchronous_commit, fsync): (&str, &str)) -> Result<()> {
    if synchronous_commit == "off" {
        return Err(unusable(
            "synchronous_commit is off, so an accepted event could be lost: set it to on (or remote_write, \
             remote_apply, local) for this role or database"
                .to_owned(),
        ));
    }
    if fsync == "off" {
        return Err(unusable(format!("{FSYNC_OFF}, so an accepted event could be lost: set it to on")));
    }
    Ok(())
}

/// Moves bytes until the session ends, and tells what is heard on the way. Whoever asks on it is told how it ended; here
/// there is nobody to tell.
async fn pump<S, T>(mut connection: Connection<S, T>, mut heard: impl FnMut(Notification))
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            heard(notification);
        }
    }
}

/// It stands in statements as it is, so it is kept plain.
fn check_schema(schema: &str) -> Result<()> {
    let is_plain =
        schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let is_named = schema.starts_with(|first: char| first.is_ascii_lowercase()) && !schema.starts_with("pg_");
    if is_plain && schema.len() <= 40 && is_named {
        return Ok(());
    }
    Err(unusable(format!(
        "the schema {schema:?} of the store can not be used: take up to 40 lower-case letters, digits and _, not beginning \
         with pg_"
    )))
}

pub(super) fn unusable(text: impl Into<String>) -> Error {
    Error::Unusable(text.into())
}

/// What the server said, or what kept it from saying anything.
#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` asks for")]
pub fn failed(error: tokio_postgres::Error) -> Error {
    Error::Unavailable(root_cause(&error))
}

pub(super) fn root_cause(error: &tokio_postgres::Error) -> String {
    if let Some(told) = error.as_db_error() {
        let detail = told.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        return format!("PostgreSQL: {}{detail} ({})", told.message(), told.code().code());
    }
    format!("PostgreSQL can not be reached: {}", innermost(error))
}

fn innermost(error: &tokio_postgres::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::db::ANSWER_MAX;
    use super::*;

    #[test]
    fn a_url_says_where_the_tables_are() {
        let target = Target::parse("postgres://u:p@db.example/app?schema=gate&sslmode=disable").unwrap();
        assert_eq!((target.schema(), target.place().as_str()), ("gate", "db.example/app (schema gate)"));
        assert_eq!(Target::parse("postgres://db.example/app").unwrap().schema(), "tidegate");
    }

    #[test]
    fn several_servers_may_be_named_each_with_its_port() {
        let url = "postgres://u:p@127.0.0.1:15432,127.0.0.1:15433/tide?target_session_attrs=read-write";
        let target = Target::parse(url).unwrap();
        assert_eq!(target.place(), "127.0.0.1:15432,127.0.0.1:15433/tide (schema tidegate)");
        assert_eq!(target.servers[1].get_ports(), [15433]);
        for url in [url, "postgres://u:p@a,b/tide"] {
            let servers = Target::parse(url).unwrap().servers;
            let wish = |config: &Config| config.get_target_session_attrs();
            assert!(servers.iter().all(|config| wish(config) == TargetSessionAttrs::ReadWrite), "{url}");
        }
    }

    #[test]
    fn a_server_that_is_gone_is_noticed_sooner_than_an_answer_is_given_up() {
        let target = Target::parse("postgres://u:p@one,two/tide").unwrap();
        for config in &target.servers {
            let (idle, every) = (config.get_keepalives_idle(), config.get_keepalives_interval());
            let noticed = idle + every.unwrap() * config.get_keepalives_retries().unwrap();
            assert!(config.get_keepalives() && noticed < ANSWER_MAX, "{noticed:?}");
            assert_eq!(config.get_tcp_user_timeout(), Some(&idle));
        }
    }

    #[test]
    fn only_a_known_sslmode_is_taken() {
        for mode in ["disable", "prefer", "require", "verify-ca", "verify-full"] {
            assert!(Target::parse(&format!("postgres://h/d?sslmode={mode}")).is_ok(), "{mode}");
        }
        let told = Target::parse("postgres://h/d?sslmode=allow").err().expect("unknown").to_string();
        assert!(told.contains("verify-full"), "{told}");
    }

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        let bad = [
            "postgres://u:hunter2@h/app?schema=a;drop",
            "postgres://u:hunter2@h/app?nonsense=1",
            "postgres://u:hunter2@h:port/app",
            "postgres://u:hunter2@h/app?sslrootcert=/nowhere/at/all.pem",
        ];
        for url in bad {
            let error = Target::parse(url).err().expect(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
