//! Why a subscriber was refused, for its owner to act on.

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;

use super::patch::Section;
use super::shapes;

/// What is wrong with a definition, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Invalid {
    /// Stable name of the reason, for programs.
    pub code: &'static str,
    /// Which field, for example `match.where`.
    pub field: Option<String>,
    /// What is wrong and what to do about it, for people.
    pub detail: String,
    /// It is not JSON at all (400) rather than wrong JSON (422).
    pub syntax: bool,
}

impl Invalid {
    pub(crate) fn new(code: &'static str, field: &str, detail: impl Into<String>) -> Self {
        Self { code, field: Some(field.to_owned()), detail: detail.into(), syntax: false }
    }

    fn syntax(problem: &str) -> Self {
        let detail = format!("the body is not valid JSON: {problem}");
        Self { code: "json_syntax", field: None, detail, syntax: true }
    }
}

/// Refuses lists where objects belong: serde would take one as the values of the fields, in order.
fn check_objects(value: &Value) -> Result<(), Invalid> {
    let Value::Object(members) = value else {
        let detail = "expected a JSON object".to_owned();
        return Err(Invalid { code: "field_type", field: None, detail, syntax: false });
    };
    let list =
        Section::ALL.into_iter().find(|section| members.get(section.name()).is_some_and(Value::is_array));
    match list.map(Section::name) {
        Some(name) => {
            let told = shapes::told(name, "invalid type: sequence, expected a map");
            Err(Invalid::new("field_type", name, format!("`{name}`: {told}")))
        }
        None => Ok(()),
    }
}

/// Reads the JSON of the API and says where it went wrong.
pub fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Invalid> {
    let value: Value = serde_json::from_slice(text).map_err(|error| Invalid::syntax(&error.to_string()))?;
    check_objects(&value)?;
    let mut reader = serde_json::Deserializer::from_slice(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, &error.into_inner())
    })
}

/// What is wrong with a body that is JSON.
pub(super) fn explain(path: &str, error: &serde_json::Error) -> Invalid {
    let problem = error.to_string();
    let problem = problem.split(" at line ").next().unwrap_or_default();
    if let Some(detail) = shapes::out_of_range(path, problem) {
        return Invalid::new("field_range", path, detail);
    }
    // The reader calls it a fault of the JSON when an object is none of several known values.
    let code = if error.classify() == Category::Data { code(path, problem) } else { "field_type" };
    // A field that is missing, repeated or out of place is noticed at the object around it.
    let inner = match code {
        "field_missing" | "field_repeated" | "fold_term" => problem.split('`').nth(1),
        "fold_unsupported" => Some("mode"),
        _ => None,
    };
    let field = match (path, inner) {
        (".", inner) => inner.map(str::to_owned),
        (path, Some(inner)) => Some(format!("{path}.{inner}")),
        (path, None) => Some(path.to_owned()),
    };
    let problem = if code == "field_type" { shapes::told(path, problem) } else { problem.to_owned() };
    let detail = match &field {
        Some(field) => format!("`{field}`: {problem}"),
        None => problem,
    };
    Invalid { code, field, detail, syntax: false }
}

/// serde tells its kinds of error apart only in words; the tests pin those words.
fn code(path: &str, problem: &str) -> &'static str {
    const BY_WORDS: [(&str, &str); 10] = [
        ("unknown field", "field_unknown"),
        ("missing field", "field_missing"),
        ("duplicate field", "field_repeated"),
        ("invalid type", "field_type"),
        ("invalid value", "field_type"),
        ("unknown variant", "field_value"),
        ("fold mode", "fold_unsupported"),
        ("fold term", "fold_term"),
        ("expected a duration", "duration_invalid"),
        ("expected an RFC 3339 time", "field_time"),
    ];
    const BY_PLACE: [(&str, &str); 9] = [
        ("match.", "pattern_invalid"),
        ("fold.by", "path_invalid"),
        ("order.by", "path_invalid"),
        ("limits.rate", "rate_invalid"),
        ("rate", "rate_invalid"),
        ("index[", "path_invalid"),
        ("counters.", "path_invalid"),
        ("histograms.", "path_invalid"),
        ("states[", "path_invalid"),
    ];
    let words = BY_WORDS.iter().find(|(words, _)| problem.starts_with(words));
    let place = || BY_PLACE.iter().find(|(place, _)| path.starts_with(place));
    words.or_else(place).map_or("field_value", |(_, code)| code)
}
