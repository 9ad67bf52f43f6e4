//! The real binary against a server that plays the API.
//!
//! Every test starts the process with an empty environment and looks at what it sent, printed and returned.
//! Nothing waits for time: the API answers `Retry-After: 0`.

mod api;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use self::api::{Api, Reply, Seen};

const KEY: &str = "tgk_test";

fn tidegate(url: &str, args: &[&str]) -> Output {
    tidegate_with_input(url, args, "")
}

fn tidegate_with_input(url: &str, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(args)
        .env_clear()
        .env("TIDEGATE_URL", url)
        .env("TIDEGATE_KEY", KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that fails early does not read all of it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the binary ends")
}

fn stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("stdout is JSON")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

#[track_caller]
fn exits(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "stderr: {}", stderr(output));
}

/// Accepts everything, like `POST /v1/events`.
fn accept(seen: &Seen) -> Reply {
    let events = match serde_json::from_str(&seen.body).expect("the body is JSON") {
        Value::Array(events) => events,
        event => vec![event],
    };
    let result = |event: &Value| json!({"id": event["id"], "status": "accepted"});
    let results: Vec<Value> = events.iter().map(result).collect();
    let body = json!({"accepted": results.len(), "duplicates": 0, "quarantined": 0, "results": results});
    (202, &[], body.to_string())
}

fn problem(status: u16, code: &str, title: &str, detail: &str) -> Reply {
    let body = json!({"code": code, "title": title, "status": status, "detail": detail});
    (status, &[("content-type", "application/problem+json"), ("retry-after", "0")], body.to_string())
}

fn ndjson(count: usize) -> String {
    (0..count).map(|n| format!("{{\"id\":\"e{n}\",\"source\":\"s\",\"type\":\"t\"}}\n")).collect()
}

#[test]
fn send_makes_an_event_of_its_flags() {
    let api = Api::start(|seen, _| accept(seen));
    let args = ["send", "--type", "order.paid", "--source", "shop", "--id", "e1", "--subject", "order/17"];
    let args = [&args[..], &["--data", "{\"total\": 1.50}", "--project", "p1"]].concat();
    let output = tidegate(&api.url, &args);
    exits(&output, 0);
    assert_eq!(stdout(&output)["accepted"], 1);
    assert_eq!(stdout(&output)["results"], json!([{"id":"e1","status":"accepted"}]));
    let seen = &api.seen()[0];
    assert_eq!(seen.line, "POST /v1/events");
    assert_eq!(seen.authorization, "Bearer tgk_test");
    assert_eq!(seen.project, "p1");
    let event =
        r#"{"id":"e1","source":"shop","type":"order.paid","subject":"order/17","data":{"total": 1.50}}"#;
    assert_eq!(seen.body, event);
}

