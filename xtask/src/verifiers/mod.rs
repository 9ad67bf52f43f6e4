//! `cargo xtask verifiers`: deliveries of the real binary, checked unchanged by other people's code.
//!
//! Fetches the public `standardwebhooks` packages of Python and JavaScript (pinned, with checksums, under
//! `target/verifiers/`), starts a receiver in each language, posts events with random bodies and demands that both
//! packages accept every delivery, that `data` arrived byte for byte, and that the same packages refuse a changed
//! body and another secret. Halfway the secrets are rotated, so that the rest carries two signatures. The packages do
//! not know Ed25519; a third receiver checks it with Node's own. `/asyncapi.json` goes through its standard's parser.
//! Without python3 or node it says so; where `CI=true` that is a failure.

mod asyncapi;
mod bodies;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::cargo::{self, Profile};
use crate::clock::Stopwatch;
use crate::http;
use crate::prng::Prng;
use crate::run::answers;
use crate::server::{ADMIN_KEY, Scratch, Server};

const EVENTS: usize = 200;
/// The receiver that holds a public key.
const ED25519: &str = "ed25519";
const SEED: u64 = 20_260;
/// For all deliveries to both receivers.
const PATIENCE: Duration = Duration::from_secs(60);

const VERIFY_PY: &str = include_str!("../../verifiers/verify.py");
const REQUIREMENTS: &str = include_str!("../../verifiers/requirements.txt");
const STANDARD_WEBHOOKS: Package = Package {
    manifest: include_str!("../../verifiers/package.json"),
    lock: include_str!("../../verifiers/package-lock.json"),
    script: include_str!("../../verifiers/verify.mjs"),
};

/// A package of JavaScript, pinned with all it needs, and what we run with it.
struct Package {
    manifest: &'static str,
    lock: &'static str,
    script: &'static str,
}

/// A receiver in another language, reporting one line per delivery.
struct Verifier {
    language: &'static str,
    child: Child,
    lines: Receiver<String>,
    port: u16,
}

/// What a receiver says about one delivery.
#[derive(Deserialize)]
struct Report {
    body: String,
    accepted: bool,
    error: Option<String>,
    refused_tampered: bool,
    refused_other_secret: bool,
}

/// Runs the check on a debug build, or on `binary`; the answer is a remark for the summary.
pub(crate) fn run(binary: Option<PathBuf>) -> Result<String> {
    if let Some(missing) = missing() {
        ensure!(!in_ci(), "{missing} is missing, and CI=true does not allow to leave the verifiers out");
        println!("note: {missing} is missing; deliveries were NOT checked with the public verifiers");
        return Ok(format!("NOT RUN: {missing} is missing"));
    }
    let folder = cargo::target().join("verifiers");
    let python = fetch_python(&folder.join("py"))?;
    let javascript = fetch_javascript(&folder.join("js"), &STANDARD_WEBHOOKS)?;
    let binary = match binary {
        Some(binary) => binary,
        None => cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate"),
    };
    let mut scratch = Scratch::new("verifiers")?;
    let ed25519 = fetch_javascript(&folder.join("js"), &STANDARD_WEBHOOKS)?;
    let commands = [("python", python), ("javascript", javascript), (ED25519, ed25519)];
    let outcome = check(&binary, scratch.path(), commands, &folder);
    if outcome.is_err() {
        scratch.keep();
    }
    outcome?;
    Ok(format!(
        "{EVENTS} deliveries accepted by each of 2 packages and by Node's Ed25519; /asyncapi.json by its parser"
    ))
}

fn missing() -> Option<&'static str> {
    let needed = ["python3", "node", "npm"];
    needed.into_iter().find(|program| !answers(program, "--version"))
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Installs the pinned package; answers the command that starts the receiver.
fn fetch_python(folder: &Path) -> Result<Command> {
    let requirements = folder.join("requirements.txt");
    if fs::read_to_string(&requirements).ok().as_deref() != Some(REQUIREMENTS) {
        fs::remove_dir_all(folder).ok();
        let wanted = write(&folder.join("wanted.txt"), REQUIREMENTS)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--only-binary", ":all:", "--require-hashes", "--target"]);
        pip.arg(folder).arg("--requirement").arg(wanted).env("PIP_ROOT_USER_ACTION", "ignore");
        succeed(&mut pip, "pip can not install the Python package (Debian: apt-get install python3-pip)")?;
        write(&requirements, REQUIREMENTS)?;
    }
    let mut command = Command::new("python3");
    command.arg(write(&folder.join("verify.py"), VERIFY_PY)?).env("PYTHONPATH", folder);
    Ok(command)
}

/// Installs a pinned package; answers the command that runs our script with it.
fn fetch_javascript(folder: &Path, package: &Package) -> Result<Command> {
    let installed = folder.join("installed.json");
    if fs::read_to_string(&installed).ok().as_deref() != Some(package.lock) {
        fs::remove_dir_all(folder).ok();
        write(&folder.join("package.json"), package.manifest)?;
        write(&folder.join("package-lock.json"), package.lock)?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(folder);
        succeed(&mut npm, "npm can not install the JavaScript package")?;
        write(&installed, package.lock)?;
    }
    let mut command = Command::new("node");
    command.arg(write(&folder.join("run.mjs"), package.script)?);
    Ok(command)
}

