//! The paths that older clients know: their words in, their words out, on the wire as well.

use serde_json::{Value, json};
use tidegate_core::sign::Signer;

use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

const SUBSCRIBERS: &str = "/v1/webhooks/subscribers";

fn event(id: &str, type_name: &str) -> Value {
    json!({ "id": id, "source": "meta-api", "type": type_name, "time": "2025-12-07T10:30:00Z",
        "data": { "component": "NEOFORGE", "version": "21.0.1" } })
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
    let path = format!("{SUBSCRIBERS}/{}", registered["id"].as_str().expect("an id"));

    let first = hook.next();
    assert_eq!(first.json()["events"][0]["id"], "before", "it begins at the beginning");
    let hex = Signer::parse("shared-secret-key").unwrap().hex_signature(&first.body);
    assert_eq!(first.header("x-webhook-signature"), format!("sha256={hex}"));
    first.verify("shared-secret-key");

    let published = client.post("/api/events/publish", &event("e", "VERSION_UPDATED")).expect(202);
    assert_eq!(published["accepted"], 1);
    client.publish(&event("other", "OTHER"));
    let expected = json!({ "events": [{ "id": "e", "eventType": "VERSION_UPDATED",
        "createdAt": "2025-12-07T10:30:00Z", "component": "NEOFORGE", "componentVersion": "21.0.1",
        "data": { "component": "NEOFORGE", "version": "21.0.1" } }] });
    assert_eq!(hook.next().json(), expected);

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
        (&item["events"], &item["attemptCount"], &item["maxAttempts"]),
        (&json!(["e"]), &1.into(), &6.into())
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
    hook.next().verify(secret);
    let history = format!("{path}/deliveries");
    let failed = client.until(&history, |page| page["items"][0]["status"] == "FAILED");
    let item = &failed["items"][0];
    assert!(item["nextRetryAt"].is_string(), "{item}");
    assert_eq!(item["lastError"], "the receiver answered 500");
    gate.open();
    assert_eq!(client.post("/v1/webhooks/trigger", &Value::Null).expect(202)["triggered"], 1);
    assert_eq!(hook.next().json()["events"][0]["id"], "e");
    client.until(&history, |page| page["items"][0]["status"] == "SUCCESS");
    assert_eq!(client.post("/v1/trigger", &Value::Null).expect(202)["triggered"], 0);
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
