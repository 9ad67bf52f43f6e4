//! `tidegate doctor`: one line for each thing that could be wrong, with its remedy.
//!
//! Asks the server what it knows of itself and looks at what only this machine can tell: its own files, and the database
//! and Redis of a shared store, which it asks itself, because a server that can not start knows nothing. A ✗ makes the exit code 1; a !
//! does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tidegate_server::checkup::{self, Severity, Symptom};
use tidegate_server::settings::store::{Address, StoreAt, store_at};
use tidegate_server::settings::{DATA_DIR_DEFAULT, File};

use crate::client::Client;
use crate::commands::Globals;
use crate::failure::Failure;
use crate::output::{Colour, Output, plain};

/// Look for trouble: the server, its disk, its receivers
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The server's configuration file, if it is on this machine
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data, if it is on this machine [default: ./tidegate-data]
    #[arg(long, env = "TIDEGATE_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The server's store, if it is a PostgreSQL that this machine can reach
    #[arg(long, env = "TIDEGATE_STORE", value_name = "URL", hide_env_values = true)]
    store: Option<String>,
    /// The server's Redis, if this machine can reach it
    #[arg(long, env = "TIDEGATE_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fine,
    Warning,
    Failing,
}

struct Finding {
    check: String,
    state: State,
    detail: String,
    remedy: Option<String>,
}

impl Finding {
    fn fine(check: &str, detail: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state: State::Fine, detail: detail.into(), remedy: None }
    }

    fn bad(state: State, check: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn json(&self) -> Value {
        let state = match self.state {
            State::Fine => "ok",
            State::Warning => "warning",
            State::Failing => "failing",
        };
        json!({ "check": self.check, "state": state, "detail": self.detail, "remedy": self.remedy })
    }
}

