//! W3C trace context: which span of which trace something belongs to, and how an event carries it.
//!
//! An event carries its context as the CloudEvents extension attributes `traceparent` and `tracestate`: in its body,
//! where it is kept, shown, replayed and delivered without a column or a header of its own. Reading it looks at an
//! event's first members only, never at its `data`.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;

/// `tracestate` is an opaque list; the standard asks to carry at least this much.
pub const STATE_BYTES_MAX: usize = 512;

/// A span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace; never 0.
    pub trace: u128,
    /// The span in it; never 0.
    pub span: u64,
    /// Whether it is recorded by whoever began it.
    pub is_sampled: bool,
}

impl SpanContext {
    /// Reads a `traceparent`: version 00, or what a later version has of it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut parts = text.split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = u64::try_from(hex(parts.next()?, 16)?).ok()?;
        let flags = hex(parts.next()?, 2)?;
        let is_known = version != 0xff && (version != 0 || parts.next().is_none());
        (is_known && trace != 0 && span != 0).then_some(Self { trace, span, is_sampled: flags & 1 == 1 })
    }
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

fn hex(digits: &str, length: usize) -> Option<u128> {
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (digits.len() == length && is_hex).then(|| u128::from_str_radix(digits, 16).ok())?
}

/// A context on its way, with the state that travels along unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The span that caused it.
    pub context: SpanContext,
    /// `tracestate`, if there was one that can be passed on.
    pub state: Option<String>,
}

impl Carried {
    /// From the texts of the two headers, or of the two attributes.
    pub fn new(parent: &str, state: Option<&str>) -> Option<Self> {
        let context = SpanContext::parse(parent)?;
        let is_plain = |state: &&str| {
            (1..=STATE_BYTES_MAX).contains(&state.len())
                && state.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        Some(Self { context, state: state.filter(is_plain).map(str::to_owned) })
    }
}

#[derive(Deserialize)]
struct Attributes<'a> {
    #[serde(borrow)]
    traceparent: Option<&'a str>,
    #[serde(borrow)]
    tracestate: Option<std::borrow::Cow<'a, str>>,
}

/// The context that an event carries, read from its body. Anything that is not an event carries none.
pub fn carried_by(body: &[u8]) -> Option<Carried> {
    let Place::At(range) = locate(body)? else { return None };
    let attributes: Attributes<'_> = serde_json::from_slice(&body[range]).ok()?;
    Carried::new(attributes.traceparent?, attributes.tracestate.as_deref())
}

/// The event's body with this context, unless it has one already: whoever made the event knows better.
pub fn attach(body: &Bytes, carried: &Carried) -> Bytes {
    let (at, text) = match locate(body) {
        Some(Place::At(range)) => {
            let members = &body[range.start + 1..range.end - 1];
            let is_empty = members.iter().all(u8::is_ascii_whitespace);
            if serde_json::from_slice::<Attributes<'_>>(&body[range.clone()])
                .is_ok_and(|attributes| attributes.traceparent.is_none())
            {
                (range.start + 1, format!("{}{}", members_of(carried), if is_empty { "" } else { "," }))
            } else {
                return body.clone();
            }
        }
        Some(Place::Before(at)) => (at, format!(",\"extensions\":{{{}}}", members_of(carried))),
        None => return body.clone(),
    };
    Bytes::from([&body[..at], text.as_bytes(), &body[at..]].concat())
}

fn members_of(carried: &Carried) -> String {
    let state = carried.state.as_ref().map_or_else(String::new, |state| {
        format!(",\"tracestate\":{}", serde_json::Value::from(state.as_str()))
    });
    format!("\"traceparent\":\"{}\"{state}", carried.context)
}

/// Where an event's extension attributes stand, or would.
enum Place {
    At(Range<usize>),
    Before(usize),
}

