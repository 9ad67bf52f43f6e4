//! CloudEvents 1.0 over HTTP: structured, batch and binary mode, JSON only.
//!
//! Attributes that an event has of its own become its fields; all others, `dataschema` and a `datacontenttype`
//! other than `application/json` among them, become extension attributes.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::draft::{Draft, Text};
use super::refusal::{Refusal, read};
use super::unit::Assembler;
use super::{Request, check_depth, extensions, json, media, utf8};
use crate::event::Unit;
use crate::limits;
use crate::time::Timestamp;

const VERSION: &str = "1.0";

/// One CloudEvent as a JSON object.
pub(super) fn structured(text: &str, depth: usize, assembler: &mut Assembler<'_>) -> Result<Unit, Refusal> {
    check_depth(depth, limits::JSON_DEPTH_MAX)?;
    one(text.trim_matches([' ', '\n', '\r', '\t']), assembler)
}

/// A JSON array of CloudEvents; an empty one is fine.
pub(super) fn batch(text: &str, depth: usize, assembler: &mut Assembler<'_>) -> Result<Vec<Unit>, Refusal> {
    check_depth(depth, limits::JSON_DEPTH_MAX + 1)?;
    json::each(text, |item| one(item, assembler))
}

fn one(text: &str, assembler: &mut Assembler<'_>) -> Result<Unit, Refusal> {
    assembler.fits(text.len())?;
    let envelope: Envelope<'_> = read(text)?;
    let mut draft = envelope.draft;
    check_version(envelope.version.as_deref(), "specversion")?;
    require(&draft, "")?;
    let kept = envelope.content_type.filter(|text| !media::is_plain_json(text));
    let mut attributes = envelope.attributes;
    let kept_text = kept.map(|text| quoted(&text));
    if let Some(text) = &kept_text {
        attributes.push((Text(Cow::Borrowed("datacontenttype")), text));
    }
    draft.extensions = object(&attributes)?;
    assembler.unit(&draft)
}

