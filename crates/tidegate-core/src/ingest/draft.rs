//! An event as it was sent: parsed, borrowed, nothing checked yet.
//!
//! Strings borrow from the request unless they contain escapes. `data`, `extensions` and sub-events stay raw
//! text. Lists stop growing one past their limit, so that no request makes memory many times its own size.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::refusal::{Refusal, RefusalKind, read};
use crate::limits;

/// The fields of an event or a sub-event, as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Draft<'a> {
    #[serde(borrow)]
    pub(super) id: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) source: Option<Text<'a>>,
    #[serde(borrow, rename = "type")]
    pub(super) type_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) subject: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) time: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ended: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) data_base64: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) parents: Option<Listed<Text<'a>, { limits::PARENTS_MAX }>>,
    /// A JSON object, as sent.
    #[serde(borrow, deserialize_with = "raw_text")]
    pub(super) extensions: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) events: Option<Listed<&'a RawValue, { limits::REQUEST_EVENTS_MAX }>>,
}

impl<'a> Draft<'a> {
    /// Reads the JSON of one event.
    pub(super) fn read(text: &'a str) -> Result<Self, Refusal> {
        // serde would also take a list of the fields' values, in their order here.
        if text.starts_with('[') {
            let detail = "expected an event, that is, a JSON object, and found a list";
            return Err(Refusal::new(RefusalKind::Invalid, "field_type", detail));
        }
        read(text)
    }
}

fn raw_text<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    let raw = Option::<&'a RawValue>::deserialize(deserializer)?;
    Ok(raw.map(|raw| Cow::Borrowed(raw.get())))
}

/// A string, borrowed if it can be. (serde borrows a plain `Cow`, but not one inside an `Option`.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A list that holds at most `MAX + 1` items: enough to see that it is too long, and no more.
#[derive(Debug)]
pub(super) struct Listed<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Listed<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = Listed<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while items.len() <= MAX {
                    match seq.next_element()? {
                        Some(item) => items.push(item),
                        None => return Ok(Listed(items)),
                    }
                }
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Listed(items))
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}
