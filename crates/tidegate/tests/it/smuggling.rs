//! Requests that two servers in a row could read differently: each is refused, and what hides behind it is never
//! taken for a request of its own.

use std::io::{Read, Write};

use serde_json::json;

use crate::server::{ADMIN_KEY, Server, Setup};

/// What a smuggler wants to be answered.
const HIDDEN: &str = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
const EVENT: &str = r#"{"source":"s","type":"t"}"#;

/// A server that soon closes what is left open.
fn start() -> Server {
    let names = ["TIDEGATE_TIMEOUTS_HEAD", "TIDEGATE_TIMEOUTS_IDLE"];
    let variables = names.map(|name| (name, "300ms".to_owned())).to_vec();
    Server::start_with(&Setup { variables, ..Setup::usual() })
}

/// Everything that came back until the server closed.
fn answers(server: &Server, bytes: &[u8]) -> String {
    let mut stream = server.admin().connect();
    // A server that has seen enough may close before everything is written or read.
    let _ = stream.write_all(bytes);
    let mut back = Vec::new();
    let _ = stream.read_to_end(&mut back);
    String::from_utf8_lossy(&back).into_owned()
}

fn post(line: &str, headers: &str, body: &str) -> String {
    format!("{line}\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n{headers}\r\n{body}")
}

fn publish(headers: &str, body: &str) -> String {
    post("POST /v1/events HTTP/1.1", headers, body)
}

/// What each is, and its bytes.
fn vectors() -> Vec<(&'static str, String)> {
    let chunked =
        |headers: &str, body: &str| publish(&format!("transfer-encoding: chunked\r\n{headers}"), body);
    let hidden = |body: &str| format!("{body}{HIDDEN}");
    let coded = |value: &str| publish(&format!("transfer-encoding:{value}\r\n"), &hidden("0\r\n\r\n"));
    vec![
        (
            "length and coding",
            publish("content-length: 4\r\ntransfer-encoding: chunked\r\n", &hidden("0\r\n\r\n")),
        ),
        ("coding and length", chunked("content-length: 4\r\n", &hidden("0\r\n\r\n"))),
        ("two lengths", publish("content-length: 0\r\ncontent-length: 37\r\n", HIDDEN)),
        ("two lengths in one", publish("content-length: 0, 37\r\n", HIDDEN)),
        ("a length with a sign", publish("content-length: +0\r\n", HIDDEN)),
        ("a negative length", publish("content-length: -1\r\n", HIDDEN)),
        ("a length in hex", publish("content-length: 0x0\r\n", HIDDEN)),
        ("an endless length", publish("content-length: 99999999999999999999\r\n", HIDDEN)),
        ("a length that is nothing", publish("content-length: \r\n", HIDDEN)),
        ("a space before the colon", publish("content-length : 0\r\n", HIDDEN)),
        ("a folded header", publish("x-a: b\r\n content-length: 0\r\n", HIDDEN)),
        ("a folded length", publish("content-length:\r\n 0\r\n", HIDDEN)),
        ("an unknown coding", coded(" xchunked")),
        ("a coding that is not the last", coded(" chunked, identity")),
        ("a coding in a string", coded(" \"chunked\"")),
        ("a coding with a NUL", coded(" chunked\0")),
        ("a coding with a bare CR", coded(" chunked\rx")),
        (
            "chunks in HTTP/1.0",
            post("POST /v1/events HTTP/1.0", "transfer-encoding: chunked\r\n", &hidden("0\r\n\r\n")),
        ),
        ("a chunk size that is none", chunked("", &hidden("zz\r\n{}\r\n0\r\n\r\n"))),
        ("a chunk size with a sign", chunked("", &hidden("+0\r\n\r\n"))),
        ("a chunk size in 0x", chunked("", &hidden("0x0\r\n\r\n"))),
        ("a chunk size that overflows", chunked("", &hidden("10000000000000000\r\n{}\r\n0\r\n\r\n"))),
        ("a chunk longer than said", chunked("", &hidden("1\r\n{}\r\n0\r\n\r\n"))),
        ("a chunk without its line end", chunked("", &hidden("2\r\n{}0\r\n\r\n"))),
        ("a chunk size with a bare LF", chunked("", &hidden("2\n{}\r\n0\r\n\r\n"))),
        (
            "an endless chunk extension",
            chunked("", &format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "a".repeat(100_000))),
        ),
        ("endless trailers", chunked("", &format!("0\r\n{}\r\n", "x-a: b\r\n".repeat(20_000)))),
        ("a NUL in a header", publish("x-a: b\0c\r\ncontent-length: 0\r\n", HIDDEN)),
        ("a bare CR in a header", publish("x-a: b\rcontent-length: 9\r\ncontent-length: 0\r\n", HIDDEN)),
        ("a header without a name", publish(": b\r\ncontent-length: 0\r\n", HIDDEN)),
        ("a header without a colon", publish("x-a\r\ncontent-length: 0\r\n", HIDDEN)),
        ("a huge head", publish(&format!("x-a: {}\r\n", "b".repeat(1_000_000)), HIDDEN)),
        ("too many headers", publish(&"x-a: b\r\n".repeat(200), HIDDEN)),
        ("HTTP/0.9", format!("GET /livez\r\n{HIDDEN}")),
        ("HTTP/2 without asking", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        ("a version that is none", post("POST /v1/events HTTP/1.10", "content-length: 0\r\n", HIDDEN)),
        ("a space in the path", post("POST /v1/events /livez HTTP/1.1", "content-length: 0\r\n", HIDDEN)),
        ("a tab in the line", post("POST\t/v1/events HTTP/1.1", "content-length: 0\r\n", HIDDEN)),
        ("a NUL in the path", post("POST /v1/events\0 HTTP/1.1", "content-length: 0\r\n", HIDDEN)),
        ("a CR in the path", post("POST /v1/ev\rents HTTP/1.1", "content-length: 0\r\n", HIDDEN)),
        ("nonsense", "hello\r\n\r\n".to_owned()),
    ]
}

