//! A PostgreSQL of our own.
//!
//! Its settings are fast where that costs no promise: a commit is synced and answered as in production.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use tokio_postgres::SimpleQueryMessage;

use super::home::{self, Home};
use crate::bench::bare;
use crate::clock;

/// Recovery after a kill reads the log since the last checkpoint.
const READY_PATIENCE: Duration = Duration::from_secs(120);
/// How much of its log is shown when it does not start.
const LOG_TAIL_LINES: usize = 20;

const USER: &str = "tidegate";
/// The folder of the data in its own.
const DATA: &str = "data";

/// Durability stays as it comes, which is on: named here, it could not be changed while the server runs, which a test does.
const SETTINGS: [&str; 11] = [
    "listen_addresses=127.0.0.1",
    // A socket file's path may not be longer than a hundred characters; ours may.
    "unix_socket_directories=",
    "max_connections=200",
    "shared_buffers=1GB",
    "max_wal_size=8GB",
    // A segment that is used again costs nothing; a new one is written twice, a deleted one keeps the disk busy.
    "min_wal_size=2GB",
    "checkpoint_timeout=15min",
    "max_prepared_transactions=0",
    "log_line_prefix=%m [%p] %u@%d ",
    "log_lock_waits=on",
    "log_checkpoints=off",
];

/// One cluster.
pub(super) struct Postgres {
    start: Command,
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Postgres {
    /// Makes a cluster with the programs in `bin` and starts it.
    pub(super) fn create(bin: &Path, home: &Home) -> Result<Self> {
        let folder = home.folder("postgres")?;
        let data = folder.join(DATA);
        let mut initdb = home.command(&bin.join("initdb"), &folder);
        initdb.arg("--pgdata").arg(&data).args(["--username", USER, "--auth", "trust", "--no-sync"]);
        initdb.args(["--encoding", "UTF8", "--locale", "C"]);
        let output = initdb.output().context("initdb does not start")?;
        ensure!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
        Self::start_in(folder, bin, home, home::free_port()?)
    }

    /// Makes a standby that follows this one without being waited for, and starts it.
    pub(super) fn standby(&self, bin: &Path, home: &Home, name: &str, port: u16) -> Result<Self> {
        let folder = home.folder(name)?;
        let mut copy = home.command(&bin.join("pg_basebackup"), &folder);
        copy.args(["--dbname", &self.url(), "--pgdata"]).arg(folder.join(DATA));
        copy.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
        let output = copy.output().context("pg_basebackup does not start")?;
        ensure!(output.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&output.stderr));
        Self::start_in(folder, bin, home, port)
    }

    fn start_in(folder: PathBuf, bin: &Path, home: &Home, port: u16) -> Result<Self> {
        let mut start = home.command(&bin.join("postgres"), &folder);
        start.arg("-D").arg(folder.join(DATA)).args(["-p", &port.to_string()]);
        start.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        let mut postgres = Self { start, folder, port, child: None };
        postgres.resume()?;
        Ok(postgres)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Kills it and removes what it had.
    pub(super) fn retire(mut self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(&self.folder).context("its folder cannot be removed")
    }

    /// Asks it one thing; answers the first field of the first row.
    pub(super) fn ask(&self, sql: &str) -> Result<Option<String>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = bare::connect(&self.url()).await?;
            let messages = client.simple_query(sql).await.with_context(|| sql.to_owned())?;
            Ok(messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            }))
        })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts it on what is there and waits until it takes connections.
    pub(super) fn resume(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "PostgreSQL runs already");
        let log = File::options().create(true).append(true).open(self.log())?;
        self.start.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let mut child = self.start.spawn().context("postgres does not start")?;
        let mut ended = false;
        let ready = clock::wait_until(READY_PATIENCE, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || answers(self.port).unwrap_or(false)
        });
        self.child = Some(child);
        if ended || !ready {
            bail!("PostgreSQL did not become ready; its log ends:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Kills the server and every process of it. A kill of the first alone would let the others finish what they do.
    pub(super) fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        home::kill_all_in(&self.folder)?;
        child.wait()?;
        Ok(())
    }

    /// Everything it wrote.
    pub(super) fn read_log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log())?).into_owned())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

/// Whether it lets us in: it answers the first message of a connection with a request to authenticate, or that it did not
/// need to; one that still recovers answers with an error.
fn answers(port: u16) -> Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let parameters = format!("user\0{USER}\0database\0postgres\0\0");
    let protocol = 196_608_u32;
    let length = u32::try_from(8 + parameters.len())?;
    let message = [&length.to_be_bytes()[..], &protocol.to_be_bytes(), parameters.as_bytes()].concat();
    stream.write_all(&message)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    Ok(kind == *b"R")
}
