//! The forms a delivery's body can take, made from the event's own bytes.
//!
//! `full` is the event as it was accepted and costs nothing. The others are written when a delivery is first sent, by
//! whoever sends it: the same event always gives the same bytes, and a body that failed to arrive is kept, so that a
//! retry resends it even if the subscriber has chosen another form since.
//! Does not: change `data`, which stands in every form byte for byte as it came in.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::fold::join;

/// What a delivery's body looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The event.
    #[default]
    Full,
    /// What and where, without `data`: the receiver fetches it if it wants to.
    Thin,
    /// A CloudEvent in structured mode.
    Cloudevents,
    /// A list of events, in the words of NeoForge's consumers.
    Events,
}

/// How the bytes of a CloudEvent begin, and no others.
const CLOUDEVENT: &[u8] = b"{\"specversion\":\"1.0\"";
/// How the bytes of many begin.
const CLOUDEVENTS: &[u8] = b"[{\"specversion\":\"1.0\"";

/// The content type of a body of ours that is not plain JSON, told by the way it begins.
pub fn media_type(body: &[u8]) -> Option<&'static str> {
    if body.starts_with(CLOUDEVENT) {
        Some("application/cloudevents+json; charset=utf-8")
    } else if body.starts_with(CLOUDEVENTS) {
        Some("application/cloudevents-batch+json; charset=utf-8")
    } else {
        None
    }
}

impl Payload {
    /// This form of an event, which is given as accepted.
    pub fn render(self, event: &Bytes) -> Bytes {
        let member = self.member(event);
        if self == Self::Events { self.list(std::slice::from_ref(&member)).unwrap_or(member) } else { member }
    }

    /// This form of an event that stands among others.
    pub fn member(self, event: &Bytes) -> Bytes {
        let write = match self {
            Self::Full => return event.clone(),
            Self::Thin => thin,
            Self::Cloudevents => cloudevent,
            Self::Events => listed,
        };
        // Whatever was accepted can be read; if not, its receiver is better off with the event than with nothing.
        serde_json::from_slice(event).map_or_else(|_| event.clone(), |envelope| write(&envelope).into())
    }

    /// Many of them together, where this form has a way of its own to say so.
    pub fn list(self, members: &[Bytes]) -> Option<Bytes> {
        let (open, close): (&[u8], &[u8]) = match self {
            Self::Full | Self::Thin => return None,
            Self::Cloudevents => (b"[", b"]"),
            Self::Events => (b"{\"events\":[", b"]}"),
        };
        let size: usize = members.iter().map(|member| member.len() + 1).sum();
        let mut out = Vec::with_capacity(open.len() + size + close.len());
        out.extend_from_slice(open);
        join(&mut out, members);
        out.extend_from_slice(close);
        Some(out.into())
    }
}

/// An event's members as they stand in its body; `data` that is null counts as absent.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow)]
    source: &'a RawValue,
    #[serde(borrow, rename = "type")]
    type_name: &'a RawValue,
    #[serde(borrow, default)]
    subject: Option<&'a RawValue>,
    #[serde(borrow)]
    time: &'a RawValue,
    #[serde(borrow, default)]
    ended: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parents: Option<&'a RawValue>,
    #[serde(borrow, default)]
    extensions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data_base64: Option<&'a RawValue>,
}

fn thin(event: &Envelope<'_>) -> String {
    let mut out = Members::default();
    out.add("id", event.id.get());
    out.add("source", event.source.get());
    out.add("type", event.type_name.get());
    out.add_some("subject", event.subject);
    out.add("time", event.time.get());
    let encode = |text: &RawValue| utf8_percent_encode(&plain(text), NON_ALPHANUMERIC).to_string();
    out.add_text("url", &format!("/v1/events/{}?source={}", encode(event.id), encode(event.source)));
    out.end()
}

/// What may not stand in a URI reference, where CloudEvents want `source` to be one.
const NOT_IN_URI: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

fn cloudevent(event: &Envelope<'_>) -> String {
    let mut out = Members::default();
    out.add_text("specversion", "1.0");
    out.add("id", event.id.get());
    let source = plain(event.source);
    out.add_text("source", &Cow::from(utf8_percent_encode(&source, NOT_IN_URI)));
    out.add("type", event.type_name.get());
    out.add_some("subject", event.subject);
    out.add("time", event.time.get());
    out.add_some("ended", event.ended);
    if let Some(parents) = event.parents {
        // Attributes are scalars there, so a list travels as its own JSON.
        out.add_text("parents", parents.get());
    }
    let has_type = add_extensions(&mut out, event.extensions);
    if event.data.is_some() && !has_type {
        out.add_text("datacontenttype", "application/json");
    }
    out.add_some("data", event.data);
    out.add_some("data_base64", event.data_base64);
    out.end()
}

/// Attributes of the specification's that an extension can not stand in for.
const ATTRIBUTES: [&str; 10] =
    ["specversion", "id", "source", "type", "subject", "time", "ended", "parents", "data", "data_base64"];

