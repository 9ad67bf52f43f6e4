//! A minimal blocking HTTP client: one connection per request, headers and bytes exactly as a test says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing takes this long; a test that waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where the server is, and who is calling.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// Sent with every request.
    headers: Vec<(String, String)>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Client {
    /// A caller without a key.
    pub(crate) fn stranger(address: SocketAddr) -> Self {
        Self { address, headers: Vec::new() }
    }

    /// The same caller with one more header in every request.
    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    /// The same address with another key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self::stranger(self.address).with("authorization", &format!("Bearer {key}"))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, body)
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, body)
    }

    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }

    /// Publishes an event or an array of them, which must be accepted.
    #[track_caller]
    pub(crate) fn publish(&self, events: &Value) -> Value {
        self.post("/v1/events", events).expect(202)
    }

    /// A request with JSON, or with nothing for null.
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &[("content-type", "application/json")], text.as_bytes())
    }

    /// A request with these headers and bytes.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n");
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut stream = self.connect();
        stream.write_all(&[head.as_bytes(), body].concat()).expect("the request is written");
        Answer::read(&mut stream)
    }

    /// A bare connection, for requests that are not quite right.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Reads a resource again and again until it is as wanted.
    #[track_caller]
    pub(crate) fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = within_patience(|| {
            last = self.get(path).expect(200);
            wanted(&last)
        });
        assert!(found, "{path} never became as wanted: {last:#}");
        last
    }
}

/// Asks until the answer is yes. Says no when patience has run out.
#[expect(clippy::disallowed_methods, reason = "a test must end, also when what it waits for never comes")]
pub(crate) fn within_patience(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if is_so() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

fn is_stream(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(1024)];
    let text = String::from_utf8_lossy(head);
    text.contains("\r\n\r\n") && text.contains("text/event-stream")
}

impl Answer {
    /// Reads everything until the server closes the connection. Of a stream, which does not end, the beginning.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while !is_stream(&bytes) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) => panic!("no whole answer: {error}; so far: {}", String::from_utf8_lossy(&bytes)),
            }
        }
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8(bytes[..end].to_vec()).expect("heads are text").to_ascii_lowercase();
        let status = head[9..12].parse().expect("a status");
        Self { status, head, body: bytes[end..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The body, when the status is this one.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// The problem, when it is this one.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{problem}");
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()), "{problem}");
        let is_text = |name: &str| problem[name].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_text("title") && is_text("detail") && is_text("type"), "{problem}");
        problem
    }
}
