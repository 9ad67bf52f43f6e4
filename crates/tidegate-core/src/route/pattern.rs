//! Patterns over event types and sources: an exact name, `prefix.*`, or `*`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// What a name must look like. `order.*` matches `order.a` and `order.a.b`, not `order`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// This very name.
    Exact(String),
    /// Everything that begins with this text, which ends in a dot.
    Below(String),
    /// Everything.
    Any,
}

impl Pattern {
    /// Reads a pattern; the error says how to write one.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a pattern is empty; write a name, `name.*` or `*`".to_owned());
        }
        if text.len() > limits::TYPE_BYTES_MAX {
            return Err(format!("a pattern has at most {} bytes", limits::TYPE_BYTES_MAX));
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!(
                "pattern `{}` contains white space, which no name does",
                text.escape_debug()
            ));
        }
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.strip_suffix(".*") {
            Some(prefix) if !prefix.is_empty() && !prefix.contains('*') => {
                Ok(Self::Below(format!("{prefix}.")))
            }
            None if !text.contains('*') => Ok(Self::Exact(text.to_owned())),
            _ => Err(format!("pattern `{text}`: `*` stands alone or as the last segment, as in `order.*`")),
        }
    }

    /// Whether `name` looks like this.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
            Self::Any => true,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Below(prefix) => write!(f, "{prefix}*"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_whole_segments() {
        for (pattern, name, expected) in [
            ("order.paid", "order.paid", true),
            ("order.paid", "order.paid.late", false),
            ("order.*", "order.a", true),
            ("order.*", "order.a.b", true),
            ("order.*", "order", false),
            ("order.*", "order.", false),
            ("order.*", "orders.a", false),
            ("*", "anything", true),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn other_stars_are_refused() {
        for bad in ["", "**", "*.paid", "order*", "order.*.x", ".*", "a.*.*", "a b", "a\u{0}"] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn patterns_print_as_they_parse(text in "[a-z.*]{0,8}") {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(pattern.to_string(), text);
            }
        }

        #[test]
        fn a_name_matches_itself_and_every_prefix(name in "[a-z]{1,4}(\\.[a-z]{1,4}){0,4}") {
            prop_assert!(Pattern::parse(&name).unwrap().matches(&name));
            for (dot, _) in name.match_indices('.') {
                let pattern = format!("{}.*", &name[..dot]);
                prop_assert!(Pattern::parse(&pattern).unwrap().matches(&name), "{}", pattern);
            }
        }
    }
}
