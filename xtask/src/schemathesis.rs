//! `cargo xtask schemathesis`: the API against its own description, by other people's code.
//!
//! Installs Schemathesis (pinned, in a virtual environment under `target/`), starts the real binary and lets it make
//! requests from `/openapi.json`, with an admin key and without any: nothing may answer 5xx, every answer must be one
//! that the description knows, and what needs a key must be refused without one. Without python3 it says so; where
//! `CI=true` that is a failure. Bounded in time, because such a search has no end of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Profile};
use crate::run::answers;
use crate::server::{ADMIN_KEY, Scratch, Server};

const VERSION: &str = "4.32.5";
/// The requests of one run with a key, in seconds; the run without one takes a third.
const SECONDS: u32 = 90;
/// What does not hold by design: the description can not say everything that makes a value acceptable (a `where` that
/// compiles, an address that may be dialled), nor that `ce-` headers mean nothing without `ce-specversion`.
const EXCLUDED: &str = "positive_data_acceptance,negative_data_rejection";

/// Runs the check on a debug build, or on `binary`; the answer is a remark for the summary.
pub(crate) fn run(binary: Option<PathBuf>, seconds: Option<u32>) -> Result<String> {
    if !answers("python3", "--version") {
        let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
        ensure!(!in_ci, "python3 is missing, and CI=true does not allow to leave schemathesis out");
        println!("note: python3 is missing; the API was NOT checked against its description");
        return Ok("NOT RUN: python3 is missing".to_owned());
    }
    let program = install(&cargo::target().join("schemathesis"))?;
    let binary = match binary {
        Some(binary) => binary,
        None => cargo::build(&["tidegate"], Profile::Debug)?.join("tidegate"),
    };
    let seconds = seconds.unwrap_or(SECONDS);
    let mut scratch = Scratch::new("schemathesis")?;
    let mut server = Server::start(&binary, scratch.path())?;
    let outcome = check(&program, &server, scratch.path(), Some(ADMIN_KEY), seconds)
        .and_then(|()| check(&program, &server, scratch.path(), None, seconds.div_ceil(3)))
        .and_then(|()| server.stop());
    if outcome.is_err() {
        scratch.keep();
    }
    outcome.map(|()| format!("{seconds} s with a key, {} s without", seconds.div_ceil(3)))
}

/// Installs the pinned version once; answers its program.
fn install(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("bin/schemathesis");
    let installed = folder.join("installed.txt");
    if fs::read_to_string(&installed).ok().as_deref() != Some(VERSION) {
        fs::remove_dir_all(folder).ok();
        let mut venv = Command::new("python3");
        succeed(venv.args(["-m", "venv"]).arg(folder), "python3 can not make a virtual environment")?;
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check"])
            .arg(format!("schemathesis=={VERSION}"));
        succeed(&mut pip, "pip can not install schemathesis")?;
        fs::write(&installed, VERSION)?;
    }
    Ok(program)
}

fn check(program: &Path, server: &Server, folder: &Path, key: Option<&str>, seconds: u32) -> Result<()> {
    let mut command = Command::new(program);
    // It keeps what it finds where it runs.
    command.current_dir(folder);
    command.args(["run", &format!("http://{}/openapi.json", server.address)]);
    command.args(["--exclude-checks", EXCLUDED, "--max-time", &seconds.to_string()]);
    // A stream does not end, so there is no whole answer to look at; the end-to-end tests read it.
    command.args(["--exclude-path", "/v1/stream", "--request-timeout", "30", "--continue-on-failure"]);
    // Keys and projects that a search deletes are its own: each run has a server of its own. One worker, because several
    // trip over each other inside Schemathesis; one seed, so that what it finds it finds again.
    command.args(["--workers", "1", "--seed", "1", "--warnings", "off", "--no-color"]);
    if let Some(key) = key {
        // Written like this, because Schemathesis knows its own header again only so when it leaves the key out.
        command.args(["--header", &format!("Authorization: Bearer {key}")]);
    }
    let who = if key.is_some() { "with a key" } else { "without a key" };
    let otherwise = format!("schemathesis found something {who}");
    // It ends the same way when it fails itself. What is wrong with the API is still wrong the second time.
    succeed(&mut command, &otherwise).or_else(|_| succeed(&mut command, &otherwise))
}

fn succeed(command: &mut Command, otherwise: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("can not start {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{otherwise}");
    }
    Ok(())
}
