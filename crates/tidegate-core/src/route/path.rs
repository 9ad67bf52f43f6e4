//! Attribute paths such as `data.order.id`, and the lanes they lead to.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

const ROOTS: [&str; 5] = ["subject", "source", "type", "extensions", "data"];

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

    /// The path as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The attribute of the event it begins at, and the names to follow from there.
    pub(super) fn split(&self) -> (&str, impl Iterator<Item = &str>) {
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
