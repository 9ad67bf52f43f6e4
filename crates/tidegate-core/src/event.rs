//! An event: an immutable fact, checked, with the exact bytes that every `each` delivery sends.
//!
//! The body is built once, at acceptance, and never again: stored bytes are signed bytes are sent bytes. `data`
//! stands in it byte for byte as it came in.

use std::ops::RangeInclusive;

use bytes::Bytes;
use ring::digest;

use crate::time::Timestamp;

/// Sixteen bytes that tell a repeat from a conflict: a digest of the fields as sent, without those the server
/// set and without insignificant white space.
pub type Fingerprint = [u8; 16];

/// One accepted fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Unique together with `source` in a project.
    pub id: String,
    /// The service that says so.
    pub source: String,
    /// What happened, for example `order.paid`.
    pub type_name: String,
    /// What it happened to.
    pub subject: Option<String>,
    /// When it happened, by the sender's clock, or when it was accepted.
    pub time: Timestamp,
    /// The event as JSON, in the documented order of fields.
    pub body: Bytes,
}

/// An event and its sub-events: accepted, refused or repeated as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The event itself, then its sub-events in the order they stand, each before its own.
    pub events: Vec<Event>,
    /// Of the whole unit.
    pub fingerprint: Fingerprint,
}

/// The fields of an event on the way in, borrowed from the request where they can be.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// See [`Event::id`].
    pub id: &'a str,
    /// See [`Event::source`].
    pub source: &'a str,
    /// See [`Event::type_name`].
    pub type_name: &'a str,
    /// See [`Event::subject`].
    pub subject: Option<&'a str>,
    /// RFC 3339, UTC, as it shall appear in the body.
    pub time: &'a str,
    /// When it ended, for facts that took a while.
    pub ended: Option<&'a str>,
    /// Ids of the events it follows from.
    pub parents: &'a [String],
    /// A JSON object of extension attributes, as sent.
    pub extensions: Option<&'a str>,
    /// What the sender says about it.
    pub data: Data<'a>,
}

/// The payload of an event.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Any JSON, as sent.
    Json(&'a str),
    /// Anything else, in base64.
    Base64(&'a str),
}

/// Writes the one JSON form of an event.
pub fn render(fields: &Fields<'_>) -> Bytes {
    let data_len = match fields.data {
        Data::Json(text) | Data::Base64(text) => text.len(),
    };
    let mut body = Vec::with_capacity(160 + fields.id.len() + fields.source.len() + data_len);
    body.extend_from_slice(b"{\"id\":");
    push_text(&mut body, fields.id);
    push_member(&mut body, "source", fields.source);
    push_member(&mut body, "type", fields.type_name);
    if let Some(subject) = fields.subject {
        push_member(&mut body, "subject", subject);
    }
    push_member(&mut body, "time", fields.time);
    if let Some(ended) = fields.ended {
        push_member(&mut body, "ended", ended);
    }
    if !fields.parents.is_empty() {
        body.extend_from_slice(b",\"parents\":");
        serde_json::to_writer(&mut body, fields.parents).expect("a list of strings is always JSON");
    }
    if let Some(extensions) = fields.extensions {
        body.extend_from_slice(b",\"extensions\":");
        body.extend_from_slice(extensions.as_bytes());
    }
    match fields.data {
        Data::Json(text) => {
            body.extend_from_slice(b",\"data\":");
            body.extend_from_slice(text.as_bytes());
        }
        Data::Base64(text) => push_member(&mut body, "data_base64", text),
    }
    body.push(b'}');
    Bytes::from(body)
}

fn push_member(body: &mut Vec<u8>, name: &str, value: &str) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    push_text(body, value);
}

fn push_text(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("text is always JSON");
}

/// Collects the fields of a unit, as sent, into its [`Fingerprint`].
pub struct Fingerprinter(digest::Context);

impl Default for Fingerprinter {
    fn default() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }
}

impl Fingerprinter {
    /// Adds one field. `None` (absent) differs from `Some` of nothing (empty).
    pub fn field(&mut self, value: Option<&[u8]>) {
        match value {
            None => self.0.update(&[0]),
            Some(bytes) => {
                self.0.update(&[1]);
                self.0.update(&(bytes.len() as u64).to_le_bytes());
                self.0.update(bytes);
            }
        }
    }

    /// The fingerprint of all fields so far.
    pub fn finish(self) -> Fingerprint {
        self.0.finish().as_ref()[..16].try_into().expect("SHA-256 has 32 bytes")
    }
}

/// Where an event is looked up: the upper 40 bits tell the id, the lower 24 the source with it.
///
/// One integer per event serves both questions: "is (source, id) known?" is one point, "which events have this
/// id?" is one short range. Different events may share a key; whoever asks confirms on the event itself.
pub fn lookup_key(project: i64, source: &str, id: &str) -> i64 {
    let hash = id_hash(project, id);
    // The id is hashed well; the source only has to tell the few that share an id apart.
    let low =
        source.bytes().fold(hash[1], |mix, byte| (mix ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    high_bits(hash) | ((low >> 40) as i64)
}

/// All keys that [`lookup_key`] may give for this id, whatever its source.
pub fn lookup_range(project: i64, id: &str) -> RangeInclusive<i64> {
    let start = high_bits(id_hash(project, id));
    start..=start | 0x00ff_ffff
}

fn high_bits(hash: [u64; 2]) -> i64 {
    (hash[0] as i64) & !0x00ff_ffff
}

fn id_hash(project: i64, id: &str) -> [u64; 2] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&project.to_le_bytes());
    context.update(id.as_bytes());
    let hash = context.finish();
    [0, 8].map(|at| u64::from_le_bytes(hash.as_ref()[at..at + 8].try_into().expect("SHA-256 has 32 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_its_fields_in_order_and_data_untouched() {
        let parents = vec!["p\"1".to_owned()];
        let body = render(&Fields {
            id: "1",
            source: "shop",
            type_name: "order.paid",
            subject: Some("o/1"),
            time: "2026-01-01T00:00:00Z",
            ended: Some("2026-01-01T00:00:01Z"),
            parents: &parents,
            extensions: Some("{\"tenant\":\"x\"}"),
            data: Data::Json("{ \"a\" : 1.10 }"),
        });
        assert_eq!(
            body,
            "{\"id\":\"1\",\"source\":\"shop\",\"type\":\"order.paid\",\"subject\":\"o/1\",\
             \"time\":\"2026-01-01T00:00:00Z\",\"ended\":\"2026-01-01T00:00:01Z\",\"parents\":[\"p\\\"1\"],\
             \"extensions\":{\"tenant\":\"x\"},\"data\":{ \"a\" : 1.10 }}"
        );
    }

    #[test]
    fn keys_of_one_id_lie_in_its_range() {
        for (source, id) in [("a", "1"), ("b", "1"), ("", ""), ("é", "~")] {
            assert!(lookup_range(1, id).contains(&lookup_key(1, source, id)));
        }
        assert_ne!(lookup_key(1, "a", "1"), lookup_key(2, "a", "1"));
        assert_ne!(lookup_key(1, "a", "1"), lookup_key(1, "b", "1"));
    }

    #[test]
    fn absent_and_empty_differ() {
        let finish = |fields: &[Option<&[u8]>]| {
            let mut print = Fingerprinter::default();
            fields.iter().for_each(|field| print.field(*field));
            print.finish()
        };
        assert_ne!(finish(&[None]), finish(&[Some(b"")]));
        assert_ne!(finish(&[Some(b"ab"), Some(b"c")]), finish(&[Some(b"a"), Some(b"bc")]));
    }
}
