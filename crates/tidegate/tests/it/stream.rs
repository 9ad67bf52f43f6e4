//! Following: `/v1/stream` and `tidegate tail`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver as Lines};

use serde_json::{Value, json};

use crate::client::{Client, PATIENCE};
use crate::receiver::Receiver;
use crate::server::{ADMIN_KEY, Server, Setup};

/// An open stream.
struct Stream {
    reader: BufReader<TcpStream>,
    head: String,
}

/// What one frame said.
#[derive(Debug)]
struct Frame {
    id: String,
    kind: String,
    data: Value,
}

impl Stream {
    fn open(client: &Client, query: &str, headers: &str) -> Self {
        let mut stream = client.connect();
        let key = format!("authorization: Bearer {ADMIN_KEY}\r\n");
        let head = format!("GET /v1/stream?{query} HTTP/1.1\r\nhost: tidegate\r\n{key}{headers}\r\n");
        stream.write_all(head.as_bytes()).expect("written");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("a head") > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Self { reader, head }
    }

    /// The next frame, signs of life included. `None` at the end.
    fn any(&mut self) -> Option<Frame> {
        let mut text = String::new();
        loop {
            let line = self.line()?;
            if line.is_empty() && !text.is_empty() {
                break;
            }
            text.push_str(&line);
            text.push('\n');
        }
        let part =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").to_owned();
        let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let data = serde_json::from_str(&data.join("\n")).unwrap_or(Value::Null);
        Some(Frame { id: part("id: "), kind: part("event: "), data })
    }

    /// A line of the stream, without the marks of its chunks.
    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).expect("a line in time") == 0 {
                return None;
            }
            // Marks of chunks, and the ends of chunks, are the only lines that end in CR LF.
            match line.strip_suffix("\r\n") {
                Some("0") => return None,
                Some(_) => {}
                None => return Some(line.trim_end_matches('\n').to_owned()),
            }
        }
    }

    /// The next frame with something in it.
    fn next(&mut self) -> Frame {
        std::iter::from_fn(|| self.any()).find(|frame| !frame.kind.is_empty()).expect("the stream goes on")
    }

    fn next_ids(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.next().data["id"].as_str().expect("an id").to_owned()).collect()
    }
}

fn event(id: &str) -> Value {
    json!({ "id": id, "source": "shop", "type": "order.paid", "data": { "n": 1 } })
}

