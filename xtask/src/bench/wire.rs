//! Just enough HTTP/1.1 to generate and receive load cheaply: where a message ends, and what its first line says.
//!
//! Both sides are ours or the server under test, so messages have a `content-length` or no body, and anything else
//! is an error.

/// One complete message at the start of a buffer.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// Where the body begins.
    pub(crate) body: usize,
    /// Where the message ends.
    pub(crate) end: usize,
}

/// The message at the start of `buffer`, once it is complete.
pub(crate) fn message(buffer: &[u8]) -> Option<Message> {
    let body = head_end(buffer)?;
    let end = body + content_length(&buffer[..body]);
    (buffer.len() >= end).then_some(Message { body, end })
}

/// The status of a response, from `HTTP/1.1 202 …`.
pub(crate) fn status(response: &[u8]) -> u16 {
    let digits = response.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The path of a request, from `POST /path HTTP/1.1`.
pub(crate) fn path(request: &[u8]) -> &str {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    std::str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1)).unwrap_or("/")
}

/// The value of a header, by its lower-case name; any case on the wire.
pub(crate) fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let name = name.as_bytes();
    let mut from = 0;
    while let Some(line) = head[from..].iter().position(|byte| *byte == b'\n') {
        from += line + 1;
        let rest = &head[from..];
        if rest.len() > name.len()
            && rest[name.len()] == b':'
            && rest[..name.len()].eq_ignore_ascii_case(name)
        {
            let value = rest[name.len() + 1..].split(|byte| *byte == b'\r').next()?;
            return std::str::from_utf8(value).ok().map(str::trim);
        }
    }
    None
}

fn content_length(head: &[u8]) -> usize {
    header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn head_end(buffer: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(line) = buffer[from..].iter().position(|byte| *byte == b'\n') {
        let next = from + line + 1;
        if buffer[next..].starts_with(b"\r\n") {
            return Some(next + 2);
        }
        from = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Message, header, message, path, status};

    #[test]
    fn a_message_ends_where_its_length_says() {
        let request = b"POST /hook/0 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcPOST";
        assert_eq!(message(request), Some(Message { body: 53, end: 56 }));
        assert_eq!(message(&request[..55]), None);
        assert_eq!(message(&request[..30]), None);
        assert_eq!(path(request), "/hook/0");
        assert_eq!(header(request, "host"), Some("x"));
        assert_eq!(header(request, "webhook-id"), None);
    }

    #[test]
    fn a_response_without_length_has_no_body() {
        let response = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n\r\n";
        assert_eq!(message(response).map(|message| message.end), Some(response.len()));
        assert_eq!(status(response), 503);
    }
}
