//! What keeps windows of one subscriber apart.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ring::digest;

use crate::limits::FOLD_KEY_VALUE_BYTES_MAX;
use crate::route::{Path, Texts, View, write_json, write_value_of};

/// The values at a fold's paths: as people read them, and as one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// A hash of the paths and values. Replays gather apart, under hashes of their own.
    pub hash: u128,
    /// `{"type":"A","data.plan":7}`.
    pub text: KeyText,
}

/// The text of a key. Only the first event of a window needs it, but every event brings one: those that most folds have
/// take no memory of their own.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(Kept);

#[derive(Clone, PartialEq, Eq)]
enum Kept {
    Short(u8, [u8; SHORT_BYTES_MAX]),
    Long(Arc<str>),
}

/// What makes a [`KeyText`] as large as a line of a cache, but for what lies before it there.
const SHORT_BYTES_MAX: usize = 54;

impl From<&str> for KeyText {
    fn from(text: &str) -> Self {
        let mut bytes = [0; SHORT_BYTES_MAX];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text.as_bytes());
                Self(Kept::Short(len, bytes))
            }
            _ => Self(Kept::Long(Arc::from(text))),
        }
    }
}

impl Deref for KeyText {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Kept::Short(len, bytes) => std::str::from_utf8(&bytes[..usize::from(*len)]).expect("it was text"),
            Kept::Long(text) => text,
        }
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Key {
    /// The key of an event. What is missing counts as null. Every event passes here, so nothing is built that is not kept.
    pub fn of(view: &View<'_>, by: &[Path]) -> Self {
        if !by.is_sorted_by(|a, b| a < b) {
            let in_order: BTreeSet<Path> = by.iter().cloned().collect();
            return Self::of(view, &in_order.into_iter().collect::<Vec<_>>());
        }
        TEXT.with_borrow_mut(|text| {
            write(text, view, by);
            let key = Self::from_text(std::str::from_utf8(text).expect("JSON is text"));
            text.truncate(TEXT_BYTES_KEPT);
            text.shrink_to(TEXT_BYTES_KEPT);
            key
        })
    }

    /// The key with these members, each as JSON and as it is shown: what stands by a text is named by that text.
    pub fn with<'m>(members: impl IntoIterator<Item = (&'m str, &'m str)>) -> Self {
        let members: BTreeMap<&str, &str> = members.into_iter().collect();
        let mut text = Vec::new();
        write_members(&mut text, members, |text, json| write_json(text, json, Texts::Shown));
        Self::from_text(std::str::from_utf8(&text).expect("JSON is text"))
    }

    /// The key that reads so.
    pub fn from_text(text: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let hash = u128::from_be_bytes(hash.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"));
        Self { hash, text: KeyText::from(text) }
    }

    /// The same for events that are sent again.
    #[must_use]
    pub fn for_replay(&self) -> Self {
        Self { hash: !self.hash, text: self.text.clone() }
    }
}

/// The memory that is kept for the next one: a value may be long before it is shortened.
const TEXT_BYTES_KEPT: usize = 4_096;

thread_local! {
    /// Where keys are written.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes the text of a key, by paths in order.
fn write(text: &mut Vec<u8>, view: &View<'_>, by: &[Path]) {
    text.clear();
    let members = by.iter().map(|path| (path.as_str(), path));
    write_members(text, members, |text, path| write_value_of(text, view, path));
}

fn write_members<'m, V>(
    text: &mut Vec<u8>,
    members: impl IntoIterator<Item = (&'m str, V)>,
    write_value: impl Fn(&mut Vec<u8>, V),
) {
    text.push(b'{');
    for (place, (path, value)) in members.into_iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        serde_json::to_writer(&mut *text, path).expect("text is always JSON");
        text.push(b':');
        let from = text.len();
        write_value(text, value);
        shorten(text, from);
    }
    text.push(b'}');
}

/// Long values stand in a key by their hash: they still keep windows apart, and a key stays short. This one ends a text.
fn shorten(text: &mut Vec<u8>, from: usize) {
    if text.len() - from > FOLD_KEY_VALUE_BYTES_MAX {
        let short = format!("\"{}\"", hashed(&text[from..]));
        text.truncate(from);
        text.extend_from_slice(short.as_bytes());
    }
}

