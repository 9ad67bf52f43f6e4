//! `POST /v1/events`: every form of events, what is answered, and what is refused.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::receiver::Receiver;
use crate::server::Server;

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const LINES: &[(&str, &str)] = &[("content-type", "application/x-ndjson")];
const STRUCTURED: &[(&str, &str)] = &[("content-type", "application/cloudevents+json; charset=UTF-8")];
const BATCH: &[(&str, &str)] = &[("content-type", "application/cloudevents-batch+json")];
const BINARY: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("ce-specversion", "1.0"),
    ("ce-id", "f1"),
    ("ce-source", "s"),
    ("ce-type", "t"),
    ("ce-time", "2026-01-01T00:00:00Z"),
    ("ce-subject", "caf%C3%A9"),
    ("ce-traceparent", "00-1"),
];
const BINARY_TEXT: &[(&str, &str)] = &[
    ("content-type", "text/plain"),
    ("ce-specversion", "1.0"),
    ("ce-id", "g1"),
    ("ce-source", "s"),
    ("ce-type", "t"),
    ("ce-time", "2026-01-01T00:00:00Z"),
];

fn send(client: &Client, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answer {
    client.send("POST", "/v1/events", headers, body.as_ref())
}

/// A form, a request in it, and the bodies that it becomes.
const FORMS: [(&str, &[(&str, &str)], &str, &[&str]); 8] = [
    (
        "one event",
        JSON,
        r#"{"type":"t","data":{"b":1,  "a":1e2},"time":"2026-01-01T01:00:00+01:00","id":"a1","source":"s","subject":"x"}"#,
        &[
            r#"{"id":"a1","source":"s","type":"t","subject":"x","time":"2026-01-01T00:00:00Z","data":{"b":1,  "a":1e2}}"#,
        ],
    ),
    (
        "an array",
        JSON,
        r#" [{"id":"b1","source":"s","type":"t","time":"2026-01-01T00:00:00Z"},
             {"id":"b2","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data":"\u0000"}] "#,
        &[
            r#"{"id":"b1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data":null}"#,
            r#"{"id":"b2","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data":"\u0000"}"#,
        ],
    ),
    (
        "lines",
        LINES,
        "{\"id\":\"c1\",\"source\":\"s\",\"type\":\"t\",\"time\":\"2026-01-01T00:00:00Z\"}\r\n\n\
         {\"id\":\"c2\",\"source\":\"s\",\"type\":\"t\",\"time\":\"2026-01-01T00:00:00Z\",\"ended\":\"2026-01-01T00:00:09Z\"}",
        &[
            r#"{"id":"c1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data":null}"#,
            r#"{"id":"c2","source":"s","type":"t","time":"2026-01-01T00:00:00Z","ended":"2026-01-01T00:00:09Z","data":null}"#,
        ],
    ),
    (
        "a structured CloudEvent",
        STRUCTURED,
        r#"{"specversion":"1.0","id":"d1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","tenant":"x","data":[1, 2]}"#,
        &[
            r#"{"id":"d1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","extensions":{"tenant":"x"},"data":[1, 2]}"#,
        ],
    ),
    (
        "a batch of CloudEvents",
        BATCH,
        r#"[{"specversion":"1.0","id":"e1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data_base64":"aGk="}]"#,
        &[r#"{"id":"e1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data_base64":"aGk="}"#],
    ),
    (
        "a binary CloudEvent",
        BINARY,
        r#"{"n": 1}"#,
        &[
            r#"{"id":"f1","source":"s","type":"t","subject":"café","time":"2026-01-01T00:00:00Z","extensions":{"traceparent":"00-1"},"data":{"n": 1}}"#,
        ],
    ),
    (
        "a binary CloudEvent of text",
        BINARY_TEXT,
        "hi",
        &[
            r#"{"id":"g1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","extensions":{"datacontenttype":"text/plain"},"data_base64":"aGk="}"#,
        ],
    ),
    (
        "sub-events",
        JSON,
        r#"{"id":"h1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","events":[{"type":"u","data":1,"events":[{"type":"v"}]},{"type":"w"}]}"#,
        &[
            r#"{"id":"h1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data":null}"#,
            r#"{"id":"h1~1","source":"s","type":"u","time":"2026-01-01T00:00:00Z","parents":["h1"],"data":1}"#,
            r#"{"id":"h1~1~1","source":"s","type":"v","time":"2026-01-01T00:00:00Z","parents":["h1~1"],"data":null}"#,
            r#"{"id":"h1~2","source":"s","type":"w","time":"2026-01-01T00:00:00Z","parents":["h1"],"data":null}"#,
        ],
    ),
];

#[test]
fn every_form_is_accepted_and_delivered_byte_for_byte() {
    let server = Server::start();
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({ "order": { "by": "subscriber" } }));
    for (form, headers, body, bodies) in FORMS {
        let answer = send(&server.admin(), headers, body).expect(202);
        let results = answer["results"].as_array().expect("results");
        assert!(results.iter().all(|result| result["status"] == "accepted"), "{form}: {answer}");
        let units = bodies.iter().filter(|body| !body.contains('~')).count();
        assert_eq!((results.len(), &answer["accepted"]), (units, &units.into()), "{form}: {answer}");
        for body in bodies {
            let arrival = hook.next();
            assert_eq!(arrival.text(), *body, "{form}");
            let path = format!("/v1/events/{}", arrival.event_id());
            assert_eq!(server.admin().get(&path).text(), *body, "{form}");
        }
    }
}

