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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fold::{CancelOn, Mode};
    use crate::time::Span;

    const FIRST: &str = r#"{"id":"e-1","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-02T03:04:05.678Z","ended":"2026-01-02T03:04:06Z","parents":["p"],"extensions":{"traceparent":"00-1"},"data":{"n": 1.0}}"#;
    const SECOND: &str = r#"{"id":"e-2","source":"shop","type":"order.paid","time":"2026-01-02T03:04:05.679Z","data_base64":"AAE="}"#;

    /// A fold is rendered again for every attempt, and whoever has had one attempt must get the same bytes with the next, be it
    /// from another release. So no form may ever change: a new one gets a new name.
    #[test]
    fn the_bytes_of_every_form_stay_what_they_are() {
        let golden = [
            (
                Payload::Full,
                r#"{"delivery":"dlv_1","fold":{"mode":"quiet","key":{"type":"order.paid"},"opened_at":"2026-01-02T03:04:05.678Z","closed_at":"2026-01-02T03:04:06.000Z","closed_by":"max_wait"},"count":2,"events":[{"id":"e-1","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-02T03:04:05.678Z","ended":"2026-01-02T03:04:06Z","parents":["p"],"extensions":{"traceparent":"00-1"},"data":{"n": 1.0}},{"id":"e-2","source":"shop","type":"order.paid","time":"2026-01-02T03:04:05.679Z","data_base64":"AAE="}]}"#,
            ),
            (
                Payload::Thin,
                r#"{"delivery":"dlv_1","fold":{"mode":"quiet","key":{"type":"order.paid"},"opened_at":"2026-01-02T03:04:05.678Z","closed_at":"2026-01-02T03:04:06.000Z","closed_by":"max_wait"},"count":2,"events":[{"id":"e-1","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-02T03:04:05.678Z","url":"/v1/events/e%2D1?source=shop"},{"id":"e-2","source":"shop","type":"order.paid","time":"2026-01-02T03:04:05.679Z","url":"/v1/events/e%2D2?source=shop"}]}"#,
            ),
            (
                Payload::Cloudevents,
                r#"[{"specversion":"1.0","id":"e-1","source":"shop","type":"order.paid","subject":"o 1","time":"2026-01-02T03:04:05.678Z","ended":"2026-01-02T03:04:06Z","parents":"[\"p\"]","traceparent":"00-1","datacontenttype":"application/json","data":{"n": 1.0}},{"specversion":"1.0","id":"e-2","source":"shop","type":"order.paid","time":"2026-01-02T03:04:05.679Z","data_base64":"AAE="}]"#,
            ),
            (
                Payload::Events,
                r#"{"events":[{"id":"e-1","eventType":"order.paid","createdAt":"2026-01-02T03:04:05.678Z","data":{"n": 1.0}},{"id":"e-2","eventType":"order.paid","createdAt":"2026-01-02T03:04:05.679Z","data_base64":"AAE="}]}"#,
            ),
        ];
        for (payload, expected) in golden {
            let bundle = Bundle {
                terms: Terms {
                    mode: Mode::Quiet { quiet: Span::from_ms(1_000), max_wait: Span::from_ms(9_000) },
                    max_events: 9,
                    max_bytes: 9_999,
                    leading: false,
                    adaptive: false,
                    cancel_on: CancelOn::Never,
                    payload,
                },
                key: r#"{"type":"order.paid"}"#.to_owned(),
                opened_at: Timestamp::from_ms(1_767_323_045_678),
                closed_at: Timestamp::from_ms(1_767_323_046_000),
                closed_by: ClosedBy::MaxWait,
                events: [FIRST, SECOND].map(|event| Bytes::from_static(event.as_bytes())).to_vec(),
            };
            let body = render("dlv_1", &bundle);
            assert_eq!(String::from_utf8_lossy(&body), expected, "{payload:?}");
        }
    }
}