#[test]
fn send_reads_data_from_stdin_and_refuses_what_is_not_json() {
    let api = Api::start(|seen, _| accept(seen));
    let args = ["send", "--type", "t", "--source", "s", "--data", "-"];
    exits(&tidegate_with_input(&api.url, &args, "[1, 2]"), 0);
    assert_eq!(api.seen()[0].body, r#"{"source":"s","type":"t","data":[1, 2]}"#);
    let output = tidegate_with_input(&api.url, &args, "{oops");
    exits(&output, 2);
    assert!(stderr(&output).contains("--data is not JSON"), "{}", stderr(&output));
    assert_eq!(api.seen().len(), 1);
}

#[test]
fn send_cuts_a_file_into_batches_in_order_even_if_connections_do_not_last() {
    for headers in [&[][..], &[("connection", "close")]] {
        let api = Api::start(move |seen, _| (202, headers, accept(seen).2));
        let output = tidegate_with_input(&api.url, &["send", "--file", "-"], &ndjson(1201));
        exits(&output, 0);
        let expected = json!({"accepted":1201,"duplicates":0,"conflicts":0,"quarantined":0,"refused":[]});
        assert_eq!(stdout(&output), expected);
        let batches: Vec<Value> =
            api.seen().iter().map(|seen| serde_json::from_str(&seen.body).expect("JSON")).collect();
        let ids: Vec<&Value> =
            batches.iter().flat_map(|batch| batch.as_array().expect("an array")).map(|e| &e["id"]).collect();
        assert_eq!(batches.len(), 3);
        assert!(ids.iter().enumerate().all(|(n, id)| **id == format!("e{n}")), "in the file's order");
    }
}

#[test]
fn send_in_parallel_sends_everything_once() {
    let api = Api::start(|seen, _| accept(seen));
    let path = std::env::temp_dir().join(format!("tidegate-cli-parallel-{}.ndjson", std::process::id()));
    std::fs::write(&path, ndjson(5000)).expect("a temporary file");
    let output = tidegate(&api.url, &["send", "--parallel", "4", "--file", path.to_str().expect("UTF-8")]);
    std::fs::remove_file(&path).expect("it was there");
    exits(&output, 0);
    assert_eq!(stdout(&output)["accepted"], 5000);
    assert_eq!(api.seen().len(), 10);
}

#[test]
fn send_waits_and_repeats_what_is_refused_for_now_but_not_for_ever() {
    let api = Api::start(|seen, before| match before {
        0 => problem(429, "RATE_LIMITED", "too many requests", ""),
        1 => problem(503, "NOT_READY", "not ready", ""),
        _ => accept(seen),
    });
    exits(&tidegate_with_input(&api.url, &["send", "--file", "-"], &ndjson(2)), 0);
    assert_eq!(api.seen().len(), 3);

    let api = Api::start(|_, _| problem(503, "NOT_READY", "not ready", "the disk is full"));
    let output = tidegate_with_input(&api.url, &["send", "--file", "-"], &ndjson(2));
    exits(&output, 5);
    assert!(stderr(&output).contains("the disk is full"), "{}", stderr(&output));
    assert_eq!(api.seen().len(), 9);
}

#[test]
fn send_does_not_sit_out_a_long_refusal() {
    let api = Api::start(|_, _| (429, &[("retry-after", "3600")], String::new()));
    let output = tidegate_with_input(&api.url, &["send", "--file", "-"], &ndjson(2));
    exits(&output, 5);
    assert!(stderr(&output).contains("try again in 3600 s"), "{}", stderr(&output));
    assert_eq!(api.seen().len(), 1);
}

#[test]
fn send_counts_conflicts_and_fails() {
    let conflict = json!({"code":"CONFLICT","title":"conflict","status":409,"detail":"other content",
        "results":[{"id":"e1","status":"conflict"}]});
    let api = Api::start(move |_, _| (409, &[], conflict.to_string()));
    let output = tidegate(&api.url, &["send", "--type", "t", "--source", "s", "--id", "e1"]);
    exits(&output, 1);
    assert_eq!(stdout(&output)["conflicts"], 1);
    assert_eq!(stdout(&output)["refused"], json!([{"id":"e1","status":"conflict"}]));
}

#[test]
fn send_stops_at_a_refused_batch_and_says_which() {
    let api = Api::start(|seen, before| match before {
        0 => accept(seen),
        _ => problem(422, "FIELD_MISSING", "a field is wrong", "event 3 has no type"),
    });
    let output = tidegate_with_input(&api.url, &["send", "--file", "-"], &ndjson(5000));
    exits(&output, 1);
    let text = stderr(&output);
    for part in ["event 3 has no type", "events 501 to 1000", "500 other events were sent", "FIELD_MISSING"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(api.seen().len(), 2);
    assert!(output.stdout.is_empty());
}

#[test]
fn send_names_the_line_of_a_broken_file_after_sending_what_was_good() {
    let api = Api::start(|seen, _| accept(seen));
    let output = tidegate_with_input(&api.url, &["send", "--file", "-"], &(ndjson(3) + "{oops}\n"));
    exits(&output, 1);
    assert!(stderr(&output).contains("line 4"), "{}", stderr(&output));
    assert!(stderr(&output).contains("3 other events were sent"), "{}", stderr(&output));
    exits(&tidegate_with_input(&api.url, &["send", "--file", "-"], "\n"), 2);
}

#[test]
fn every_refusal_has_its_exit_code_and_its_remedy() {
    for (status, code, part) in [
        (401, 4, "TIDEGATE_KEY"),
        (403, 4, "a key whose role allows this"),
        (404, 3, "check the id"),
        (429, 5, "try again in 0 s"),
        (503, 5, "try again in 0 s"),
        (500, 1, "server's log"),
    ] {
        let api = Api::start(move |_, _| problem(status, "SOME_CODE", "no", "because"));
        let output = tidegate(&api.url, &["trace", "e1"]);
        exits(&output, code);
        let text = stderr(&output);
        for part in [part, "error: no\n", "because", "SOME_CODE"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[test]
fn nobody_there_names_the_address_and_the_remedy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let output = tidegate(&url, &["keys", "list"]);
    exits(&output, 5);
    let expected = format!("nothing listens at {url}/");
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    assert!(stderr(&output).contains("start `tidegate serve`"), "{}", stderr(&output));
}

#[test]
fn a_redirect_is_not_followed() {
    let other = Api::start(|_, _| (200, &[], "{}".to_owned()));
    let location: &'static str = Box::leak(other.url.clone().into_boxed_str());
    let headers: &'static [(&str, &str)] = Box::leak(Box::new([("location", location)]));
    let api = Api::start(move |_, _| (307, headers, String::new()));
    let output = tidegate(&api.url, &["trace", "e1"]);
    exits(&output, 1);
    assert!(stderr(&output).contains(location), "{}", stderr(&output));
    assert!(other.seen().is_empty(), "the key stayed here");
}

#[test]
fn trace_passes_the_answer_on_byte_for_byte() {
    let body = "{\"subscribers\":[],  \"event\":{\"id\":\"a/b\",\"n\":1.0}}";
    let api = Api::start(move |_, _| (200, &[], body.to_owned()));
    let output = tidegate(&api.url, &["trace", "a/b", "--source", "shop & co"]);
    exits(&output, 0);
    assert_eq!(String::from_utf8(output.stdout).expect("UTF-8"), format!("{body}\n"));
    assert_eq!(api.seen()[0].line, "GET /v1/events/a%2Fb/trace?source=shop+%26+co");
}

#[test]
fn resources_speak_to_their_paths() {
    let cases: [(&[&str], &str, &str); 21] = [
        (
            &["keys", "create", "--project", "p1", "--role", "publisher", "--name", "shop"],
            "POST /v1/keys",
            r#"{"name":"shop","project":"p1","role":"publisher"}"#,
        ),
        (&["keys", "list", "--limit", "5", "--cursor", "c"], "GET /v1/keys?limit=5&cursor=c", ""),
        (&["keys", "delete", "key_1"], "DELETE /v1/keys/key_1", ""),
        (
            &["projects", "create", "p1", "--catalog", "strict"],
            "POST /v1/projects",
            r#"{"catalog":"strict","id":"p1"}"#,
        ),
        (
            &["subscribers", "create", "--name", "n", "--to", "https://e.com/h", "--types", "a,b.*"],
            "POST /v1/subscribers",
            r#"{"destination":{"kind":"webhook","url":"https://e.com/h"},"match":{"types":["a","b.*"]},"name":"n"}"#,
        ),
        (
            &["projects", "update", "p1", "--catalog", "open"],
            "PATCH /v1/projects/p1",
            r#"{"catalog":"open"}"#,
        ),
        (&["catalog", "list"], "GET /v1/catalog/services", ""),
        (&["catalog", "list", "a/b", "--limit", "2"], "GET /v1/catalog/services/a%2Fb?limit=2", ""),
        (&["catalog", "get", "shop", "t"], "GET /v1/catalog/services/shop/types/t", ""),
        (
            &["catalog", "put", "shop", "t", "--deprecated", "--replaced-by", "u", "--description", "d"],
            "PUT /v1/catalog/services/shop/types/t",
            r#"{"deprecated":{"replaced_by":"u"},"description":"d"}"#,
        ),
        (&["catalog", "delete", "shop", "t"], "DELETE /v1/catalog/services/shop/types/t", ""),
        (&["quarantine", "list", "--reason", "FUTURE_TIME"], "GET /v1/quarantine?reason=FUTURE_TIME", ""),
        (&["quarantine", "release", "a", "b"], "POST /v1/quarantine/release", r#"{"ids":["a","b"]}"#),
        (&["quarantine", "discard", "--type", "t"], "POST /v1/quarantine/discard", r#"{"type":"t"}"#),
        (&["subscribers", "get", "sub_1"], "GET /v1/subscribers/sub_1", ""),
        (&["subscribers", "pause", "sub_1"], "POST /v1/subscribers/sub_1/pause", ""),
        (&["subscribers", "delete", "sub_1"], "DELETE /v1/subscribers/sub_1", ""),
        (&["deliveries", "list", "--status", "exhausted"], "GET /v1/deliveries?status=exhausted", ""),
        (&["deliveries", "list", "--subscriber", "sub_1"], "GET /v1/subscribers/sub_1/deliveries", ""),
        (&["deliveries", "get", "dlv_1"], "GET /v1/deliveries/dlv_1", ""),
        (&["deliveries", "retry", "dlv_1"], "POST /v1/deliveries/dlv_1/retry", ""),
    ];
    for (args, line, body) in cases {
        let api = Api::start(|_, _| (200, &[], "{\"as\": \"it came\"}".to_owned()));
        let output = tidegate(&api.url, args);
        exits(&output, 0);
        let seen = &api.seen()[0];
        assert_eq!((seen.line.as_str(), seen.body.as_str()), (line, body));
        assert_eq!(output.stdout, b"{\"as\": \"it came\"}\n");
    }
}

#[test]
fn wrong_command_lines_exit_with_2_before_anything_is_sent() {
    let api = Api::start(|_, _| (200, &[], "{}".to_owned()));
    for args in [
        &["send", "--type", "t"][..],
        &["send", "--file", "x", "--type", "t", "--source", "s"],
        &["send", "--file", "-", "--parallel", "0"],
        &["keys", "create", "--role", "king"],
        &["deliveries", "list", "--status", "lost"],
        &["trace", "e1", "--url", "localhost:8700"],
        &["quarantine", "release"],
        &["quarantine", "release", "--all", "--type", "t"],
        &["catalog", "put", "shop", "t", "--replaced-by", "u"],
        &["nonsense"],
    ] {
        exits(&tidegate(&api.url, args), 2);
    }
    assert!(api.seen().is_empty());
}

#[test]
fn replay_begins_a_job_and_follows_it_to_its_end() {
    let api = Api::start(|seen, before| {
        let status = if before < 3 { "running" } else { "done" };
        let code = if seen.line.starts_with("POST") { 202 } else { 200 };
        let job =
            json!({"id":"job_1","kind":"replay","status":status,"total":10,"done":before,"matched":before});
        (code, &[], job.to_string())
    });
    let args = ["replay", "--subscriber", "sub_1", "--from", "2026-01-31T09:00:00Z", "--type", "order.*"];
    let output = tidegate(&api.url, &[&args[..], &["--status", "delivered"]].concat());
    exits(&output, 0);
    assert_eq!((&stdout(&output)["status"], &stdout(&output)["matched"]), (&json!("done"), &json!(3)));
    let seen = api.seen();
    assert_eq!(seen[0].line, "POST /v1/subscribers/sub_1/replay");
    let body: Value = serde_json::from_str(&seen[0].body).expect("JSON");
    let expected = json!({"from":"2026-01-31T09:00:00.000Z","types":["order.*"],"status":"delivered"});
    assert_eq!(body, expected);
    assert_eq!(seen[1].line, "GET /v1/jobs/job_1");
    let detached = tidegate(&api.url, &["replay", "--dead-letters", "--subscriber", "sub_1", "--no-wait"]);
    exits(&detached, 0);
    let last = api.seen().pop().expect("a request");
    assert_eq!(
        (last.line.as_str(), last.body.as_str()),
        ("POST /v1/dead-letters/replay", r#"{"subscriber":"sub_1"}"#)
    );
}

#[test]
fn replay_of_one_event_names_its_source_and_needs_no_span() {
    let api = Api::start(|_, _| (202, &[], json!({"event":"e 1","deliveries":[]}).to_string()));
    let output =
        tidegate(&api.url, &["replay", "--event", "e 1", "--source", "shop", "--subscriber", "sub_1"]);
    exits(&output, 0);
    assert_eq!(api.seen()[0].line, "POST /v1/events/e%201/replay?source=shop");
    assert_eq!(api.seen()[0].body, r#"{"subscriber":"sub_1"}"#);
    for args in [&["replay"][..], &["replay", "--from", "2h"], &["replay", "--event", "e", "--from", "2h"]] {
        exits(&tidegate(&api.url, args), 2);
    }
    exits(&tidegate(&api.url, &["replay", "--subscriber", "s", "--from", "yesterday"]), 2);
    assert_eq!(api.seen().len(), 1);
}
