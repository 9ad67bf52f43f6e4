//! Spans: a collector is told what took how long, and receivers learn what caused their requests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::within_patience;
use crate::receiver::Receiver;
use crate::server::{Server, Setup};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A server that tells this collector.
fn told(collector: &Receiver) -> Server {
    let endpoint = format!("http://{}", collector.address);
    let variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k1".to_owned()),
    ];
    Server::start_with(&Setup { variables, ..Setup::usual() })
}

/// The spans of these exports, by name.
fn spans(collector: &Receiver, count: usize) -> BTreeMap<String, Vec<Value>> {
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    while found.values().map(Vec::len).sum::<usize>() < count {
        let export = collector.next();
        assert!(export.line.starts_with("POST /v1/traces "), "{}", export.line);
        assert_eq!(export.headers["content-type"], "application/json");
        assert_eq!(export.headers["api-key"], "k1");
        let body: Value = serde_json::from_slice(&export.body).expect("JSON");
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tidegate");
        for span in resource["scopeSpans"][0]["spans"].as_array().expect("spans") {
            let name = span["name"].as_str().expect("a name").to_owned();
            found.entry(name).or_default().push(span.clone());
        }
    }
    found
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    &found.unwrap_or_else(|| panic!("no {name} in {span}"))["value"]
}

#[test]
fn a_trace_leads_from_the_senders_request_to_each_attempt() {
    let collector = Receiver::start();
    let server = told(&collector);
    let hook = Receiver::answering(&[500]);
    let subscriber = server.subscribe(&hook, &json!({ "retry": { "schedule": ["1ms"] } }));
    let sender = server.admin().with("traceparent", PARENT).with("tracestate", "vendor=1");
    sender.publish(&json!({ "id": "e", "source": "s", "type": "t" }));
    let sent: Vec<String> =
        hook.take(2).iter().map(|arrival| arrival.headers["traceparent"].clone()).collect();
    let found = spans(&collector, 4);
    let (request, commit, attempts) = (&found["POST /v1/events"][0], &found["commit"][0], &found["attempt"]);
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&TRACE.into(), &"00f067aa0ba902b7".into()));
    assert_eq!(
        (&request["kind"], attribute(request, "http.response.status_code")),
        (&2.into(), &json!({ "intValue": "202" }))
    );
    assert_eq!(commit["links"], json!([{ "traceId": TRACE, "spanId": request["spanId"] }]));
    assert_ne!(commit["traceId"], TRACE, "a commit is a trace of its own");
    for (n, (attempt, header)) in attempts.iter().zip(&sent).enumerate() {
        assert_eq!((&attempt["traceId"], &attempt["parentSpanId"]), (&TRACE.into(), &request["spanId"]));
        assert_eq!(*header, format!("00-{TRACE}-{}-01", attempt["spanId"].as_str().expect("an id")));
        assert_eq!(attribute(attempt, "tidegate.attempt"), &json!({ "intValue": (n + 1).to_string() }));
        assert_eq!(attribute(attempt, "tidegate.subscriber"), &json!({ "stringValue": subscriber.id }));
        assert_eq!(attempt["status"]["code"] == 2, n == 0, "the first one failed");
    }
    assert_ne!(sent[0], sent[1], "each attempt is a span of its own");
    let number =
        |span: &Value, name: &str| span[name].as_str().expect("text").parse::<u64>().expect("a number");
    assert!(number(request, "endTimeUnixNano") > number(request, "startTimeUnixNano"));
    let text = crate::client::Client::stranger(server.address).get("/metrics").text();
    assert!(text.contains("tidegate_spans_dropped_total 0\n"), "{text}");
}

#[test]
fn a_request_without_a_context_begins_a_trace_and_a_stop_sends_what_is_left() {
    let collector = Receiver::start();
    let mut server = told(&collector);
    server.admin().publish(&json!({ "id": "e", "source": "s", "type": "t" }));
    server.stop();
    let found = spans(&collector, 2);
    let request = &found["POST /v1/events"][0];
    assert!(request.get("parentSpanId").is_none());
    assert_eq!(found["commit"][0]["links"][0]["spanId"], request["spanId"]);
}

#[test]
fn without_a_collector_a_context_is_passed_on_as_it_came() {
    let server = Server::start();
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({}));
    let admin = server.admin();
    let event = json!({ "id": "e", "source": "s", "type": "t" });
    admin.with("traceparent", PARENT).with("tracestate", "vendor=1").publish(&event);
    let arrival = hook.next();
    assert_eq!(
        (arrival.headers["traceparent"].as_str(), arrival.headers["tracestate"].as_str()),
        (PARENT, "vendor=1")
    );
    assert_eq!(arrival.json()["extensions"], json!({ "traceparent": PARENT, "tracestate": "vendor=1" }));
    let again = admin.with("traceparent", &PARENT.replace("2b7", "2b8")).publish(&event);
    assert_eq!(again["duplicates"], 1, "what a context says does not make another event");
    let own = json!({ "id": "own", "source": "s", "type": "t", "extensions": { "traceparent": PARENT.replace("2b7", "2b9") } });
    admin.with("traceparent", PARENT).publish(&own);
    assert!(hook.next().headers["traceparent"].ends_with("2b9-01"), "the event's own context wins");
    let unsampled = PARENT.replace("-01", "-00");
    admin.with("traceparent", &unsampled).publish(&json!({ "id": "u", "source": "s", "type": "t" }));
    admin.publish(&json!({ "id": "none", "source": "s", "type": "t" }));
    for arrival in hook.take(2) {
        assert!(!arrival.headers.contains_key("traceparent") && arrival.json().get("extensions").is_none());
    }
}

#[test]
fn a_collector_that_is_away_slows_nothing_down() {
    let endpoint = "http://127.0.0.1:1".to_owned();
    let variables = vec![("TIDEGATE_OTLP_ENDPOINT", endpoint)];
    let server = Server::start_with(&Setup { variables, ..Setup::usual() });
    let batch: Vec<Value> =
        (0..50).map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect();
    for event in &batch {
        server.admin().publish(event);
    }
    let stranger = crate::client::Client::stranger(server.address);
    let dropped = |text: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix("tidegate_spans_dropped_total "));
        value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    assert!(within_patience(|| dropped(&stranger.get("/metrics").text()) >= 50));
    let setup =
        Setup { variables: vec![("TIDEGATE_OTLP_ENDPOINT", "nonsense".to_owned())], ..Setup::usual() };
    assert!(setup.refusal(&crate::server::Folder::new()).contains("otlp.endpoint"));
}
