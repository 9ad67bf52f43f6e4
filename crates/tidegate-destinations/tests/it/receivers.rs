//! Goal: whatever a receiver does, a try ends in time, in bounded memory, with the right reason. Method: receivers
//! that speak raw bytes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::attempt::ErrorClass;
use tidegate_core::limits::{RESPONSE_HEAD_BYTES_MAX, RESPONSE_KEPT_BYTES_MAX};
use tidegate_core::subscriber::Signing;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{Failure, HttpTransport, Outbound, Resolve, Transport, webhook};
use tokio::io::AsyncWriteExt as _;

use crate::support::*;

#[track_caller]
fn assert_failed(failure: &Failure, class: ErrorClass, detail: &str) {
    assert_eq!((failure.class, failure.detail.as_str()), (class, detail));
}

/// Answers with `bytes`, then does nothing more but keep the connection.
async fn stuck_after(bytes: &'static [u8]) -> Receiver {
    Receiver::start(move |_, mut peer| async move {
        peer.read_request().await?;
        peer.stream.write_all(bytes).await?;
        std::future::pending().await
    })
    .await
}

/// Answers with `bytes`, then closes the connection.
async fn closing_after(bytes: &'static [u8]) -> Receiver {
    Receiver::start(move |_, mut peer| async move {
        peer.read_request().await?;
        peer.stream.write_all(bytes).await
    })
    .await
}

#[tokio::test]
async fn the_request_arrives_byte_for_byte() {
    let receiver = Receiver::answering(OK).await;
    let custom = BTreeMap::from([("X-Team".to_owned(), "core; a=\"b\"".to_owned())]);
    let body = "{\"data\": \"ünï\u{0} ✓\"}\r\n";
    let outbound = Outbound {
        headers: webhook::render("dlv_1", Timestamp::from_ms(5_000), body.as_bytes(), &[], &{
            webhook::Letterhead::new(&custom, &Signing::default()).unwrap()
        }),
        body: body.into(),
        target: target(&format!("http://{}/a%20b/{{x}}?q=1&r=%2F", receiver.address)),
        ..post(&receiver.target(), PLENTY)
    };
    loopback().send(outbound).await.result.unwrap();
    let sent = receiver.requests().remove(0);
    let (head, sent_body) = sent.split_once("\r\n\r\n").unwrap();
    assert_eq!(sent_body, body);
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines.remove(0), "POST /a%20b/%7Bx%7D?q=1&r=%2F HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: {}", receiver.address);
    let length = format!("content-length: {}", body.len());
    let agent = format!("user-agent: Tidegate/{}", env!("CARGO_PKG_VERSION"));
    let expected = [
        length.as_str(),
        "content-type: application/json",
        &host,
        &agent,
        "webhook-id: dlv_1",
        "webhook-timestamp: 5",
        "x-team: core; a=\"b\"",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn answers_are_kept_in_part() {
    let gzip = b"HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\nretry-after: 7\r\ncontent-type: a/b\r\n\
                 content-length: 4\r\n\r\n\x1f\x8b\x08\x00";
    let receiver = Receiver::answering(gzip).await;
    let answer = answer(&loopback(), &receiver.target()).await;
    assert_eq!((answer.status, answer.retry_after.as_deref()), (503, Some("7")));
    assert_eq!(answer.head.content_type.as_deref(), Some("a/b"));
    assert_eq!((answer.head.body.as_str(), answer.head.truncated), ("\u{1f}\u{fffd}\u{8}\u{fffd}", false));
}

#[tokio::test]
async fn every_framing_of_an_answer_is_read() {
    let framings: [(&[u8], u16, &str); 6] = [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n", 200, "abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, "to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 202 A\r\ncontent-length: 1\r\n\r\nx", 202, "x"),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, ""),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw", 101, ""),
    ];
    for (bytes, status, body) in framings {
        let receiver = closing_after(bytes).await;
        let answer = answer(&loopback(), &receiver.target()).await;
        assert_eq!((answer.status, answer.head.body.as_str()), (status, body));
    }
}

#[tokio::test]
async fn a_silent_receiver_meets_the_deadline() {
    for bytes in [&b""[..], b"HTTP/1.1 200 OK\r\nx: "] {
        let receiver = stuck_after(bytes).await;
        let exchange = loopback().send(post(&receiver.target(), SHORT)).await;
        let detail = "the deadline of 200ms passed while sending the request or waiting for the answer";
        assert_failed(&exchange.result.unwrap_err(), ErrorClass::Timeout, detail);
        assert!((200_000..5_000_000).contains(&exchange.phases.total_us), "{:?}", exchange.phases);
    }
}

