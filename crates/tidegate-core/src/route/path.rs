//! Attribute paths such as `data.order.id`, and the lanes they lead to.

use std::fmt;

use ring::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
#[cfg(test)]
use serde_json::Value;

use super::number::spell_for_lane;
use super::tree::{Node, Text};
use super::view::View;
use super::written::{Texts, broken, is_reserved, write, write_sent};
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
        _ => lane_at(&*view.node_at(root, rest)?),
    }
}

/// Writes the value at `path` as JSON, in the one way there is ([`super::written`]); null when it is missing.
pub(crate) fn write_value_of(out: &mut Vec<u8>, view: &View<'_>, path: &Path) {
    let (root, rest) = path.split();
    let attribute = match root {
        "subject" => view.event.subject.as_deref(),
        "source" => Some(view.event.source.as_str()),
        "type" => Some(view.event.type_name.as_str()),
        _ => {
            return match view.raw_at(root, rest.clone()) {
                Some(raw) if is_plain(raw) => out.extend_from_slice(raw),
                _ => match view.node_at(root, rest) {
                    Some(node) => write(out, &node, Texts::Sent),
                    None => out.extend_from_slice(b"null"),
                },
            };
        }
    };
    match attribute {
        Some(text) => write_sent(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// The value at `path`, as a key shows it.
#[cfg(test)]
pub(crate) fn value_of(view: &View<'_>, path: &Path) -> Value {
    let mut written = Vec::new();
    write_value_of(&mut written, view, path);
    serde_json::from_slice(&written).unwrap()
}

/// There is only one way to write this value: a text without escapes that reads like nothing else, or a whole number that is
/// not too large.
fn is_plain(raw: &[u8]) -> bool {
    // So many digits have no other form, as doubles or otherwise.
    const DIGITS_MAX: usize = 15;
    match raw {
        [b'"', text @ .., b'"'] => {
            !text.contains(&b'\\') && std::str::from_utf8(text).is_ok_and(|text| !is_reserved(text))
        }
        [b'1'..=b'9', more @ ..] => more.len() < DIGITS_MAX && more.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn lane_at(node: &Node<'_>) -> Option<Lane> {
    let Node::Scalar(raw) = node else {
        let mut written = Vec::new();
        write(&mut written, node, Texts::Sent);
        return Some(hash("j", &written));
    };
    match raw.as_bytes().first()? {
        b't' | b'f' => Some(hash("b", raw)),
        b'"' => Some(match Text::parse(raw)? {
            Text::Whole(text) => hash("s", text),
            Text::Broken(text) => hash("x", broken(&text)),
        }),
        b'-' | b'0'..=b'9' => Some(hash("n", &*spell_for_lane(raw))),
        _ => None,
    }
}

/// The kind stands before the text, so that `1` and `"1"` are two lanes.
fn hash(kind: &str, text: impl AsRef<[u8]>) -> Lane {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(kind.as_bytes());
    context.update(b":");
    context.update(text.as_ref());
    Lane::from_be_bytes(context.finish().as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::event::Event;
    use crate::time::Timestamp;

    fn with_data(data: &str) -> Event {
        Event {
            id: "1".to_owned(),
            source: "shop".to_owned(),
            type_name: "order.paid".to_owned(),
            subject: None,
            time: Timestamp::from_ms(0),
            body: Bytes::from(format!(r#"{{"id":"1","data":{data}}}"#)),
        }
    }

    /// The lane of an event that has this for `data.a`.
    fn lane_for(value: &str) -> Option<Lane> {
        let event = with_data(&format!(r#"{{"a":{value}}}"#));
        lane_of(&View::new(&event), &Path::parse("data.a").unwrap())
    }

    #[test]
    fn what_is_there_has_a_lane() {
        let values = [
            "1e400",
            "1e401",
            "-1e400",
            "1e-400",
            r#""\ud800""#,
            r#""\ud801""#,
            r#""text:\\ud800""#,
            "[1e400]",
        ];
        for (place, one) in values.iter().enumerate() {
            assert!(lane_for(one).is_some(), "{one}");
            for other in &values[..place] {
                assert_ne!(lane_for(one), lane_for(other), "{one} {other}");
            }
        }
        assert_eq!(lane_for("null"), None);
    }

    #[test]
    fn what_no_double_holds_hides_nothing_beside_it() {
        let pad = "x".repeat(5_000);
        for data in [
            format!(r#"{{"x":[1e400,"\ud800"],"\udc00":1,"a":[{{"b":7}}],"pad":"{pad}"}}"#),
            r#"{"x":1e400,"\udc00":1,"a":[{"b":7}]}"#.to_owned(),
        ] {
            let event = with_data(&data);
            assert_eq!(
                lane_of(&View::new(&event), &Path::parse("data.a.0.b").unwrap()),
                lane_for("7"),
                "{data}"
            );
        }
    }

    #[test]
    fn equal_numbers_are_one_lane() {
        for (one, other) in [
            ("675621566002.701", "675621566002.70100"),
            ("9007199254740993", "9007199254740993.0"),
            ("123456789012345678901234567890", "12345678901234567890123456789e1"),
            ("1e400", "10E399"),
            (r#""\ud800""#, r#""\uD800""#),
            ("[1,2]", "[1.0, 2e0]"),
        ] {
            assert!(lane_for(one).is_some(), "{one}");
            assert_eq!(lane_for(one), lane_for(other), "{one} {other}");
        }
    }

    /// What waits in a lane stays before what comes later: these are lanes of events that are stored somewhere.
    #[test]
    fn lanes_are_where_they_have_always_been() {
        for (value, lane) in [
            ("7", -3_760_182_660_662_898_114),
            ("-0", -3_457_504_604_102_575_016),
            ("18446744073709551615", -8_366_335_083_211_775_998),
            ("1.5", -6_947_659_044_288_160_112),
            ("1e-7", 5_770_462_953_491_123_041),
            ("1e300", 2_396_929_427_062_129_416),
            ("123456789012345678901", -7_788_601_349_957_557_367),
            ("-340282366920938463463374607431768211455", -6_807_945_492_640_030_542),
            ("99999999999999999999999999999999", 3_927_097_048_756_567_708),
            (r#""a\u00e9""#, 1_452_046_343_361_025_270),
            ("true", -7_690_494_593_646_777_938),
            (r#"{"b":[1.5,null],"a":"x"}"#, 1_945_555_650_365_225_476),
        ] {
            assert_eq!(lane_for(value), Some(lane), "{value}");
        }
    }
}
