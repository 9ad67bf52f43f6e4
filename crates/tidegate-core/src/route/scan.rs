//! One value out of a JSON text, without reading the rest into memory.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The value that names lead to from an object: `Some(None)` when there is none. Nothing when it takes more than objects
/// and their members to find out.
pub(super) fn value_at<'p>(text: &str, path: impl Iterator<Item = &'p str>) -> Option<Option<Value>> {
    let mut rest = text;
    for name in path {
        if !rest.starts_with('{') {
            return None;
        }
        match member(rest, name)? {
            Some(value) => rest = value,
            None => return Some(None),
        }
    }
    serde_json::from_str(rest).ok().map(Some)
}

/// A member of an object; the last one, if its name comes twice.
fn member<'t>(text: &'t str, name: &str) -> Option<Option<&'t str>> {
    let found = serde_json::Deserializer::from_str(text).deserialize_map(Members { name }).ok()?;
    Some(found.map(RawValue::get))
}

struct Members<'n> {
    name: &'n str,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = members.next_key()? {
            if name == self.name {
                found = Some(members.next_value::<&RawValue>()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// A name as it stands in the text, unless it is escaped there.
#[derive(Deserialize)]
struct Name<'t>(#[serde(borrow)] Cow<'t, str>);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::value_at;

    #[test]
    fn what_is_found_is_what_reading_all_would_find() {
        let text = r#"{"a":{"b":[1,2],"c":1.50},"d":null,"a\u0062":"x","d":{"e":true}}"#;
        let at = |path: &str| value_at(text, path.split('.').filter(|name| !name.is_empty()));
        assert_eq!(at("a.c"), Some(Some(json!(1.5))));
        assert_eq!(at("a.b"), Some(Some(json!([1, 2]))));
        assert_eq!(at("ab"), Some(Some(json!("x"))), "names may be escaped");
        assert_eq!(at("d.e"), Some(Some(json!(true))), "the last one counts");
        assert_eq!(at("a.x"), Some(None));
        assert_eq!(at("a.b.0"), None, "lists are left to others");
        assert_eq!(value_at("[1]", ["0"].into_iter()), None);
        assert_eq!(value_at("{", ["a"].into_iter()), None);
    }
}
