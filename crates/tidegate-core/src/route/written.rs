//! One way to write each value, for the keys of folds and lanes: equal values are written alike, different ones never are.
//!
//! JSON without spaces, names in order. What JSON readers would not give back as it was stands there as a text that says
//! what it is: `number:…` for a number that neither 64 bits nor a double hold, `text:…` for a text with half a character in
//! it, and `sha256:…` for whatever is long ([`crate::fold::Key`]). A text that reads like one of those has a backslash more.

use super::number::{Spelling, spell};
use super::tree::{Node, Text};

/// Whose texts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texts {
    /// An event's: they mean what they say.
    Sent,
    /// Those of somebody who names a key as it was shown.
    Shown,
}

/// Bytes of a hash in hexadecimal.
const HASH_DIGITS: usize = 32;

/// Writes a value; `null` for what is no JSON.
pub(crate) fn write_json(out: &mut Vec<u8>, json: &str, texts: Texts) {
    match Node::parse(json.as_bytes()) {
        Some(node) => write(out, &node, texts),
        None => out.extend_from_slice(b"null"),
    }
}

pub(super) fn write(out: &mut Vec<u8>, node: &Node<'_>, texts: Texts) {
    match node {
        Node::Scalar(raw) => write_scalar(out, raw, texts),
        Node::List(items) => {
            out.push(b'[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                write(out, item, texts);
            }
            out.push(b']');
        }
        Node::Object(members) => {
            out.push(b'{');
            for (place, (name, value)) in members.iter().enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                write_text(out, name, texts);
                out.push(b':');
                write(out, value, texts);
            }
            out.push(b'}');
        }
    }
}

fn write_scalar(out: &mut Vec<u8>, raw: &str, texts: Texts) {
    match raw.as_bytes().first() {
        Some(b'"') => match Text::parse(raw) {
            Some(text) => write_text(out, &text, texts),
            None => out.extend_from_slice(b"null"),
        },
        Some(b'-' | b'0'..=b'9') => match spell(raw) {
            Some(Spelling::Plain(number)) => out.extend_from_slice(number.as_bytes()),
            Some(Spelling::Long(number)) => write_string(out, &format!("number:{number}")),
            None => out.extend_from_slice(b"null"),
        },
        Some(b't' | b'f') => out.extend_from_slice(raw.as_bytes()),
        _ => out.extend_from_slice(b"null"),
    }
}

fn write_text(out: &mut Vec<u8>, text: &Text, texts: Texts) {
    match text {
        Text::Whole(text) if texts == Texts::Sent => write_sent(out, text),
        Text::Whole(text) => write_string(out, text),
        Text::Broken(text) => write_string(out, &broken(text)),
    }
}

/// Writes a text of an event.
pub(super) fn write_sent(out: &mut Vec<u8>, text: &str) {
    if is_reserved(text) {
        write_string(out, &format!("\\{text}"));
    } else {
        write_string(out, text);
    }
}

/// What stands for a text with half a character in it.
pub(super) fn broken(text: &str) -> String {
    format!("text:{text}")
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("text is always JSON");
}

/// Whether a text would be taken for something else, perhaps after what was put before it. As few as possible are: those
/// that merely begin so have always stood in keys as they are.
pub(super) fn is_reserved(text: &str) -> bool {
    let text = text.trim_start_matches('\\');
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if let Some(hash) = text.strip_prefix("sha256:") {
        return hash.len() == HASH_DIGITS && hash.bytes().all(is_hex);
    }
    if let Some(number) = text.strip_prefix("number:") {
        return spell(number) == Some(Spelling::Long(number.to_owned()));
    }
    text.strip_prefix("text:").is_some_and(|text| text.contains("\\ud"))
}