#[test]
fn what_is_left_out_is_filled_in_and_nothing_is_nothing() {
    let server = Server::start();
    let answer = send(&server.admin(), &[], r#"{"source":"s","type":"t"}"#).expect(202);
    let id = answer["results"][0]["id"].as_str().expect("an id").to_owned();
    assert!(id.starts_with("evt_"), "{id}");
    let event = server.admin().get(&format!("/v1/events/{id}")).expect(200);
    assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    let nothing = json!({ "accepted": 0, "duplicates": 0, "conflicts": 0, "quarantined": 0, "results": [] });
    assert_eq!(send(&server.admin(), JSON, "[]").expect(202), nothing);
    assert_eq!(send(&server.admin(), LINES, "\n\n").expect(202), nothing);
}

#[test]
fn a_repeat_is_a_duplicate_and_other_content_a_conflict() {
    let server = Server::start();
    let hook = Receiver::start();
    server.subscribe(&hook, &Value::Null);
    let client = server.admin();
    let first = r#"{"id":"e","source":"s","type":"t","data":{"n":1}}"#;
    send(&client, JSON, first).expect(202);
    let repeat = send(&client, JSON, r#"{ "source":"s", "id":"e", "type":"t", "data": { "n": 1 } }"#);
    assert_eq!(repeat.expect(202)["results"], json!([{ "id": "e", "status": "duplicate" }]));

    let other = json!({ "id": "e", "source": "s", "type": "t", "data": { "n": 2 } });
    let conflict = client.post("/v1/events", &other).problem(409, "event_conflict");
    assert_eq!(conflict["results"][0]["status"], "conflict");
    assert_eq!(conflict["accepted"], 0);

    let elsewhere = json!({ "id": "e", "source": "s2", "type": "t" });
    let mixed = client.publish(&json!([other, elsewhere, elsewhere]));
    let statuses: Vec<&Value> =
        mixed["results"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, ["conflict", "accepted", "duplicate"]);
    assert!(mixed["results"][0]["reason"].is_string(), "{mixed}");
    assert_eq!(
        (&mixed["accepted"], &mixed["duplicates"], &mixed["conflicts"]),
        (&1.into(), &1.into(), &1.into())
    );

    assert_eq!(client.get("/v1/events/e?source=s").expect(200)["data"], json!({ "n": 1 }));
    let ambiguous = client.get("/v1/events/e").problem(409, "event_ambiguous");
    assert!(ambiguous["detail"].as_str().is_some_and(|detail| detail.contains("?source=")), "{ambiguous}");
    assert_eq!(hook.take(2).len(), 2);
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 2);
    assert_eq!(hook.rest().len(), 0);
}

fn nested(depth: usize) -> String {
    let lists = depth - 1;
    format!(r#"{{"source":"s","type":"t","data":{}{}}}"#, "[".repeat(lists), "]".repeat(lists))
}

fn sized(bytes: usize) -> String {
    let empty = r#"{"source":"s","type":"t","data":""}"#.len();
    format!(r#"{{"source":"s","type":"t","data":"{}"}}"#, "x".repeat(bytes - empty))
}

/// A request, its status and code, the index and the field it is about.
type Refused = (&'static [(&'static str, &'static str)], String, u16, &'static str, Value, Value);

fn refused(
    headers: &'static [(&'static str, &'static str)],
    body: impl Into<String>,
    (status, code): (u16, &'static str),
    place: (impl Into<Value>, impl Into<Value>),
) -> Refused {
    (headers, body.into(), status, code, place.0.into(), place.1.into())
}

const NOWHERE: (Value, Value) = (Value::Null, Value::Null);
const GOOD: &str = r#"{"id":"good","source":"s","type":"t"}"#;

fn malformed() -> Vec<Refused> {
    let at = |index: Option<usize>, field: &'static str| (json!(index), json!(field));
    vec![
        refused(JSON, "{", (400, "json_syntax"), NOWHERE),
        refused(JSON, "", (400, "json_syntax"), NOWHERE),
        refused(JSON, "{\"source\":\"a\u{0}b\",\"type\":\"t\"}", (400, "json_syntax"), NOWHERE),
        refused(JSON, nested(65), (400, "json_too_deep"), NOWHERE),
        refused(LINES, format!("{GOOD}\n{}", nested(65)), (400, "json_too_deep"), (1, Value::Null)),
        refused(JSON, "\"text\"", (422, "field_type"), NOWHERE),
        refused(JSON, format!("[{GOOD},[]]"), (422, "field_type"), (1, Value::Null)),
        refused(JSON, format!("[{GOOD},{{\"source\":\"s\"}}]"), (422, "field_missing"), at(Some(1), "type")),
        refused(
            LINES,
            format!("{GOOD}\n\n{{\"type\":\"t\"}}"),
            (422, "field_missing"),
            at(Some(1), "source"),
        ),
        refused(JSON, r#"{"source":"s","type":"t","dta":1}"#, (422, "field_unknown"), at(None, "dta")),
        refused(
            JSON,
            r#"{"source":"s","source":"s","type":"t"}"#,
            (422, "field_repeated"),
            at(None, "source"),
        ),
        refused(JSON, r#"{"source":1,"type":"t"}"#, (422, "field_type"), at(None, "source")),
        refused(JSON, r#"{"source":"s","type":"a\u0000"}"#, (422, "field_characters"), at(None, "type")),
        refused(
            JSON,
            r#"{"source":"s","type":"t","subject":"\u001b["}"#,
            (422, "field_characters"),
            at(None, "subject"),
        ),
        refused(JSON, r#"{"source":"s","type":"a*"}"#, (422, "field_characters"), at(None, "type")),
        refused(JSON, r#"{"id":"","source":"s","type":"t"}"#, (422, "field_empty"), at(None, "id")),
        refused(
            JSON,
            format!(r#"{{"id":"{}","source":"s","type":"t"}}"#, "i".repeat(257)),
            (422, "field_too_long"),
            at(None, "id"),
        ),
        refused(JSON, r#"{"source":"s","type":"t","time":"today"}"#, (422, "field_time"), at(None, "time")),
        refused(
            JSON,
            r#"{"source":"s","type":"t","data":1,"data_base64":""}"#,
            (422, "field_conflict"),
            at(None, "data_base64"),
        ),
        refused(
            JSON,
            r#"{"source":"s","type":"t","events":[{"type":"u"},{"id":"x","type":"u"}]}"#,
            (422, "field_unknown"),
            at(None, "events[1].id"),
        ),
        refused(STRUCTURED, GOOD, (422, "field_missing"), at(None, "specversion")),
        refused(
            BATCH,
            r#"[{"specversion":"0.3","id":"e","source":"s","type":"t"}]"#,
            (422, "specversion_unsupported"),
            at(Some(0), "specversion"),
        ),
        refused(
            &[("ce-specversion", "1.0"), ("ce-id", "e"), ("ce-type", "t")],
            "{}",
            (422, "field_missing"),
            at(None, "ce-source"),
        ),
        refused(&[("content-type", "text/plain")], GOOD, (415, "media_type_unsupported"), NOWHERE),
        refused(
            &[("content-type", "application/cloudevents+xml")],
            GOOD,
            (415, "media_type_unsupported"),
            NOWHERE,
        ),
        refused(
            &[("content-type", "application/json; charset=latin1")],
            GOOD,
            (415, "media_type_unsupported"),
            NOWHERE,
        ),
        refused(JSON, sized(1024 * 1024 + 1), (413, "event_too_large"), NOWHERE),
        refused(
            JSON,
            format!("[{}{GOOD}]", format!("{GOOD},").repeat(10_000)),
            (413, "too_many_events"),
            NOWHERE,
        ),
        refused(JSON, " ".repeat(16 * 1024 * 1024 + 1), (413, "request_too_large"), NOWHERE),
    ]
}

#[test]
fn one_malformed_event_refuses_the_whole_request() {
    let server = Server::start();
    let client = server.admin();
    for (headers, body, status, code, index, field) in malformed() {
        let problem = send(&client, headers, &body).problem(status, code);
        let shown: String = body.chars().take(100).collect();
        assert_eq!((&problem["index"], &problem["field"]), (&index, &field), "{shown}: {problem}");
    }
    send(&client, JSON, b"{\"source\":\"\xff\"}").problem(400, "json_encoding");
    assert_eq!(client.get("/v1/events").expect(200)["items"], json!([]), "nothing is stored");

    send(&client, JSON, nested(64)).expect(202);
    send(&client, JSON, sized(1024 * 1024)).expect(202);
    let most = format!("[{}]", vec![r#"{"source":"s","type":"t"}"#; 10_000].join(","));
    assert_eq!(send(&client, JSON, most).expect(202)["accepted"], 10_000);
}
