//! `cargo xtask run`: from a fresh clone to a running server in one command.
//!
//! Checks what the build needs and says in words what is missing, builds the release binary, and becomes it:
//! `tidegate serve` with the arguments passed through, so that signals reach the server itself.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo::{self, Profile};

/// Builds and serves; comes back only when something failed.
pub(crate) fn run(args: &[String]) -> Result<()> {
    need_c_compiler()?;
    let binary = cargo::build(&["tidegate"], Profile::Release)?.join("tidegate");
    let failure = Command::new(&binary).arg("serve").args(args).exec();
    Err(failure).with_context(|| format!("can not start {}", binary.display()))
}

/// SQLite, ring and the allocator are C inside; everything else is Rust.
fn need_c_compiler() -> Result<()> {
    let named = std::env::var("CC").ok();
    let candidates: Vec<&str> = named.iter().map(String::as_str).chain(["cc", "gcc", "clang"]).collect();
    if candidates.iter().any(|compiler| answers(compiler, "--version")) {
        return Ok(());
    }
    bail!(
        "a C compiler is needed and none of {} was found\n\
         Debian and Ubuntu: apt-get install build-essential\n\
         Fedora: dnf install gcc; Alpine: apk add build-base; macOS: xcode-select --install",
        candidates.join(", ")
    )
}

/// Whether a program exists and can say its version.
pub(crate) fn answers(program: &str, question: &str) -> bool {
    let asked = Command::new(program).arg(question).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