/// One CloudEvent whose attributes are headers and whose data is the body.
pub(super) fn binary(
    request: &Request<'_>,
    key: Option<&str>,
    now: Timestamp,
    chance: &mut dyn FnMut() -> u128,
) -> Result<Unit, Refusal> {
    let headers = Headers::read(request.headers)?;
    check_version(headers.version.as_deref(), "ce-specversion")?;
    let mut draft = headers.draft;
    require(&draft, "ce-")?;
    let body = request.body.as_ref();
    let json = request.content_type.is_none_or(media::is_json);
    let scan = if json { crate::json::scan(body) } else { crate::json::Scan::default() };
    let mut assembler = Assembler::new(now, chance, scan.spaced).keyed(key);
    assembler.fits(body.len())?;
    if json && !body.iter().all(u8::is_ascii_whitespace) {
        // The event's own braces, which binary mode leaves out, count as one level.
        check_depth(scan.depth, limits::JSON_DEPTH_MAX - 1)?;
        draft.data = Some(read(utf8(body)?)?);
    } else if !json {
        draft.data_base64 = Some(Text(Cow::Owned(STANDARD.encode(body))));
    }
    let mut attributes: Vec<(Text<'_>, &str)> =
        headers.attributes.iter().map(|(name, text)| (Text(Cow::Borrowed(*name)), text.as_str())).collect();
    let kept = request.content_type.filter(|text| !media::is_plain_json(text)).map(quoted);
    if let Some(text) = &kept {
        attributes.push((Text(Cow::Borrowed("datacontenttype")), text));
    }
    draft.extensions = object(&attributes)?;
    assembler.unit(&draft)
}

fn check_version(version: Option<&str>, field: &str) -> Result<(), Refusal> {
    match version {
        Some(VERSION) => Ok(()),
        None => Err(Refusal::missing(field)),
        Some(_) => Err(Refusal::invalid(
            "specversion_unsupported",
            field,
            format!("`{field}` must be \"{VERSION}\", the version of CloudEvents understood here"),
        )),
    }
}

/// CloudEvents makes `id` a must, where Tidegate's own form fills it in.
fn require(draft: &Draft<'_>, prefix: &str) -> Result<(), Refusal> {
    for (name, text) in [("id", &draft.id), ("source", &draft.source), ("type", &draft.type_name)] {
        if text.is_none() {
            return Err(Refusal::missing(&format!("{prefix}{name}")));
        }
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes attributes as the text of one JSON object, or nothing when there are none.
fn object(attributes: &[(Text<'_>, &str)]) -> Result<Option<Cow<'static, str>>, Refusal> {
    extensions::count(attributes.len())?;
    let mut text = String::new();
    for (name, value) in attributes {
        // The name goes into the text as it is, so it is checked before, not after.
        extensions::check_name(name)?;
        text.push_str(if text.is_empty() { "{\"" } else { ",\"" });
        text.push_str(name);
        text.push_str("\":");
        text.push_str(value);
    }
    text.push_str(if text.is_empty() { "" } else { "}" });
    Ok((!text.is_empty()).then_some(Cow::Owned(text)))
}

/// A CloudEvent's JSON object, sorted into fields and other attributes.
#[derive(Default)]
struct Envelope<'a> {
    draft: Draft<'a>,
    version: Option<Text<'a>>,
    content_type: Option<Text<'a>>,
    attributes: Vec<(Text<'a>, &'a str)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EnvelopeVisitor;
        impl<'de> Visitor<'de> for EnvelopeVisitor {
            type Value = Envelope<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a CloudEvent")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<'de>, A::Error> {
                let mut envelope = Envelope::default();
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    envelope.take(name, &mut map)?;
                }
                Ok(envelope)
            }
        }
        deserializer.deserialize_map(EnvelopeVisitor)
    }
}

impl<'de> Envelope<'de> {
    fn take<A: MapAccess<'de>>(&mut self, name: Text<'de>, map: &mut A) -> Result<(), A::Error> {
        let draft = &mut self.draft;
        match &*name {
            "id" => set("id", &mut draft.id, map),
            "source" => set("source", &mut draft.source, map),
            "type" => set("type", &mut draft.type_name, map),
            "subject" => set("subject", &mut draft.subject, map),
            "time" => set("time", &mut draft.time, map),
            "data" => set("data", &mut draft.data, map),
            "data_base64" => set("data_base64", &mut draft.data_base64, map),
            "specversion" => set("specversion", &mut self.version, map),
            "datacontenttype" => set("datacontenttype", &mut self.content_type, map),
            _ => {
                let raw: &RawValue = map.next_value()?;
                // In CloudEvents null means absent. One past the limit is enough to be refused for it.
                if raw.get() != "null" && self.attributes.len() <= limits::EXTENSIONS_MAX {
                    self.attributes.push((name, raw.get()));
                }
                Ok(())
            }
        }
    }
}

fn set<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    name: &'static str,
    field: &mut Option<T>,
    map: &mut A,
) -> Result<(), A::Error> {
    if field.is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    *field = map.next_value()?;
    Ok(())
}

/// The `ce-*` headers, decoded and sorted like an [`Envelope`].
#[derive(Default)]
struct Headers<'a> {
    draft: Draft<'a>,
    version: Option<Text<'a>>,
    /// Names and JSON texts.
    attributes: Vec<(&'a str, String)>,
}

impl<'a> Headers<'a> {
    fn read(headers: &[(&'a str, &'a [u8])]) -> Result<Self, Refusal> {
        let mut read = Self::default();
        for (header, value) in headers {
            let Some(name) = header.strip_prefix("ce-") else {
                continue;
            };
            let value = Text(Cow::Owned(decode_value(header, value)?));
            let field = match name {
                "id" => &mut read.draft.id,
                "source" => &mut read.draft.source,
                "type" => &mut read.draft.type_name,
                "subject" => &mut read.draft.subject,
                "time" => &mut read.draft.time,
                "specversion" => &mut read.version,
                "datacontenttype" => {
                    let detail = "`ce-datacontenttype` must not be sent; the content-type header says what the body is";
                    return Err(Refusal::invalid("header_invalid", *header, detail));
                }
                _ => {
                    read.attributes.push((name, quoted(&value)));
                    continue;
                }
            };
            if field.replace(value).is_some() {
                let detail = format!("header `{header}` stands twice; send it once");
                return Err(Refusal::invalid("field_repeated", *header, detail));
            }
        }
        Ok(read)
    }
}

/// Takes the quotes of a quoted string away, then one round of percent-encoding, and no more.
fn decode_value(header: &str, value: &[u8]) -> Result<String, Refusal> {
    let unquoted = match value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        Some(inner) => unescape(inner),
        None => value.to_vec(),
    };
    match percent_decode(&unquoted).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(Refusal::invalid(
            "header_invalid",
            header,
            format!("header `{header}` is not percent-encoded UTF-8; encode it as CloudEvents says"),
        )),
    }
}

fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    out
}
