//! Why a request of `POST /v1/events` was refused, for the sender to act on.
//!
//! A refusal has a stable `code`, the place it is about, and a sentence with the remedy. Nothing of a refused
//! request is stored. Status codes belong to the API; [`RefusalKind`] is what it maps from.

use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;

/// The family of a refusal; each is one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// 400: not JSON, or not UTF-8.
    Unparsable,
    /// 400: nested deeper than [`crate::limits::JSON_DEPTH_MAX`].
    TooDeep,
    /// 413: too many bytes or too many events.
    TooLarge,
    /// 415: a content type that is not understood.
    MediaType,
    /// 422: JSON, but a field is missing, of the wrong type, too long, unknown or wrong.
    Invalid,
}

/// Why a request was refused. The whole request: nothing of it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The family.
    pub kind: RefusalKind,
    /// Stable name of the reason, for programs.
    pub code: &'static str,
    /// Which event of an array, a batch or an NDJSON body, from 0.
    pub index: Option<usize>,
    /// Which field of it, for example `events[0].type`.
    pub field: Option<String>,
    /// What is wrong and what to do about it, for people.
    pub detail: String,
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, code: &'static str, detail: impl Into<String>) -> Self {
        Self { kind, code, index: None, field: None, detail: detail.into() }
    }

    pub(super) fn invalid(code: &'static str, field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(RefusalKind::Invalid, code, detail) }
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::invalid("field_missing", field, format!("`{field}` is missing; every event needs it"))
    }

    /// The refusal, about event number `index`.
    pub(super) fn at(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    /// The refusal, with its field seen from the parent of a sub-event.
    pub(super) fn inside(mut self, place: usize) -> Self {
        let mut field = format!("events[{place}]");
        if let Some(inner) = &self.field {
            let _ = write!(field, ".{inner}");
        }
        self.field = Some(field);
        self
    }
}

/// Reads one JSON value. The error path reads it again to find out where it went wrong, so that the good path
/// pays nothing for that.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|_| explain::<T>(text))
}

fn explain<'a, T: Deserialize<'a>>(text: &'a str) -> Refusal {
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return syntax(&error.to_string());
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(_) => syntax("trailing characters"),
        Err(error) if error.inner().classify() == Category::Data => {
            let path = error.path().to_string();
            data(&path, &error.inner().to_string())
        }
        // Text that only a full reading of a string rejects: half of a surrogate pair, for example.
        Err(error) => syntax(&error.inner().to_string()),
    }
}

fn syntax(problem: &str) -> Refusal {
    let detail = format!("the body is not valid JSON: {problem}");
    Refusal::new(RefusalKind::Unparsable, "json_syntax", detail)
}

/// serde tells its kinds of error apart only in words; the tests pin those words.
fn data(path: &str, problem: &str) -> Refusal {
    let problem = problem.split(" at line ").next().unwrap_or(problem);
    let code = if problem.starts_with("unknown field") {
        "field_unknown"
    } else if problem.starts_with("duplicate field") {
        "field_repeated"
    } else {
        "field_type"
    };
    let detail = match code {
        "field_unknown" => format!("{problem}; put your own attributes in `data` or `extensions`"),
        "field_repeated" => format!("{problem}; send each field once"),
        _ if path == "." => format!("expected an event, that is, a JSON object: {problem}"),
        _ => format!("`{path}` has the wrong type: {problem}"),
    };
    // A repeated field is noticed at the object, so its name stands in the sentence only.
    let named = problem.split('`').nth(1).filter(|_| code == "field_repeated");
    let field = named.or_else(|| (path != ".").then_some(path)).map(str::to_owned);
    Refusal { field, ..Refusal::new(RefusalKind::Invalid, code, detail) }
}