/// What stands for a text that is too long.
pub(crate) fn hashed(text: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, text);
    let hex: String = hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::event::{Data, Event, Fields, render};
    use crate::route::value_of;
    use crate::time::Timestamp;

    fn event(data: &str) -> Event {
        let fields = Fields {
            id: "1",
            source: "sh\"op",
            type_name: "order.paid",
            subject: None,
            time: "2026-01-01T00:00:00Z",
            ended: None,
            parents: &[],
            extensions: Some(r#"{"tenant":"x"}"#),
            data: Data::Json(data),
        };
        Event {
            id: "1".into(),
            source: fields.source.into(),
            type_name: fields.type_name.into(),
            subject: None,
            time: Timestamp::from_ms(0),
            body: render(&fields),
        }
    }

    /// However a key comes about, it is the one that people name.
    fn check(data: &str) {
        let paths = ["data", "data.a", "data.a.b", "extensions.tenant", "source", "subject", "type"];
        let event = event(data);
        for len in 1..=paths.len() {
            let by: Vec<Path> = paths[..len].iter().map(|path| Path::parse(path).unwrap()).collect();
            let view = View::new(&event);
            let shown: Vec<String> = by.iter().map(|path| value_of(&view, path).to_string()).collect();
            let named = by.iter().map(Path::as_str).zip(shown.iter().map(String::as_str));
            assert_eq!(Key::of(&View::new(&event), &by), Key::with(named), "{data}");
        }
    }

    #[test]
    fn a_key_does_not_depend_on_how_a_value_is_written() {
        let long = json!({"a": "x".repeat(FOLD_KEY_VALUE_BYTES_MAX)}).to_string();
        for data in [
            r#"{"a":7}"#,
            r#"{"a":7.0}"#,
            r#"{"a":-0}"#,
            r#"{"a":0}"#,
            r#"{ "a" : 1e2 }"#,
            r#"{"a":12345678901234567890}"#,
            r#"{"a":123456789012345678901234567890}"#,
            r#"{"a":"\u00e9"}"#,
            r#"{"a":"é"}"#,
            r#"{"a":{"b":true,"b":"x"}}"#,
            r#"{"a":[{"b":1}]}"#,
            r#"{"\u0061":1}"#,
            "null",
            "[]",
            "5",
            &long,
        ] {
            check(data);
        }
        let key = |data| Key::of(&View::new(&event(data)), &[Path::parse("data.a").unwrap()]);
        assert_eq!(key(r#"{"a":7}"#), key(r#"{"a":7.0}"#));
        assert_eq!(key(r#"{"a":"é"}"#), key(r#"{"a":"\u00e9"}"#));
        assert_ne!(key(r#"{"a":7}"#), key(r#"{"a":"7"}"#));
        assert_eq!(&*key(r#"{"a":7}"#).text, r#"{"data.a":7}"#);
    }

    #[test]
    fn long_numbers_are_told_apart_digit_for_digit() {
        let key = |data: &str, path: &str| {
            let key = Key::of(&View::new(&event(data)), &[Path::parse(path).unwrap()]);
            serde_json::from_str::<Value>(&key.text).unwrap()[path].clone()
        };
        let padded = format!(r#"{{"pad":"{}","a":123456789012345678901}}"#, "x".repeat(5_000));
        for (data, path) in [
            (r#"{"a":123456789012345678901}"#, "data.a"),
            (r#"{"\u0061":123456789012345678901}"#, "data.a"),
            (r#"{"a":[7,{"b":123456789012345678901}]}"#, "data.a.1.b"),
            (padded.as_str(), "data.a"),
        ] {
            assert_eq!(key(data, path), "number:123456789012345678901", "{path}");
        }
        for (one, other) in [
            ("123456789012345678901", "123456789012345678902"),
            ("-123456789012345678901", "123456789012345678901"),
            ("18446744073709551615", "18446744073709551616"),
            ("9007199254740993", "9007199254740992"),
        ] {
            let of = |number| key(&format!(r#"{{"a":{number}}}"#), "data.a");
            assert_ne!(of(one), of(other), "{one} {other}");
            assert_eq!(of(one), of(one));
        }
        assert_eq!(key(r#"{"a":18446744073709551615}"#, "data.a"), json!(u64::MAX));
        assert_eq!(key(r#"{"a":-0}"#, "data.a"), json!(0));
        assert_eq!(key(r#"{"a":1e300}"#, "data.a"), json!(1e300));
    }

    #[test]
    fn a_number_that_people_name_is_the_one_that_events_have() {
        for (data, named) in
            [(r#"{"a":1.0}"#, json!(1.0)), (r#"{"a":1}"#, json!(1.0)), (r#"{"a":1e0}"#, json!(1))]
        {
            let by = [Path::parse("data.a").unwrap()];
            assert_eq!(
                Key::of(&View::new(&event(data)), &by),
                Key::with([("data.a", &*named.to_string())]),
                "{data}"
            );
        }
    }

    /// The value in the key of an event that has this for `data.a`.
    fn shown_for(value: &str) -> Value {
        let key =
            Key::of(&View::new(&event(&format!(r#"{{"a":{value}}}"#))), &[Path::parse("data.a").unwrap()]);
        serde_json::from_str::<Value>(&key.text).unwrap()["data.a"].take()
    }

    #[test]
    fn equal_numbers_have_one_key_and_others_have_others() {
        for same in [
            &["675621566002.701", "675621566002.70100", "67562156600270100e-5", "6.75621566002701E+11"][..],
            &["9007199254740993", "9007199254740993.0", "9007199254740993000e-3"],
            &["18446744073709551616", "18446744073709551616.0", "1844674407370955161.6e1"],
            &["1e400", "10e399", "0.1E+401"],
            &["0.1000000000000000000000001", "1000000000000000000000001e-25"],
            &["0", "-0", "0.0", "-0e99999999999999999999999999999999999999999"],
            &["1e30", "1000000000000000000000000000000"],
            &["1e300", "0.1e301"],
        ] {
            let first = shown_for(same[0]);
            assert!(!first.is_null(), "{same:?}");
            for other in same {
                assert_eq!(shown_for(other), first, "{other}");
            }
        }
        let different = [
            "1e400",
            "1e401",
            "-1e400",
            "1e-400",
            "0",
            "0.1",
            "0.1000000000000000000000001",
            "9007199254740993.5",
        ];
        for (place, one) in different.iter().enumerate() {
            for other in &different[..place] {
                assert_ne!(shown_for(one), shown_for(other), "{one} {other}");
            }
        }
        assert_eq!(shown_for("675621566002.70100"), json!(675621566002.701));
        assert_eq!(shown_for("[1.0,{\"b\":1e400}]"), json!([1, {"b": "number:1e+400"}]));
    }

    #[test]
    fn a_text_that_is_half_a_character_is_a_key() {
        assert_eq!(shown_for(r#""\ud800""#), r"text:\ud800");
        assert_eq!(shown_for(r#""\uD800""#), r"text:\ud800");
        assert_eq!(shown_for(r#""a\udc00\u00e9\ud83d\ude00\\""#), r"text:a\udc00é😀\\");
        assert_eq!(shown_for(r#""text:\\ud800""#), r"\text:\ud800");
        assert_eq!(shown_for(r#"["\ud800",{"\ud800":1}]"#), json!([r"text:\ud800", {r"text:\ud800": 1}]));
    }

    #[test]
    fn texts_are_not_taken_for_what_stands_by_a_text() {
        let long = json!("x".repeat(300)).to_string();
        let hash = shown_for(&long);
        for (value, text) in [
            ("123456789012345678901234567890", "number:123456789012345678901234567890"),
            ("1e400", "number:1e+400"),
            (&long, hash.as_str().unwrap()),
        ] {
            assert_eq!(shown_for(value), text);
            for backslashes in ["", "\\", "\\\\"] {
                let text = format!("{backslashes}{text}");
                assert_eq!(shown_for(&json!(text).to_string()), format!("\\{text}"));
            }
        }
        let mut event = event("1");
        event.subject = Some("number:123456789012345678901234567890".into());
        let key = Key::of(&View::new(&event), &[Path::parse("subject").unwrap()]);
        assert_eq!(&*key.text, r#"{"subject":"\\number:123456789012345678901234567890"}"#);
    }

    #[test]
    fn what_is_ordinary_keeps_its_key() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        for text in
            ["", "number:7", "number:x", "number:", "sha256:", "text:\\", r"\", &digest, &"x".repeat(254)]
        {
            assert_eq!(shown_for(&json!(text).to_string()), text);
        }
        for text in [
            "1.5",
            "-0.25",
            "19.99",
            "1e-7",
            "1e300",
            "5e-324",
            "0.1",
            "18446744073709551615",
            "-9223372036854775808",
        ] {
            assert_eq!(shown_for(text), serde_json::from_str::<Value>(text).unwrap());
        }
        assert_eq!(
            shown_for(&json!("x".repeat(255)).to_string()),
            hashed(json!("x".repeat(255)).to_string().as_bytes())
        );
        assert_eq!(
            shown_for(r#"{"b":[1.5,"\u00e9",null,true],"a":{}}"#),
            json!({"a":{},"b":[1.5,"é",null,true]})
        );
    }

    proptest! {
        #[test]
        fn any_number_and_text_give_the_key_that_people_name(
            number in "-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,3})?(e[0-9]{1,2})?",
            text in any::<String>(),
        ) {
            check(&format!(r#"{{"a":{number}}}"#));
            check(&json!({"a": {"b": text}}).to_string());
        }
    }
}