fn write(path: &Path, text: &str) -> Result<PathBuf> {
    let folder = path.parent().context("a file has no folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, text).with_context(|| format!("can not write {}", path.display()))?;
    Ok(path.to_path_buf())
}

fn succeed(command: &mut Command, otherwise: &'static str) -> Result<()> {
    let status = command.status().context(otherwise)?;
    ensure!(status.success(), "{otherwise}");
    Ok(())
}

fn check(binary: &Path, folder: &Path, commands: [(&'static str, Command); 3], tools: &Path) -> Result<()> {
    let server = Server::start(binary, folder)?;
    asyncapi::check(&server, tools, folder)?;
    let mut verifiers = Vec::new();
    let mut shared = Vec::new();
    for (language, command) in commands {
        let mut verifier = Verifier::start(language, command)?;
        let url = format!("http://127.0.0.1:{}/hook", verifier.port);
        if language == ED25519 {
            verifier.tell(&server.subscribe_ed25519(language, &url)?)?;
        } else {
            let subscriber = server.subscribe(language, &url, &serde_json::json!({}))?;
            verifier.tell(&subscriber.secret)?;
            shared.push(subscriber.id);
        }
        verifiers.push(verifier);
    }
    let mut prng = Prng::new(SEED);
    let mut sent = post_events(&server, &mut prng, 0..EVENTS / 2)?;
    for id in shared {
        server.rotate(&id)?;
    }
    sent.extend(post_events(&server, &mut prng, EVENTS / 2..EVENTS)?);
    for verifier in &verifiers {
        verifier.demand(&sent).with_context(|| format!("the server's log ends:\n{}", server.log_tail()))?;
        println!("{}: {} deliveries accepted, changed ones refused", verifier.language, sent.len());
    }
    Ok(())
}

/// Posts the events one by one; answers each event's id and the text of its `data`.
fn post_events(server: &Server, prng: &mut Prng, numbers: Range<usize>) -> Result<BTreeMap<String, String>> {
    let mut sent = BTreeMap::new();
    let authorization = format!("Bearer {ADMIN_KEY}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    for number in numbers {
        let id = format!("verify-{number:04}");
        let data = bodies::value(prng);
        let event = format!(r#"{{"id":"{id}","source":"verifiers","type":"check.random","data":{data}}}"#);
        let response = http::request(server.address, "POST", "/v1/events", &headers, event.as_bytes())?;
        let answer = String::from_utf8_lossy(&response.body);
        ensure!(response.status == 202, "event refused: {} {answer}\n{event}", response.status);
        sent.insert(id, data);
    }
    Ok(sent)
}

impl Verifier {
    fn start(language: &'static str, mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let all = BufReader::new(stdout).lines().map_while(Result::ok);
            all.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        let first = lines
            .recv_timeout(PATIENCE)
            .with_context(|| format!("the {language} receiver does not start"))?;
        let port = serde_json::from_str::<serde_json::Value>(&first)?["port"].as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok()).context("the receiver named no port")?;
        Ok(Self { language, child, lines, port })
    }

    /// Hands over the secret under which deliveries are to be checked.
    fn tell(&mut self, secret: &str) -> Result<()> {
        let mut stdin = self.child.stdin.take().context("no standard input")?;
        writeln!(stdin, "{secret}")?;
        Ok(())
    }

    /// Waits until every event has come and been accepted, byte for byte.
    fn demand(&self, sent: &BTreeMap<String, String>) -> Result<()> {
        let watch = Stopwatch::start();
        let mut missing = sent.clone();
        while !missing.is_empty() {
            let left = PATIENCE.saturating_sub(watch.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                bail!("{}: {} of {} deliveries never came", self.language, missing.len(), sent.len());
            };
            let report: Report = serde_json::from_str(&line)?;
            let id = self.judge(&report, sent)?;
            missing.remove(&id);
        }
        Ok(())
    }

    /// Demands that one delivery was right in every way; answers its event's id.
    fn judge(&self, report: &Report, sent: &BTreeMap<String, String>) -> Result<String> {
        let Report { body, .. } = report;
        let who = self.language;
        ensure!(report.accepted, "{who} refused a delivery: {:?}\n{body}", report.error);
        ensure!(report.refused_tampered, "{who} accepted a changed body\n{body}");
        ensure!(report.refused_other_secret, "{who} accepted another secret\n{body}");
        let found = sent.iter().find(|(id, _)| body.starts_with(&format!(r#"{{"id":"{id}","#)));
        let (id, data) = found.with_context(|| format!("{who} got an event nobody sent\n{body}"))?;
        ensure!(
            body.ends_with(&format!(r#""data":{data}}}"#)),
            "{who}: data was changed on the way\n{data}\n{body}"
        );
        Ok(id.clone())
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
