//! What the fields of an event may look like.

use std::borrow::Cow;

use super::draft::Text;
use super::refusal::Refusal;
use crate::limits;
use crate::operator;
use crate::time::Timestamp;

/// `source` and `type` are matched against patterns, so they can hold neither `*` nor white space.
pub(crate) fn name(field: &str, value: &str, max: usize) -> Result<(), Refusal> {
    text(field, value, max)?;
    if value.bytes().any(|byte| byte == b'*' || byte == b' ')
        || (!value.is_ascii() && value.contains(char::is_whitespace))
    {
        let detail = format!("`{field}` must contain neither `*` nor white space; patterns would misread it");
        return Err(Refusal::invalid("field_characters", field, detail));
    }
    Ok(())
}

/// One source speaks for the server itself.
pub(super) fn source(source: &str) -> Result<(), Refusal> {
    if source == operator::SOURCE {
        let detail =
            "the source `tidegate` is for events about Tidegate itself; use the name of your service";
        return Err(Refusal::invalid("source_reserved", "source", detail));
    }
    Ok(())
}

/// Not empty, not too long, no control characters.
pub(super) fn text(field: &str, value: &str, max: usize) -> Result<(), Refusal> {
    if value.is_empty() {
        let detail = format!("`{field}` is empty; leave it out or fill it in");
        return Err(Refusal::invalid("field_empty", field, detail));
    }
    if value.len() > max {
        let detail = format!("`{field}` has {} bytes and {max} are allowed; shorten it", value.len());
        return Err(Refusal::invalid("field_too_long", field, detail));
    }
    let control = if value.is_ascii() {
        value.bytes().any(|byte| byte.is_ascii_control())
    } else {
        value.contains(char::is_control)
    };
    if control {
        let detail = format!("`{field}` contains a control character; remove it");
        return Err(Refusal::invalid("field_characters", field, detail));
    }
    Ok(())
}

/// The id that a sub-event would get.
pub(super) fn inner_id(id: &str) -> Result<(), Refusal> {
    if id.len() > limits::EVENT_ID_BYTES_MAX {
        let detail = format!(
            "the sub-event's id would be `{id}`, longer than {} bytes; shorten the event's id or nest less",
            limits::EVENT_ID_BYTES_MAX
        );
        return Err(Refusal::invalid("field_too_long", "id", detail));
    }
    Ok(())
}

/// The ids of the events this one follows from.
pub(super) fn parents(list: &[Text<'_>]) -> Result<Vec<String>, Refusal> {
    if list.len() > limits::PARENTS_MAX {
        let detail = format!("`parents` names more than {} events; keep the nearest", limits::PARENTS_MAX);
        return Err(Refusal::invalid("field_too_many", "parents", detail));
    }
    for (place, parent) in list.iter().enumerate() {
        text(&format!("parents[{place}]"), parent, limits::EVENT_ID_BYTES_MAX)?;
    }
    Ok(list.iter().map(|parent| parent.0.to_string()).collect())
}

/// An RFC 3339 time as it shall stand in the body: as sent if it is UTC with a `Z`, else moved to UTC.
pub(super) fn time<'t>(field: &str, text: &'t str) -> Result<Cow<'t, str>, Refusal> {
    if !is_rfc3339(text.as_bytes()) || Timestamp::parse(text).is_none() {
        let detail = format!("`{field}` is not an RFC 3339 time such as 2026-01-31T09:30:00Z");
        return Err(Refusal::invalid("field_time", field, detail));
    }
    if text.ends_with('Z') && !text.contains('t') {
        return Ok(Cow::Borrowed(text));
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(instant) => Ok(Cow::Owned(instant.to_string())),
        Err(_) => Ok(Cow::Borrowed(text)),
    }
}

/// The calendar library takes many more spellings; receivers' libraries take only this one.
fn is_rfc3339(text: &[u8]) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let Some((head, tail)) = text.split_at_checked(SHAPE.len()) else {
        return false;
    };
    let same = |byte: &u8, shape: &u8| match shape {
        b'0' => byte.is_ascii_digit(),
        other => byte.eq_ignore_ascii_case(other),
    };
    let zone = match tail.strip_prefix(b".") {
        None => tail,
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            &rest[digits..]
        }
    };
    let offset_like = |zone: &[u8]| {
        zone.len() == 6
            && matches!(zone[0], b'+' | b'-')
            && zone[1..].iter().zip(b"00:00").all(|(byte, shape)| same(byte, shape))
    };
    head.iter().zip(SHAPE).all(|(byte, shape)| same(byte, shape))
        && (zone.eq_ignore_ascii_case(b"Z") || offset_like(zone))
}
