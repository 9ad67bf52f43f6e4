//! The real binary with a folder of its own: started, stopped, killed and started again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, PATIENCE, within_patience};
use crate::receiver::Receiver as Hook;

/// The admin key of every server that is not asked to make one.
pub(crate) const ADMIN_KEY: &str = "tgk_e2e0000000000000000000000000000000";
const LOOPBACK: &str = "127.0.0.0/8";

/// A folder that goes when it goes.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("it-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What can not be removed lies under target/ and harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How to start it.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    pub(crate) egress_allow: Option<&'static str>,
    pub(crate) listen: Option<&'static str>,
    pub(crate) admin_key: Option<&'static str>,
    pub(crate) master_key: Option<&'static str>,
    /// More variables of the environment, which is empty otherwise.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Setup {
    /// An admin key from the environment, and deliveries to this machine allowed.
    pub(crate) fn usual() -> Self {
        Self { egress_allow: Some(LOOPBACK), admin_key: Some(ADMIN_KEY), ..Self::default() }
    }

    /// As usual, but deliveries go to public addresses only.
    pub(crate) fn guarded() -> Self {
        Self { egress_allow: None, ..Self::usual() }
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.env_clear();
        command.args(["serve", "--listen", self.listen.unwrap_or("127.0.0.1:0"), "--data-dir"]);
        command.arg(folder.join("data"));
        if let Some(range) = self.egress_allow {
            command.args(["--egress-allow", range]);
        }
        let secrets = [("TIDEGATE_ADMIN_KEY", self.admin_key), ("TIDEGATE_MASTER_KEY", self.master_key)];
        command.envs(secrets.into_iter().filter_map(|(name, value)| Some((name, value?))));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts a server that must refuse to start; says what it printed to stderr.
    #[track_caller]
    pub(crate) fn refusal(&self, folder: &Folder) -> String {
        let mut command = self.command(folder.path());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let printed = lines(&mut child).recv_timeout(PATIENCE);
        if printed != Err(RecvTimeoutError::Disconnected) {
            child.kill().expect("killed");
            panic!("it did not refuse to start: {printed:?}");
        }
        let output = child.wait_with_output().expect("it ended");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) folder: Folder,
    pub(crate) address: SocketAddr,
    process: Option<Process>,
}

struct Process {
    child: Child,
    /// What it prints, line by line; ends when it ends.
    lines: Receiver<String>,
}

/// A subscriber as the API created it.
pub(crate) struct Subscriber {
    pub(crate) id: String,
    pub(crate) secret: String,
    /// `/v1/subscribers/{id}`.
    pub(crate) path: String,
}

impl Server {
    /// A server as usual.
    pub(crate) fn start() -> Self {
        Self::start_with(&Setup::usual())
    }

    pub(crate) fn start_with(setup: &Setup) -> Self {
        let folder = Folder::new();
        let (process, address) = launch(setup, folder.path());
        Self { folder, address, process: Some(process) }
    }

    /// Starts it again on the same folder, after a stop or a kill.
    pub(crate) fn restart(&mut self, setup: &Setup) {
        assert!(self.process.is_none(), "it still runs");
        let (process, address) = launch(setup, self.folder.path());
        (self.process, self.address) = (Some(process), address);
    }

    /// SIGTERM, without waiting.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// What `ps` shows of it.
    pub(crate) fn command_line(&self) -> Vec<u8> {
        let id = self.process.as_ref().expect("it runs").child.id();
        fs::read(format!("/proc/{id}/cmdline")).expect("a process")
    }

    /// What the kernel says about it.
    pub(crate) fn status_file(&self) -> String {
        let id = self.process.as_ref().expect("it runs").child.id();
        fs::read_to_string(format!("/proc/{id}/status")).expect("a process")
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().expect("it runs").child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().expect("kill exists");
        assert!(sent.success());
    }

    /// Waits for its end. Returns what it printed since its first line.
    pub(crate) fn wait(&mut self) -> (ExitStatus, Vec<String>) {
        let mut process = self.process.take().expect("it runs");
        let mut printed = Vec::new();
        loop {
            match process.lines.recv_timeout(PATIENCE) {
                Ok(line) => printed.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end; its log:\n{}", self.log()),
            }
        }
        (process.child.wait().expect("it ended"), printed)
    }

    /// Waits for its end for a while, in which it must not come.
    #[track_caller]
    pub(crate) fn lives_on(&self) {
        let lines = &self.process.as_ref().expect("it runs").lines;
        assert_eq!(lines.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    }

    /// A graceful stop, which must succeed. Returns what it printed since its first line.
    pub(crate) fn stop(&mut self) -> Vec<String> {
        self.terminate();
        let (status, printed) = self.wait();
        assert_eq!(status.code(), Some(0), "its log:\n{}", self.log());
        printed
    }

    /// SIGKILL: no flush, no goodbye.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.child.kill().expect("killed");
        process.child.wait().expect("ended");
    }

    /// The admin key that a first start shows.
    pub(crate) fn printed_key(&self) -> String {
        let lines = &self.process.as_ref().expect("it runs").lines;
        let mut printed = std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok());
        let line = printed.find(|line| line.contains("admin key")).expect("a key is printed");
        line.rsplit(' ').next().expect("a last word").to_owned()
    }

    /// What it logged, all lives together.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    /// Waits until it has logged something.
    pub(crate) fn until_logged(&self, words: &str) {
        assert!(within_patience(|| self.log().contains(words)), "never logged {words}:\n{}", self.log());
    }

    /// The installation's admin.
    pub(crate) fn admin(&self) -> Client {
        Client::stranger(self.address).with_key(ADMIN_KEY)
    }

    /// Creates a subscriber for everything, with more fields, or other ones, from `rest`.
    #[track_caller]
    pub(crate) fn subscribe(&self, hook: &Hook, rest: &Value) -> Subscriber {
        self.subscribe_as(&self.admin(), hook, rest)
    }

    #[track_caller]
    pub(crate) fn subscribe_as(&self, client: &Client, hook: &Hook, rest: &Value) -> Subscriber {
        let mut body = json!({ "destination": { "url": hook.url() } });
        let members = body.as_object_mut().expect("an object");
        members.extend(rest.as_object().cloned().unwrap_or_default());
        let created = client.post("/v1/subscribers", &body).expect(201);
        let text = |name: &str| created[name].as_str().expect("a text").to_owned();
        Subscriber { id: text("id"), secret: text("secret"), path: format!("/v1/subscribers/{}", text("id")) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

fn launch(setup: &Setup, folder: &Path) -> (Process, SocketAddr) {
    let log = File::options().create(true).append(true).open(folder.join("log")).expect("a log");
    let mut child =
        setup.command(folder).stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
    let lines = lines(&mut child);
    let Ok(first) = lines.recv_timeout(PATIENCE) else {
        panic!("it did not start; its log:\n{}", fs::read_to_string(folder.join("log")).unwrap_or_default());
    };
    let address = first.split("://").nth(1).and_then(|rest| rest.split(',').next());
    let address = address.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address: {first}"));
    (Process { child, lines }, address)
}

/// What a process prints, line by line; ends when it ends.
fn lines(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}