/// Runs `tidegate doctor`.
pub(crate) async fn run(args: DoctorArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let (mut findings, file) = configuration(&args);
    let (found, at) = servers(&args, &file).await;
    findings.extend(found);
    findings.extend(local(&args, file, at.as_ref()));
    findings.extend(remote(globals).await);
    let output = Output::new(globals.json);
    let is_failing = findings.iter().any(|finding| finding.state == State::Failing);
    if output.json {
        let checks: Vec<Value> = findings.iter().map(Finding::json).collect();
        output.line(&json!({ "healthy": !is_failing, "checks": checks }).to_string())?;
    } else {
        for finding in &findings {
            print(&output, finding)?;
        }
    }
    Ok(if is_failing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(output: &Output, finding: &Finding) -> std::io::Result<()> {
    let mark = match finding.state {
        State::Fine => output.paint.text(Colour::Green, "✓"),
        State::Warning => output.paint.text(Colour::Grey, "!"),
        State::Failing => output.paint.text(Colour::Red, "✗"),
    };
    output.line(&format!("{mark} {:<16} {}", plain(&finding.check), plain(&finding.detail)))?;
    match &finding.remedy {
        Some(remedy) => output.line(&format!("                   → {}", plain(remedy))),
        None => Ok(()),
    }
}

/// The server's configuration file, if it is known.
fn configuration(args: &DoctorArgs) -> (Vec<Finding>, File) {
    let Some(path) = &args.config else { return Default::default() };
    match File::read(path) {
        Ok(file) => (vec![Finding::fine("configuration", format!("{} can be read", path.display()))], file),
        Err(problem) => {
            let remedy = "correct it; `tidegate config check` says more";
            let finding = Finding::bad(State::Failing, "configuration", problem.to_string(), remedy);
            (vec![finding], File::default())
        }
    }
}

/// The servers that a shared store lives on, and where the store is as a server would understand it.
async fn servers(args: &DoctorArgs, file: &File) -> (Vec<Finding>, Option<StoreAt>) {
    let given = |flag: &Option<String>, file: &Option<Address>| {
        flag.clone().map(Address).or_else(|| file.clone()).filter(|url| !url.0.is_empty())
    };
    let (store, redis) = (given(&args.store, &file.store.url), given(&args.redis, &file.redis.url));
    let mut findings = Vec::new();
    // Redis alone may be looked at without telling where the store is.
    let at = match store_at(store.clone(), store.and(redis.clone())) {
        Ok((at, _)) => Some(at),
        Err(problem) => {
            let remedy = "correct it: a server with this does not start";
            findings.push(Finding::bad(State::Failing, "store address", problem.to_string(), remedy));
            None
        }
    };
    if let Some(StoreAt::Postgres { url, .. }) = &at {
        findings.extend(checkup::database(url).await.into_iter().map(Finding::from));
    }
    if let Some(url) = redis {
        findings.extend(checkup::redis_server(&url).await.into_iter().map(Finding::from));
    }
    (findings, at)
}

impl From<Symptom> for Finding {
    fn from(symptom: Symptom) -> Self {
        let state = match symptom.severity {
            Severity::Fine => State::Fine,
            Severity::Warning => State::Warning,
            Severity::Failing => State::Failing,
        };
        Self { check: symptom.check.to_owned(), state, detail: symptom.detail, remedy: symptom.remedy }
    }
}

/// What this machine can tell. Only an embedded store has its data there; a master key may be there for any.
fn local(args: &DoctorArgs, file: File, at: Option<&StoreAt>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let data_dir = args.data_dir.clone().or(file.data_dir).unwrap_or_else(|| DATA_DIR_DEFAULT.into());
    // Absent means that the server is on another machine.
    if data_dir.is_dir() {
        findings.extend((at == Some(&StoreAt::Embedded)).then(|| data(&data_dir)));
        findings.extend(master_key(&data_dir));
    }
    findings
}

fn data(folder: &Path) -> Finding {
    let database = folder.join("tidegate.db");
    match fs::metadata(&database) {
        Ok(found) => Finding::fine("data", format!("{}: {} MB", database.display(), found.len() / 1_000_000)),
        Err(error) => Finding::bad(
            State::Warning,
            "data",
            format!("{}: {error}", database.display()),
            "name the server's folder with --data-dir, or start it once",
        ),
    }
}

fn master_key(folder: &Path) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("master.key");
    let mode = fs::metadata(&path).ok()?.permissions().mode() & 0o777;
    let shown = path.display();
    Some(if mode & 0o077 == 0 {
        Finding::fine("master key", format!("{shown} is readable by its owner only; keep a copy elsewhere"))
    } else {
        let detail = format!("{shown} can be read by others (mode {mode:o})");
        Finding::bad(State::Failing, "master key", detail, format!("chmod 600 {shown}"))
    })
}

/// What the server tells.
async fn remote(globals: &Globals) -> Vec<Finding> {
    let mut client = match Client::new(globals) {
        Ok(client) => client,
        Err(failure) => return vec![failing("server", &failure)],
    };
    let ready = match client.look(&["readyz"], &[("verbose", "true")]).await {
        Ok(answer) => answer,
        Err(failure) => return vec![failing("server", &failure)],
    };
    let mut findings = readiness(&globals.url, &ready.json().unwrap_or_default());
    match subscribers(&mut client).await {
        Ok(found) => {
            // Its own look at them says more.
            findings.retain(|finding| finding.check != "dead_letters");
            findings.extend(found);
        }
        Err(failure) => findings.push(failing("key", &failure)),
    }
    // Only the installation's own key may ask for them.
    if let Ok(answer) = client.get(&["v1", "replicas"], &[]).await {
        findings.extend(clocks(&answer.json().unwrap_or_default()));
    }
    findings
}

/// What differs by more is told: receivers refuse signatures that seem too old or too new, by minutes usually.
const CLOCK_OFFSET_MAX_MS: i64 = 2_000;

/// The clocks of all processes that share the store, as each compared its own with the database's.
fn clocks(answer: &Value) -> Vec<Finding> {
    let items = answer["items"].as_array().into_iter().flatten();
    let known: Vec<(&str, i64)> =
        items.filter_map(|item| Some((item["name"].as_str()?, item["clock_offset_ms"].as_i64()?))).collect();
    let astray = known.iter().filter(|(_, offset)| offset.abs() > CLOCK_OFFSET_MAX_MS);
    let findings: Vec<Finding> = astray
        .map(|(name, offset)| {
            let word = if *offset > 0 { "ahead of" } else { "behind" };
            let detail = format!("the clock of {name} is {} ms {word} the database's", offset.abs());
            let remedy = "let its machine follow NTP: deliveries are signed with its clock";
            Finding::bad(State::Warning, "clocks", detail, remedy)
        })
        .collect();
    match known.iter().map(|(_, offset)| offset.abs()).max() {
        Some(most) if findings.is_empty() => {
            let detail = format!("{} processes, within {most} ms of the database's", known.len());
            vec![Finding::fine("clocks", detail)]
        }
        _ => findings,
    }
}

fn failing(check: &str, failure: &Failure) -> Finding {
    let detail =
        std::iter::once(&failure.title).chain(&failure.details).cloned().collect::<Vec<_>>().join("; ");
    Finding { check: check.to_owned(), state: State::Failing, detail, remedy: failure.fix.clone() }
}

/// The server's own checks, as `/readyz?verbose` lists them.
fn readiness(url: &str, answer: &Value) -> Vec<Finding> {
    let status = answer["status"].as_str().unwrap_or("unknown");
    let mut findings = vec![match status {
        "ready" | "degraded" => Finding::fine("server", format!("{url} accepts events")),
        other => Finding::bad(
            State::Failing,
            "server",
            format!("{url} does not accept events: {other}"),
            "see the lines below and the server's log",
        ),
    }];
    for (name, check) in answer["checks"].as_object().into_iter().flatten() {
        let state = check.as_str().or_else(|| check["state"].as_str()).unwrap_or("unknown");
        let detail = check["detail"].as_str().unwrap_or(state);
        findings.push(match state {
            "ok" => Finding::fine(name, detail),
            _ => {
                let remedy = check["remedy"].as_str().unwrap_or("see the server's log");
                let state = if state == "degraded" { State::Warning } else { State::Failing };
                Finding::bad(state, name, detail, remedy)
            }
        });
    }
    findings
}

/// Receivers that get nothing, and deliveries that were given up.
async fn subscribers(client: &mut Client) -> Result<Vec<Finding>, Failure> {
    let all = crate::commands::apply::list(client, crate::commands::apply::Kind::Subscriber).await?;
    let mut findings = vec![Finding::fine("key", format!("it may read; {} subscribers", all.len()))];
    for subscriber in all.iter().filter(|subscriber| subscriber["active"] == false) {
        let id = subscriber["id"].as_str().unwrap_or_default();
        let reason = subscriber["inactive_reason"].as_str().unwrap_or("inactive");
        findings.push(Finding::bad(
            State::Warning,
            "subscriber",
            format!("{id} is not sent to: {reason}"),
            format!("when its receiver is well: tidegate subscribers resume {id}"),
        ));
    }
    let dead =
        client.get(&["v1", "deliveries"], &[("status", "exhausted"), ("limit", "100")]).await?.json()?;
    let count = dead["items"].as_array().map_or(0, Vec::len);
    findings.push(match count {
        0 => Finding::fine("dead letters", "none"),
        count => Finding::bad(
            State::Warning,
            "dead letters",
            format!("{count}{} deliveries were given up", if count == 100 { " or more" } else { "" }),
            "see why with `tidegate deliveries list --status exhausted`, then `tidegate replay --dead-letters`",
        ),
    });
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_clock_is_astray_is_named() {
        let item = |name: &str, offset: Value| json!({ "name": name, "clock_offset_ms": offset });
        let both =
            json!({ "items": [item("a", json!(-3)), item("b", json!(90_000)), item("old", Value::Null)] });
        let [found] = &clocks(&both)[..] else { panic!("one is astray") };
        assert!(
            found.state == State::Warning && found.detail.contains("b is 90000 ms ahead"),
            "{}",
            found.detail
        );
        let [fine] = &clocks(&json!({ "items": [item("a", json!(-3)), item("b", json!(7))] }))[..] else {
            panic!("one line for all")
        };
        assert!(fine.state == State::Fine && fine.detail.contains("within 7 ms"), "{}", fine.detail);
        assert!(clocks(&json!({ "items": [] })).is_empty(), "a store of its own");
    }

    #[test]
    fn the_servers_checks_become_lines_with_remedies() {
        let answer = json!({"status":"degraded","checks":{
            "store":"ok",
            "dead_letters":{"state":"degraded","detail":"120 wait","remedy":"replay them"},
        }});
        let findings = readiness("http://x", &answer);
        assert_eq!(findings.len(), 3);
        let dead = findings.iter().find(|finding| finding.check == "dead_letters").unwrap();
        assert!(dead.state == State::Warning && dead.remedy.as_deref() == Some("replay them"));
        assert!(readiness("http://x", &json!({"status":"unavailable"}))[0].state == State::Failing);
    }
}