#[test]
fn events_and_results_of_attempts_are_told_as_they_happen() {
    let server = Server::start();
    let hook = Receiver::answering(&[500]);
    let subscriber = server.subscribe(&hook, &json!({ "retry": { "schedule": ["10ms"] } }));
    let mut stream = Stream::open(&server.admin(), "", "");
    assert!(stream.head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{}", stream.head);
    server.admin().publish(&event("e1"));
    let first = stream.next();
    assert_eq!(
        (first.kind.as_str(), &first.data),
        ("event", &server.admin().get("/v1/events/e1").expect(200))
    );
    let failed = stream.next();
    assert_eq!(failed.kind, "delivery");
    let attempt = &failed.data["attempt"];
    assert_eq!(
        (&attempt["n"], &attempt["status"], &attempt["error"]),
        (&1.into(), &500.into(), &"status".into())
    );
    assert!(attempt["phases"]["total_us"].as_u64() > Some(0) && failed.data["due_at"].is_string());
    assert_eq!((&failed.data["status"], &failed.data["events"]), (&"retrying".into(), &json!(["e1"])));
    assert_eq!(failed.data["subscriber"], subscriber.id);
    let delivered = stream.next().data;
    assert_eq!((&delivered["status"], &delivered["id"]), (&"delivered".into(), &failed.data["id"]));
}

#[test]
fn a_stream_goes_on_where_it_was_left_without_gap_or_repeat_over_a_restart() {
    let mut server = Server::start();
    let many: Vec<Value> = (0..700).map(|n| event(&format!("e{n:03}"))).collect();
    server.admin().publish(&Value::Array(many));
    let mut stream = Stream::open(&server.admin(), "kinds=event&after=c0", "");
    let mut ids = stream.next_ids(299);
    let last = stream.next();
    ids.push(last.data["id"].as_str().expect("an id").to_owned());
    drop(stream);
    server.kill();
    server.restart(&Setup::usual());
    let resume = format!("last-event-id: {}\r\n", last.id);
    let mut stream = Stream::open(&server.admin(), "kinds=event&after=c0", &resume);
    ids.extend(stream.next_ids(400));
    server.admin().publish(&event("later"));
    ids.extend(stream.next_ids(1));
    let expected: Vec<String> = (0..700).map(|n| format!("e{n:03}")).chain(["later".to_owned()]).collect();
    assert_eq!(ids, expected);
    let both = Stream::open(&server.admin(), &format!("after={}", last.id), "").next();
    assert_eq!(both.kind, "event", "events first, the gap in the results after them");
}

#[test]
fn a_reader_that_does_not_read_costs_no_memory_and_misses_nothing() {
    let server = Server::start();
    let mut slow = Stream::open(&server.admin(), "kinds=event", "");
    let large = "x".repeat(200_000);
    for round in 0..10 {
        let batch = (0..20)
            .map(|n| json!({ "id": format!("{round}-{n:02}"), "source": "s", "type": "t", "data": large }));
        server.admin().publish(&batch.collect());
    }
    let expected: Vec<String> =
        (0..10).flat_map(|round| (0..20).map(move |n| format!("{round}-{n:02}"))).collect();
    assert_eq!(slow.next_ids(200), expected);
}

#[test]
fn filters_choose_and_wrong_ones_are_refused() {
    let server = Server::start();
    let hook = Receiver::start();
    let wanted = server.subscribe(&hook, &json!({}));
    server.subscribe(&hook, &json!({}));
    let client = server.admin();
    let mut typed = Stream::open(&client, "kinds=event&types=order.*,exact&sources=shop", "");
    let mut of_one = Stream::open(&client, &format!("kinds=delivery&subscriber={}", wanted.id), "");
    for (id, source, kind) in
        [("a", "shop", "orders"), ("b", "bank", "order.x"), ("c", "shop", "order.x"), ("d", "shop", "exact")]
    {
        client.publish(&json!({ "id": id, "source": source, "type": kind }));
    }
    assert_eq!(typed.next_ids(2), ["c", "d"]);
    for _ in 0..4 {
        assert_eq!(of_one.next().data["subscriber"], wanted.id);
    }
    for (query, code) in [
        ("kinds=events", "kind_unknown"),
        ("types=a%20b", "pattern_invalid"),
        ("after=x", "cursor_invalid"),
        ("typos=x", "parameter_unknown"),
    ] {
        client.get(&format!("/v1/stream?{query}")).problem(422, code);
    }
    client.get("/v1/stream?subscriber=sub_x").problem(404, "not_found");
}

#[test]
fn only_ones_own_project_is_seen_and_a_deleted_key_sees_nothing_more() {
    let server = Server::start();
    let admin = server.admin();
    admin.post("/v1/projects", &json!({ "id": "p1" })).expect(201);
    let viewer = admin.post("/v1/keys", &json!({ "project": "p1", "role": "viewer" })).expect(201);
    let publisher = admin.post("/v1/keys", &json!({ "project": "p1", "role": "publisher" })).expect(201);
    let with = |key: &Value| admin.with_key(key["key"].as_str().expect("a key"));
    with(&publisher).get("/v1/stream").problem(403, "role_insufficient");
    Client::stranger(server.address).get("/v1/stream").problem(401, "key_invalid");
    let key = format!("authorization: Bearer {}\r\n", viewer["key"].as_str().expect("a key"));
    let mut stream = client_stream(&server, &key);
    admin.publish(&event("not-mine"));
    with(&publisher).publish(&event("mine"));
    assert_eq!(stream.next_ids(1), ["mine"]);
    admin.delete(&format!("/v1/keys/{}", viewer["id"].as_str().expect("an id"))).expect(200);
    with(&publisher).publish(&event("after-the-key"));
    assert!(stream.any().is_none(), "the stream has ended");
}

/// A stream of somebody else.
fn client_stream(server: &Server, key: &str) -> Stream {
    let mut connection = Client::stranger(server.address).connect();
    let head = format!("GET /v1/stream HTTP/1.1\r\nhost: tidegate\r\n{key}\r\n");
    connection.write_all(head.as_bytes()).expect("written");
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).expect("a head");
    }
    let mut stream = Stream { reader, head };
    assert!(stream.any().is_some(), "the opening: the stream has begun");
    stream
}

#[test]
fn streams_are_few_and_end_with_the_server() {
    let mut server = Server::start();
    let mut streams: Vec<Stream> = (0..32).map(|_| Stream::open(&server.admin(), "", "")).collect();
    let refused = server.admin().get("/v1/stream");
    refused.problem(429, "streams_exhausted");
    assert_eq!(refused.header("retry-after"), Some("1"));
    server.stop();
    for stream in &mut streams {
        let mut rest = Vec::new();
        stream.reader.read_to_end(&mut rest).expect("it ends");
        assert!(rest.ends_with(b"0\r\n\r\n"), "it ends as a whole answer does");
    }
}

/// `tidegate tail`, and what it prints.
struct Tail(Child, Lines<String>);

impl Tail {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["tail"])
            .args(args)
            .env_clear()
            .env("TIDEGATE_URL", format!("http://{}", server.address))
            .env("TIDEGATE_KEY", ADMIN_KEY)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self(child, lines)
    }

    fn next(&self) -> Value {
        serde_json::from_str(&self.1.recv_timeout(PATIENCE).expect("a line")).expect("JSON")
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tail_prints_comes_back_and_ends_when_it_has_enough() {
    let mut server = Server::start();
    server.admin().publish(&json!([event("e1"), event("e2")]));
    let mut tail = Tail::start(&server, &["--after", "c0", "--kinds", "event", "--count", "4"]);
    assert_eq!(
        (tail.next()["data"]["id"].clone(), tail.next()["kind"].clone()),
        ("e1".into(), "event".into())
    );
    let address = server.address.to_string();
    server.stop();
    let address: &'static str = Box::leak(address.into_boxed_str());
    server.restart(&Setup { listen: Some(address), ..Setup::usual() });
    server.admin().publish(&json!([event("e3"), event("e4")]));
    assert_eq!(
        (tail.next()["data"]["id"].clone(), tail.next()["data"]["id"].clone()),
        ("e3".into(), "e4".into())
    );
    assert!(tail.0.wait().expect("it ends").success());
}
