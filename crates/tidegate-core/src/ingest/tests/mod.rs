//! Tests of decoding: every form of a request, every refusal, and that `data` comes through untouched.

mod cloudevents;
mod properties;

use bytes::Bytes;
use serde_json::Value;

use super::*;

const JSON: Option<&str> = Some("application/json");
const NDJSON: Option<&str> = Some("application/x-ndjson");
const STRUCTURED: Option<&str> = Some("application/cloudevents+json; charset=UTF-8");
const BATCH: Option<&str> = Some("application/cloudevents-batch+json");

fn now() -> Timestamp {
    Timestamp::parse("2026-05-05T05:05:05.5Z").unwrap()
}

fn send(
    content_type: Option<&str>,
    headers: &[(&str, &[u8])],
    body: impl Into<Vec<u8>>,
) -> Result<Vec<Unit>, Refusal> {
    let body = Bytes::from(body.into());
    decode(&Request { content_type, headers, body: &body }, now(), &mut || 7)
}

#[track_caller]
fn bodies(content_type: Option<&str>, body: &str) -> Vec<String> {
    let units = send(content_type, &[], body).unwrap();
    let events = units.into_iter().flat_map(|unit| unit.events);
    events.map(|event| String::from_utf8(event.body.to_vec()).unwrap()).collect()
}

/// `kind code index field`, absent parts as `-`.
#[track_caller]
fn refusal(content_type: Option<&str>, body: impl Into<Vec<u8>>) -> String {
    short(&send(content_type, &[], body).unwrap_err())
}

fn short(refusal: &Refusal) -> String {
    let index = refusal.index.map_or("-".to_owned(), |index| index.to_string());
    format!("{:?} {} {index} {}", refusal.kind, refusal.code, refusal.field.as_deref().unwrap_or("-"))
}

fn prints(body: &str) -> crate::event::Fingerprint {
    send(JSON, &[], body).unwrap()[0].fingerprint
}

#[test]
fn one_event_with_everything() {
    let body = r#" {"id":"1","source":"shop","type":"order.paid","subject":"o/1","time":"2026-01-01T00:00:00Z",
        "ended":"2026-01-01T02:00:00.25+02:00","parents":["p"],"extensions":{ "tenant" : "x" },"data":{ "a" : 1.10 }} "#;
    assert_eq!(
        bodies(JSON, body),
        [concat!(
            r#"{"id":"1","source":"shop","type":"order.paid","subject":"o/1","time":"2026-01-01T00:00:00Z","#,
            r#""ended":"2026-01-01T00:00:00.25Z","parents":["p"],"extensions":{ "tenant" : "x" },"data":{ "a" : 1.10 }}"#
        )]
    );
    let unit = &send(JSON, &[], body).unwrap()[0];
    let event = &unit.events[0];
    assert_eq!((&*event.id, &*event.source, &*event.type_name), ("1", "shop", "order.paid"));
    assert_eq!(event.subject.as_deref(), Some("o/1"));
    assert_eq!(event.time, Timestamp::parse("2026-01-01T00:00:00Z").unwrap());
}

