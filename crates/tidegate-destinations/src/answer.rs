//! Reading an answer: all of it off the wire, little of it into memory.
//!
//! Reads up to [`RESPONSE_READ_BYTES_MAX`] so that the connection can be used again, keeps up to
//! [`RESPONSE_KEPT_BYTES_MAX`] as text. An answer that goes on beyond is cut off and its connection dropped; its
//! status still counts. Nothing is decompressed.

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tidegate_core::attempt::ResponseHead;
use tidegate_core::limits::{
    RESPONSE_HEADER_KEPT_BYTES_MAX, RESPONSE_KEPT_BYTES_MAX, RESPONSE_READ_BYTES_MAX,
};

use crate::transport::Answer;

/// The answer, and whether it was read to its end.
pub(crate) async fn read(response: Response<Incoming>) -> Result<(Answer, bool), hyper::Error> {
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
    };
    Ok((answer, is_complete))
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
}
