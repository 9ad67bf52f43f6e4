//! A minimal blocking HTTP/1.1 client for talking to the server under test: one connection per request.
//!
//! Not for measuring; the load generator has its own client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Starting or stopping a server must not make a request hang for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came back.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends one request and reads the whole answer.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer"))
}

fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let status = std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()?;
    let head = std::str::from_utf8(&answer[..end]).ok()?.to_ascii_lowercase();
    let rest = &answer[end..];
    let body = if head.contains("transfer-encoding: chunked") { unchunk(rest)? } else { rest.to_vec() };
    Some(Response { status, body })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + size)?);
        rest = rest.get(line + 4 + size..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn answers_are_read_with_a_length_and_in_chunks() {
        let plain = parse(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}").expect("an answer");
        assert_eq!((plain.status, plain.body.as_slice()), (202, b"{}".as_slice()));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).expect("an answer").body, b"abcd");
        assert!(parse(b"HTTP/1.1 2").is_none());
    }
}
