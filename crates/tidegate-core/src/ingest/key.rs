//! The `idempotency-key` header: the id of a single event that brings none.
//!
//! So a client that knows keys but not event ids can send again after a lost answer: the repeat is a `duplicate`, as
//! it is with an id.

use std::borrow::Cow;

use super::refusal::Refusal;
use super::{Mode, Request};
use crate::limits::IDEMPOTENCY_KEY_BYTES_MAX;

const HEADER: &str = "idempotency-key";

/// The key, if there is one; refused beside anything but a single event.
pub(super) fn read<'a>(request: &Request<'a>, mode: Mode) -> Result<Option<Cow<'a, str>>, Refusal> {
    let mut given = request.headers.iter().filter(|(name, _)| *name == HEADER).map(|(_, value)| *value);
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Refusal::invalid("field_repeated", HEADER, "send one idempotency-key"));
    }
    if matches!(mode, Mode::Lines | Mode::Batch) {
        return Err(not_for_many());
    }
    let key = std::str::from_utf8(value).ok().and_then(unquoted);
    let key = key.filter(|key| {
        (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_graphic())
    });
    key.map(Some).ok_or_else(|| {
        let detail =
            format!("expected 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters without spaces");
        Refusal::invalid("idempotency_key_invalid", HEADER, detail)
    })
}

pub(super) fn not_for_many() -> Refusal {
    let detail = "a key stands for one event: give the events of a list their own ids";
    Refusal::invalid("idempotency_key_unsuitable", HEADER, detail)
}

pub(super) fn not_the_id() -> Refusal {
    let detail = "the event has another `id` than the key says: leave one of them out";
    Refusal::invalid("idempotency_key_conflict", HEADER, detail)
}

/// The draft standard writes it as a string in quotes; most clients leave them out.
fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    let Some(inner) = text.strip_prefix('"') else { return Some(Cow::Borrowed(text)) };
    let inner = inner.strip_suffix('"')?;
    if !inner.contains(['\\', '"']) {
        return Some(Cow::Borrowed(inner));
    }
    let mut plain = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => letters.next().filter(|next| matches!(next, '"' | '\\'))?,
            '"' => return None,
            other => other,
        });
    }
    Some(Cow::Owned(plain))
}
