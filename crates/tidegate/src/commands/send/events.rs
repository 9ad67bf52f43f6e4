//! From a file to batches, and from flags to one event.
//!
//! Reads NDJSON (white space between the values does not matter), one JSON array or one JSON object, a value at a
//! time, and keeps every event's bytes as they stand.
//! Does not: check events; the server does, and its messages are better.

use std::io::{self, BufRead};

use bytes::Bytes;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::value::RawValue;
use tidegate_core::limits::REQUEST_BYTES_MAX;

/// Events in one request: large enough to share a commit, small enough to fail and retry cheaply.
const BATCH_EVENTS_MAX: usize = 500;

/// The body of one request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The place of its first event in the file, counted from 1.
    pub(super) first: usize,
    /// How many it holds.
    pub(super) events: usize,
    /// One JSON object, or an array of them.
    pub(super) body: Bytes,
}

impl Batch {
    /// Which events these are, for messages.
    pub(super) fn name(&self) -> String {
        format!("in the batch of events {} to {} of the file", self.first, self.first + self.events - 1)
    }
}

/// The flags that make up one event.
#[derive(Serialize)]
pub(super) struct Fields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) type_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<&'a RawValue>,
}

/// One event as JSON.
pub(super) fn render(fields: &Fields<'_>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(fields)
}

/// Reads everything and hands it over in batches until `take` says no. Returns how many events it read.
pub(super) fn cut(mut reader: impl BufRead, mut take: impl FnMut(Batch) -> bool) -> io::Result<usize> {
    let mut cutter = Cutter { body: Vec::new(), events: 0, read: 0, refused: false, take: &mut take };
    let result = match first_byte(&mut reader)? {
        None => Ok(()),
        Some(b'[') => {
            let mut input = serde_json::Deserializer::from_reader(reader);
            input.deserialize_seq(&mut cutter).and_then(|()| input.end())
        }
        Some(_) => {
            let mut values = serde_json::Deserializer::from_reader(reader).into_iter::<Box<RawValue>>();
            cutter.push_all(|| values.next().transpose())
        }
    };
    if cutter.refused {
        return Ok(cutter.read);
    }
    // What was read before a fault is sent: the message then names what is missing.
    cutter.flush();
    result.map(|()| cutter.read).map_err(Into::into)
}

fn first_byte(reader: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        match buffer.iter().position(|byte| !byte.is_ascii_whitespace()) {
            Some(at) => return Ok(Some(buffer[at])),
            None => {
                let blank = buffer.len();
                reader.consume(blank);
            }
        }
    }
}

struct Cutter<'t> {
    body: Vec<u8>,
    events: usize,
    read: usize,
    refused: bool,
    take: &'t mut dyn FnMut(Batch) -> bool,
}

impl Cutter<'_> {
    fn push_all<E>(&mut self, mut next: impl FnMut() -> Result<Option<Box<RawValue>>, E>) -> Result<(), E> {
        while !self.refused
            && let Some(event) = next()?
        {
            self.push(event.get());
        }
        Ok(())
    }

    fn push(&mut self, event: &str) {
        // Two brackets and a comma.
        if self.body.len() + event.len() + 3 > REQUEST_BYTES_MAX {
            self.flush();
        }
        self.body.push(if self.events == 0 { b'[' } else { b',' });
        self.body.extend_from_slice(event.as_bytes());
        self.events += 1;
        self.read += 1;
        if self.events == BATCH_EVENTS_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.events == 0 || self.refused {
            return;
        }
        let mut body = std::mem::take(&mut self.body);
        let events = std::mem::take(&mut self.events);
        // A lone event goes as an object, so that a conflict is answered as one.
        let body = if events == 1 {
            Bytes::from(body).slice(1..)
        } else {
            body.push(b']');
            Bytes::from(body)
        };
        self.refused = !(self.take)(Batch { first: self.read + 1 - events, events, body });
    }
}

