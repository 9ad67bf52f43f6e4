//! `POST /v1/events`: every form of events, what is answered, and what is refused.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::receiver::Receiver;
use crate::server::Server;

type Headers = &'static [(&'static str, &'static str)];

const JSON: Headers = &[("content-type", "application/json")];
const LINES: Headers = &[("content-type", "application/x-ndjson")];
const STRUCTURED: Headers = &[("content-type", "application/cloudevents+json; charset=UTF-8")];
const BATCH: Headers = &[("content-type", "application/cloudevents-batch+json")];
const BINARY: Headers = &[
    ("content-type", "application/json"),
    ("ce-specversion", "1.0"),
    ("ce-id", "f1"),
    ("ce-source", "s"),
    ("ce-type", "t"),
    ("ce-time", "2026-01-01T00:00:00Z"),
    ("ce-subject", "caf%C3%A9"),
    ("ce-traceparent", "00-1"),
];
const BINARY_TEXT: Headers = &[
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

#[test]
fn an_idempotency_key_is_the_id_of_a_single_event() {
    let server = Server::start();
    let admin = server.admin();
    let keyed = |key: &str, body: &str| send(&admin, &[("idempotency-key", key)], body);
    let body = r#"{"source":"s","type":"t","data":1}"#;
    let first = keyed("k-1", body).expect(202);
    assert_eq!(first["results"][0], json!({"id":"k-1","status":"accepted"}));
    assert_eq!(keyed("\"k-1\"", body).expect(202)["duplicates"], 1, "in quotes it is the same");
    assert_eq!(keyed("k-1", r#"{"id":"k-1","source":"s","type":"t","data":1}"#).expect(202)["duplicates"], 1);
    keyed("k-1", r#"{"source":"s","type":"t","data":2}"#).problem(409, "event_conflict");
    keyed("k-2", r#"{"id":"k-1","source":"s","type":"t"}"#).problem(422, "idempotency_key_conflict");
    keyed("k-2", "[]").problem(422, "idempotency_key_unsuitable");
    keyed("k-2", "[{\"source\":\"s\",\"type\":\"t\"}]").problem(422, "idempotency_key_unsuitable");
    let lines = [("idempotency-key", "k-2"), ("content-type", "application/x-ndjson")];
    send(&admin, &lines, body).problem(422, "idempotency_key_unsuitable");
    for key in ["", "\"", "\"\"", "a b", "caf\u{e9}", &"k".repeat(256)] {
        let problem = keyed(key, body).problem(422, "idempotency_key_invalid");
        assert_eq!(problem["field"], "idempotency-key");
    }
    assert_eq!(keyed(&"k".repeat(255), body).expect(202)["accepted"], 1);
    let twice = [("idempotency-key", "a"), ("idempotency-key", "b")];
    send(&admin, &twice, body).problem(422, "field_repeated");
    let event = r#"{"specversion":"1.0","id":"c","source":"s","type":"t"}"#;
    let structured = |key| [("idempotency-key", key), ("content-type", "application/cloudevents+json")];
    assert_eq!(send(&admin, &structured("c"), event).expect(202)["accepted"], 1);
    send(&admin, &structured("d"), event).problem(422, "idempotency_key_conflict");
}

/// A form, a request in it, and the bodies that it becomes.
type Form = (&'static str, Headers, &'static str, &'static [&'static str]);

const FORMS: [Form; 8] = [
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

const GOOD: &str = r#"{"id":"good","source":"s","type":"t"}"#;

/// A request that is refused, with which status and code, and for which event and field.
struct Refused(Headers, String, u16, &'static str, Option<usize>, Option<&'static str>);

fn unreadable() -> Vec<Refused> {
    let text: Headers = &[("content-type", "text/plain")];
    let xml: Headers = &[("content-type", "application/cloudevents+xml")];
    let latin: Headers = &[("content-type", "application/json; charset=latin1")];
    let two = |second: String| format!("{GOOD}\n{second}");
    vec![
        Refused(JSON, "{".into(), 400, "json_syntax", None, None),
        Refused(JSON, String::new(), 400, "json_syntax", None, None),
        Refused(JSON, "{\"source\":\"a\u{0}b\",\"type\":\"t\"}".into(), 400, "json_syntax", None, None),
        Refused(JSON, nested(65), 400, "json_too_deep", None, None),
        Refused(LINES, two(nested(65)), 400, "json_too_deep", Some(1), None),
        Refused(JSON, sized(1024 * 1024 + 1), 413, "event_too_large", None, None),
        Refused(LINES, two(sized(1024 * 1024 + 1)), 413, "event_too_large", Some(1), None),
        Refused(JSON, format!("[{}]", vec![GOOD; 10_001].join(",")), 413, "too_many_events", None, None),
        Refused(JSON, " ".repeat(16 * 1024 * 1024 + 1), 413, "request_too_large", None, None),
        Refused(text, GOOD.into(), 415, "media_type_unsupported", None, None),
        Refused(xml, GOOD.into(), 415, "media_type_unsupported", None, None),
        Refused(latin, GOOD.into(), 415, "media_type_unsupported", None, None),
    ]
}

/// What stands in an event beside a source and a type, and what is wrong with it.
const WRONG_FIELDS: [(&str, &str, &str); 9] = [
    (r#""dta":1"#, "field_unknown", "dta"),
    (r#""source":"s""#, "field_repeated", "source"),
    (r#""id":1"#, "field_type", "id"),
    (r#""id":"""#, "field_empty", "id"),
    (r#""id":"a\u0000""#, "field_characters", "id"),
    (r#""subject":"\u001b[""#, "field_characters", "subject"),
    (r#""time":"today""#, "field_time", "time"),
    (r#""data":1,"data_base64":"""#, "field_conflict", "data_base64"),
    (r#""events":[{"type":"u"},{"id":"x","type":"u"}]"#, "field_unknown", "events[1].id"),
];

fn wrong() -> Vec<Refused> {
    let bare: Headers = &[("ce-specversion", "1.0"), ("ce-id", "e"), ("ce-type", "t")];
    let second = |wrong: &str| format!("[{GOOD},{wrong}]");
    let long = format!(r#"{{"source":"s","type":"{}"}}"#, "t".repeat(257));
    let old = r#"[{"specversion":"0.3","id":"e","source":"s","type":"t"}]"#.to_owned();
    let mut wrong = vec![
        Refused(JSON, "\"text\"".into(), 422, "field_type", None, None),
        Refused(JSON, second("[]"), 422, "field_type", Some(1), None),
        Refused(JSON, second(r#"{"source":"s"}"#), 422, "field_missing", Some(1), Some("type")),
        Refused(
            LINES,
            format!("{GOOD}\n\n{{\"type\":\"t\"}}"),
            422,
            "field_missing",
            Some(1),
            Some("source"),
        ),
        Refused(JSON, long, 422, "field_too_long", None, Some("type")),
        Refused(JSON, r#"{"source":"s","type":"a*"}"#.into(), 422, "field_characters", None, Some("type")),
        Refused(STRUCTURED, GOOD.into(), 422, "field_missing", None, Some("specversion")),
        Refused(BATCH, old, 422, "specversion_unsupported", Some(0), Some("specversion")),
        Refused(bare, "{}".into(), 422, "field_missing", None, Some("ce-source")),
    ];
    for (members, code, field) in WRONG_FIELDS {
        let event = format!(r#"{{"source":"s","type":"t",{members}}}"#);
        wrong.push(Refused(JSON, second(&event), 422, code, Some(1), Some(field)));
        wrong.push(Refused(JSON, event, 422, code, None, Some(field)));
    }
    wrong
}

#[test]
fn one_malformed_event_refuses_the_whole_request() {
    let server = Server::start();
    let client = server.admin();
    for Refused(headers, body, status, code, index, field) in unreadable().into_iter().chain(wrong()) {
        let problem = send(&client, headers, &body).problem(status, code);
        let shown: String = body.chars().take(100).collect();
        assert_eq!(
            (&problem["index"], &problem["field"]),
            (&json!(index), &json!(field)),
            "{shown}: {problem}"
        );
    }
    send(&client, JSON, b"{\"source\":\"\xff\"}").problem(400, "json_encoding");
    assert_eq!(client.get("/v1/events").expect(200)["items"], json!([]), "nothing is stored");

    send(&client, JSON, nested(64)).expect(202);
    send(&client, JSON, sized(1024 * 1024)).expect(202);
    let most = format!("[{}]", vec![r#"{"source":"s","type":"t"}"#; 10_000].join(","));
    assert_eq!(send(&client, JSON, most).expect(202)["accepted"], 10_000);
}
