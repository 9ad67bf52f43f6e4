//! The request that the generator sends: built once, then only its ids and times are overwritten in place.
//!
//! An event is exactly 500 bytes of JSON with a random id shaped like a version 4 UUID, and `data.at`, the
//! nanoseconds since 1970 at which it was sent, from which the receiver computes how long it was under way.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::prng::Prng;

/// Bytes of one event as sent.
pub(crate) const EVENT_BYTES: usize = 500;
/// What comes before the time in an event, and in the delivery made of it.
pub(crate) const TIME_MARK: &[u8] = b"\"at\":";
/// Digits of the nanoseconds since 1970, until the year 2286.
pub(crate) const TIME_DIGITS: usize = 19;

const ID_BLANK: &str = "00000000-0000-4000-8000-000000000000";
const TIME_BLANK: &str = "1000000000000000000";
/// Keys are whole numbers of as many digits.
const KEY_BLANK: &str = "10000000";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// An attribute beside `data.key`, whose values are texts of as many digits.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    name: String,
    /// How many different values it has.
    values: u64,
}

impl Attribute {
    pub(crate) fn new(name: &str, values: u64) -> Self {
        Self { name: name.to_owned(), values }
    }
}

impl FromStr for Attribute {
    type Err = anyhow::Error;

    /// Reads what [`Display`] writes.
    fn from_str(text: &str) -> Result<Self> {
        let (name, values) = text.split_once('=').context("an attribute is NAME=VALUES")?;
        Ok(Self::new(name, values.parse()?))
    }
}

impl Display for Attribute {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.values)
    }
}

/// A request and where to write into it.
pub(crate) struct Template {
    bytes: Vec<u8>,
    places: Vec<Places>,
}

/// What changes from event to event, and where it begins.
struct Places {
    id: usize,
    time: usize,
    /// Numbers of as many digits as a key, and how many different ones there are.
    numbers: Vec<(usize, u64)>,
}

impl Template {
    /// A POST of `batch` events: one object, or an array when there are several. Without `keys` all have the same.
    pub(crate) fn new(path: &str, key: &str, batch: usize, keys: u64, attributes: &[Attribute]) -> Self {
        let event = event_with(attributes);
        let mut all = attributes.to_vec();
        all.extend((keys > 0).then(|| Attribute::new("key", keys)));
        let body = if batch == 1 { event.clone() } else { format!("[{}]", vec![&*event; batch].join(",")) };
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let first = head.len() + usize::from(batch > 1);
        let places = (0..batch).map(|place| Places::of(&event, first + place * (EVENT_BYTES + 1), &all));
        let places = places.collect();
        Self { bytes: [head, body].concat().into_bytes(), places }
    }

    /// Fresh ids and the given time, then the bytes to send.
    pub(crate) fn fill(&mut self, prng: &mut Prng, nanos: u64) -> &[u8] {
        let time = nanos.to_string();
        for Places { id, time: at, numbers } in &self.places {
            write_id(&mut self.bytes[*id..id + ID_BLANK.len()], prng);
            self.bytes[*at..at + TIME_DIGITS].copy_from_slice(time.as_bytes());
            for (at, values) in numbers {
                write_number(&mut self.bytes[*at..at + KEY_BLANK.len()], prng.below(*values));
            }
        }
        &self.bytes
    }
}

