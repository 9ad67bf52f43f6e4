//! Compressed bodies: gzip and zstd, whole, in pieces, broken, and as bombs.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::client::{Answer, Client};
use crate::server::Server;

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(body).expect("it is memory");
    encoder.finish().expect("it is memory")
}

fn zstd(body: &[u8]) -> Vec<u8> {
    zstd::encode_all(body, 3).expect("it is memory")
}

fn lines(count: usize, prefix: &str) -> Vec<u8> {
    let line = |n| format!("{{\"id\":\"{prefix}{n}\",\"source\":\"s\",\"type\":\"t\",\"data\":{n}}}\n");
    (0..count).map(line).collect::<String>().into_bytes()
}

fn send(client: &Client, encoding: &str, body: &[u8]) -> Answer {
    let headers = [("content-type", "application/x-ndjson"), ("content-encoding", encoding)];
    client.send("POST", "/v1/events", &headers, body)
}

#[test]
fn compressed_events_are_as_good_as_others() {
    let server = Server::start();
    let admin = server.admin();
    for (encoding, body) in [
        ("gzip", gzip(&lines(1_000, "g"))),
        ("X-GZIP", gzip(&lines(3, "x"))),
        ("zstd", zstd(&lines(1_000, "z"))),
        ("identity", lines(3, "i")),
        ("gzip", [gzip(&lines(2, "m")), gzip(&lines(2, "n"))].concat()),
        (
            "zstd",
            [zstd(&lines(2, "o")), b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc".to_vec(), zstd(&lines(2, "p"))]
                .concat(),
        ),
    ] {
        let answer = send(&admin, encoding, &body).expect(202);
        let results = answer["results"].as_array().map_or(0, Vec::len);
        assert_eq!(answer["accepted"], results, "{encoding}");
        assert!(results > 2, "{encoding}: {answer}");
    }
    assert_eq!(admin.get("/v1/events/z999").expect(200)["data"], 999);
    assert_eq!(admin.get("/v1/events/p1").expect(200)["data"], 1);
}

#[test]
fn what_can_not_be_decoded_is_refused_and_nothing_is_stored() {
    let server = Server::start();
    let admin = server.admin();
    for encoding in ["br", "gzip, zstd", "deflate", ""] {
        let answer = send(&admin, encoding, &gzip(&lines(1, "a")));
        answer.problem(415, "encoding_unsupported");
        assert_eq!(answer.header("accept-encoding"), Some("gzip, zstd"));
    }
    let (gzip, zstd) = (gzip(&lines(50, "a")), zstd(&lines(50, "a")));
    for (encoding, body) in [
        ("gzip", &zstd[..]),
        ("zstd", &gzip[..]),
        ("gzip", &gzip[..gzip.len() - 4]),
        ("zstd", &zstd[..zstd.len() - 4]),
        ("gzip", b"not at all"),
        ("zstd", b"not at all"),
    ] {
        send(&admin, encoding, body).problem(400, "encoding_corrupt");
    }
    let mut damaged = gzip.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 0xff;
    send(&admin, "gzip", &damaged).problem(400, "encoding_corrupt");
    assert_eq!(admin.get("/v1/events").expect(200)["items"], Value::Array(Vec::new()));
}

#[test]
fn bombs_are_refused_by_what_comes_out() {
    let server = Server::start();
    let admin = server.admin();
    let air = vec![b' '; 64 * 1024 * 1024];
    for (encoding, bomb) in [("gzip", gzip(&air)), ("zstd", zstd(&air))] {
        assert!(bomb.len() < 100_000, "{encoding}");
        send(&admin, encoding, &bomb).problem(413, "request_too_large");
    }
    // A window of 128 MiB, announced in nine bytes.
    let window = b"\x28\xb5\x2f\xfd\x00\x88\x01\x00\x00";
    send(&admin, "zstd", window).problem(400, "encoding_corrupt");
    let nothing: Vec<u8> = b"\x50\x2a\x4d\x18\x00\x00\x00\x00".repeat(100_000);
    let answer = send(&admin, "zstd", &nothing).expect(202);
    assert_eq!(answer["results"], Value::Array(Vec::new()), "no lines, no events");
    assert_eq!(send(&admin, "gzip", &gzip(&lines(3, "a"))).expect(202)["accepted"], 3);
}
