//! The paths that older clients know: their words in, their words out, on the wire as well.

use serde_json::{Value, json};
use tidegate_core::sign::Signer;

use crate::client::Client;
use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::Server;

const SUBSCRIBERS: &str = "/v1/webhooks/subscribers";

fn event(id: &str, type_name: &str) -> Value {
    json!({ "id": id, "source": "meta-api", "type": type_name, "time": "2025-12-07T10:30:00Z",
        "data": { "component": "NEOFORGE", "version": "21.0.1" } })
}

/// The only window, when it holds so many events.
#[track_caller]
fn gathered(client: &Client, count: usize) -> Value {
    client.until("/v1/windows", |page| page["items"][0]["count"] == count)["items"][0].clone()
}

/// Closes the only window.
#[track_caller]
fn send_now(client: &Client) {
    let triggered = client.post("/v1/webhooks/trigger", &Value::Null).expect(202);
    assert_eq!((&triggered["windows"], &triggered["complete"]), (&1.into(), &true.into()), "{triggered}");
}

fn ids(arrival: &Arrival) -> Vec<String> {
    let events = arrival.json()["events"].as_array().expect("a list").clone();
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn a_webhook_is_registered_fed_and_listed_in_its_own_words() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    client.publish(&event("before", "NEW_VERSION"));
    let body = json!({ "name": "My Service", "url": hook.url(), "secret": "shared-secret-key",
        "eventFilter": ["NEW_VERSION", "VERSION_UPDATED"] });
    let registered = client.post(SUBSCRIBERS, &body).expect(201);
    assert!(registered["warning"].as_str().is_some_and(|text| text.contains("whsec_")), "{registered}");
    server.until_logged("plain text");
    assert!(!server.log().contains("shared-secret-key"));
    assert_eq!(registered["secret"], Value::Null, "whoever brought it knows it");
    let id = registered["id"].as_str().expect("an id");
    let path = format!("{SUBSCRIBERS}/{id}");
    let fold = client.get(&format!("/v1/subscribers/{id}")).expect(200)["fold"].clone();
    let parts = [&fold["mode"], &fold["every"], &fold["max_events"], &fold["by"]];
    assert_eq!(parts, [&json!("batch"), &json!("30s"), &json!(1000), &json!([])]);

    gathered(&client, 1);
    send_now(&client);
    let first = hook.next();
    assert_eq!(ids(&first), ["before"], "it begins at the beginning");
    let hex = Signer::parse("shared-secret-key").unwrap().hex_signature(&first.body);
    assert_eq!(first.header("x-webhook-signature"), format!("sha256={hex}"));
    first.verify("shared-secret-key");

    let published = client.post("/api/events/publish", &event("e", "VERSION_UPDATED")).expect(202);
    assert_eq!(published["accepted"], 1);
    client.publish(&event("other", "OTHER"));
    client.publish(&event("f", "NEW_VERSION"));
    let window = gathered(&client, 2);
    assert_eq!((&window["mode"], &window["key"]), (&json!("batch"), &json!({})), "one for all types");
    send_now(&client);
    let expected = |id: &str, type_name: &str| {
        json!({ "id": id, "eventType": type_name, "createdAt": "2025-12-07T10:30:00Z",
            "component": "NEOFORGE", "componentVersion": "21.0.1",
            "data": { "component": "NEOFORGE", "version": "21.0.1" } })
    };
    let both = json!({ "events": [expected("e", "VERSION_UPDATED"), expected("f", "NEW_VERSION")] });
    assert_eq!(hook.next().json(), both);

    let shown = client.until(&path, |webhook| webhook["lastSuccessfulDeliveryAt"].is_string());
    let names: Vec<&String> = shown.as_object().expect("an object").keys().collect();
    let known = ["active", "createdAt", "eventFilter", "id", "lastSuccessfulDeliveryAt", "name", "url"];
    assert_eq!(names, known);
    assert_eq!(shown["eventFilter"], json!(["NEW_VERSION", "VERSION_UPDATED"]));
    server.subscribe(&Receiver::start(), &Value::Null);
    let listed = client.get(SUBSCRIBERS).expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "only those of this kind");
    let deliveries =
        client.until(&format!("{path}/deliveries?limit=50"), |page| page["items"][0]["status"] == "SUCCESS");
    let item = &deliveries["items"][0];
    assert_eq!(
        (&item["events"], &item["eventCount"], &item["attemptCount"], &item["maxAttempts"]),
        (&json!(["e", "f"]), &2.into(), &1.into(), &6.into())
    );
    assert!(item["deliveredAt"].is_string() && item["nextRetryAt"].is_null(), "{item}");
    assert_eq!(hook.rest().len(), 0);
}

