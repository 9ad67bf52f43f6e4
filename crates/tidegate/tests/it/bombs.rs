//! Input that is made to break things: deep, huge, wide, endless. Each is refused or bounded, and the server goes on.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::receiver::Receiver;
use crate::server::Server;

const JSON: (&str, &str) = ("content-type", "application/json");
/// Far more than the largest request needs.
const MEMORY_KB_MAX: u64 = 400_000;

fn send(client: &Client, method: &str, path: &str, body: &[u8]) -> Answer {
    client.send(method, path, &[JSON], body)
}

fn memory_kb(server: &Server) -> u64 {
    let status = server.status_file();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a high-water mark");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn deep_and_huge_json_is_refused_everywhere() {
    let server = Server::start();
    let client = server.admin();
    let deep = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    let (lists, objects) = (deep("[", "]", 100_000), deep("{\"a\":", "}", 100_000));
    let event = |data: &str| format!("{{\"source\":\"s\",\"type\":\"t\",\"data\":{data}}}");
    for (method, path) in [
        ("POST", "/v1/events"),
        ("POST", "/v1/subscribers"),
        ("PATCH", "/v1/subscribers/x"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/projects"),
    ] {
        for body in [&lists, &objects, &event(&lists), &event(&objects), &"[".repeat(1_000_000)] {
            let answer = send(&client, method, path, body.as_bytes());
            assert!(matches!(answer.status, 400 | 404 | 413 | 422), "{method} {path}: {}", answer.text());
        }
    }
    let long = event(&format!("\"{}\"", "a".repeat(2 << 20)));
    assert_eq!(send(&client, "POST", "/v1/events", long.as_bytes()).status, 413);
    let wide: Vec<String> = (0..200_000).map(|n| format!("\"k{n}\":1")).collect();
    let answer = send(&client, "POST", "/v1/events", event(&format!("{{{}}}", wide.join(","))).as_bytes());
    assert_eq!(answer.status, 413, "{}", answer.text());
    let many = format!("[{}]", vec![event("1"); 10_001].join(","));
    assert!(matches!(send(&client, "POST", "/v1/events", many.as_bytes()).status, 413 | 422));
    assert_eq!(client.get("/v1/events").expect(200)["items"], json!([]), "nothing was accepted");
    assert!(memory_kb(&server) < MEMORY_KB_MAX, "{} KiB", memory_kb(&server));
}

#[test]
fn what_json_leaves_open_is_decided() {
    let server = Server::start();
    let client = server.admin();
    for body in [
        br#"{"id":"a","id":"b","source":"s","type":"t"}"#.as_slice(),
        br#"{"source":"s","source":"s","type":"t"}"#,
        b"{\"source\":\"s\",\"type\":\"t\",\"data\":NaN}",
        b"{\"source\":\"s\",\"type\":\"t\",\"data\":\"\xff\"}",
        b"{\"source\":\"s\0\",\"type\":\"t\"}",
        br#"{"source":"s","type":"\ud800"}"#,
        b"\xef\xbb\xbf{\"source\":\"s\",\"type\":\"t\"}",
        br#"{"source":"s","type":"t"} x"#,
    ] {
        let answer = send(&client, "POST", "/v1/events", body);
        assert!(matches!(answer.status, 400 | 422), "{}: {}", String::from_utf8_lossy(body), answer.text());
    }
    let data = r#"{"a":1,"a":2,"n":1e999,"z":-0.0,"u":"\ud800"}"#;
    let body = format!("{{\"id\":\"odd\",\"source\":\"s\",\"type\":\"t\",\"data\":{data}}}");
    assert_eq!(send(&client, "POST", "/v1/events", body.as_bytes()).status, 202);
    let kept = client.get("/v1/events/odd").text();
    assert!(kept.contains(data), "data is nobody's business but the sender's: {kept}");
}

#[test]
fn conditions_can_not_stop_the_server() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let nested =
        |n: usize| (0..n).fold("1 == 1".to_owned(), |inner, _| format!("[1,2,3,4,5,6,7,8].all(x, {inner})"));
    let bombs = [
        nested(2),
        nested(3),
        nested(12),
        format!("{}true{}", "(".repeat(500), ")".repeat(500)),
        format!("{}true", "!".repeat(1_000)),
        format!("{}1 == 1", "-".repeat(1_000)),
        vec!["data"; 200].join("."),
        vec!["1"; 500].join("+") + " == 1",
        format!("data.s.matches('{}')", "(a*)*".repeat(40)),
        "data.s.matches('(a{1000}){1000}')".to_owned(),
        "data.l.map(x, data.l.map(y, data.l)).size() > 0".to_owned(),
        "data.l.all(x, data.l.all(y, data.s + data.s != ''))".to_owned(),
        "[data.s + data.s + data.s + data.s].map(x, x + x)[0].size() > 0".to_owned(),
        "9223372036854775807 + 1 == 0".to_owned(),
        "1 / 0 == 1".to_owned(),
        "[1][9223372036854775807] == 1".to_owned(),
        "duration('9223372036854775807h') > duration('1s')".to_owned(),
        "timestamp('9999-12-31T23:59:59Z') + duration('999999h') > timestamp('2000-01-01T00:00:00Z')"
            .to_owned(),
        "\"\\u{110000}\" == 'a'".to_owned(),
        "\0".to_owned(),
    ];
    let mut accepted = 0;
    for condition in &bombs {
        let body = json!({ "destination": { "url": hook.url() }, "match": { "where": condition } });
        let answer = client.post("/v1/subscribers", &body);
        assert!(matches!(answer.status, 201 | 422), "{condition}: {}", answer.text());
        accepted += usize::from(answer.status == 201);
    }
    let data = json!({ "s": "a".repeat(500_000), "l": vec![1; 2_000] });
    for n in 0..5 {
        let id = format!("e{n}");
        client.publish(&json!({ "id": id, "source": "s", "type": "t", "data": data }));
        let trace = client.get(&format!("/v1/events/{id}/trace")).expect(200);
        assert_eq!(trace["subscribers"].as_array().map(Vec::len), Some(accepted));
    }
    assert!(memory_kb(&server) < MEMORY_KB_MAX, "{} KiB", memory_kb(&server));
}

