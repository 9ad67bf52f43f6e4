//! What can be wrong with the servers that a shared store lives on, and what to do about it: one line each, for people.
//!
//! Looks only, changes nothing, and needs no store: it is for the hour when none can be opened.

pub mod postgres;
pub mod redis;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// It works; somebody should know.
    Warning,
    /// It does not work, or what was accepted may be lost.
    Failing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symptom {
    /// What was looked at, in a word or two.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Symptom {
    pub(crate) fn fine(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, severity: Severity::Fine, detail: detail.into(), remedy: None }
    }

    pub(crate) fn warning(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, remedy: Some(remedy.into()), ..Self::fine(check, detail) }
    }

    pub(crate) fn failing(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Failing, remedy: Some(remedy.into()), ..Self::fine(check, detail) }
    }
}
