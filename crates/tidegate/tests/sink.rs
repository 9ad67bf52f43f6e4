//! The real binary as a receiver, and the check of signatures.
//!
//! The sink is started on a free port, which its first line names; requests are written by hand and signed with
//! the same code that signs deliveries. Nothing waits for time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate_core::sign::Signer;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const OTHER_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

struct Sink {
    child: Child,
    lines: BufReader<ChildStdout>,
    address: String,
}

impl Sink {
    fn start(args: &[&str]) -> Self {
        let mut child = binary()
            .args(["sink", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut sink = Self { child, lines, address: String::new() };
        let welcome = sink.line();
        let url = welcome["listening"].as_str().expect("an address").to_owned();
        let to = format!("--to {url} ");
        assert!(welcome["cli"].as_str().is_some_and(|cli| cli.contains(&to)), "{welcome}");
        assert!(welcome["note"].as_str().is_some_and(|note| note.contains("127.0.0.1/32")), "{welcome}");
        sink.address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        sink
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("the sink listens")
    }

    /// Posts on a connection of its own and returns the answer's head.
    fn post(&self, headers: &str, body: &[u8]) -> String {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!("POST /hook HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat()).expect("written");
        read_head(&mut stream)
    }

    /// What is left to read, and the exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("UTF-8");
        (rest, self.child.wait().expect("it ends").code())
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text").to_lowercase()
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear();
    command
}

#[expect(clippy::disallowed_methods, reason = "the sink compares the signature's time with the real one")]
fn now_seconds() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since_epoch.as_secs()).expect("before the end of time")
}

fn signed(id: &str, body: &[u8]) -> String {
    let at = now_seconds();
    let signature = Signer::parse(SECRET).expect("a secret").signature(id, at, body);
    format!("webhook-id: {id}\r\nwebhook-timestamp: {at}\r\nwebhook-signature: {signature}\r\n")
}

#[test]
fn a_sink_checks_signatures_marks_repeats_and_ends_after_its_count() {
    let mut sink = Sink::start(&["--secret", OTHER_SECRET, "--secret", SECRET, "--count", "4"]);
    let body = br#"{"type":"order.paid","data":{"total": 1.50}}"#;
    assert!(sink.post(&signed("dlv_1", body), body).starts_with("http/1.1 200 "));
    let first = sink.line();
    assert_eq!((&first["verified"], &first["duplicate"]), (&json!(true), &json!(false)), "{first}");
    assert_eq!(
        (&first["id"], &first["path"], &first["method"]),
        (&json!("dlv_1"), &json!("/hook"), &json!("POST"))
    );
    assert_eq!(first["body"], json!({"type":"order.paid","data":{"total":1.5}}));

    sink.post(&signed("dlv_1", body), body);
    assert_eq!(sink.line()["duplicate"], true);

    sink.post(&signed("dlv_2", body), br#"{"type":"order.paid","data":{"total": 9.99}}"#);
    let changed = sink.line();
    assert_eq!(changed["verified"], false);
    assert!(changed["complaint"].as_str().is_some_and(|text| text.contains("does not match")), "{changed}");

    sink.post("", b"\xff\x00");
    let bare = sink.line();
    assert_eq!((&bare["id"], &bare["body_base64"]), (&Value::Null, &json!("/wA=")));
    assert!(bare["complaint"].as_str().is_some_and(|text| text.contains("webhook-id")), "{bare}");
    assert_eq!(sink.end(), (String::new(), Some(1)), "two signatures were wrong");
}

#[test]
fn a_sink_answers_as_told_and_claims_nothing_without_a_secret() {
    let mut sink =
        Sink::start(&["--status", "503", "--retry-after", "1500ms", "--delay", "1ms", "--count", "1"]);
    let head = sink.post("", b"{}");
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    assert!(head.contains("\r\nretry-after: 2\r\n"), "{head}");
    let line = sink.line();
    assert_eq!((&line["status"], &line["verified"]), (&json!(503), &Value::Null));
    assert_eq!(sink.end(), (String::new(), Some(0)));
}

#[test]
fn a_seed_makes_a_flaky_sink_repeatable() {
    let statuses = |seed: &str| -> Vec<i64> {
        let mut sink = Sink::start(&["--flaky", "0.5", "--seed", seed, "--count", "32"]);
        let statuses = (0..32).map(|_| {
            sink.post("", b"{}");
            sink.line()["status"].as_i64().expect("a number")
        });
        statuses.collect()
    };
    let first = statuses("7");
    assert!(first.contains(&500) && first.contains(&200), "{first:?}");
    assert_eq!(first, statuses("7"));
    assert_ne!(first, statuses("8"));
}

#[test]
fn a_quiet_sink_says_only_the_sum() {
    let sink = Sink::start(&["--quiet", "--count", "2"]);
    sink.post("webhook-id: a\r\n", b"{}");
    sink.post("webhook-id: a\r\n", b"{}");
    let (rest, code) = sink.end();
    let sum: Value = serde_json::from_str(&rest).expect("one JSON object");
    assert_eq!(sum, json!({"requests":2,"duplicates":1,"wrong":0}));
    assert_eq!(code, Some(0));
}

#[test]
fn an_ending_sink_closes_idle_connections_and_finishes_the_last_answer() {
    let sink = Sink::start(&["--count", "1"]);
    let mut idle = sink.connect();
    assert!(sink.post("", b"{}").starts_with("http/1.1 200 "));
    assert_eq!(idle.read(&mut [0]).expect("closed, not broken"), 0);
    assert_eq!(sink.end().1, Some(0));
}

#[test]
fn a_body_beyond_the_cap_is_refused() {
    let mut sink = Sink::start(&["--count", "1"]);
    let head = sink.post("", &vec![b' '; 16 * 1024 * 1024 + 1]);
    assert!(head.starts_with("http/1.1 413 "), "{head}");
    assert_eq!(sink.line()["status"], 413);
}

#[test]
fn a_taken_port_is_named_with_a_remedy() {
    let sink = Sink::start(&["--count", "1"]);
    let output = binary().args(["sink", "--listen", &sink.address]).output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(text.contains(&sink.address) && text.contains("--listen 127.0.0.1:0"), "{text}");
    sink.post("", b"");
    sink.end();
}

const AT: i64 = 1_764_547_200;
const BODY: &str = r#"{"type":"order.paid"}"#;

fn verify(args: &[&str], input: &str) -> Output {
    let mut child = binary()
        .arg("verify")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command line that is refused reads nothing.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

#[test]
fn verify_says_yes_or_exactly_what_is_wrong() {
    let signature = Signer::parse(SECRET).expect("a secret").signature("dlv_1", AT, BODY.as_bytes());
    let check = |secret: &str, id: &str, now: &str, body: &str| {
        let at = AT.to_string();
        let args = ["--secret", secret, "--id", id, "--timestamp", &at, "--signature", &signature];
        let output = verify(&[&args[..], &["--body", "-", "--now", now]].concat(), body);
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), answer["verified"].clone(), answer["complaint"].to_string())
    };
    let now = "2025-12-01T00:01:00Z";
    assert_eq!(check(SECRET, "dlv_1", now, BODY), (Some(0), json!(true), "null".to_owned()));
    for (secret, id, now, body, part) in [
        (OTHER_SECRET, "dlv_1", now, BODY, "another secret"),
        (SECRET, "dlv_2", now, BODY, "does not match"),
        (SECRET, "dlv_1", "2025-12-01T00:06:00Z", BODY, "6m ago"),
        (SECRET, "dlv_1", now, "{\"type\":\"order.paid\"}\n", "line break"),
        ("whsec_x", "dlv_1", now, BODY, "secret"),
    ] {
        let (code, verified, complaint) = check(secret, id, now, body);
        assert_eq!((code, verified), (Some(1), json!(false)), "{part}");
        assert!(complaint.contains(part), "{part} is not in {complaint}");
    }
}

#[test]
fn verify_reads_headers_as_they_came() {
    let signature = Signer::parse(SECRET).expect("a secret").signature("dlv_1", AT, BODY.as_bytes());
    let headers = format!(
        "POST / HTTP/1.1\r\nWebhook-Id: dlv_1\r\nWebhook-Timestamp: {AT}\r\nWebhook-Signature: {signature}\r\n"
    );
    let args = ["--secret", SECRET, "--headers", "-", "--now", "2025-12-01T00:00:00Z", "--body"];
    assert_eq!(verify(&[&args[..], &[BODY]].concat(), &headers).status.code(), Some(0));
    assert_eq!(verify(&[&args[..], &["-"]].concat(), &headers).status.code(), Some(2), "stdin twice");
    let missing = verify(&[&args[..], &[BODY]].concat(), "host: x\r\n");
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stdout).contains("webhook-id"));
    let wrong_time = ["--secret", SECRET, "--headers", "-", "--now", "noon", "--body", BODY];
    assert_eq!(verify(&wrong_time, &headers).status.code(), Some(2));
}