impl<'de> Visitor<'de> for &mut Cutter<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.push_all(|| items.next_element())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch's first event, its number of events, its body.
    type Seen = (usize, usize, String);

    fn batches(input: &str) -> (Vec<Seen>, Result<usize, String>) {
        let mut seen = Vec::new();
        let read = cut(input.as_bytes(), |batch| {
            seen.push((batch.first, batch.events, String::from_utf8(batch.body.to_vec()).expect("UTF-8")));
            true
        });
        (seen, read.map_err(|error| error.to_string()))
    }

    #[test]
    fn all_three_forms_give_the_same_events() {
        let expected = (vec![(1, 2, r#"[{"a": 1.0},{"b":"[}"}]"#.to_owned())], Ok(2));
        assert_eq!(batches("{\"a\": 1.0}\n\n{\"b\":\"[}\"}\r\n"), expected);
        assert_eq!(batches("  \n[ {\"a\": 1.0} , {\"b\":\"[}\"} ]\n"), expected);
        assert_eq!(batches("{\n  \"a\":\n1 }"), (vec![(1, 1, "{\n  \"a\":\n1 }".to_owned())], Ok(1)));
        assert_eq!(batches(" \n"), (vec![], Ok(0)));
        assert_eq!(batches("[]"), (vec![], Ok(0)));
    }

    #[test]
    fn batches_are_cut_by_count_and_keep_the_order() {
        let input: String = (0..1201).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        let (seen, read) = batches(&input);
        assert_eq!(read, Ok(1201));
        let sizes: Vec<(usize, usize)> = seen.iter().map(|(first, events, _)| (*first, *events)).collect();
        assert_eq!(sizes, [(1, 500), (501, 500), (1001, 201)]);
        assert!(seen[1].2.starts_with("[{\"n\":500},{\"n\":501}"), "{}", &seen[1].2[..40]);
        assert!(seen[2].2.ends_with("{\"n\":1200}]"));
    }

    #[test]
    fn batches_are_cut_by_size() {
        let event = format!("\"{}\"\n", "x".repeat(REQUEST_BYTES_MAX / 2));
        let (seen, _) = batches(&event.repeat(3));
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|(_, _, body)| body.len() <= REQUEST_BYTES_MAX));
    }

    #[test]
    fn a_fault_names_its_line_after_what_was_good() {
        for input in ["{\"a\":1}\n{\"a\":2}\n{oops}\n", "[{\"a\":1},\n{\"a\":2},\n{oops}]"] {
            let (seen, read) = batches(input);
            assert_eq!(seen.len(), 1, "{input}");
            assert!(read.as_ref().is_err_and(|text| text.contains("line 3")), "{read:?}");
        }
        assert!(batches("[{\"a\":1}] x").1.is_err());
    }

    #[test]
    fn reading_stops_when_nobody_takes() {
        let mut taken = 0;
        let input = "{}\n".repeat(2000);
        let read = cut(input.as_bytes(), |_| {
            taken += 1;
            false
        });
        assert_eq!((taken, read.expect("stopping is no error")), (1, 500));
        let array = format!("[{}{{}}]", "{},".repeat(2000));
        assert_eq!(cut(array.as_bytes(), |_| false).expect("stopping is no error"), 500);
    }

    #[test]
    fn flags_become_an_event_with_data_untouched() {
        let data = RawValue::from_string("{\"total\": 1.50}".to_owned()).expect("JSON");
        let fields = Fields {
            id: None,
            source: Some("shop"),
            type_name: Some("order.paid"),
            subject: Some("o\"17"),
            time: None,
            data: Some(&data),
        };
        let expected = r#"{"source":"shop","type":"order.paid","subject":"o\"17","data":{"total": 1.50}}"#;
        assert_eq!(String::from_utf8(render(&fields).expect("renders")).expect("UTF-8"), expected);
    }
}
