//! Values as an index keeps them: bytes that sort as the values do.
//!
//! A kind, then the value. For each path that its type indexes an event has exactly one value of its own, be it that the
//! attribute is missing, null, a list or an object; the elements of a list come besides, as kinds apart. So every
//! condition about one attribute is a few [`Stretch`]es of bytes ([`super::search`]).
//! Numbers sort by value, whole or not; texts byte by byte, the longest by their beginning and then by their hash.

use ring::digest;
use serde_json::{Number, Value};

use super::decimal::shown;
use super::pick::elements;
use crate::limits::{INDEX_ELEMENTS_MAX, OBSERVED_VALUE_BYTES_MAX};

/// The attribute is not there.
const MISSING: u8 = 0x01;
const NULL: u8 = 0x02;
/// Whatever its elements are.
const LIST: u8 = 0x03;
/// An object, or a number that no double can hold.
const OTHER: u8 = 0x04;
const BOOLEAN: u8 = 0x10;
const NUMBER: u8 = 0x20;
const TEXT: u8 = 0x30;
/// An element of a list, of the kind that is left without this bit.
const ELEMENT: u8 = 0x80;

/// Bytes of the hash that stands for the end of a long text.
const HASH_BYTES: usize = 16;

/// Values from one up to, and without, another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// The first.
    pub from: Vec<u8>,
    /// The first that is not in it.
    pub to: Vec<u8>,
}

impl Stretch {
    fn kinds(from: u8, to: u8) -> Self {
        Self { from: vec![from], to: vec![to] }
    }

    /// Everything that an attribute itself can be, as opposed to its elements; missing included.
    pub fn anything() -> Self {
        Self::kinds(0, ELEMENT)
    }

    /// Everything but missing.
    pub(super) fn present() -> Self {
        Self::kinds(MISSING + 1, ELEMENT)
    }

    pub(super) fn missing() -> Self {
        Self::kinds(MISSING, MISSING + 1)
    }

    pub(super) fn list() -> Self {
        Self::kinds(LIST, LIST + 1)
    }

    /// This value alone.
    pub(super) fn only(value: Vec<u8>) -> Self {
        let to = [&value[..], &[0]].concat();
        Self { from: value, to }
    }

    /// Numbers or texts, whichever the value is, that come before it.
    pub(super) fn before(value: Vec<u8>) -> Self {
        Self { from: vec![value[0]], to: value }
    }

    /// The same that do not.
    pub(super) fn from(value: Vec<u8>) -> Self {
        let to = vec![value[0] + 1];
        Self { from: value, to }
    }

    /// Texts that begin so.
    pub(super) fn beginning_with(value: &[u8]) -> Self {
        let mut to = value.to_vec();
        while to.last() == Some(&u8::MAX) {
            to.pop();
        }
        if let Some(last) = to.last_mut() {
            *last += 1;
        }
        Self { from: value.to_vec(), to }
    }

    /// What of `whole` is in none of `parts`.
    pub(super) fn gaps(whole: Self, mut parts: Vec<Self>) -> Vec<Self> {
        parts.sort();
        let mut gaps = Vec::new();
        let mut from = whole.from;
        for part in parts {
            if from < part.from {
                gaps.push(Self { from: from.clone(), to: part.from });
            }
            from = from.max(part.to);
        }
        if from < whole.to {
            gaps.push(Self { from, to: whole.to });
        }
        gaps
    }

    /// Whether a value is in it.
    pub fn contains(&self, value: &[u8]) -> bool {
        *self.from <= *value && *value < *self.to
    }
}

