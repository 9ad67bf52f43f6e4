//! Ingest: the bytes of `POST /v1/events` become checked units, or one refusal.
//!
//! Reads a body and its content type; writes nothing. The loop in the server hands the units to the store.
//! Promises: any bytes are answered, never a panic; the first malformed event refuses the whole request with its
//! index and field; `data` stands in the event's body byte for byte as it came.
//! Does not: authenticate, look anything up, or know what a duplicate is (the store does, by fingerprint).

mod cloudevents;
mod draft;
mod extensions;
mod json;
mod key;
mod media;
mod refusal;
mod rules;
mod unit;

#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use self::refusal::{Refusal, RefusalKind};
pub(crate) use self::rules::name as check_name;

use self::media::Mode;
use self::unit::Assembler;
use crate::event::Unit;
use crate::limits;
use crate::time::Timestamp;

/// One request of `POST /v1/events`, as far as decoding needs it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The `content-type` header; absent means JSON.
    pub content_type: Option<&'a str>,
    /// The headers whose names begin with `ce-`, and `idempotency-key`, names in lower case. Others are ignored.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The whole body.
    pub body: &'a Bytes,
}

/// Turns a request into units, all or nothing.
///
/// `now` is the time of events that came without one, `chance` makes the ids of events that came without one.
pub fn decode(
    request: &Request<'_>,
    now: Timestamp,
    chance: &mut dyn FnMut() -> u128,
) -> Result<Vec<Unit>, Refusal> {
    let mode = media::mode(request)?;
    if request.body.len() > limits::REQUEST_BYTES_MAX {
        let detail = format!(
            "the body has {} bytes and {} are allowed; split it",
            request.body.len(),
            limits::REQUEST_BYTES_MAX
        );
        return Err(Refusal::new(RefusalKind::TooLarge, "request_too_large", detail));
    }
    let key = key::read(request, mode)?;
    if mode == Mode::Binary {
        return cloudevents::binary(request, key.as_deref(), now, chance).map(|unit| vec![unit]);
    }
    let text = utf8(request.body)?;
    let scan = crate::json::scan(text.as_bytes());
    let mut assembler = Assembler::new(now, chance, scan.spaced).keyed(key.as_deref());
    match mode {
        Mode::Lines => json::lines(text, &mut assembler),
        Mode::Plain => json::one_or_many(text, scan.depth, &mut assembler),
        Mode::Structured => cloudevents::structured(text, scan.depth, &mut assembler).map(|unit| vec![unit]),
        Mode::Batch | Mode::Binary => cloudevents::batch(text, scan.depth, &mut assembler),
    }
}

fn utf8(body: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(body).map_err(|error| {
        let detail =
            format!("the body is not UTF-8: byte {} is wrong; encode it as UTF-8", error.valid_up_to());
        Refusal::new(RefusalKind::Unparsable, "json_encoding", detail)
    })
}

/// Nesting is counted from the event's own braces, so a list around events is allowed one level more.
fn check_depth(depth: usize, allowed: usize) -> Result<(), Refusal> {
    if depth > allowed {
        let detail = format!(
            "the JSON nests {depth} levels and {allowed} are allowed; flatten it, or send it as a string"
        );
        return Err(Refusal::new(RefusalKind::TooDeep, "json_too_deep", detail));
    }
    Ok(())
}
