//! Where everything in a JSON value stands: lists and objects opened, all else as it was sent.
//!
//! A parser would have to understand every value on the way. This only finds its way, as [`super::scan`] does, so that a
//! number no double holds, or a text with half a character in it, is there like any other value.

use std::collections::BTreeMap;

use super::scan::{after, after_space, value_end};
use crate::json::string_end;

/// A value in a text that was checked before, and nests no deeper than ingest lets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node<'t> {
    /// A text, a number, `true`, `false` or `null`.
    Scalar(&'t str),
    List(Vec<Self>),
    /// The last one, where a name comes twice.
    Object(BTreeMap<Text, Self>),
}

/// A JSON text, read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Text {
    Whole(String),
    /// It has half a surrogate pair in it, which no text of ours can have: spelled with that as `\ud800` and with two
    /// backslashes for each of its own.
    Broken(String),
}

impl<'t> Node<'t> {
    /// The value that a text is.
    pub(super) fn parse(text: &'t [u8]) -> Option<Self> {
        Self::parse_at(text, after_space(text, 0)).map(|(node, _)| node)
    }

    /// The value that begins there, and where it ends.
    fn parse_at(text: &'t [u8], at: usize) -> Option<(Self, usize)> {
        match text.get(at)? {
            b'{' => Self::object_at(text, after_space(text, at + 1)),
            b'[' => Self::list_at(text, after_space(text, at + 1)),
            _ => {
                let end = value_end(text, at).unwrap_or(text.len());
                Some((Self::Scalar(std::str::from_utf8(&text[at..end]).ok()?), end))
            }
        }
    }

    fn object_at(text: &'t [u8], mut at: usize) -> Option<(Self, usize)> {
        let mut members = BTreeMap::new();
        while text.get(at) != Some(&b'}') {
            let name_end = string_end(text, after(text, at, b'"')?);
            let name = Text::parse(std::str::from_utf8(&text[at..name_end]).ok()?)?;
            let from = after_space(text, after(text, after_space(text, name_end), b':')?);
            let (value, end) = Self::parse_at(text, from)?;
            members.insert(name, value);
            at = next(text, end)?;
        }
        Some((Self::Object(members), at + 1))
    }

    fn list_at(text: &'t [u8], mut at: usize) -> Option<(Self, usize)> {
        let mut items = Vec::new();
        while text.get(at) != Some(&b']') {
            let (value, end) = Self::parse_at(text, at)?;
            items.push(value);
            at = next(text, end)?;
        }
        Some((Self::List(items), at + 1))
    }

    /// Follows names. A name of digits also counts into a list.
    pub(super) fn follow<'p>(&self, mut path: impl Iterator<Item = &'p str>) -> Option<&Self> {
        path.try_fold(self, |node, name| match node {
            Self::Object(members) => members.get(&Text::Whole(name.to_owned())),
            Self::List(items) => items.get(name.parse::<usize>().ok()?),
            Self::Scalar(_) => None,
        })
    }
}

/// Where the next member or item begins, or the bracket stands that closes them.
fn next(text: &[u8], end: usize) -> Option<usize> {
    let at = after_space(text, end);
    match text.get(at)? {
        b',' => Some(after_space(text, at + 1)),
        b'}' | b']' => Some(at),
        _ => None,
    }
}

impl Text {
    /// Reads a JSON text, quotes included.
    pub(super) fn parse(json: &str) -> Option<Self> {
        let whole = serde_json::from_str(json).map(Self::Whole).ok();
        whole.or_else(|| serde_json::from_str(&mended(json)?).map(Self::Broken).ok())
    }
}

/// A JSON text with halves of surrogate pairs, and backslashes, as texts of their own.
fn mended(json: &str) -> Option<String> {
    let mut out = String::with_capacity(json.len() + 8);
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (unit, next) = (surrogate(rest), rest.get(6..).and_then(surrogate));
        let length = match (unit, next) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => {
                out.push_str(rest.get(..12)?);
                12
            }
            (Some(half), _) => {
                out.push_str(&format!("\\\\u{half:04x}"));
                6
            }
            (None, _) if rest.starts_with("\\\\") => {
                out.push_str("\\\\\\\\");
                2
            }
            (None, _) => {
                out.push_str(rest.get(..2)?);
                2
            }
        };
        rest = rest.get(length..)?;
    }
    out.push_str(rest);
    Some(out)
}

/// The half of a surrogate pair that is escaped at the beginning of a text.
fn surrogate(text: &str) -> Option<u16> {
    let unit = u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()?;
    (0xD800..=0xDFFF).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// What a parser reads.
    fn read(node: &Node<'_>) -> Value {
        match node {
            Node::Scalar(raw) => serde_json::from_str(raw).unwrap(),
            Node::List(items) => items.iter().map(read).collect(),
            Node::Object(members) => {
                let member = |(name, value): (&Text, &Node<'_>)| match name {
                    Text::Whole(name) => (name.clone(), read(value)),
                    Text::Broken(name) => panic!("{name} is whole"),
                };
                members.iter().map(member).collect()
            }
        }
    }

    #[test]
    fn everything_is_found_whatever_stands_beside_it() {
        let text =
            r#" { "a" : [ 1e400 , {"\u0062":"\ud800"} ], "\udc00": 7, "a\ud83d\ude00":{},"c":[],"c":1.50 } "#;
        let node = Node::parse(text.as_bytes()).unwrap();
        let at = |path: &str| node.follow(path.split('.').filter(|name| !name.is_empty()));
        assert_eq!(at("a.0"), Some(&Node::Scalar("1e400")));
        assert_eq!(at("a.1.b"), Some(&Node::Scalar(r#""\ud800""#)));
        assert_eq!(at("c"), Some(&Node::Scalar("1.50")));
        assert_eq!(at("a😀"), Some(&Node::Object(BTreeMap::new())));
        for nowhere in ["a.2", "a.b", "c.0", "\\udc00", "b"] {
            assert_eq!(at(nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn half_a_character_is_spelled_out() {
        for (json, expected) in [
            (r#""\ud800""#, Some(Text::Broken(r"\ud800".into()))),
            (r#""\uDFFF\uD800""#, Some(Text::Broken(r"\udfff\ud800".into()))),
            (r#""\ud800\ud83d\ude00""#, Some(Text::Broken(r"\ud800😀".into()))),
            (r#""\\ud800\ud800""#, Some(Text::Broken(r"\\ud800\ud800".into()))),
            (r#""\n\"é\udc00""#, Some(Text::Broken("\n\"é\\udc00".into()))),
            (r#""\\ud800""#, Some(Text::Whole(r"\ud800".into()))),
            (r#""\ud8""#, None),
        ] {
            assert_eq!(Text::parse(json), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn what_a_parser_reads_is_found(
            text in r#"(\[|\{"[ab]":|\{ "\\u0061" : )?([0-9]{1,3}|"[a\\\\n\\]{0,3}"|true|null|\[\]|\{\})?( ?, ?"[ab]" ?: ?1)?(\]|\}| \})?"#,
        ) {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(Node::parse(text.as_bytes()).map(|node| read(&node)), Some(value));
            } else {
                let _ = Node::parse(text.as_bytes());
            }
        }

        #[test]
        fn any_bytes_are_gone_through(text in "[{}\\[\\]\",:a\\\\ud8 1]{0,30}") {
            let _ = Node::parse(text.as_bytes());
            let _ = Text::parse(&format!("\"{text}\""));
        }
    }
}
