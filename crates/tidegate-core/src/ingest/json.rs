//! Tidegate's own form of events: one object, an array of them, or one per line.

use serde_json::value::RawValue;

use super::check_depth;
use super::draft::{Draft, Listed};
use super::key::not_for_many;
use super::refusal::{Refusal, RefusalKind, read};
use super::unit::{Assembler, too_many_events};
use crate::event::Unit;
use crate::{json, limits};

/// A body of type `application/json`.
pub(super) fn one_or_many(
    text: &str,
    depth: usize,
    assembler: &mut Assembler<'_>,
) -> Result<Vec<Unit>, Refusal> {
    let text = text.trim_matches([' ', '\n', '\r', '\t']);
    if text.is_empty() {
        let detail = "the body is empty; send an event, an array of events, or NDJSON";
        return Err(Refusal::new(RefusalKind::Unparsable, "json_syntax", detail));
    }
    if text.starts_with('[') {
        check_depth(depth, limits::JSON_DEPTH_MAX + 1)?;
        if assembler.has_key() {
            return Err(not_for_many());
        }
        return each(text, |item| one(item, assembler));
    }
    check_depth(depth, limits::JSON_DEPTH_MAX)?;
    Ok(vec![one(text, assembler)?])
}

/// A body of type `application/x-ndjson`: blank lines mean nothing.
pub(super) fn lines(text: &str, assembler: &mut Assembler<'_>) -> Result<Vec<Unit>, Refusal> {
    let mut units = Vec::new();
    for (place, line) in text.split('\n').enumerate() {
        let line = line.trim_matches([' ', '\r', '\t']);
        if line.is_empty() {
            continue;
        }
        let index = units.len();
        let unit = check_depth(json::scan(line.as_bytes()).depth, limits::JSON_DEPTH_MAX)
            .and_then(|()| one(line, assembler))
            .map_err(|refusal| Refusal {
                detail: format!("line {}: {}", place + 1, refusal.detail),
                ..refusal.at(index)
            })?;
        units.push(unit);
    }
    Ok(units)
}

/// Applies `one` to the items of a JSON array; the first refusal carries its index.
pub(super) fn each(
    text: &str,
    mut one: impl FnMut(&str) -> Result<Unit, Refusal>,
) -> Result<Vec<Unit>, Refusal> {
    let items: Listed<&RawValue, { limits::REQUEST_EVENTS_MAX }> = read(text)?;
    if items.0.len() > limits::REQUEST_EVENTS_MAX {
        return Err(too_many_events());
    }
    let unit = |(index, item): (usize, &&RawValue)| one(item.get()).map_err(|refusal| refusal.at(index));
    items.0.iter().enumerate().map(unit).collect()
}

fn one(text: &str, assembler: &mut Assembler<'_>) -> Result<Unit, Refusal> {
    assembler.fits(text.len())?;
    assembler.unit(&Draft::read(text)?)
}