impl Places {
    /// Those of an event that begins at `at`.
    fn of(event: &str, at: usize, attributes: &[Attribute]) -> Self {
        let find = |text: &str| at + event.find(text).expect("an event has it");
        let number = |attribute: &Attribute| {
            let name = format!(r#""{}":"#, attribute.name);
            let start = find(&name) + name.len();
            let is_text = event.as_bytes()[start - at] == b'"';
            (start + usize::from(is_text), attribute.values)
        };
        Self { id: find(ID_BLANK), time: find(TIME_BLANK), numbers: attributes.iter().map(number).collect() }
    }
}

/// One event with a blank id and time.
pub(crate) fn event() -> String {
    event_with(&[])
}

fn event_with(attributes: &[Attribute]) -> String {
    let more: String =
        attributes.iter().map(|attribute| format!(r#""{}":"{KEY_BLANK}","#, attribute.name)).collect();
    let open = format!(
        r#"{{"id":"{ID_BLANK}","source":"bench","type":"order.paid","subject":"order/1","data":{{"at":{TIME_BLANK},"key":{KEY_BLANK},{more}"text":""#
    );
    let close = r#""}}"#;
    let filling = "abcdefghij".chars().cycle().take(EVENT_BYTES - open.len() - close.len());
    format!("{open}{}{close}", filling.collect::<String>())
}

/// An id like those that are sent.
pub(crate) fn id(prng: &mut Prng) -> Vec<u8> {
    let mut id = ID_BLANK.as_bytes().to_vec();
    write_id(&mut id, prng);
    id
}

/// The time inside an event or a delivery, if there is one.
pub(crate) fn sent_at(body: &[u8]) -> Option<u64> {
    let mark = body.windows(TIME_MARK.len()).position(|window| window == TIME_MARK)?;
    let digits = body.get(mark + TIME_MARK.len()..)?.get(..TIME_DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Overwrites all digits of an id except the two that mark its version.
fn write_id(id: &mut [u8], prng: &mut Prng) {
    let mut bits = 0;
    let mut left = 0;
    for (index, digit) in id.iter_mut().enumerate() {
        if matches!(index, 8 | 13 | 14 | 18 | 19 | 23) {
            continue;
        }
        if left == 0 {
            bits = prng.next();
            left = 16;
        }
        *digit = HEX[(bits & 15) as usize];
        bits >>= 4;
        left -= 1;
    }
}

/// Writes the digits behind the first one, which is there to keep their number.
fn write_number(digits: &mut [u8], mut number: u64) {
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::{Attribute, EVENT_BYTES, Template, event, sent_at};
    use crate::prng::Prng;

    fn body(request: &[u8]) -> Value {
        let end = request.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
        serde_json::from_slice(&request[end..]).expect("a body")
    }

    #[test]
    fn an_event_has_500_bytes_and_carries_its_time() {
        assert_eq!(event().len(), EVENT_BYTES);
        let mut template = Template::new("/v1/events", "tgk_x", 1, 0, &[]);
        let request = template.fill(&mut Prng::new(1), 1_790_000_000_123_456_789);
        assert_eq!(sent_at(request), Some(1_790_000_000_123_456_789));
        assert_eq!(body(request)["data"]["at"], 1_790_000_000_123_456_789_u64);
    }

    #[test]
    fn every_event_of_every_request_has_its_own_id() {
        let mut template = Template::new("/v1/events", "tgk_x", 50, 7, &[Attribute::new("shop", 3)]);
        let mut prng = Prng::new(1);
        let mut ids = BTreeSet::new();
        for _ in 0..20 {
            let batch = body(template.fill(&mut prng, 1_790_000_000_123_456_789));
            ids.extend(batch.as_array().expect("an array").iter().map(|event| event["id"].to_string()));
        }
        assert_eq!(ids.len(), 1000);
        let batch = body(template.fill(&mut prng, 1_790_000_000_123_456_789));
        let events = batch.as_array().expect("an array");
        assert!(
            events.iter().all(|event| event["source"] == "bench" && event.to_string().len() == EVENT_BYTES)
        );
        let keys: BTreeSet<u64> = events.iter().filter_map(|event| event["data"]["key"].as_u64()).collect();
        assert!(keys.len() > 1 && keys.iter().all(|key| (10_000_000..10_000_007).contains(key)));
        let shops: BTreeSet<&str> =
            events.iter().filter_map(|event| event["data"]["shop"].as_str()).collect();
        assert_eq!(shops, BTreeSet::from(["10000000", "10000001", "10000002"]));
    }
}
