//! Which of the ways to send events a request uses, by its content type.

use super::{Refusal, RefusalKind, Request};

/// A way to send events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// One event, or a JSON array of events.
    Plain,
    /// One event per line.
    Lines,
    /// One CloudEvent as JSON.
    Structured,
    /// A JSON array of CloudEvents.
    Batch,
    /// One CloudEvent, its attributes in headers and its data as the body.
    Binary,
}

const REMEDY: &str = "send application/json, application/x-ndjson, application/cloudevents+json, \
     application/cloudevents-batch+json, or a CloudEvent in binary mode (ce-* headers)";

/// Chooses the mode. A batch's type begins like a structured event's, so whole names are compared.
pub(super) fn mode(request: &Request<'_>) -> Result<Mode, Refusal> {
    let binary = request.headers.iter().any(|(name, _)| *name == "ce-specversion");
    let Some(content_type) = request.content_type else {
        return Ok(if binary { Mode::Binary } else { Mode::Plain });
    };
    let essence = essence(content_type);
    let is = |name: &str| essence.eq_ignore_ascii_case(name);
    let mode = if is("application/cloudevents-batch+json") {
        Mode::Batch
    } else if is("application/cloudevents+json") {
        Mode::Structured
    } else if starts_with(essence, "application/cloudevents") {
        return Err(unsupported(content_type));
    } else if binary {
        return Ok(Mode::Binary);
    } else if is("application/json") {
        Mode::Plain
    } else if ["application/x-ndjson", "application/ndjson", "application/jsonl"].into_iter().any(is) {
        Mode::Lines
    } else {
        return Err(unsupported(content_type));
    };
    match charset(content_type) {
        Some(charset) if !charset.eq_ignore_ascii_case("utf-8") && !charset.eq_ignore_ascii_case("utf8") => {
            Err(unsupported(content_type))
        }
        _ => Ok(mode),
    }
}

/// The media type means JSON: `application/json`, `text/json`, or anything with `+json`.
pub(super) fn is_json(content_type: &str) -> bool {
    let Some((_, subtype)) = essence(content_type).split_once('/') else {
        return false;
    };
    let tail = subtype.rsplit('+').next().unwrap_or(subtype);
    tail.eq_ignore_ascii_case("json")
}

/// The media type is the one that `data` has unless it says otherwise.
pub(super) fn is_plain_json(content_type: &str) -> bool {
    essence(content_type).eq_ignore_ascii_case("application/json")
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn charset(content_type: &str) -> Option<&str> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

fn unsupported(content_type: &str) -> Refusal {
    let shown: String = content_type.chars().take(100).collect();
    let detail = format!("content type `{shown}` is not understood; {REMEDY}");
    Refusal::new(RefusalKind::MediaType, "media_type_unsupported", detail)
}
