//! One value out of a JSON text, without reading the rest into memory.
//!
//! The text is JSON that was checked before, such as the body of an event: this only has to find its way.

use crate::json::string_end;

/// The value that names lead to from a part of an event's body, as it stands there: `Some(None)` when there is none. Nothing
/// when it takes more than objects and their members to find out.
pub(super) fn raw_at<'t, 'p>(
    body: &'t [u8],
    part: &str,
    mut path: impl Iterator<Item = &'p str>,
) -> Option<Option<&'t [u8]>> {
    let Some(from) = part_at(body, part.as_bytes())? else { return Some(None) };
    // Where it ends is found on the way through it.
    let begun = &body[from..];
    let Some(first) = path.next() else { return Some(Some(&begun[..value_end(begun, 0)?])) };
    let Some(mut rest) = member(begun, first.as_bytes())? else { return Some(None) };
    for name in path {
        match member(rest, name.as_bytes())? {
            Some(value) => rest = value,
            None => return Some(None),
        }
    }
    Some(Some(rest))
}

/// Where a part of a body begins. A body is written by us, so no name comes twice in it, and nothing behind the part need
/// be looked at.
fn part_at(body: &[u8], name: &[u8]) -> Option<Option<usize>> {
    let mut at = after(body, 0, b'{')?;
    loop {
        let name_from = after(body, at, b'"')?;
        let name_end = string_end(body, name_from);
        let from = after(body, name_end, b':')?;
        if body.get(name_from..name_end - 1)? == name {
            return Some(Some(from));
        }
        at = value_end(body, from)?;
        match body.get(at)? {
            b'}' => return Some(None),
            b',' => at += 1,
            _ => return None,
        }
    }
}

/// A member of an object; the last one, if its name comes twice. Nothing if it is no object, or if a name in it is escaped.
fn member<'t>(text: &'t [u8], name: &[u8]) -> Option<Option<&'t [u8]>> {
    if text.first() != Some(&b'{') {
        return None;
    }
    let mut found = None;
    let mut at = after_space(text, 1);
    if text.get(at) == Some(&b'}') {
        return Some(None);
    }
    loop {
        let name_from = after(text, at, b'"')?;
        let name_end = string_end(text, name_from);
        let known = text.get(name_from..name_end - 1)?;
        if known.contains(&b'\\') {
            return None;
        }
        let from = after_space(text, after(text, after_space(text, name_end), b':')?);
        let end = value_end(text, from)?;
        if known == name {
            found = Some(&text[from..end]);
        }
        at = after_space(text, end);
        match text.get(at)? {
            b'}' => return Some(found),
            b',' => at = after_space(text, at + 1),
            _ => return None,
        }
    }
}

pub(super) fn after(text: &[u8], at: usize, byte: u8) -> Option<usize> {
    (text.get(at) == Some(&byte)).then_some(at + 1)
}

pub(super) fn after_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Where the value ends that begins at `at`.
pub(super) fn value_end(text: &[u8], mut at: usize) -> Option<usize> {
    let mut open = 0usize;
    loop {
        match text.get(at)? {
            b'"' => at = string_end(text, at + 1),
            b'{' | b'[' => {
                open += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                open = open.checked_sub(1)?;
                at += 1;
            }
            b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if open > 0 => {
                at += 1;
                continue;
            }
            _ => at = scalar_end(text, at)?,
        }
        if open == 0 {
            return Some(at);
        }
    }
}

/// Where a number, `true`, `false` or `null` ends: something else always follows, in an object.
fn scalar_end(text: &[u8], at: usize) -> Option<usize> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let length = text[at..].iter().position(|byte| !is_part(byte))?;
    (length > 0).then_some(at + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::raw_at;

    fn value_at<'p>(body: &[u8], part: &str, path: impl Iterator<Item = &'p str>) -> Option<Option<Value>> {
        Some(raw_at(body, part, path)?.map(|raw| serde_json::from_slice(raw).unwrap_or_default()))
    }

    fn at(text: &str, path: &str) -> Option<Option<Value>> {
        let body = format!(r#"{{"id":"1","time":"x\"","data":{text}}}"#);
        value_at(body.as_bytes(), "data", path.split('.').filter(|name| !name.is_empty()))
    }

    #[test]
    fn what_is_found_is_what_reading_all_would_find() {
        let text = r#"{"a":{"b":[1,2],"c":1.50},"d":null,"e":{},"d":{"e":true}}"#;
        assert_eq!(at(text, "a.c"), Some(Some(json!(1.5))));
        assert_eq!(at(text, "a.b"), Some(Some(json!([1, 2]))));
        assert_eq!(at(text, "d.e"), Some(Some(json!(true))), "the last one counts");
        assert_eq!(at(text, "a.x"), Some(None));
        assert_eq!(at(text, "e.x"), Some(None));
        assert_eq!(at(text, "a.b.0"), None, "lists are left to others");
        assert_eq!(at(r#"{"a\u0062":"x"}"#, "ab"), None, "so are escaped names");
        assert_eq!(at("[1]", "0"), None);
        assert_eq!(at("{\"a", "a"), None);
        assert_eq!(at(text, "").map(|found| found.is_some()), Some(true));
        assert_eq!(at("[1]", ""), Some(Some(json!([1]))));
        assert_eq!(at("7", ""), Some(Some(json!(7))));
    }

    #[test]
    fn a_part_that_is_not_there_is_not_found() {
        let body = br#"{"id":"data","parents":["data"],"extensions":{"data":1},"data_base64":"AA=="}"#;
        assert_eq!(value_at(body, "data", std::iter::empty()), Some(None));
        assert_eq!(value_at(body, "data", ["data"].into_iter()), Some(None));
        assert_eq!(value_at(body, "extensions", ["data"].into_iter()), Some(Some(json!(1))));
        assert_eq!(value_at(b"", "data", std::iter::empty()), None);
    }

    /// Any JSON, with names that meet.
    fn json_text() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9f64..1e9).prop_map(Value::from),
            "[a\"\\\\{}\\[\\],: é]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_is_found(value in json_text(), path in "[abc](\\.[abc]){0,2}", is_spaced in any::<bool>()) {
            let text = if is_spaced { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let expected = path.split('.').try_fold(&value, |value, name| value.get(name));
            if let Some(found) = at(&text, &path) {
                prop_assert_eq!(found.as_ref(), expected);
            } else {
                let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
                let parents = parent.split('.').filter(|name| !name.is_empty());
                let mut on_the_way = parents.scan(Some(&value), |at, name| { *at = at.and_then(|at| at.get(name)); *at });
                prop_assert!(!value.is_object() || on_the_way.any(|value| !value.is_object()));
            }
        }

        #[test]
        fn any_bytes_are_gone_through(text in "[{}\\[\\]\",:a\\\\ 1]{0,30}") {
            let _ = at(&text, "a.a");
        }
    }
}