#[tokio::test]
async fn a_body_that_hangs_meets_the_deadline() {
    let receiver = stuck_after(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
    let failure = failure(&loopback(), &receiver.target(), SHORT).await;
    assert_failed(&failure, ErrorClass::Timeout, "the deadline of 200ms passed while reading the answer");
}

#[tokio::test]
async fn a_receiver_that_does_not_read_meets_the_deadline() {
    let receiver = Receiver::start(|_, peer| async move {
        let _open = peer;
        std::future::pending().await
    })
    .await;
    let outbound = Outbound { body: vec![b'x'; 16 << 20].into(), ..post(&receiver.target(), SHORT) };
    let failure = loopback().send(outbound).await.result.unwrap_err();
    assert_eq!(failure.class, ErrorClass::Timeout);
}

#[tokio::test]
async fn an_endless_body_is_cut_and_its_connection_dropped() {
    let (stopped, mut has_stopped) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::start(move |_, mut peer| {
        let stopped = stopped.clone();
        async move {
            peer.read_request().await?;
            peer.stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            while peer.stream.write_all(&[b'x'; 4096]).await.is_ok() {}
            stopped.send(()).map_err(io::Error::other)
        }
    })
    .await;
    let receiver_target = receiver.target();
    let transport = loopback();
    for sent in 1..=2 {
        let answer = answer(&transport, &receiver_target).await;
        assert_eq!((answer.status, answer.head.body.len()), (200, RESPONSE_KEPT_BYTES_MAX));
        assert!(answer.head.truncated);
        assert_eq!(has_stopped.recv().await, Some(()));
        assert_eq!(receiver.accepted(), sent);
    }
}

#[tokio::test]
async fn connections_that_break_are_resets() {
    let before = "the connection broke before the answer";
    let inside = "the connection broke inside the answer";
    let table: [(&'static [u8], &str); 4] = [
        (b"", before),
        (b"HTTP/1.1 200 OK\r\ncontent-le", before),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", inside),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", inside),
    ];
    for (bytes, detail) in table {
        let receiver = closing_after(bytes).await;
        assert_failed(&failure(&loopback(), &receiver.target(), PLENTY).await, ErrorClass::Reset, detail);
        let receiver = Receiver::start(move |_, mut peer| async move {
            peer.read_request().await?;
            peer.stream.write_all(bytes).await?;
            peer.stream.set_zero_linger()
        })
        .await;
        assert_eq!(failure(&loopback(), &receiver.target(), PLENTY).await.class, ErrorClass::Reset);
        assert_eq!(receiver.requests().len(), 1, "never sent twice");
    }
}

#[tokio::test]
async fn what_is_not_http_is_a_protocol_failure() {
    let wrong = "the answer is not valid HTTP";
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(101));
    let large = |bytes| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(bytes));
    let (large, huge) = (large(2 * RESPONSE_HEAD_BYTES_MAX), large(1 << 20));
    let table: [(&[u8], &str); 8] = [
        (b"SSH-2.0-OpenSSH_9.2\r\n", wrong),
        (b"\x15\x03\x01\x00\x02\x02\x46", wrong),
        (b"<html>hello</html>", wrong),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", wrong),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", wrong),
        (many.as_bytes(), "the head of the answer is too large"),
        (large.as_bytes(), "the head of the answer is too large"),
        (huge.as_bytes(), "the head of the answer is too large"),
    ];
    for (bytes, detail) in table {
        let receiver = Receiver::answering(bytes).await;
        assert_failed(&failure(&loopback(), &receiver.target(), PLENTY).await, ErrorClass::Protocol, detail);
    }
}

#[tokio::test]
async fn a_closed_port_is_a_connect_failure_without_the_url() {
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let receiver = target(&format!("http://{closed}/token-in-path?secret=s3"));
    let failure = failure(&loopback(), &receiver, PLENTY).await;
    assert_failed(&failure, ErrorClass::Connect, "the connection was refused");
    assert!(!format!("{receiver:?}").contains("token"));
}

#[tokio::test]
async fn the_next_address_is_tried() {
    let receiver = Receiver::answering(OK).await;
    let port = receiver.address.port();
    let addresses = vec![SocketAddr::from(([127, 0, 0, 77], port)), receiver.address];
    let transport = HttpTransport::new(policy(&["127.0.0.0/8"]), Names::new("two.test", vec![addresses]));
    let exchange = transport.send(post(&target(&format!("http://two.test:{port}/")), PLENTY)).await;
    assert_eq!(exchange.result.unwrap().status, 200);
    assert!(exchange.phases.dns_us.is_some() && exchange.phases.connect_us.is_some());
}

struct Silent;

#[async_trait]
impl Resolve for Silent {
    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_silent_name_system_meets_the_deadline() {
    let transport = HttpTransport::new(policy(&[]), Arc::new(Silent));
    let failure = failure(&transport, &target("https://receiver.test/"), Duration::from_millis(20)).await;
    assert_failed(
        &failure,
        ErrorClass::Timeout,
        "the deadline of 20ms passed while looking up the host name",
    );
}

#[tokio::test]
async fn the_operating_system_knows_names() {
    let receiver = Receiver::answering(OK).await;
    let transport = HttpTransport::new(
        policy(&["127.0.0.0/8", "::1/128"]),
        Arc::new(tidegate_destinations::SystemResolver::default()),
    );
    let port = receiver.address.port();
    assert_eq!(answer(&transport, &target(&format!("http://localhost:{port}/"))).await.status, 200);
}
