//! The body of a folded delivery.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use super::window::{ClosedBy, Terms};
use crate::payload::Payload;
use crate::time::Timestamp;

/// Everything that a folded delivery carries.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// What its window was opened with.
    pub terms: Terms,
    /// Its key, as JSON.
    pub key: String,
    /// When its first event came.
    pub opened_at: Timestamp,
    /// When it closed.
    pub closed_at: Timestamp,
    /// Why it closed.
    pub closed_by: ClosedBy,
    /// Its events as they were accepted, in order.
    pub events: Vec<Bytes>,
}

/// The bytes to send. The same bundle always gives the same.
pub fn render(delivery: &str, bundle: &Bundle) -> Bytes {
    let payload = bundle.terms.payload;
    let events: Cow<'_, [Bytes]> = match payload {
        Payload::Full => Cow::from(&bundle.events),
        _ => bundle.events.iter().map(|event| payload.member(event)).collect(),
    };
    if let Some(list) = payload.list(&events) {
        return list;
    }
    let head = format!(
        r#"{{"delivery":{},"fold":{{"mode":"{}","key":{},"opened_at":"{}","closed_at":"{}","closed_by":"{}"}},"count":{},"events":["#,
        Value::from(delivery),
        bundle.terms.mode.name(),
        bundle.key,
        bundle.opened_at,
        bundle.closed_at,
        bundle.closed_by.name(),
        events.len(),
    );
    let size = head.len() + events.iter().map(|event| event.len() + 1).sum::<usize>() + 2;
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(head.as_bytes());
    join(&mut out, &events);
    out.extend_from_slice(b"]}");
    out.into()
}

/// Events with commas between them.
pub(crate) fn join(out: &mut Vec<u8>, events: &[Bytes]) {
    for (place, event) in events.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        out.extend_from_slice(event);
    }
}