#[test]
fn a_failure_is_tried_again_at_the_trigger() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |_| Reply::status(if gate.is_open() { 200 } else { 500 }))
    };
    let registered = client.post(SUBSCRIBERS, &json!({ "name": "n", "url": hook.url() })).expect(201);
    let secret = registered["secret"].as_str().expect("a new secret");
    let path = format!("{SUBSCRIBERS}/{}", registered["id"].as_str().expect("an id"));
    client.publish(&event("e", "t"));
    send_now(&client);
    hook.next().verify(secret);
    let history = format!("{path}/deliveries");
    let failed = client.until(&history, |page| page["items"][0]["status"] == "FAILED");
    let item = &failed["items"][0];
    assert!(item["nextRetryAt"].is_string(), "{item}");
    assert_eq!(item["lastError"], "the receiver answered 500");
    gate.open();
    let triggered = client.post("/v1/webhooks/trigger", &Value::Null).expect(202);
    assert_eq!(triggered, json!({ "windows": 0, "triggered": 1, "complete": true }));
    assert_eq!(ids(&hook.next()), ["e"]);
    client.until(&history, |page| page["items"][0]["status"] == "SUCCESS");
    assert_eq!(client.post("/v1/trigger", &Value::Null).expect(202)["triggered"], 0);
}

#[test]
fn a_batch_is_full_at_a_thousand() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    client.post(SUBSCRIBERS, &json!({ "name": "n", "url": hook.url() })).expect(201);
    let sent: Vec<String> = (0..1_100).map(|n| format!("e{n}")).collect();
    client.publish(&sent.iter().map(|id| event(id, "t")).collect());
    assert_eq!(ids(&hook.next()), sent[..1_000], "nobody had to wait for it");
    send_now(&client);
    assert_eq!(ids(&hook.next()), sent[1_000..]);
}

#[test]
fn a_webhook_is_changed_and_deleted_and_told_what_is_wrong() {
    let server = Server::start();
    let client = server.admin();
    let (old, new) = (Receiver::start(), Receiver::start());
    let body = json!({ "name": "n", "url": old.url(), "secret": "first", "eventFilter": ["a"] });
    let registered = client.post(SUBSCRIBERS, &body).expect(201);
    let path = format!("{SUBSCRIBERS}/{}", registered["id"].as_str().expect("an id"));
    let change = json!({ "name": "m", "url": new.url(), "secret": "second", "eventFilter": null });
    let changed = client.patch(&path, &change).expect(200);
    assert_eq!((&changed["name"], &changed["eventFilter"]), (&"m".into(), &Value::Null));
    client.publish(&event("e", "b"));
    send_now(&client);
    new.next().verify("second");
    assert_eq!(client.patch(&path, &json!({ "active": false })).expect(200)["active"], false);

    for (body, code, field) in [
        (json!({ "name": "n" }), "field_missing", "url"),
        (json!({ "name": "n", "url": "ftp://example.com" }), "url_refused", "url"),
        (
            json!({ "name": "n", "url": new.url(), "eventFilter": ["a*"] }),
            "pattern_invalid",
            "eventFilter[0]",
        ),
        (json!({ "name": "n", "url": new.url(), "secret": "" }), "secret_invalid", "secret"),
        (json!({ "name": "n", "url": new.url(), "filter": [] }), "field_unknown", "filter"),
    ] {
        assert_eq!(client.post(SUBSCRIBERS, &body).problem(422, code)["field"], field, "{body}");
    }
    let ordinary = server.subscribe(&Receiver::start(), &Value::Null);
    client.get(&format!("{SUBSCRIBERS}/{}", ordinary.id)).problem(404, "not_found");
    client.patch(&format!("{SUBSCRIBERS}/{}", ordinary.id), &Value::Null).problem(404, "not_found");
    client.delete(&path).expect(200);
    client.get(&path).problem(404, "not_found");
}
