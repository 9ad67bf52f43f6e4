//! A unit as the quarantine keeps it: the bodies of its events in a JSON list, byte for byte.
//!
//! Everything else about an event stands in its body, so that what is released is what came in.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::event::{Event, Fingerprint, Unit};
use crate::time::Timestamp;

/// The unit's events, for keeping.
pub fn pack(unit: &Unit) -> Vec<u8> {
    let length: usize = unit.events.iter().map(|event| event.body.len() + 1).sum();
    let mut text = Vec::with_capacity(length + 1);
    for (index, event) in unit.events.iter().enumerate() {
        text.push(if index == 0 { b'[' } else { b',' });
        text.extend_from_slice(&event.body);
    }
    text.push(b']');
    text
}

/// The unit that was packed; `None` if this is something else.
pub fn unpack(text: &[u8], fingerprint: Fingerprint) -> Option<Unit> {
    let bodies: Vec<&RawValue> = serde_json::from_slice(text).ok()?;
    let events: Option<Vec<Event>> = bodies.into_iter().map(|body| event(body.get())).collect();
    events.filter(|events| !events.is_empty()).map(|events| Unit { events, fingerprint })
}

fn event(body: &str) -> Option<Event> {
    #[derive(Deserialize)]
    struct Head {
        id: String,
        source: String,
        #[serde(rename = "type")]
        type_name: String,
        subject: Option<String>,
        time: String,
    }
    let head: Head = serde_json::from_str(body).ok()?;
    Some(Event {
        id: head.id,
        source: head.source,
        type_name: head.type_name,
        subject: head.subject,
        time: Timestamp::parse(&head.time)?,
        body: Bytes::copy_from_slice(body.as_bytes()),
    })
}
