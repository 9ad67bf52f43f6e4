//! A Redis of our own, which keeps nothing on disk: nothing of ours may depend on it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::home::{self, Home};
use crate::clock;

const READY_PATIENCE: Duration = Duration::from_secs(30);

/// One server.
pub(super) struct Redis {
    start: Command,
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Redis {
    /// Starts one.
    pub(super) fn create(program: &Path, home: &Home) -> Result<Self> {
        let folder = home.folder("redis")?;
        let port = home::free_port()?;
        let mut start = home.command(program, &folder);
        start.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(&folder);
        start.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        let mut redis = Self { start, folder, port, child: None };
        redis.resume()?;
        Ok(redis)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Starts it, empty, and waits until it answers.
    pub(super) fn resume(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "Redis runs already");
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        self.start.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let mut child = self.start.spawn().context("redis-server does not start")?;
        let mut ended = false;
        let ready = clock::wait_until(READY_PATIENCE, || {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || self.ask("PING").is_ok()
        });
        self.child = Some(child);
        if ended || !ready {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            bail!("Redis did not become ready; it wrote:\n{log}");
        }
        Ok(())
    }

    /// Kills it.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Tells it a command that it answers with one good line.
    pub(super) fn ask(&self, command: &str) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(READY_PATIENCE))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        ensure!(answer.starts_with('+'), "Redis answers {command} with {}", answer.trim());
        Ok(())
    }

    /// A number of what it tells of itself.
    pub(super) fn counts(&self, field: &str) -> Result<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(READY_PATIENCE))?;
        stream.write_all(b"INFO stats\r\nQUIT\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let value = answer.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.with_context(|| format!("Redis does not tell {field}"))?.trim().parse().context("no number")
    }
}
