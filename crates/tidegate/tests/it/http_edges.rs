//! The edges of HTTP: what is not there, what is not allowed, and clients that are slow, rude or gone.

use std::io::{Read, Write};

use serde_json::json;

use crate::client::{Answer, Client};
use crate::server::{ADMIN_KEY, Server};

#[test]
fn what_is_not_there_is_a_problem_too() {
    let server = Server::start();
    let client = server.admin();
    for path in ["/v1", "/v2/events", "/v1/events/", "/v1/events/a/b", "/v1//events", "/favicon.ico"] {
        client.get(path).problem(404, "path_unknown");
    }
    for (method, path, allowed) in [
        ("PUT", "/v1/events", "get,head,post"),
        ("GET", "/v1/subscribers/x/pause", "post"),
        ("POST", "/v1/subscribers/x", "delete,get,head,patch,put"),
        ("DELETE", "/livez", "get,head"),
        ("BREW", "/v1/keys", "get,head,post"),
    ] {
        let answer = client.send(method, path, &[], b"");
        answer.problem(405, "method_not_allowed");
        let mut allow: Vec<&str> = answer.header("allow").expect("an allow header").split(',').collect();
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
    }
    let head = client.send("HEAD", "/v1/events", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
}

/// Writes these bytes on a connection of their own and reads the status line's code, or 0 if there is none.
fn raw(client: &Client, bytes: &[u8]) -> u16 {
    let mut stream = client.connect();
    // A server that has seen enough may close before everything is written.
    let _ = stream.write_all(bytes);
    let mut head = [0; 12];
    match stream.read_exact(&mut head) {
        Ok(()) => String::from_utf8_lossy(&head[9..]).parse().expect("a status"),
        Err(_) => 0,
    }
}

#[test]
fn requests_that_are_not_http_are_refused_and_harm_nobody() {
    let server = Server::start();
    let client = server.admin();
    let with = |headers: &str, body: &str| {
        format!(
            "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n{headers}\r\n{body}"
        )
    };
    let event = r#"{"source":"s","type":"t"}"#;
    for (what, bytes) in [
        ("nonsense", "hello\r\n\r\n".to_owned()),
        ("two lengths", with("content-length: 1\r\ncontent-length: 2\r\n", "{}")),
        ("a bad length", with("content-length: +2\r\n", "{}")),
        ("a header with NUL", with("x-a: b\0c\r\ncontent-length: 0\r\n", "")),
        ("a folded header", with("x-a: b\r\n c\r\ncontent-length: 0\r\n", "")),
        ("a space before the colon", with("content-length : 25\r\n", event)),
        ("an unknown coding", with("transfer-encoding: gzip\r\n", event)),
        ("a bad chunk", with("transfer-encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n")),
        ("a huge head", with(&format!("x-a: {}\r\n", "b".repeat(100_000)), "")),
    ] {
        let status = raw(&client, bytes.as_bytes());
        assert!(matches!(status, 400 | 431 | 0), "{what}: {status}");
    }
    let smuggled = with(
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "0\r\n\r\nGET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
    );
    assert!(matches!(raw(&client, smuggled.as_bytes()), 400 | 0));
    assert_eq!(client.get("/v1/events").expect(200)["items"], json!([]), "nothing was accepted");
}

#[test]
fn a_head_has_at_most_64_kib() {
    let server = Server::start();
    let client = server.admin();
    let head = |bytes: usize| {
        let line = "GET /livez HTTP/1.1\r\nhost: x\r\nx-a: ";
        format!("{line}{}\r\n\r\n", "a".repeat(bytes - line.len() - 4))
    };
    assert_eq!(raw(&client, head(60 * 1024).as_bytes()), 200);
    assert_eq!(raw(&client, head(65 * 1024).as_bytes()), 431);
}

#[test]
fn one_connection_carries_many_requests() {
    let server = Server::start();
    let event = r#"{"source":"s","type":"t"}"#;
    let one = format!("POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n");
    let length = format!("content-length: {}\r\n", event.len());
    let chunked = format!(
        "{one}transfer-encoding: chunked\r\n\r\n5\r\n{}\r\n14\r\n{}\r\n0\r\n\r\n",
        &event[..5],
        &event[5..]
    );
    let last = format!("{one}{length}connection: close\r\n\r\n{event}");
    let mut stream = server.admin().connect();
    stream.write_all(format!("{one}{length}\r\n{event}{chunked}{last}").as_bytes()).expect("written");
    let answer = Answer::read(&mut stream);
    assert_eq!(answer.status, 202);
    let all = answer.text();
    assert_eq!(all.matches("HTTP/1.1 202").count(), 2, "the two answers after the first: {all}");
    assert_eq!(server.admin().get("/v1/events").expect(200)["items"].as_array().map(Vec::len), Some(3));
}

#[test]
fn slow_clients_do_not_block_the_others() {
    let server = Server::start();
    let client = server.admin();
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut head = client.connect();
        head.write_all(b"POST /v1/events HTTP/1.1\r\nhost: x\r\n").expect("written");
        // The largest request there may be, announced and never sent: together more than all requests may hold.
        let mut body = client.connect();
        let begun = format!(
            "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\ncontent-length: {}\r\n\r\n[",
            16 * 1024 * 1024
        );
        body.write_all(begun.as_bytes()).expect("written");
        slow.push((head, body));
    }
    for n in 0..20 {
        client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t" }));
    }
    drop(slow);
    assert_eq!(client.get("/v1/events").expect(200)["items"].as_array().map(Vec::len), Some(20));
}

/// Nine requests that are nearly as large as a request may be are more than may be under way together.
#[test]
fn what_there_is_no_room_for_is_refused_before_it_is_accepted() {
    const BODY: usize = 16 * 1024 * 1024;
    let server = Server::start();
    let client = server.admin();
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n\
         content-type: application/json\r\ncontent-length: {BODY}\r\n\r\n"
    );
    let mut begun = Vec::new();
    for _ in 0..9 {
        let mut stream = client.connect();
        stream.write_all(head.as_bytes()).expect("the head is written");
        // Whoever is refused may be closed before everything is written.
        let _ = stream.write_all(&vec![b' '; BODY - 1]);
        begun.push(stream);
    }
    let mut last = begun.pop().expect("the ninth");
    let mut answer = vec![0; 400];
    let read = last.read(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after"), "{answer}");
    assert!(answer.contains("overloaded"), "{answer}");
    let small = json!({ "source": "s", "type": "t", "data": 1 });
    client.publish(&small);
    drop(begun);
    assert!(crate::client::within_patience(|| client.post("/v1/events", &small).status == 202));
    let kept = client.get("/v1/events?limit=500").expect(200);
    assert_eq!(kept["items"].as_array().expect("items").len(), 2, "nothing that was refused was kept");
}
