//! Crowds at the door: clients that say nothing, say it slowly or do not listen, while others have business.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use serde_json::json;

use crate::client::{Client, PATIENCE, within_patience};
use crate::server::{ADMIN_KEY, Server, Setup};

fn start(variables: &[(&'static str, &str)]) -> Server {
    let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Server::start_with(&Setup { variables, ..Setup::usual() })
}

/// Everything the server still says on this connection until it closes it, which it must do in time.
#[track_caller]
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("it was not closed: {error}"),
    }
    String::from_utf8(bytes).expect("text")
}

#[test]
fn whoever_says_nothing_is_sent_away() {
    let server = start(&[("TIDEGATE_TIMEOUTS_FIRST_BYTE", "200ms")]);
    assert_eq!(rest(server.admin().connect()), "");
    let metrics = server.admin().get("/metrics").text();
    assert!(metrics.contains(r#"connections_refused_total{reason="slow"} 1"#), "{metrics}");
}

#[test]
fn whoever_does_not_finish_a_head_is_sent_away() {
    let server = start(&[("TIDEGATE_TIMEOUTS_HEAD", "200ms")]);
    for begun in ["G", "GET /livez HTTP/1.1\r\n", "GET /livez HTTP/1.1\r\nhost: x\r\nx-a: b"] {
        let mut stream = server.admin().connect();
        stream.write_all(begun.as_bytes()).expect("written");
        assert_eq!(rest(stream), "", "{begun}");
    }
    let mut second = server.admin().connect();
    second.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").expect("written");
    second.read_exact(&mut [0; 12]).expect("an answer");
    second.write_all(b"GET /livez HTTP/1.1\r\nhost:").expect("written");
    assert_eq!(rest(second).matches("HTTP/1.1").count(), 0, "the second request was never whole");
}

#[test]
fn a_connection_without_requests_is_kept_for_a_while_only() {
    let server = start(&[("TIDEGATE_TIMEOUTS_IDLE", "200ms")]);
    let mut stream = server.admin().connect();
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").expect("written");
    assert!(rest(stream).starts_with("HTTP/1.1 200"));
}

#[test]
fn whoever_does_not_read_his_answers_is_sent_away() {
    const REQUESTS: usize = 2_000;
    let server = start(&[("TIDEGATE_TIMEOUTS_STALL", "300ms")]);
    let mut stream = server.admin().connect();
    stream
        .write_all("GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(REQUESTS).as_bytes())
        .expect("written");
    let refused = |text: &str| text.contains(r#"connections_refused_total{reason="slow"} 1"#);
    let is_gone = within_patience(|| refused(&server.admin().get("/metrics").text()));
    assert!(is_gone, "it has a place for ever");
    assert!(rest(stream).matches("HTTP/1.1 200").count() < REQUESTS, "not everything was written");
}

/// A connection from another address of this machine.
fn from(source: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind((source, 0).into())?;
        let stream = socket.connect(to).await?.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    })
}

/// Connections of many addresses, a third each: silent, with half a head, with half a body.
fn crowd(server: &Server, count: usize) -> Vec<TcpStream> {
    let body = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\ncontent-length: 99\r\n\r\n["
    );
    let words = ["", "POST /v1/events HTTP/1.1\r\nhost: x\r\n", body.as_str()];
    let join = |n: usize| {
        let source = Ipv4Addr::new(127, 0, 1, u8::try_from(n % 16).expect("small"));
        let mut stream = from(source, server.address).expect("the server listens");
        // Who has been sent away meanwhile can not write any more.
        let _ = stream.write_all(words[n % words.len()].as_bytes());
        stream
    };
    (0..count).map(join).collect()
}

#[test]
fn a_crowd_that_does_nothing_keeps_nobody_out() {
    // More come than there are places; a third of them holds its place with a request under way.
    let server =
        start(&[("TIDEGATE_LIMITS_CONNECTIONS", "200"), ("TIDEGATE_LIMITS_CONNECTIONS_PER_ADDRESS", "20")]);
    let client = server.admin();
    let mut held = crowd(&server, 400);
    for n in 0..20 {
        client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t" }));
        held.append(&mut crowd(&server, 1));
    }
    let listed = client.get("/v1/events").expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(20));
    drop(held);
}

#[test]
fn one_address_can_not_take_every_place() {
    let server =
        start(&[("TIDEGATE_LIMITS_CONNECTIONS", "100"), ("TIDEGATE_LIMITS_CONNECTIONS_PER_ADDRESS", "10")]);
    // Every one of them has a request under way, so none of them makes room.
    let begun = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\ncontent-length: 99\r\nexpect: 100-continue\r\n\r\n"
    );
    let source = Ipv4Addr::new(127, 0, 2, 1);
    let mut working = Vec::new();
    for _ in 0..10 {
        let mut stream = from(source, server.address).expect("the server listens");
        stream.write_all(begun.as_bytes()).expect("written");
        stream.read_exact(&mut [0; 12]).expect("it was told to go on");
        working.push(stream);
    }
    let eleventh = from(source, server.address).expect("accepted");
    eleventh.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(rest(eleventh), "", "closed at once");
    Client::stranger(server.address).get("/livez").expect(200);
    drop(working);
    let is_free = within_patience(|| {
        let mut again = from(source, server.address).expect("the server listens");
        let _ = again.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        rest(again).starts_with("HTTP/1.1 200")
    });
    assert!(is_free, "a place that was left is free");
}
