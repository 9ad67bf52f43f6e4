//! A throw-away Tidegate: the real binary on a free loopback port, with a data folder that goes when it goes.
//!
//! Everything here is what a user's script would rely on: the flags of `serve`, `/readyz`, the admin key from the
//! environment, SIGTERM for a graceful stop. Data lies under `target/`, on a real disk, because syncing to a
//! memory file system proves and measures nothing.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clock::{self, Stopwatch};
use crate::{cargo, http, services};

/// The admin key of every throw-away server.
pub(crate) const ADMIN_KEY: &str = "tgk_throwaway0000000000000000000000000000";
/// The project that everything is in unless another is named.
pub(crate) const PROJECT: &str = "default";
/// Starting includes recovery after a crash.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// A graceful stop waits for requests under way, whose deadline is 30 s.
const STOP_PATIENCE: Duration = Duration::from_secs(45);
/// How much of a failed server's log is shown.
const LOG_TAIL_LINES: usize = 30;

/// A folder under `target/` that is removed at the end, unless it is worth a look.
pub(crate) struct Scratch {
    path: PathBuf,
    kept: bool,
}

impl Scratch {
    /// A new, empty folder.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = cargo::target().join("scratch").join(format!("{name}-{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path).with_context(|| format!("can not create {}", path.display()))?;
        Ok(Self { path, kept: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder where it is and says so.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
        eprintln!("kept for a look: {}", self.path.display());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// A subscriber as the API created it.
pub(crate) struct Subscriber {
    pub(crate) id: String,
    /// Its signing secret, `whsec_…`.
    pub(crate) secret: String,
}

/// The process and how to reach it.
pub(crate) struct Server {
    binary: PathBuf,
    folder: PathBuf,
    data: PathBuf,
    settings: Vec<(String, String)>,
    pub(crate) address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// Starts `binary` with its data under `folder` and waits until it accepts events.
    pub(crate) fn start(binary: &Path, folder: &Path) -> Result<Self> {
        let mut server = Self::new(binary, folder, &folder.join("data"))?;
        server.resume()?;
        Ok(server)
    }

    /// One that is not started yet, with its log in `folder` and its data in `data`.
    pub(crate) fn new(binary: &Path, folder: &Path, data: &Path) -> Result<Self> {
        Ok(Self {
            binary: binary.to_path_buf(),
            folder: folder.to_path_buf(),
            data: data.to_path_buf(),
            settings: Vec::new(),
            address: free_address()?,
            child: None,
        })
    }

    /// Gives it a setting by the environment, from the next start on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.settings.push((name.to_owned(), value.to_owned()));
    }

    /// Where its database lies.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Starts it again on the same data; answers how long it took to be ready.
    pub(crate) fn resume(&mut self) -> Result<Duration> {
        let watch = Stopwatch::start();
        self.spawn(&[])?;
        let ready = clock::wait_until(READY_PATIENCE, || self.has_ended() || self.is_ready());
        if !ready || self.has_ended() {
            bail!("the server did not become ready; its log ends:\n{}", self.log_tail());
        }
        Ok(watch.elapsed())
    }

    /// Starts the process, behind the command `wrapper` if it is not empty, and does not wait for anything.
    pub(crate) fn spawn(&mut self, wrapper: &[String]) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = match wrapper {
            [] => Command::new(&self.binary),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(&self.binary);
                command
            }
        };
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIDEGATE_"))
        {
            command.env_remove(name);
        }
        command
            .args(["serve", "--listen", &self.address.to_string(), "--egress-allow", "127.0.0.0/8"])
            .arg("--data-dir")
            .arg(&self.data)
            .env("TIDEGATE_ADMIN_KEY", ADMIN_KEY)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().with_context(|| format!("can not start {}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// The process id, for `/proc`.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// SIGKILL: no destructor, no flush, no goodbye.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends a signal, named as for `kill`: `-STOP`.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let signalled = Command::new("kill").args([signal, &self.pid().to_string()]).status()?;
        ensure!(signalled.success(), "kill {signal} failed");
        Ok(())
    }

    /// SIGTERM, and waits for the graceful end, which must succeed.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.child.is_none() {
            return Ok(());
        }
        self.signal("-TERM")?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let ended = clock::wait_until(STOP_PATIENCE, || !matches!(child.try_wait(), Ok(None)));
        if !ended {
            child.kill()?;
        }
        let status = child.wait()?;
        ensure!(
            ended && status.success(),
            "the server did not stop gracefully ({status})\n{}",
            self.log_tail()
        );
        Ok(())
    }