/// Hands over everything by which an event is found: what stands at the path, as JSON, and the elements of a list.
pub fn each(found: Option<&str>, scratch: &mut Vec<u8>, mut give: impl FnMut(&[u8])) {
    let Some(json) = found else { return give(&[MISSING]) };
    match json.as_bytes().first() {
        Some(b'[') => {
            give(&[LIST]);
            for element in elements(json).take(INDEX_ELEMENTS_MAX) {
                write(element, scratch);
                if scratch[0] != LIST && scratch[0] != OTHER {
                    scratch[0] |= ELEMENT;
                    give(scratch);
                }
            }
        }
        _ => {
            write(json, scratch);
            give(scratch);
        }
    }
}

fn write(json: &str, out: &mut Vec<u8>) {
    out.clear();
    match json.as_bytes().first() {
        Some(b'"') => match plain(json) {
            Some(plain) => write_text(plain, out),
            None => match serde_json::from_str::<String>(json) {
                Ok(text) => write_text(&text, out),
                Err(_) => out.push(OTHER),
            },
        },
        Some(b't') => out.extend([BOOLEAN, 1]),
        Some(b'f') => out.extend([BOOLEAN, 0]),
        Some(b'n') => out.push(NULL),
        Some(b'[') => out.push(LIST),
        // As it is shown, a whole number is whole however it was written.
        Some(b'-' | b'0'..=b'9') => match shown(json).and_then(|json| serde_json::from_str(&json).ok()) {
            Some(number) => write_number(&number, out),
            None => out.push(OTHER),
        },
        _ => out.push(OTHER),
    }
}

/// What stands between the quotes of a JSON text without escapes.
pub(super) fn plain(json: &str) -> Option<&str> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.contains('\\')).then_some(inner)
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(TEXT);
    let bytes = text.as_bytes();
    out.extend(&bytes[..bytes.len().min(OBSERVED_VALUE_BYTES_MAX)]);
    if bytes.len() > OBSERVED_VALUE_BYTES_MAX {
        out.extend(&digest::digest(&digest::SHA256, bytes).as_ref()[..HASH_BYTES]);
    }
}

/// The nearest double so that its bits sort, and how far a whole number is from it.
fn write_number(number: &Number, out: &mut Vec<u8>) {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = whole.map_or_else(|| number.as_f64().unwrap_or_default(), |whole| whole as f64);
    let rest = whole.map_or(0, |whole| whole - float as i128);
    // Zero has one sign here.
    let bits = (float + 0.0).to_bits();
    let sorted = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    out.push(NUMBER);
    out.extend(sorted.to_be_bytes());
    // At most half the distance between doubles near 2⁶⁴, which is 1024.
    out.extend((rest as i16 as u16 ^ 0x8000).to_be_bytes());
}

/// A text as it is kept.
pub(super) fn of_text(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 1);
    write_text(text, &mut out);
    out
}

/// A number as it is kept.
pub(super) fn of_number(number: &Number) -> Vec<u8> {
    let mut out = Vec::with_capacity(11);
    write_number(number, &mut out);
    out
}

/// A truth value as it is kept.
pub(super) fn of_bool(truth: bool) -> Vec<u8> {
    vec![BOOLEAN, u8::from(truth)]
}

/// Null as it is kept.
pub(super) fn of_null() -> Vec<u8> {
    vec![NULL]
}

/// The same as an element of a list.
pub(super) fn as_element(mut value: Vec<u8>) -> Vec<u8> {
    value[0] |= ELEMENT;
    value
}

/// All values that people can be shown: those of attributes themselves, then those of elements of lists.
pub fn listed() -> [Stretch; 2] {
    [Stretch::kinds(BOOLEAN, ELEMENT), Stretch::kinds(ELEMENT | BOOLEAN, u8::MAX)]
}

/// Texts of attributes themselves and of elements that begin so; the same order as [`listed`].
pub fn listed_with(prefix: &str) -> [Stretch; 2] {
    let value: Vec<u8> = [&[TEXT], prefix.as_bytes()].concat();
    [Stretch::beginning_with(&value), Stretch::beginning_with(&as_element(value))]
}