#[test]
fn the_server_fills_in_id_time_and_data() {
    let id = crate::id::event_id(now(), 7);
    let expected = format!(
        "{{\"id\":\"{id}\",\"source\":\"s\",\"type\":\"t\",\"time\":\"2026-05-05T05:05:05.500Z\",\"data\":null}}"
    );
    assert_eq!(bodies(None, r#"{"source":"s","type":"t"}"#)[0], expected);
    assert_eq!(bodies(JSON, r#"{"source":"s","type":"t","id":null,"time":null,"data":null}"#)[0], expected);
}

#[test]
fn arrays_and_lines_hold_many() {
    let one = |id: &str| format!("{{\"id\":\"{id}\",\"source\":\"s\",\"type\":\"t\"}}");
    let ids = |content_type, body: &str| -> Vec<String> {
        send(content_type, &[], body).unwrap().iter().map(|unit| unit.events[0].id.clone()).collect()
    };
    assert_eq!(ids(JSON, &format!("[{}, {}]", one("a"), one("b"))), ["a", "b"]);
    let lines = format!("\n{}\r\n  \n{}", one("a"), one("b"));
    for content_type in ["application/x-ndjson", "application/ndjson", "Application/JSONL; charset=utf-8"] {
        assert_eq!(ids(Some(content_type), &lines), ["a", "b"]);
    }
    assert!(ids(JSON, " [ ] ").is_empty());
    assert!(ids(NDJSON, "\n\n").is_empty());
    assert!(ids(BATCH, "[]").is_empty());
}

#[test]
fn sub_events_come_after_their_parent_and_belong_to_it() {
    let body = r#"{"id":"p","source":"s","type":"run","time":"2026-01-01T00:00:00Z","events":[
        {"type":"step","data":1,"events":[{"type":"deep"}]},{"type":"end","time":"2026-01-02T00:00:00Z"}]}"#;
    let rest = r#""source":"s","type""#;
    assert_eq!(
        bodies(JSON, body),
        [
            format!(r#"{{"id":"p",{rest}:"run","time":"2026-01-01T00:00:00Z","data":null}}"#),
            format!(r#"{{"id":"p~1",{rest}:"step","time":"2026-01-01T00:00:00Z","parents":["p"],"data":1}}"#),
            format!(
                r#"{{"id":"p~1~1",{rest}:"deep","time":"2026-01-01T00:00:00Z","parents":["p~1"],"data":null}}"#
            ),
            format!(
                r#"{{"id":"p~2",{rest}:"end","time":"2026-01-02T00:00:00Z","parents":["p"],"data":null}}"#
            ),
        ]
    );
    let units = send(JSON, &[], body).unwrap();
    assert_eq!(units.len(), 1);
    let times: Vec<_> = units[0].events.iter().map(|event| event.time.to_string()).collect();
    assert_eq!(times[2..], ["2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"]);
}

#[test]
fn base64_data_keeps_its_name() {
    let body = r#"{"id":"1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","data_base64":"AAE="}"#;
    assert_eq!(bodies(JSON, body), [body]);
    let with = |more: &str| format!("{{\"source\":\"s\",\"type\":\"t\",{more}}}");
    assert_eq!(refusal(JSON, with(r#""data_base64":"AAE""#)), "Invalid field_base64 - data_base64");
    assert_eq!(
        refusal(JSON, with(r#""data_base64":"AA=","data":1"#)),
        "Invalid field_conflict - data_base64"
    );
}

#[test]
fn wrong_fields_are_named() {
    for (body, expected) in [
        (r#"{"type":"t"}"#, "Invalid field_missing - source"),
        (r#"{"source":"s"}"#, "Invalid field_missing - type"),
        (r#"{"source":"s","type":"t","foo":1}"#, "Invalid field_unknown - foo"),
        (r#"{"source":"s","type":5}"#, "Invalid field_type - type"),
        (r#"{"source":"s","source":"s","type":"t"}"#, "Invalid field_repeated - source"),
        (r#"{"source":"","type":"t"}"#, "Invalid field_empty - source"),
        (r#"{"source":"s","type":"t","id":""}"#, "Invalid field_empty - id"),
        (r#"{"source":"s","type":"t\u0000"}"#, "Invalid field_characters - type"),
        (r#"{"source":"s","type":"t","id":"\u0085"}"#, "Invalid field_characters - id"),
        (r#"{"source":"s","type":"t","subject":"\n"}"#, "Invalid field_characters - subject"),
        (r#"{"source":"s","type":"order.*"}"#, "Invalid field_characters - type"),
        (r#"{"source":"a b","type":"t"}"#, "Invalid field_characters - source"),
        (r#"{"source":"a\u00a0b","type":"t"}"#, "Invalid field_characters - source"),
        (r#"{"source":"s","type":"t","time":"yesterday"}"#, "Invalid field_time - time"),
        (r#"{"source":"s","type":"t","time":5}"#, "Invalid field_type - time"),
        (r#"{"source":"s","type":"t","ended":"2026-13-01T00:00:00Z"}"#, "Invalid field_time - ended"),
        (r#"{"source":"s","type":"t","parents":"p"}"#, "Invalid field_type - parents"),
        (r#"{"source":"s","type":"t","parents":["p",""]}"#, "Invalid field_empty - parents[1]"),
        (r#"{"source":"s","type":"t","parents":["p",1]}"#, "Invalid field_type - parents[1]"),
        (r#"{"source":"s","type":"t","extensions":[]}"#, "Invalid field_type - extensions"),
        (r#"{"source":"s","type":"t","extensions":{"A":1}}"#, "Invalid extension_name - extensions"),
        (r#"{"source":"s","type":"t","extensions":{"a":{}}}"#, "Invalid extension_value - extensions.a"),
        (r#"{"source":"s","type":"t","extensions":{"a":1,"a":2}}"#, "Invalid field_repeated - extensions.a"),
        (r#"{"source":"s","type":"t","events":[{}]}"#, "Invalid field_missing - events[0].type"),
        (
            r#"{"source":"s","type":"t","events":[{"type":"a","id":"x"}]}"#,
            "Invalid field_unknown - events[0].id",
        ),
        (
            r#"{"source":"s","type":"t","events":[{"type":"a"},{"type":"a","events":[{"type":""}]}]}"#,
            "Invalid field_empty - events[1].events[0].type",
        ),
        (r#"{"source":"s","type":"t","events":[7]}"#, "Invalid field_type - events[0]"),
        (r#"{"source":"s","type":"t","events":{}}"#, "Invalid field_type - events"),
        ("7", "Invalid field_type - -"),
        (r#"[["1","s","t"]]"#, "Invalid field_type 0 -"),
        (r#"{"source":"s","type":"t","events":[[null,null,"t"]]}"#, "Invalid field_type - events[0]"),
        (r#"[{"source":"s","type":"t"},{"source":"s"}]"#, "Invalid field_missing 1 type"),
        (r#"[{"source":"s","type":"t"},[]]"#, "Invalid field_type 1 -"),
    ] {
        assert_eq!(refusal(JSON, body), expected, "{body}");
    }
    let unknown = send(JSON, &[], r#"{"foo":1}"#).unwrap_err().detail;
    assert!(unknown.contains("`foo`") && unknown.contains("`source`"), "{unknown}");
    let lines = "{\"source\":\"s\",\"type\":\"t\"}\n\n{\"source\":\"s\"}";
    assert_eq!(refusal(NDJSON, lines), "Invalid field_missing 1 type");
    assert!(send(NDJSON, &[], lines).unwrap_err().detail.starts_with("line 3: "));
}

#[test]
fn what_is_not_json_says_where() {
    for body in ["", "  ", "{", "{\"source\":}", "{}x", "[{},", "\"\n\"", "{\"source\":5,", "nul"] {
        assert_eq!(refusal(JSON, body), "Unparsable json_syntax - -", "{body}");
    }
    let detail = send(JSON, &[], "{\"source\":\n x}").unwrap_err().detail;
    assert!(detail.contains("line 2 column 2"), "{detail}");
    assert_eq!(refusal(JSON, r#"{"source":"\ud800","type":"t"}"#), "Unparsable json_syntax - -");
    assert_eq!(refusal(JSON, b"{\"source\":\"\xff\"}".to_vec()), "Unparsable json_encoding - -");
    assert_eq!(refusal(NDJSON, "{\n}"), "Unparsable json_syntax 0 -");
}

#[test]
fn times_are_rfc_3339_and_nothing_else() {
    let time = |text: &str| {
        let body = format!("{{\"id\":\"1\",\"source\":\"s\",\"type\":\"t\",\"time\":\"{text}\"}}");
        send(JSON, &[], body).map(|units| {
            let body: Value = serde_json::from_slice(&units[0].events[0].body).unwrap();
            body["time"].as_str().unwrap().to_owned()
        })
    };
    for (sent, kept) in [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:00.123456789Z"),
        ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"),
        ("2026-01-01T01:00:00.123456+01:00", "2026-01-01T00:00:00.123456Z"),
        ("2026-01-01T00:00:00-00:00", "2026-01-01T00:00:00Z"),
        ("2026-01-01t00:00:00z", "2026-01-01T00:00:00Z"),
    ] {
        assert_eq!(time(sent).as_deref(), Ok(kept), "{sent}");
    }
    for bad in [
        "2026-01-01",
        "2026-01-01T00:00Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00+0100",
        "2026-01-01T00:00:00Z[UTC]",
        "20260101T000000Z",
        "2026-02-30T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "+002026-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "",
    ] {
        assert!(time(bad).is_err(), "{bad}");
    }
}

#[test]
fn limits_are_limits() {
    let event = |more: &str| format!("{{\"source\":\"s\",\"type\":\"t\"{more}}}");
    let text = |field: &str, len: usize| event(&format!(",\"{field}\":\"{}\"", "x".repeat(len)));
    for (field, max) in [("id", limits::EVENT_ID_BYTES_MAX), ("subject", limits::SUBJECT_BYTES_MAX)] {
        send(JSON, &[], text(field, max)).unwrap();
        assert_eq!(refusal(JSON, text(field, max + 1)), format!("Invalid field_too_long - {field}"));
    }
    let list = |item: &str, count: usize| vec![item; count].join(",");
    let parents = |count: usize| event(&format!(",\"parents\":[{}]", list("\"p\"", count)));
    send(JSON, &[], parents(limits::PARENTS_MAX)).unwrap();
    assert_eq!(refusal(JSON, parents(limits::PARENTS_MAX + 1)), "Invalid field_too_many - parents");
    let extensions = |count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!("\"e{n}\":1")).collect();
        event(&format!(",\"extensions\":{{{}}}", members.join(",")))
    };
    send(JSON, &[], extensions(limits::EXTENSIONS_MAX)).unwrap();
    assert_eq!(refusal(JSON, extensions(limits::EXTENSIONS_MAX + 1)), "Invalid field_too_many - extensions");

    let many = |count: usize| format!("[{}]", list(&event(""), count));
    assert_eq!(send(JSON, &[], many(limits::REQUEST_EVENTS_MAX)).unwrap().len(), limits::REQUEST_EVENTS_MAX);
    assert_eq!(refusal(JSON, many(limits::REQUEST_EVENTS_MAX + 1)), "TooLarge too_many_events - -");
    let inner = |count: usize| event(&format!(",\"events\":[{}]", list("{\"type\":\"i\"}", count)));
    send(JSON, &[], inner(limits::REQUEST_EVENTS_MAX - 1)).unwrap();
    assert!(refusal(JSON, inner(limits::REQUEST_EVENTS_MAX)).starts_with("TooLarge too_many_events"));

    let sized = |size: usize| {
        let rest = event(",\"data\":\"\"").len();
        event(&format!(",\"data\":\"{}\"", "x".repeat(size - rest)))
    };
    send(JSON, &[], sized(limits::EVENT_BYTES_MAX)).unwrap();
    assert_eq!(refusal(JSON, sized(limits::EVENT_BYTES_MAX + 1)), "TooLarge event_too_large - -");
    let two = format!("[{},{}]", event(""), sized(limits::EVENT_BYTES_MAX + 1));
    assert_eq!(refusal(JSON, two), "TooLarge event_too_large 1 -");
    let body = " ".repeat(limits::REQUEST_BYTES_MAX + 1);
    assert_eq!(refusal(JSON, body), "TooLarge request_too_large - -");

    let deep_id =
        text("id", 254).replace("}", ",\"events\":[{\"type\":\"a\",\"events\":[{\"type\":\"b\"}]}]}");
    assert_eq!(refusal(JSON, deep_id), "Invalid field_too_long - events[0].events[0].id");
}

#[test]
fn nesting_is_bounded_from_the_event_on() {
    let event = |depth: usize| {
        format!("{{\"source\":\"s\",\"type\":\"t\",\"data\":{}{}}}", "[".repeat(depth), "]".repeat(depth))
    };
    let most = limits::JSON_DEPTH_MAX - 1;
    let cloud =
        |depth| event(depth).replace("{\"source\"", "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\"");
    send(JSON, &[], event(most)).unwrap();
    send(JSON, &[], format!("[{}]", event(most))).unwrap();
    send(NDJSON, &[], event(most)).unwrap();
    send(STRUCTURED, &[], cloud(most)).unwrap();
    send(BATCH, &[], format!("[{}]", cloud(most))).unwrap();
    assert_eq!(refusal(JSON, event(most + 1)), "TooDeep json_too_deep - -");
    assert_eq!(refusal(JSON, format!("[{}]", event(most + 1))), "TooDeep json_too_deep - -");
    assert_eq!(refusal(NDJSON, event(most + 1)), "TooDeep json_too_deep 0 -");
    assert_eq!(refusal(STRUCTURED, cloud(most + 1)), "TooDeep json_too_deep - -");
    assert_eq!(refusal(BATCH, format!("[{}]", cloud(most + 1))), "TooDeep json_too_deep - -");
    assert_eq!(refusal(JSON, "[".repeat(100_000)), "TooDeep json_too_deep - -");
}

#[test]
fn other_media_types_are_refused() {
    for content_type in [
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/cloudevents+avro",
        "application/cloudevents",
        "application/cloudevents-batch+xml",
        "application/json; charset=latin1",
        "application/vnd.x+json",
        "",
    ] {
        assert_eq!(
            refusal(Some(content_type), "{}"),
            "MediaType media_type_unsupported - -",
            "{content_type}"
        );
    }
}

#[test]
fn fingerprints_see_through_white_space_and_nothing_else() {
    let same = [
        r#"{"id":"1","source":"s","type":"t","data":{"a":[1,2]},"extensions":{"x":1}}"#,
        "{ \"data\" : { \"a\" : [1,\n2] }, \"id\":\"1\",\"source\":\"s\",\"type\":\"t\",\"extensions\":{ \"x\": 1 } }",
        r#"{"id":"1","source":"s","type":"t","data":{"a":[1,2]},"extensions":{"x":1},"subject":null,"events":[]}"#,
    ];
    assert_eq!(prints(same[0]), prints(same[1]));
    assert_eq!(prints(same[0]), prints(same[2]));
    let different = [
        r#"{"source":"s","type":"t"}"#,
        r#"{"id":"1","source":"s","type":"t"}"#,
        r#"{"id":"1","source":"st","type":"t"}"#,
        r#"{"id":"1","source":"s","type":"t","subject":""#,
        r#"{"id":"1","source":"s","type":"t","subject":"x"}"#,
        r#"{"id":"1","source":"s","type":"t","time":"2026-01-01T00:00:00Z"}"#,
        r#"{"id":"1","source":"s","type":"t","ended":"2026-01-01T00:00:00Z"}"#,
        r#"{"id":"1","source":"s","type":"t","parents":["x"]}"#,
        r#"{"id":"1","source":"s","type":"t","extensions":{"x":1}}"#,
        r#"{"id":"1","source":"s","type":"t","data":"AAE="}"#,
        r#"{"id":"1","source":"s","type":"t","data_base64":"AAE="}"#,
        r#"{"id":"1","source":"s","type":"t","data":"a b"}"#,
        r#"{"id":"1","source":"s","type":"t","data":"ab"}"#,
        r#"{"id":"1","source":"s","type":"t","data":1.0}"#,
        r#"{"id":"1","source":"s","type":"t","data":1}"#,
        r#"{"id":"1","source":"s","type":"t","events":[{"type":"a"}]}"#,
        r#"{"id":"1","source":"s","type":"t","events":[{"type":"a"},{"type":"b"}]}"#,
        r#"{"id":"1","source":"s","type":"t","events":[{"type":"a","events":[{"type":"b"}]}]}"#,
    ];
    let mut seen: Vec<_> =
        different.iter().filter(|body| body.ends_with('}')).map(|body| prints(body)).collect();
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
    // What the server sets is no part of it.
    let body = Bytes::from_static(b"{\"source\":\"s\",\"type\":\"t\"}");
    let request = Request { content_type: None, headers: &[], body: &body };
    let later = decode(&request, Timestamp::from_ms(99), &mut || 1).unwrap();
    assert_eq!(later[0].fingerprint, prints(different[0]));
}