/// Walks over the first members of a body in the one form that `event::render` writes.
fn locate(body: &[u8]) -> Option<Place> {
    let mut at = 0;
    loop {
        // The brace before the first member, the comma before every other one.
        let before = at;
        let name_end = skip(body, at + 1)?;
        let name = body.get(at + 1..name_end)?;
        let value = (body.get(name_end) == Some(&b':')).then_some(name_end + 1)?;
        match name {
            b"\"id\"" | b"\"source\"" | b"\"type\"" | b"\"subject\"" | b"\"time\"" | b"\"ended\""
            | b"\"parents\"" => at = skip(body, value)?,
            b"\"extensions\"" => {
                let end = skip(body, value)?;
                return (body.get(value) == Some(&b'{')).then_some(Place::At(value..end));
            }
            b"\"data\"" | b"\"data_base64\"" => return Some(Place::Before(before)),
            _ => return None,
        }
    }
}

/// The end of the string, list or object that begins here. Nothing else stands before `data`.
fn skip(body: &[u8], start: usize) -> Option<usize> {
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (offset, byte) in body.get(start..)?.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.checked_sub(1)?,
            _ if in_string || depth > 0 => {}
            _ => return None,
        }
        if depth == 0 && !in_string {
            return Some(start + offset + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Data, Fields, render};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn fields(id: &str) -> Fields<'_> {
        Fields {
            id,
            source: "s",
            type_name: "t",
            subject: None,
            time: "2026-01-01T00:00:00Z",
            ended: None,
            parents: &[],
            extensions: None,
            data: Data::Json("{\"extensions\":{\"traceparent\":\"no\"}}"),
        }
    }

    #[test]
    fn contexts_are_read_as_the_standard_says() {
        let context = SpanContext::parse(PARENT).unwrap();
        assert!(context.is_sampled && context.to_string() == PARENT);
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(SpanContext::parse(later).is_some_and(|context| !context.is_sampled));
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(SpanContext::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_event_that_has_a_context_keeps_it_and_other_bodies_are_left_alone() {
        let carried = Carried::new(PARENT, Some("a=1")).unwrap();
        let other = "00-11111111111111111111111111111111-2222222222222222-01";
        let own = format!("{{ \"x\": 1, \"traceparent\" : \"{other}\" }}");
        let body = render(&Fields { extensions: Some(&own), ..fields("e") });
        assert_eq!(attach(&body, &carried), body);
        assert_eq!(carried_by(&body).unwrap().context.to_string(), other);
        for body in
            ["", "{", "{}", "[]", "{\"delivery\":\"d\",\"extensions\":{}}", "{\"id\":1,\"data\":2}", "null"]
        {
            let body = Bytes::from(body);
            assert_eq!((attach(&body, &carried), carried_by(&body)), (body.clone(), None));
        }
    }

    proptest! {
        #[test]
        fn what_is_attached_is_found_and_the_rest_is_untouched(
            id in ".{0,12}",
            parents in proptest::collection::vec(".{0,6}", 0..3),
            extensions in proptest::option::of("(\\{\\}|\\{ \"a\":\"\\}\" \\}|\\{\"a\":1,\"b\":null\\})"),
            state in proptest::option::of("[a-z\"\\\\=]{1,9}"),
        ) {
            let fields = Fields { parents: &parents, extensions: extensions.as_deref(), ..fields(&id) };
            let body = render(&fields);
            let carried = Carried::new(PARENT, state.as_deref()).unwrap();
            let with = attach(&body, &carried);
            prop_assert_eq!(carried_by(&body), None);
            prop_assert_eq!(carried_by(&with), Some(carried));
            let mut before: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let mut after: serde_json::Value = serde_json::from_slice(&with).unwrap();
            let attributes = after["extensions"].as_object_mut().unwrap();
            attributes.remove("traceparent");
            attributes.remove("tracestate");
            if attributes.is_empty() {
                after.as_object_mut().unwrap().remove("extensions");
                if before["extensions"].as_object().is_some_and(serde_json::Map::is_empty) {
                    before.as_object_mut().unwrap().remove("extensions");
                }
            }
            prop_assert_eq!(before, after);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            carried_by(&bytes);
            attach(&Bytes::from(bytes), &Carried::new(PARENT, None).unwrap());
        }
    }
}
