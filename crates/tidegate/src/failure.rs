//! How a command fails: what went wrong, in which exit code it ends, and what to do about it.
//!
//! A [`Failure`] travels as an ordinary error through `anyhow`; [`report`] finds it again at the end. An error
//! that is not a `Failure` ends in exit code 1. A reader that went away (`tidegate … | head`) is no failure.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::output::{Colour, Paint, plain};

/// The exit codes that `--help` documents, besides 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It was tried and did not work.
    Failed = 1,
    /// The command line is wrong. clap uses the same number.
    Usage = 2,
    /// No such thing, or it belongs to another project.
    NotFound = 3,
    /// No key, a wrong key, or a role that may not do this.
    NotAllowed = 4,
    /// Refused for now, or nobody there: the same command may work later.
    Later = 5,
}

/// A failure that knows its remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The code the process ends with.
    pub(crate) exit: Exit,
    /// One line that says what went wrong.
    pub(crate) title: String,
    /// What else is known, a line each.
    pub(crate) details: Vec<String>,
    /// What to do about it.
    pub(crate) fix: Option<String>,
}

impl Failure {
    /// A failure of which only the title is known.
    pub(crate) fn new(exit: Exit, title: impl Into<String>) -> Self {
        Self { exit, title: title.into(), details: Vec::new(), fix: None }
    }

    /// The command line is wrong in a way that the parser can not see.
    pub(crate) fn usage(title: impl Into<String>) -> Self {
        Self::new(Exit::Usage, title)
    }

    /// Adds a line to what is known; an empty one says nothing and is left out.
    pub(crate) fn detail(mut self, line: impl Into<String>) -> Self {
        let line = line.into();
        if !line.is_empty() {
            self.details.push(line);
        }
        self
    }

    /// Says what to do about it.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.title))?;
        for line in &self.details {
            write!(f, "\n  {}", plain(line))?;
        }
        match &self.fix {
            Some(fix) => write!(f, "\n  fix: {}", plain(fix)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Prints an error to stderr and says how the process shall end.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let paint = Paint::for_stream(io::stderr().is_terminal());
    // Nobody reads stderr any more if this fails, so there is nobody to tell.
    let _ = writeln!(io::stderr(), "{} {}", paint.text(Colour::Red, "error:"), text(error));
    let exit = error.downcast_ref::<Failure>().map_or(Exit::Failed, |failure| failure.exit);
    ExitCode::from(exit as u8)
}

fn text(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Failure>() {
        Some(failure) => failure.to_string(),
        None => plain(&format!("{error:#}")),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_its_remedy_last_and_skips_empty_details() {
        let failure = Failure::usage("no events").detail("").detail("the file is empty").fix("pass --file");
        assert_eq!(failure.to_string(), "no events\n  the file is empty\n  fix: pass --file");
    }

    #[test]
    fn a_failure_can_not_write_escapes_to_the_terminal() {
        let failure = Failure::new(Exit::Failed, "bad \u{1b}[2J id");
        assert_eq!(failure.to_string(), "bad \u{fffd}[2J id");
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_errors() {
        let gone = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing");
        assert!(is_broken_pipe(&gone));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }
}
