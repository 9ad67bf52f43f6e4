//! Reading an answer: all of it off the wire, little of it into memory.
//!
//! Reads up to [`RESPONSE_READ_BYTES_MAX`] so that the connection can be used again, keeps up to
//! [`RESPONSE_KEPT_BYTES_MAX`] as text. An answer that goes on beyond is cut off and its connection dropped; its
//! status still counts. Nothing is decompressed.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tidegate_core::attempt::ResponseHead;
use tidegate_core::limits::{
    RESPONSE_HEADER_KEPT_BYTES_MAX, RESPONSE_KEPT_BYTES_MAX, RESPONSE_READ_BYTES_MAX,
};

use crate::transport::{Answer, Grant};

/// An answer, and what it means for its connection.
pub(crate) struct Received {
    pub(crate) answer: Answer,
    /// It was read to its end, so the connection can serve the next request.
    pub(crate) is_complete: bool,
    /// How long the receiver says it keeps an idle connection, less a second for the way there.
    pub(crate) idle_max: Option<Duration>,
}

/// Reads an answer, or as much of it as is worth the while.
pub(crate) async fn read(response: Response<Incoming>, is_question: bool) -> Result<Received, hyper::Error> {
    let (head, mut body) = response.into_parts();
    let mut kept = Vec::new();
    let mut read_bytes = 0;
    let mut is_complete = body.is_end_stream();
    while !is_complete && read_bytes <= RESPONSE_READ_BYTES_MAX {
        let Some(frame) = body.frame().await else {
            is_complete = true;
            break;
        };
        if let Ok(data) = frame?.into_data() {
            read_bytes += data.len();
            let room = RESPONSE_KEPT_BYTES_MAX - kept.len();
            kept.extend_from_slice(&data[..room.min(data.len())]);
        }
    }
    let is_cut = !is_complete || read_bytes > kept.len();
    let (body, is_shortened) = text(&kept, is_cut);
    let answer = Answer {
        status: head.status.as_u16(),
        retry_after: header(&head.headers, &RETRY_AFTER),
        head: ResponseHead {
            content_type: header(&head.headers, &CONTENT_TYPE),
            body,
            truncated: is_cut || is_shortened,
        },
        grant: is_question.then(|| Box::new(grant(&head.headers))),
    };
    Ok(Received { answer, is_complete, idle_max: idle_max(&head.headers) })
}

fn grant(headers: &HeaderMap) -> Grant {
    let read = |name: &'static str| header(headers, &HeaderName::from_static(name));
    Grant { origin: read("webhook-allowed-origin"), rate: read("webhook-allowed-rate") }
}

/// Reads `keep-alive: timeout=5, max=100`. Using a connection just as its receiver gives it up is the one way to lose
/// a request to a healthy receiver.
fn idle_max(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let seconds = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    let seconds: u64 = seconds.parse().ok()?;
    Some(Duration::from_secs(seconds.saturating_sub(1)))
}

/// A header as text; absent when it is long or not plain ASCII.
fn header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (value.len() <= RESPONSE_HEADER_KEPT_BYTES_MAX).then(|| value.to_owned())
}

/// Bytes as text that every store takes: what is not UTF-8, and NUL, becomes U+FFFD. Those are longer than what
/// they replace, so the result is shortened once more; also answers whether it was.
fn text(bytes: &[u8], is_cut: bool) -> (String, bool) {
    let whole = match std::str::from_utf8(bytes) {
        // The cut went through a character: leave its first half out.
        Err(error) if is_cut && error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    let mut text = String::from_utf8_lossy(whole).into_owned();
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    let is_shortened = text.len() > RESPONSE_KEPT_BYTES_MAX;
    text.truncate(text.floor_char_boundary(RESPONSE_KEPT_BYTES_MAX));
    (text, is_shortened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_become_text_within_the_limit() {
        assert_eq!(text(b"ok", false), ("ok".to_owned(), false));
        assert_eq!(text("aé".as_bytes(), false), ("aé".to_owned(), false));
        assert_eq!(text(&"aé".as_bytes()[..2], true), ("a".to_owned(), false));
        assert_eq!(text(&"aé".as_bytes()[..2], false), ("a\u{fffd}".to_owned(), false));
        assert_eq!(text(b"a\0b", false), ("a\u{fffd}b".to_owned(), false));
        let (long, is_shortened) = text(&[0xff; RESPONSE_KEPT_BYTES_MAX], true);
        assert!(is_shortened && long.len() <= RESPONSE_KEPT_BYTES_MAX);
    }

    #[test]
    fn receivers_say_how_long_they_keep_a_connection() {
        let read = |value: &'static str| {
            idle_max(&HeaderMap::from_iter([("keep-alive".parse().unwrap(), value.parse().unwrap())]))
        };
        assert_eq!(read("timeout=5"), Some(Duration::from_secs(4)));
        assert_eq!(read("max=100, timeout=60"), Some(Duration::from_secs(59)));
        assert_eq!(read("timeout=0"), Some(Duration::ZERO));
        for other in ["max=5", "timeout=", "timeout=-1", "timeout=1.5", ""] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(idle_max(&HeaderMap::new()), None);
    }
}
