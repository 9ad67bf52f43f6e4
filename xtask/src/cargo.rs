//! Running cargo from inside a command: one place for its path, its folder and its failures.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Which build of our binaries a command uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Fast to build; what tests use.
    Debug,
    /// What users run and what is measured.
    Release,
}

impl Profile {
    /// The folder under `target/`.
    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// How many tests a run of `cargo test` passed and failed, over all its binaries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Builds the binaries of `packages` and answers the folder they are in.
pub(crate) fn build(packages: &[&str], profile: Profile) -> Result<PathBuf> {
    let mut args = vec!["build"];
    for package in packages {
        args.extend(["--package", package]);
    }
    if profile == Profile::Release {
        args.push("--release");
    }
    run(&args)?;
    Ok(target().join(profile.folder()))
}

/// The folder where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

/// Runs `cargo args…` in the root, showing its output.
pub(crate) fn run<S: AsRef<OsStr>>(args: &[S]) -> Result<()> {
    let status = command(args).status().context("cargo does not start")?;
    if !status.success() {
        bail!("{} failed ({status})", spelled(args));
    }
    Ok(())
}

/// Runs `cargo test args…`, showing its output and counting its tests.
pub(crate) fn test<S: AsRef<OsStr>>(args: &[S], environment: &[(&str, String)]) -> Result<Tally> {
    let mut child = command(args)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .context("cargo does not start")?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context("cargo's output is not text")?;
            println!("{line}");
            tally.add(&line);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{} failed ({status}): {} passed, {} failed", spelled(args), tally.passed, tally.failed);
    }
    Ok(tally)
}

impl Tally {
    /// Adds one line of the test harness: `test result: ok. 10 passed; 0 failed; …`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let count = |word: &str| -> u64 {
            let before = result.split(word).next().unwrap_or_default();
            before.split(' ').next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        self.passed += count(" passed");
        self.failed += count(" failed");
    }
}

fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(crate::root());
    forget_ours(&mut command);
    command
}

/// What the outer cargo said about this package would make some build scripts run again for every other one.
pub(crate) fn forget_ours(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME"
        });
        if is_ours {
            command.env_remove(name);
        }
    }
}

fn spelled<S: AsRef<OsStr>>(args: &[S]) -> String {
    let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    format!("cargo {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn the_harness_lines_are_added_up() {
        let mut tally = Tally::default();
        tally.add("running 3 tests");
        tally.add("test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        tally.add("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally, Tally { passed: 12, failed: 1 });
    }
}