#[test]
fn names_that_clients_choose_do_not_grow_the_metrics() {
    let server = Server::start();
    let client = server.admin();
    let before = client.get("/metrics").text().len();
    for part in 0..3 {
        let name =
            |n: usize| json!({ "source": format!("source-{part}-{n}"), "type": format!("type-{part}-{n}") });
        let events: Value = (0..5_000).map(name).collect();
        client.publish(&events);
    }
    let metrics = client.get("/metrics").text();
    assert!(!metrics.contains("type-1-77") && !metrics.contains("source-1-77"));
    assert!(metrics.len() < before + 100_000, "{} bytes", metrics.len());
}

#[test]
fn no_header_can_be_smuggled_into_a_delivery() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &json!({}));
    let values = ["a\r\nx-evil: 1", "a\nx-evil: 1", "a\rb", "a\0b", "é", "\u{7f}", "a\u{85}b", "\u{2028}"];
    let names = [
        "x-a\r\nx-evil",
        "x a",
        "x:a",
        "",
        "x-a\0",
        "x\u{e9}",
        "content-length",
        "Transfer-Encoding",
        "webhook-id",
        "HOST",
    ];
    let all = values.map(|value| ("x-a", value)).into_iter().chain(names.map(|name| (name, "a")));
    for (name, value) in all {
        let headers = json!({ name: value });
        let destination = json!({ "destination": { "url": hook.url(), "headers": headers } });
        client.post("/v1/subscribers", &destination).problem(422, "header_refused");
        client.patch(&subscriber.path, &destination).problem(422, "header_refused");
    }
    client.publish(&json!({ "source": "s", "type": "t" }));
    let arrival = hook.next();
    assert!(arrival.headers.keys().all(|name| !name.contains("evil")), "{:?}", arrival.headers);
}
