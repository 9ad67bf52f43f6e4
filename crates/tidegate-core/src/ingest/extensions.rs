//! Extension attributes: a flat JSON object of scalars, kept as sent.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::draft::Text;
use super::refusal::{Refusal, read};
use crate::limits;

/// Checks the text of an `extensions` object.
pub(super) fn check(text: &str) -> Result<(), Refusal> {
    let Pairs(pairs) = read(text).map_err(|refusal| Refusal {
        field: Some("extensions".to_owned()),
        detail: format!("`extensions` must be a JSON object: {}", refusal.detail),
        ..refusal
    })?;
    count(pairs.len())?;
    for (place, (name, value)) in pairs.iter().enumerate() {
        check_name(name)?;
        check_value(name, value.get())?;
        if pairs[..place].iter().any(|(earlier, _)| earlier == name) {
            let detail = format!("extension attribute `{}` stands twice; send it once", name.0);
            return Err(Refusal::invalid("field_repeated", format!("extensions.{}", name.0), detail));
        }
    }
    Ok(())
}

/// Not too many.
pub(super) fn count(count: usize) -> Result<(), Refusal> {
    if count > limits::EXTENSIONS_MAX {
        let detail =
            format!("more than {} extension attributes; put the rest in `data`", limits::EXTENSIONS_MAX);
        return Err(Refusal::invalid("field_too_many", "extensions", detail));
    }
    Ok(())
}

/// Lower-case letters, digits, `_` and `-`: what every header and query language can name.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > limits::EXTENSION_NAME_BYTES_MAX || !name.bytes().all(good) {
        let detail = format!(
            "`{}` cannot name an extension attribute; use up to {} of a-z, 0-9, `_` and `-`",
            name.escape_debug().take(100).collect::<String>(),
            limits::EXTENSION_NAME_BYTES_MAX
        );
        return Err(Refusal::invalid("extension_name", "extensions", detail));
    }
    Ok(())
}

/// Strings, numbers, booleans and null; anything larger belongs in `data`.
pub(super) fn check_value(name: &str, value: &str) -> Result<(), Refusal> {
    if value.starts_with(['{', '[']) {
        let detail = format!(
            "extension attribute `{name}` must be a string, number, boolean or null; put objects and lists in `data`"
        );
        return Err(Refusal::invalid("extension_value", format!("extensions.{name}"), detail));
    }
    Ok(())
}

/// The members of an object, in order, one past the limit at most.
struct Pairs<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while pairs.len() <= limits::EXTENSIONS_MAX {
                    match map.next_entry()? {
                        Some(pair) => pairs.push(pair),
                        None => return Ok(Pairs(pairs)),
                    }
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}