    /// Calls the API with the admin key and demands success.
    pub(crate) fn api(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        self.api_in(PROJECT, method, path, body)
    }

    /// The same for a project.
    pub(crate) fn api_in(&self, project: &str, method: &str, path: &str, body: &Value) -> Result<Value> {
        let answer = self.ask_in(project, method, path, body)?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        let text = String::from_utf8_lossy(&answer);
        serde_json::from_slice(&answer).with_context(|| format!("{method} {path} answered {text}"))
    }

    /// Calls the API like [`Self::api`], with the answer as it came.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Vec<u8>> {
        self.ask_in(PROJECT, method, path, body)
    }

    fn ask_in(&self, project: &str, method: &str, path: &str, body: &Value) -> Result<Vec<u8>> {
        let response = self.call(project, method, path, body)?;
        let text = String::from_utf8_lossy(&response.body);
        ensure!((200..300).contains(&response.status), "{method} {path}: {} {text}", response.status);
        Ok(response.body)
    }

    /// The value of a metric without labels; 0 if it is not there yet.
    pub(crate) fn metric(&self, name: &str) -> Result<u64> {
        let response = self.send("GET", "/metrics", &Value::Null)?;
        let text = String::from_utf8_lossy(&response.body);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0), |value| value.trim().parse().with_context(|| format!("{name} is {value}")))
    }

    /// Creates a subscriber that delivers everything to `url`, with more fields from `rest`.
    pub(crate) fn subscribe(&self, name: &str, url: &str, rest: &Value) -> Result<Subscriber> {
        self.subscribe_in(PROJECT, name, url, rest)
    }

    /// The same for a project.
    pub(crate) fn subscribe_in(
        &self,
        project: &str,
        name: &str,
        url: &str,
        rest: &Value,
    ) -> Result<Subscriber> {
        let mut body = json!({"name": name, "destination": {"kind": "webhook", "url": url}});
        if let (Some(body), Some(rest)) = (body.as_object_mut(), rest.as_object()) {
            body.extend(rest.clone());
        }
        let answer = self.api_in(project, "POST", "/v1/subscribers", &body)?;
        let text = |field: &str| answer[field].as_str().map(str::to_owned);
        Ok(Subscriber {
            id: text("id").context("a new subscriber has no id")?,
            secret: text("secret").context("a new subscriber has no secret")?,
        })
    }

    /// Makes a subscriber that is signed for with Ed25519; answers its public key.
    pub(crate) fn subscribe_ed25519(&self, name: &str, url: &str) -> Result<String> {
        let body = json!({"name": name, "destination": {"url": url}, "signing": {"algorithm": "ed25519"}});
        let answer = self.api("POST", "/v1/subscribers", &body)?;
        let key = answer["public_key"].as_str().context("a new subscriber has no public key")?;
        Ok(key.to_owned())
    }

    /// Gives a subscriber another secret; the one before it signs too for a day.
    pub(crate) fn rotate(&self, id: &str) -> Result<()> {
        self.api("POST", &format!("/v1/subscribers/{id}/rotate-secret"), &Value::Null).map(drop)
    }

    /// Calls the API for a project; every answer will do.
    pub(crate) fn call(
        &self,
        project: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<http::Response> {
        let authorization = format!("Bearer {ADMIN_KEY}");
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("x-tidegate-project", project),
        ];
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        http::request(self.address, method, path, &headers, &bytes)
            .with_context(|| format!("{method} {path} got no answer"))
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<http::Response> {
        self.call(PROJECT, method, path, body)
    }

    /// Whether it accepts events.
    pub(crate) fn is_ready(&self) -> bool {
        let asked = http::request(self.address, "GET", "/readyz", &[], b"");
        asked.is_ok_and(|response| response.status == 200)
    }

    /// How the process ended, if it did.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten())
    }

    /// Whether the process is no more.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// How many lines of its log, of all its lives, say this.
    pub(crate) fn log_count(&self, what: &str) -> u64 {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(what)).count() as u64
    }

    /// The last lines the server wrote.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill().ok();
    }
}

/// A loopback port that was free a moment ago, and that no outgoing connection gets while its server is down.
fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, services::free_port()?).into())
}
