//! How a connection to PostgreSQL is made: from the URL to a session with the right settings.
//!
//! Beyond what PostgreSQL's own URLs know, `schema` names where the tables live (`tidegate` unless told otherwise), and
//! `sslrootcert` a file of certificates to trust instead of the public ones. Once TLS is asked for, the server's
//! certificate is always checked.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Notification, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

use crate::coordination::timer::pause;
use crate::{Error, Result};

/// How long to wait for a server that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// And for one that does to be ready to be asked.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// A server that is gone without a word is noticed within about this time.
const SILENCE_MAX: Duration = Duration::from_secs(15);

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
    config: Config,
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
        let mut parsed =
            Url::parse(url).map_err(|error| unusable(format!("the URL of the store is no URL: {error}")))?;
        let (mut schema, mut root) = ("tidegate".to_owned(), None);
        let mut rest = Vec::new();
        for (name, value) in parsed.query_pairs() {
            match &*name {
                "schema" => schema = value.into_owned(),
                "sslrootcert" => root = Some(value.into_owned()),
                "sslmode" if value.starts_with("verify-") => {
                    rest.push(("sslmode".to_owned(), "require".to_owned()));
                }
                _ => rest.push((name.into_owned(), value.into_owned())),
            }
        }
        check_schema(&schema)?;
        if rest.is_empty() {
            parsed.set_query(None);
        } else {
            parsed.query_pairs_mut().clear().extend_pairs(rest);
            // PostgreSQL's URLs know no plus for a space.
            let query = parsed.query().unwrap_or_default().replace('+', "%20");
            parsed.set_query(Some(&query));
        }
        let mut config: Config = parsed.as_str().parse().map_err(|error: tokio_postgres::Error| {
            unusable(format!("the URL of the store can not be used: {}", root_cause(&error)))
        })?;
        config
            .application_name("tidegate")
            .connect_timeout(CONNECT_TIMEOUT)
            .keepalives_idle(SILENCE_MAX)
            .tcp_user_timeout(SILENCE_MAX);
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(client_config(root.as_deref())?)),
        };
        Ok(Self { config, tls, schema })
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

    /// The server and the database, for people; without a secret.
    pub fn place(&self) -> String {
        use tokio_postgres::config::Host;
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("postgres");
        format!("{host}/{database} (schema {})", self.schema)
    }

    /// A new session with the usual settings. Its bytes are moved on the loop that asks for it.
    pub async fn connect(&self) -> Result<Session> {
        in_time(self.connect_with_settings()).await
    }

    async fn connect_with_settings(&self) -> Result<Session> {
        let session = self.connect_plain().await?;
        let settings = format!("{SETTINGS} SET search_path = {}; {KEEPING}", self.schema);
        let told = session.client.simple_query(&settings).await.map_err(failed)?;
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
        let connecting = async {
            match &self.tls {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await.map_err(failed)?;
                    Ok(Session { client, pump: tokio::spawn(pump(connection, heard)) })
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await.map_err(failed)?;
                    Ok(Session { client, pump: tokio::spawn(pump(connection, heard)) })
                }
            }
        };
        in_time(connecting).await
    }
}

/// A server may take a connection and then say nothing.
async fn in_time(connecting: impl Future<Output = Result<Session>>) -> Result<Session> {
    tokio::select! {
        biased;
        session = connecting => session,
        () = pause(GREETING_MAX) => Err(Error::Unavailable("the database does not answer".to_owned())),
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

fn client_config(root: Option<&str>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match root {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let unreadable =
                |error: String| unusable(format!("cannot read the certificates in {path}: {error}"));
            let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
            for certificate in found {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// It stands in statements as it is, so it is kept plain.
fn check_schema(schema: &str) -> Result<()> {
    let is_plain =
        schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_plain && schema.len() <= 40 && schema.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(unusable(format!(
        "the schema {schema:?} of the store can not be used: take up to 40 lower-case letters, digits and _"
    )))
}

fn unusable(text: String) -> Error {
    Error::Unusable(text)
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
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("PostgreSQL can not be reached: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_the_tables_are() {
        let target = Target::parse("postgres://u:p@db.example/app?schema=gate&sslmode=disable").unwrap();
        assert_eq!((target.schema(), target.place().as_str()), ("gate", "db.example/app (schema gate)"));
        assert_eq!(Target::parse("postgres://db.example/app").unwrap().schema(), "tidegate");
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
