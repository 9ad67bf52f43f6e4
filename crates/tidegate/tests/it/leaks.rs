//! Secrets are nowhere but where they belong.
//!
//! Every secret of a busy installation is marked; then everything that it wrote, logged, counted, answered or was started
//! with is searched for the marks.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::receiver::{Receiver, Reply};
use crate::server::{Server, Setup};
use crate::shell::Shell;

const ADMIN_KEY: &str = "tgk_0000LEAKadminLEAKadminLEAKadmin";
/// Decodes to bytes that hold a mark too.
const MASTER_KEY: &str = "TEVBS21hc3RlckxFQUttYXN0ZXJMRUFLbWFzdGVyMDA=";
const WRONG_KEY: &str = "tgk_0000LEAKwrongLEAKwrongLEAKwrong";
const SIGNING: &str = "whsec_TEVBS3NpZ25pbmdMRUFLc2lnbmluZ0xFQUswMDAw";
const IN_PATH: &str = "LEAKpathLEAKpath";
const IN_QUERY: &str = "LEAKqueryLEAKquery";
const IN_HEADER: &str = "LEAKheaderLEAKheader";
const MARK: &[u8] = b"LEAK";
/// The marks again, as base64 carries them.
const MARKS_ENCODED: [&[u8]; 2] = [b"TEVBS21hc3Rlc", b"TEVBS3NpZ25pbm"];

#[track_caller]
fn search(place: &str, bytes: &[u8]) {
    for mark in MARKS_ENCODED.into_iter().chain([MARK]) {
        let found = bytes.windows(mark.len()).position(|window| window == mark);
        if let Some(at) = found {
            let around = &bytes[at.saturating_sub(60)..(at + 60).min(bytes.len())];
            panic!("a secret is in {place}: {}", String::from_utf8_lossy(around));
        }
    }
}

fn search_answer(what: &str, answer: &Answer) {
    search(&format!("the answer to {what}"), &answer.body);
}

fn start(format: &str) -> Server {
    let variables = vec![("TIDEGATE_LOG", "trace".to_owned()), ("TIDEGATE_LOG_FORMAT", format.to_owned())];
    let setup =
        Setup { admin_key: Some(ADMIN_KEY), master_key: Some(MASTER_KEY), variables, ..Setup::usual() };
    Server::start_with(&setup)
}

fn destination(base: &str) -> Value {
    let url = format!("{base}/{IN_PATH}/?token={IN_QUERY}");
    json!({ "destination": { "url": url, "headers": { "x-token": IN_HEADER } }, "secret": SIGNING,
        "retry": { "schedule": ["1ms"] } })
}

/// Deliveries that arrive, fail, are refused, and find their receiver gone.
fn deliveries(admin: &Client) -> Vec<String> {
    let replies = [200, 500, 410];
    let hooks = replies.map(|status| Receiver::scripted(move |_| Reply::status(status)));
    let mut bases: Vec<String> = hooks.iter().map(|hook| format!("http://{}", hook.address)).collect();
    bases.extend(["http://127.0.0.1:1", "https://127.0.0.1:1", "http://nowhere.invalid"].map(str::to_owned));
    bases.push(format!("https://{}", hooks[0].address));
    let subscribers: Vec<String> = bases
        .iter()
        .map(|base| {
            let made = admin.post("/v1/subscribers", &destination(base)).expect(201);
            made["id"].as_str().expect("an id").to_owned()
        })
        .collect();
    admin.publish(&json!({ "id": "e", "source": "s", "type": "t" }));
    let arrival = hooks[0].next();
    assert!(arrival.line.contains(IN_PATH) && arrival.line.contains(IN_QUERY), "{}", arrival.line);
    assert_eq!(arrival.header("x-token"), IN_HEADER);
    arrival.verify(SIGNING);
    admin.until("/v1/deliveries", |page| {
        let is_over =
            |item: &Value| !matches!(item["status"].as_str(), Some("pending" | "sending" | "retrying"));
        page["items"].as_array().is_some_and(|items| items.iter().all(is_over))
    });
    subscribers
}

