//! Attribute paths such as `data.order.id`, and the lanes they lead to.

use std::fmt;

use ring::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::view::View;
use crate::id::Lane;
use crate::limits;

pub(super) const DATA: &str = "data";
pub(super) const EXTENSIONS: &str = "extensions";
const ROOTS: [&str; 5] = ["subject", "source", "type", EXTENSIONS, DATA];

/// Where in an event a value stands. A segment of digits also counts into a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    /// Reads a path; the error says how to write one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hint = "write `subject`, `source`, `type`, `extensions.<name>` or `data.<name>.<name>`";
        let (root, rest) = text.split_once('.').map_or((text, None), |(root, rest)| (root, Some(rest)));
        if !ROOTS.contains(&root) {
            return Err(format!("`{}` is not a path into an event; {hint}", text.escape_debug()));
        }
        if text.len() > limits::PATH_BYTES_MAX {
            return Err(format!("a path has at most {} bytes", limits::PATH_BYTES_MAX));
        }
        let nested = matches!(root, "data" | "extensions");
        let empty = rest.is_some_and(|rest| rest.split('.').any(str::is_empty));
        if empty || (rest.is_some() && !nested) || (rest.is_none() && root == "extensions") {
            return Err(format!("`{}` leads nowhere; {hint}", text.escape_debug()));
        }
        Ok(Self(text.to_owned()))
    }

    /// Why it should not be written like this, although it can be read. Whoever writes `data.items[0]` means the first of a
    /// list, not a member of that name, which no event has.
    pub(crate) fn misleads(&self) -> Option<String> {
        let text = self.0.escape_debug();
        self.0.contains(['[', ']']).then(|| {
            format!("`{text}` has brackets, which are no part of a path: write `data.items.0` for the first of a list")
        })
    }

    /// The path as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The attribute of the event it begins at, and the names to follow from there.
    fn split(&self) -> (&str, impl Iterator<Item = &str> + Clone) {
        let (root, rest) = self.0.split_once('.').unwrap_or((&self.0, ""));
        (root, rest.split('.').filter(|segment| !segment.is_empty()))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The lane of an event: a hash of the value at `path`. Nothing when the value is missing or null.
pub fn lane_of(view: &View<'_>, path: &Path) -> Option<Lane> {
    let (root, rest) = path.split();
    match root {
        "subject" => view.event.subject.as_deref().map(|subject| hash("s", subject)),
        "source" => Some(hash("s", &view.event.source)),
        "type" => Some(hash("s", &view.event.type_name)),
        "extensions" => lane_at(&view.extension_at(rest)?),
        _ => lane_at(&view.data_at(rest)?),
    }
}

/// The value at `path`; null when it is missing. Numbers that are equal read alike.
pub fn value_of(view: &View<'_>, path: &Path) -> Value {
    let (root, rest) = path.split();
    let found = match root {
        "subject" => return Value::from(view.event.subject.clone()),
        "source" => return Value::from(view.event.source.clone()),
        "type" => return Value::from(view.event.type_name.clone()),
        "extensions" => view.extension_at(rest),
        _ => view.data_at(rest),
    };
    match found {
        Some(Value::Number(number)) if number.is_f64() => {
            view.long_at(root, path.split().1).map_or_else(|| read_alike(number), Value::from)
        }
        Some(value) => read_alike_at(value),
        None => Value::Null,
    }
}

/// A value as everybody writes it: numbers that are equal read alike.
pub(crate) fn read_alike_at(value: Value) -> Value {
    match value {
        Value::Number(number) => read_alike(number),
        value => value,
    }
}

fn read_alike(number: serde_json::Number) -> Value {
    // Whole numbers alone have two forms. What else would be written and read again is not always the same.
    match canonical(&number).parse::<i64>() {
        Ok(whole) if number.is_f64() => Value::from(whole),
        _ => Value::Number(number),
    }
}

/// A whole number that no value holds exactly, such as an id of more than 64 bits, digit for digit.
pub(super) fn long(raw: &str) -> Option<String> {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_held = raw.parse::<u64>().is_ok() || raw.parse::<i64>().is_ok();
    (is_whole && !is_held).then(|| format!("number:{raw}"))
}

/// Writes the value at `path` as JSON, the same as [`value_of`] reads.
pub(crate) fn write_value_of(out: &mut Vec<u8>, view: &View<'_>, path: &Path) {
    let (root, rest) = path.split();
    let raw = if matches!(root, DATA | EXTENSIONS) { view.raw_at(root, rest) } else { None };
    let written = match (root, raw) {
        (_, Some(raw)) if is_plain(raw) => {
            out.extend_from_slice(raw);
            Ok(())
        }
        ("subject", _) => serde_json::to_writer(out, &view.event.subject),
        ("source", _) => serde_json::to_writer(out, &view.event.source),
        ("type", _) => serde_json::to_writer(out, &view.event.type_name),
        _ => serde_json::to_writer(out, &value_of(view, path)),
    };
    written.expect("a value is always JSON");
}

/// There is only one way to write this value: a text without escapes, or a whole number that is not too large.
fn is_plain(raw: &[u8]) -> bool {
    // So many digits have no other form, as doubles or otherwise.
    const DIGITS_MAX: usize = 15;
    match raw {
        [b'"', text @ ..] => !text.contains(&b'\\'),
        [b'1'..=b'9', more @ ..] => more.len() < DIGITS_MAX && more.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Follows names from a value.
pub(super) fn follow<'v, 'p>(root: &'v Value, mut path: impl Iterator<Item = &'p str>) -> Option<&'v Value> {
    path.try_fold(root, |value, segment| match value {
        Value::Object(members) => members.get(segment),
        Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
        _ => None,
    })
}

fn lane_at(value: &Value) -> Option<Lane> {
    match value {
        Value::Null => None,
        Value::Bool(truth) => Some(hash("b", if *truth { "true" } else { "false" })),
        Value::String(text) => Some(hash("s", text)),
        Value::Number(number) => Some(hash("n", &canonical(number))),
        Value::Array(_) | Value::Object(_) => Some(hash("j", &value.to_string())),
    }
}

/// Numbers that are equal are one lane, however they are written.
pub(crate) fn canonical(number: &serde_json::Number) -> String {
    // Up to here every whole number has a double of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT => {
            // Nothing has no sign.
            format!("{:.0}", float + 0.0)
        }
        _ => number.to_string(),
    }
}

/// The kind stands before the text, so that `1` and `"1"` are two lanes.
fn hash(kind: &str, text: &str) -> Lane {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(kind.as_bytes());
    context.update(b":");
    context.update(text.as_bytes());
    Lane::from_be_bytes(context.finish().as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"))
}
