//! Faults from below: `strace` makes chosen system calls of the running server fail, on chosen files only.
//!
//! The call is not carried out, and the server sees the error that a broken or full disk gives. `when` counts each
//! thread's calls on its own: the k-th of every thread fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock;

/// What `strace` writes beside a call that it made fail.
const MARK: &str = "(INJECTED)";
/// A tracer that does not let go within this is killed.
const DETACH_PATIENCE: Duration = Duration::from_secs(10);

/// Which calls fail, how, and when.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Names of system calls, with commas between them.
    pub(super) calls: &'static str,
    pub(super) error: &'static str,
    /// `7` is the seventh call, `7+` that and all after it.
    pub(super) when: String,
    /// Names of the files that are concerned, in the data folder; an empty name is the folder itself.
    pub(super) files: &'static [&'static str],
}

impl Fault {
    /// The arguments of `strace`, which writes what it did to `trace`.
    fn args(&self, data: &Path, trace: &Path) -> Vec<String> {
        let Self { calls, error, when, files } = self;
        let mut args = ["-f", "-q", "-e", "signal=none", "-o"].map(str::to_owned).to_vec();
        args.push(trace.display().to_string());
        for file in *files {
            let path = if file.is_empty() { data.to_path_buf() } else { data.join(file) };
            args.extend(["-P".to_owned(), path.display().to_string()]);
        }
        args.extend(["-e".to_owned(), format!("trace={calls}")]);
        args.extend(["-e".to_owned(), format!("inject={calls}:error={error}:when={when}")]);
        args
    }

    /// The command in front of a server's own, for faults from its first instant.
    pub(super) fn wrapper(&self, data: &Path, trace: &Path) -> Vec<String> {
        // `-D` keeps the server our own child.
        let mut command = vec!["strace".to_owned(), "-D".to_owned()];
        command.extend(self.args(data, trace));
        command
    }
}

/// Whether the fault has happened, by what `strace` wrote.
pub(super) fn has_struck(trace: &Path) -> bool {
    fs::read(trace).is_ok_and(|text| String::from_utf8_lossy(&text).contains(MARK))
}

/// A tracer at work on a running process. It lets go when dropped.
pub(super) struct Tracer {
    child: Child,
    trace: PathBuf,
}

impl Tracer {
    /// Attaches to `pid`.
    pub(super) fn attach(fault: &Fault, pid: u32, data: &Path, trace: &Path) -> Result<Self> {
        fs::remove_file(trace).ok();
        let child = Command::new("strace")
            .args(fault.args(data, trace))
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("strace can not be started")?;
        Ok(Self { child, trace: trace.to_path_buf() })
    }

    /// Whether the fault has happened.
    pub(super) fn has_struck(&self) -> bool {
        has_struck(&self.trace)
    }

    /// Whether it is no longer attached, for whatever reason.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().ok();
        if !clock::wait_until(DETACH_PATIENCE, || !matches!(self.child.try_wait(), Ok(None))) {
            self.child.kill().ok();
        }
        self.child.wait().ok();
    }
}