/// Extensions whose names CloudEvents allow, letters and digits. Says whether the content type was among them.
fn add_extensions(out: &mut Members, extensions: Option<&RawValue>) -> bool {
    let parsed = extensions.and_then(|text| serde_json::from_str::<serde_json::Value>(text.get()).ok());
    let Some(serde_json::Value::Object(extensions)) = parsed else { return false };
    for (name, value) in &extensions {
        let is_fine = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !is_fine || ATTRIBUTES.contains(&name.as_str()) {
            continue;
        }
        match value {
            serde_json::Value::Null => {}
            // Numbers are 32-bit integers there; others keep their digits as text.
            serde_json::Value::Number(number)
                if number.as_i64().and_then(|n| i32::try_from(n).ok()).is_none() =>
            {
                out.add_text(name, &number.to_string());
            }
            other => out.add(name, &other.to_string()),
        }
    }
    extensions.contains_key("datacontenttype")
}

/// The members of `data` that have a place of their own in a list of events.
#[derive(Default, Deserialize)]
struct Component<'a> {
    #[serde(borrow, default)]
    component: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "componentVersion")]
    component_version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    version: Option<&'a RawValue>,
}

fn listed(event: &Envelope<'_>) -> String {
    let data = event.data.map_or("null", RawValue::get);
    // serde would take a list for the members in order.
    let component: Component<'_> = match data.starts_with('{') {
        true => serde_json::from_str(data).unwrap_or_default(),
        false => Component::default(),
    };
    let mut out = Members::default();
    out.add("id", event.id.get());
    out.add("eventType", event.type_name.get());
    out.add("createdAt", event.time.get());
    out.add_some("component", component.component);
    out.add_some("componentVersion", component.component_version.or(component.version));
    match event.data_base64 {
        Some(data) => out.add("data_base64", data.get()),
        None => out.add("data", data),
    }
    out.end()
}

/// A text without its quotes and escapes.
fn plain(text: &RawValue) -> String {
    serde_json::from_str(text.get()).unwrap_or_default()
}

/// A JSON object under the pen.
#[derive(Default)]
struct Members(String);

impl Members {
    fn add(&mut self, name: &str, json: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push('"');
        self.0.push_str(name);
        self.0.push_str("\":");
        self.0.push_str(json);
    }

    fn add_some(&mut self, name: &str, json: Option<&RawValue>) {
        if let Some(json) = json {
            self.add(name, json.get());
        }
    }

    fn add_text(&mut self, name: &str, text: &str) {
        self.add(name, &serde_json::Value::from(text).to_string());
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &str = r#"{"id":"a/ü","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-31T09:30:00.000Z","parents":["p"],"extensions":{"region":"eu","n":1,"big":1.5,"no":null,"my_ext":"x","id":"y"},"data":{ "component":"NEOFORGE","version":"21.0.1", "n":1.0 }}"#;

    #[track_caller]
    fn check(payload: Payload, event: &str, expected: &str) {
        let event = Bytes::copy_from_slice(event.as_bytes());
        let body = payload.render(&event);
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
        assert_eq!(media_type(&body).is_some(), payload == Payload::Cloudevents);
    }

    #[test]
    fn full_is_the_event() {
        check(Payload::Full, EVENT, EVENT);
    }

    #[test]
    fn thin_says_where_to_fetch_it() {
        let expected = r#"{"id":"a/ü","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-31T09:30:00.000Z","url":"/v1/events/a%2F%C3%BC?source=shop"}"#;
        check(Payload::Thin, EVENT, expected);
    }

    #[test]
    fn a_cloudevent_has_its_attributes_flat() {
        let expected = r#"{"specversion":"1.0","id":"a/ü","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-31T09:30:00.000Z","parents":"[\"p\"]","big":"1.5","n":1,"region":"eu","datacontenttype":"application/json","data":{ "component":"NEOFORGE","version":"21.0.1", "n":1.0 }}"#;
        check(Payload::Cloudevents, EVENT, expected);
        let binary = r#"{"id":"1","source":"süd","type":"t","time":"T","extensions":{"datacontenttype":"image/png"},"data_base64":"AA=="}"#;
        let expected = r#"{"specversion":"1.0","id":"1","source":"s%C3%BCd","type":"t","time":"T","datacontenttype":"image/png","data_base64":"AA=="}"#;
        check(Payload::Cloudevents, binary, expected);
        let nothing = r#"{"id":"1","source":"s","type":"t","time":"T","data":null}"#;
        check(
            Payload::Cloudevents,
            nothing,
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","time":"T"}"#,
        );
    }

    #[test]
    fn events_are_a_list_of_one() {
        let expected = r#"{"events":[{"id":"a/ü","eventType":"order.paid","createdAt":"2026-01-31T09:30:00.000Z","component":"NEOFORGE","componentVersion":"21.0.1","data":{ "component":"NEOFORGE","version":"21.0.1", "n":1.0 }}]}"#;
        check(Payload::Events, EVENT, expected);
        let list = r#"{"id":"1","source":"s","type":"t","time":"T","data":[1]}"#;
        check(Payload::Events, list, r#"{"events":[{"id":"1","eventType":"t","createdAt":"T","data":[1]}]}"#);
    }
}
