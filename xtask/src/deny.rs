//! `cargo xtask deny`: what may enter the dependency tree, as `deny.toml` says.
//!
//! Installs cargo-deny (pinned, under `target/tools/`) where it is missing. Licences, bans and sources are judged by the
//! lock file and the packages themselves. Known vulnerabilities come from a database that not every machine can reach;
//! where it can not, that is said.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo;

const VERSION: &str = "0.20.2";
const REMEDY: &str = "see what cargo-deny printed, and deny.toml for what is allowed";

/// Checks; the answer is a remark for the summary.
pub(crate) fn run() -> Result<String> {
    let tool = tool()?;
    let check = deny(&tool, &["check", "bans", "licenses", "sources"]).status()?;
    ensure!(check.success(), "a dependency is not allowed: {REMEDY}");
    let fetched = deny(&tool, &["fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if !fetched.success() {
        println!(
            "note: the database of advisories can not be reached; known vulnerabilities were NOT looked for"
        );
        return Ok("bans, licences, sources; advisories NOT: their database can not be reached".to_owned());
    }
    let check = deny(&tool, &["check", "--disable-fetch", "advisories"]).status()?;
    ensure!(check.success(), "a dependency has a known flaw: {REMEDY}");
    Ok("bans, licences, sources, advisories".to_owned())
}

/// The pinned cargo-deny. Built without optimisation, in about two minutes; a check takes seconds either way.
fn tool() -> Result<PathBuf> {
    let root = cargo::target().join("tools");
    let tool = root.join("bin/cargo-deny");
    let said = Command::new(&tool).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&said).trim() != format!("cargo-deny {VERSION}") {
        println!("installing cargo-deny {VERSION} under {}", root.display());
        let root = root.to_str().context("the path of target/ is not text")?;
        let what = ["install", "cargo-deny", "--version", VERSION, "--locked", "--force", "--quiet"];
        cargo::run(&[&what[..], &["--profile", "dev", "--root", root]].concat())?;
    }
    Ok(tool)
}

fn deny(tool: &PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(tool);
    command.args(args).current_dir(crate::root());
    cargo::forget_ours(&mut command);
    command
}