/// The value for people; nothing for what is no value, such as missing. A long text is shown by its beginning.
pub fn decode(bytes: &[u8]) -> Option<Value> {
    let (kind, rest) = bytes.split_first()?;
    match kind & !ELEMENT {
        BOOLEAN => Some(Value::Bool(*rest.first()? == 1)),
        NUMBER => decode_number(rest),
        TEXT if rest.len() <= OBSERVED_VALUE_BYTES_MAX => Some(String::from_utf8_lossy(rest).into()),
        TEXT => {
            let kept = String::from_utf8_lossy(&rest[..OBSERVED_VALUE_BYTES_MAX]);
            Some(format!("{}…", kept.trim_end_matches(char::REPLACEMENT_CHARACTER)).into())
        }
        _ => None,
    }
}

fn decode_number(rest: &[u8]) -> Option<Value> {
    let (sorted, far) = (rest.get(..8)?, rest.get(8..10)?);
    let sorted = u64::from_be_bytes(sorted.try_into().ok()?);
    let float = f64::from_bits(if sorted >> 63 == 1 { sorted & !(1 << 63) } else { !sorted });
    let far = (u16::from_be_bytes(far.try_into().ok()?) ^ 0x8000) as i16;
    let whole = (float.fract() == 0.0).then(|| (float as i128).saturating_add(i128::from(far)));
    let small = whole.and_then(|whole| i64::try_from(whole).ok()).map(Value::from);
    let large = || whole.and_then(|whole| u64::try_from(whole).ok()).map(Value::from);
    small.or_else(large).or_else(|| Number::from_f64(float).map(Value::Number))
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;

    fn written(json: &str) -> Vec<u8> {
        let mut out = Vec::new();
        write(json, &mut out);
        out
    }

    fn all(json: Option<&str>) -> Vec<Option<Value>> {
        let mut values = Vec::new();
        each(json, &mut Vec::new(), |value| values.push(decode(value)));
        values
    }

    #[test]
    fn values_sort_as_they_should() {
        let sorted = [
            "null",
            "[1]",
            "{}",
            "false",
            "true",
            "-1e300",
            "-9223372036854775808",
            "-9007199254740993",
            "-9007199254740992.0",
            "-1.5",
            "-1",
            "0",
            "5e-324",
            "0.5",
            "1",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "1e300",
            "\"\"",
            "\"A\"",
            "\"a\"",
            "\"aa\"",
            "\"b\"",
            "\"é\"",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(written(pair[0]).cmp(&written(pair[1])), Ordering::Less, "{pair:?}");
        }
        for (one, other) in [
            ("1", "1.0"),
            ("0", "-0.0"),
            ("\"\\u0061\"", "\"a\""),
            ("1e2", "100"),
            ("675621566002.701", "675621566002.70100"),
            ("9007199254740993", "9007199254740993.0"),
        ] {
            assert_eq!(written(one), written(other), "{one} {other}");
        }
    }

    #[test]
    fn lists_fan_out() {
        assert_eq!(all(None), [None]);
        assert_eq!(all(Some("null")), [None]);
        assert_eq!(all(Some("7")), [Some(7.into())]);
        assert_eq!(all(Some("[]")), [None]);
        let elements = all(Some("[ 1, \"a\" ,[2],{\"b\":3},true ]"));
        assert_eq!(elements, [None, Some(1.into()), Some("a".into()), Some(true.into())]);
        let many = format!("[{}0]", "1,".repeat(5_000));
        assert_eq!(all(Some(&many)).len(), 1 + INDEX_ELEMENTS_MAX);
        let element = as_element(written("\"a\""));
        assert!(!Stretch::anything().contains(&element) && Stretch::anything().contains(&written("\"a\"")));
        assert!(listed()[1].contains(&element) && listed_with("a")[1].contains(&element));
        assert!(!listed()[0].contains(&written("null")));
    }

    #[test]
    fn long_texts_differ_by_their_hash_and_still_have_their_place() {
        let long = "x".repeat(300);
        let (one, other) = (of_text(&format!("{long}1")), of_text(&format!("{long}2")));
        assert!(one != other && one.len() == 1 + OBSERVED_VALUE_BYTES_MAX + HASH_BYTES);
        for start in ["", "x", &long[..256]] {
            assert!(Stretch::beginning_with(&of_text(start)).contains(&one), "{start}");
        }
        assert!(Stretch::before(of_text("y")).contains(&one));
        assert!(Stretch::from(of_text(&long[..256])).contains(&one));
        let shown = decode(&one).unwrap();
        assert_eq!(shown.as_str().map(str::len), Some(OBSERVED_VALUE_BYTES_MAX + '…'.len_utf8()));
        let cut = of_text(&format!("{}é{long}", "x".repeat(255)));
        assert_eq!(decode(&cut).unwrap(), format!("{}…", "x".repeat(255)));
    }

    fn number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<i64>().prop_map(Number::from),
            any::<u64>().prop_map(Number::from),
            (-4_i64..4).prop_map(Number::from),
            any::<f64>().prop_filter_map("JSON has no such number", Number::from_f64),
            (-8_i32..8).prop_filter_map("all have", |half| Number::from_f64(f64::from(half) / 2.0)),
            ((1_i64 << 53) - 3..(1 << 53) + 3).prop_map(Number::from),
            ((1_i64 << 53) - 3..(1 << 53) + 3).prop_filter_map("all", |n| Number::from_f64(n as f64)),
        ]
    }

    /// Compares without ever rounding.
    fn compare(a: &Number, b: &Number) -> Ordering {
        let whole = |n: &Number| n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
        match (whole(a), whole(b)) {
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(a), None) => compare_mixed(a, b.as_f64().unwrap()),
            (None, Some(b)) => compare_mixed(b, a.as_f64().unwrap()).reverse(),
            (None, None) => a.as_f64().partial_cmp(&b.as_f64()).unwrap(),
        }
    }

    fn compare_mixed(whole: i128, float: f64) -> Ordering {
        // The cast saturates, which is as good as the number itself beside one of 64 bits.
        let floor = float.floor() as i128;
        whole.cmp(&floor).then(if float.fract() == 0.0 { Ordering::Equal } else { Ordering::Less })
    }

    proptest! {
        #[test]
        fn numbers_sort_by_value_and_come_back(a in number(), b in number()) {
            let (first, second) = (of_number(&a), of_number(&b));
            prop_assert_eq!(first.cmp(&second), compare(&a, &b), "{} {}", a, b);
            let back = decode(&first).unwrap();
            prop_assert_eq!(compare(back.as_number().unwrap(), &a), Ordering::Equal, "{} {}", back, a);
        }

        #[test]
        fn texts_sort_by_their_bytes_and_come_back(a in ".{0,6}", b in ".{0,6}") {
            prop_assert_eq!(of_text(&a).cmp(&of_text(&b)), a.as_bytes().cmp(b.as_bytes()));
            prop_assert_eq!(Stretch::beginning_with(&of_text(&b)).contains(&of_text(&a)), a.starts_with(&b));
            prop_assert_eq!(decode(&of_text(&a)), Some(a.into()));
        }

        #[test]
        fn gaps_are_what_is_left(parts in proptest::collection::vec((0_u8..9, 0_u8..9), 0..4), value in 0_u8..12) {
            let whole = Stretch::kinds(0, 10);
            let parts: Vec<Stretch> =
                parts.into_iter().map(|(a, b)| Stretch::kinds(a.min(b), a.max(b))).collect();
            let in_parts = parts.iter().any(|part| part.contains(&[value]));
            let expected = whole.contains(&[value]) && !in_parts;
            let gaps = Stretch::gaps(whole, parts);
            prop_assert_eq!(gaps.iter().filter(|gap| gap.contains(&[value])).count(), usize::from(expected));
        }
    }
}
