//! The text of a stream: server-sent events, as the HTML standard has them.
//!
//! Every frame carries its cursor as `id`, a sign of life too: whoever comes back goes on from the last one it got.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::json;
use tidegate_core::id::Mint;
use tidegate_store::DeliveryRow;

use super::cursor::Cursor;
use crate::api::deliveries::{count, last_events};
use crate::watch::Change;

/// How long a browser waits before it comes back.
const RETRY_MS: u32 = 1_000;

/// A piece of the stream.
#[derive(Default)]
pub(super) struct Frames(String);

impl Frames {
    /// The first words: where the stream begins.
    pub(super) fn opening(cursor: &Cursor) -> Self {
        Self(format!("retry: {RETRY_MS}\nid: {cursor}\n\n"))
    }

    /// A sign of life: a comment, and how far the stream has come.
    pub(super) fn alive(cursor: &Cursor) -> Self {
        Self(format!(": alive\nid: {cursor}\n\n"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An event as it is delivered.
    pub(super) fn event(&mut self, cursor: &Cursor, body: &[u8]) {
        self.frame(cursor, "event", &String::from_utf8_lossy(body));
    }

    /// Changes of deliveries were passed over.
    pub(super) fn gap(&mut self, cursor: &Cursor) {
        self.frame(cursor, "gap", "{\"kind\":\"delivery\"}");
    }

    /// The result of an attempt.
    pub(super) fn delivery(&mut self, cursor: &Cursor, mint: &Mint, row: &DeliveryRow, change: &Change) {
        let mut attempt = json!({ "n": change.n, "at": change.at, "phases": change.phases });
        if let Some(status) = change.http_status {
            attempt["status"] = status.into();
        }
        if let Some(class) = change.error {
            attempt["error"] = class.name().into();
        }
        let mut value = json!({
            "id": mint.delivery(row.key()),
            "subscriber": row.subscriber_id,
            "status": change.status,
            "count": count(row),
            "events": last_events(row),
            "attempt": attempt,
        });
        if let Some(at) = change.due_at {
            value["due_at"] = json!(at);
        }
        self.frame(cursor, "delivery", &value.to_string());
    }

    /// Events keep the white space they were sent with, so one may have several lines.
    fn frame(&mut self, cursor: &Cursor, kind: &str, data: &str) {
        let text = &mut self.0;
        // Writing to a string does not fail.
        let _ = writeln!(text, "id: {cursor}\nevent: {kind}");
        for line in data.split(['\n', '\r']) {
            let _ = writeln!(text, "data: {line}");
        }
        text.push('\n');
    }
}

impl From<Frames> for Bytes {
    fn from(frames: Frames) -> Self {
        frames.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_several_lines_is_one_frame() {
        let mut frames = Frames::default();
        frames.event(&Cursor { event: 35, life: 2, change: 3 }, b"{\r\n\"id\":1}");
        assert_eq!(frames.0, "id: cz.2.3\nevent: event\ndata: {\ndata: \ndata: \"id\":1}\n\n");
    }
}