/// Requests that are wrong, with secrets in them.
fn bad_requests(admin: &Client, subscriber: &str) {
    let path = format!("/v1/subscribers/{subscriber}");
    search_answer("a wrong key", &admin.with_key(WRONG_KEY).get("/v1/events"));
    search_answer(
        "a wrong scheme",
        &admin.with_key("x").with("authorization", "Basic LEAKbasic").get("/v1/events"),
    );
    for (what, body) in [
        (
            "a blocked address",
            json!({ "destination": { "url": format!("http://10.0.0.1/{IN_PATH}?t={IN_QUERY}") } }),
        ),
        (
            "a password in a URL",
            json!({ "destination": { "url": format!("https://u:{IN_PATH}@example.com/") } }),
        ),
        ("a scheme", json!({ "destination": { "url": format!("ftp://example.com/{IN_PATH}") } })),
        ("no URL", json!({ "destination": { "url": format!("https://exa mple/{IN_PATH}") } })),
        (
            "a header value",
            json!({ "destination": { "headers": { "x-a": format!("{IN_HEADER}\r\nx: y") } } }),
        ),
        ("a reserved header", json!({ "destination": { "headers": { "host": IN_HEADER } } })),
        ("a header type", json!({ "destination": { "headers": [IN_HEADER] } })),
        ("a secret", json!({ "secret": SIGNING })),
    ] {
        let answer = admin.patch(&path, &body);
        assert_eq!(answer.status, 422, "{what}: {}", answer.text());
        search_answer(what, &answer);
    }
    let mut broken = admin.connect();
    broken
        .write_all(format!("GET /{IN_PATH}\0 HTTP/1.1\r\nx: {IN_HEADER}\r\n\r\n").as_bytes())
        .expect("written");
    search_answer("what is not HTTP", &Answer::read(&mut broken));
    let short = json!({ "destination": { "url": "https://example.com" }, "secret": "whsec_TEVBS3NpZ25pbm" });
    search_answer("a short secret", &admin.post("/v1/subscribers", &short));
    search_answer("a PATCH", &admin.patch(&path, &json!({ "name": "x" })));
}

fn reads(admin: &Client, subscribers: &[String]) {
    for path in [
        "/metrics",
        "/readyz?verbose",
        "/v1/keys",
        "/v1/master-key",
        "/v1/deliveries",
        "/v1/dead-letters",
        "/v1/events/e/trace",
        "/v1/subscribers",
        "/v1/webhooks/subscribers",
    ] {
        let answer = admin.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        search_answer(path, &answer);
    }
    for id in subscribers {
        for path in [
            format!("/v1/subscribers/{id}"),
            format!("/v1/subscribers/{id}/deliveries"),
            format!("/v1/webhooks/subscribers/{id}"),
        ] {
            search_answer(&path, &admin.get(&path));
        }
    }
    for item in admin.get("/v1/deliveries").expect(200)["items"].as_array().expect("items") {
        let path = format!("/v1/deliveries/{}", item["id"].as_str().expect("an id"));
        search_answer(&path, &admin.get(&path));
    }
}

/// What commands print for people and for scripts.
fn commands(server: &Server, subscriber: &str) {
    let shell = Shell::new(server).with_key(ADMIN_KEY);
    let get = format!("tidegate subscribers get {subscriber}");
    let test = format!("tidegate subscribers test {subscriber}");
    let looks = ["tidegate subscribers list", "tidegate deliveries list", "tidegate trace e", &get, &test];
    for line in ["tidegate export", "tidegate doctor --data-dir data"].into_iter().chain(looks) {
        for ended in [shell.types(line), shell.runs(line)] {
            let printed = ended.everything();
            assert!(printed.contains("sub") || line.contains(" test "), "{line} says something: {printed}");
            search(&format!("what `{line}` prints"), printed.as_bytes());
        }
    }
}

/// Everything that happens, from the beginning to the end of the server.
fn follow(admin: &Client) -> TcpStream {
    let mut stream = admin.connect();
    let head = format!("GET /v1/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("written");
    // Only what comes after its head is followed.
    let mut first = [0; 12];
    stream.read_exact(&mut first).expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

#[test]
fn no_secret_is_logged_counted_answered_or_kept_in_clear() {
    for format in ["text", "json"] {
        let mut server = start(format);
        let admin = Client::stranger(server.address).with_key(ADMIN_KEY);
        let created = admin.post("/v1/keys", &json!({ "role": "viewer" })).expect(201);
        let key = created["key"].as_str().expect("a key").to_owned();
        let mut stream = follow(&admin);
        let subscribers = deliveries(&admin);
        bad_requests(&admin, &subscribers[0]);
        let path = format!("/v1/subscribers/{}/rotate-secret", subscribers[1]);
        admin.post(&path, &json!({ "signing": { "algorithm": "ed25519" } })).expect(200);
        reads(&admin, &subscribers);
        commands(&server, &subscribers[0]);
        search("the command line", &server.command_line());
        server.stop();
        let mut streamed = Vec::new();
        stream.read_to_end(&mut streamed).expect("it ends");
        assert!(streamed.windows(9).any(|window| window == b"delivered"), "the stream tells of deliveries");
        search("the stream", &streamed);
        let log = server.log();
        assert!(log.contains("a connection ended early"), "what is for debugging is logged: {log}");
        search("the log", log.as_bytes());
        assert!(!log.contains(&key), "a key that was made is logged");
        for file in fs::read_dir(server.folder.path().join("data")).expect("data") {
            let path = file.expect("a file").path();
            let bytes = fs::read(&path).expect("read");
            search(&path.display().to_string(), &bytes);
            assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()), "{}", path.display());
        }
    }
}