#[test]
fn a_request_with_two_readings_is_refused_and_hides_nothing() {
    let server = start();
    let vectors = vectors();
    assert!(vectors.len() >= 30);
    for (what, bytes) in &vectors {
        let back = answers(&server, bytes.as_bytes());
        let statuses: Vec<&str> = back.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert!(statuses.len() <= 1, "{what}: {statuses:?}");
        assert!(statuses.iter().all(|status| status.starts_with('4')), "{what}: {back}");
    }
    assert_eq!(server.admin().get("/v1/events").expect(200)["items"], json!([]), "nothing was accepted");
}

#[test]
fn unusual_but_plain_requests_are_one_request_each() {
    let server = start();
    let length = format!("content-length: {}\r\n", EVENT.len());
    let close = format!("{length}connection: close\r\n");
    let plain = [
        ("an absolute address", post("POST http://elsewhere/v1/events HTTP/1.1", &close, EVENT)),
        ("the same length twice", publish(&format!("{length}{close}"), EVENT)),
        ("bare LF", publish(&close, EVENT).replace("\r\n", "\n")),
        ("empty lines before", format!("\r\n\r\n{}", publish(&close, EVENT))),
        ("HTTP/1.0", post("POST /v1/events HTTP/1.0", &length, EVENT)),
        ("what comes after the last", format!("{}{HIDDEN}", publish(&close, EVENT))),
    ];
    for (what, bytes) in &plain {
        let back = answers(&server, bytes.as_bytes());
        assert_eq!(back.matches("HTTP/1.").count(), 1, "{what}: {back}");
        assert!(back.contains(" 202 "), "{what}: {back}");
    }
    let events = server.admin().get("/v1/events").expect(200);
    assert_eq!(events["items"].as_array().map(Vec::len), Some(plain.len()));
}
