//! Tidy: house rules that no compiler or linter knows, checked over every file git would commit.
//!
//! Reads the list of files from git (new, not yet added files included) and their bytes; writes nothing.
//! Every problem is one line, `path:line: problem: remedy`. There are no exception lists: a rule that needs
//! one is the wrong rule.

mod layout;
mod manifests;
mod text;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// One file as the rules see it.
struct Source {
    /// Relative to the root, with forward slashes.
    path: String,
    bytes: Vec<u8>,
}

impl Source {
    /// The name without its folders.
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The content, when it is text.
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// One broken rule.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Problem {
    path: String,
    /// Counted from 1.
    line: usize,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.what, self.remedy)
    }
}

/// Checks the whole repository and prints what is wrong.
pub(crate) fn run() -> Result<()> {
    let sources = sources(&crate::root())?;
    let problems = check(&sources);
    for problem in &problems {
        eprintln!("{problem}");
    }
    if !problems.is_empty() {
        bail!("tidy found {} problems in {} files", problems.len(), sources.len());
    }
    println!("tidy: {} files, nothing to complain about", sources.len());
    Ok(())
}

fn check(sources: &[Source]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for source in sources {
        text::check(source, &mut problems);
        manifests::check(source, &mut problems);
        layout::check(source, &mut problems);
    }
    layout::check_migrations(sources, &mut problems);
    problems.sort();
    problems
}

/// Every file that is, or could be, committed and still exists.
fn sources(root: &Path) -> Result<Vec<Source>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git is needed to list the sources")?;
    ensure!(listed.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).context("a path is not UTF-8")?;
    let present = paths.split('\0').filter(|path| !path.is_empty() && root.join(path).is_file());
    present
        .map(|path| {
            let bytes = std::fs::read(root.join(path)).with_context(|| format!("can not read {path}"))?;
            Ok(Source { path: path.to_owned(), bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests;
