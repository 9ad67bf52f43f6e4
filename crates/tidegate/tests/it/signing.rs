//! Signatures: secrets that change under way, keys that are no secret, and headers for receivers from elsewhere.

use serde_json::{Value, json};
use tidegate_core::sign::{Signer, verify};

use crate::client::Client;
use crate::receiver::{Arrival, Receiver};
use crate::server::{Server, Setup, Subscriber};

const OTHER: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Publishes an event and takes its one delivery.
#[track_caller]
fn deliver(client: &Client, hook: &Receiver, id: &str) -> Arrival {
    client.publish(&json!({ "id": id, "source": "s", "type": "t", "data": { "n": 1 } }));
    hook.next()
}

#[track_caller]
fn rotate(server: &Server, subscriber: &Subscriber, body: &Value) -> Value {
    server.admin().post(&format!("{}/rotate-secret", subscriber.path), body).expect(200)
}

fn fits(arrival: &Arrival, secret: &str) -> bool {
    let (id, timestamp) = (arrival.webhook_id(), arrival.header("webhook-timestamp"));
    verify(secret, id, timestamp, arrival.header("webhook-signature"), &arrival.body, arrival.at).is_ok()
}

/// Whose signature `x-webhook-signature` is.
fn signs_body(arrival: &Arrival, secret: &str) -> bool {
    let hex = Signer::parse(secret).expect("a secret").hex_signature(&arrival.body);
    arrival.header("x-webhook-signature") == format!("sha256={hex}")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
fn during_the_grace_of_a_rotation_both_secrets_sign_also_after_a_restart() {
    let mut server = Server::start();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &Value::Null);
    let rotated = rotate(&server, &subscriber, &Value::Null);
    let new = text(&rotated["secret"]).to_owned();
    assert!(rotated["grace_until"].is_string() && new != subscriber.secret, "{rotated}");
    let shown = server.admin().get(&subscriber.path).expect(200);
    assert_eq!((&shown["grace_until"], &shown["secret"]), (&rotated["grace_until"], &Value::Null));

    let check = |arrival: &Arrival| {
        assert!(fits(arrival, &new) && fits(arrival, &subscriber.secret));
        assert!(signs_body(arrival, &subscriber.secret), "it stays the old one's until the grace ends");
        let first = arrival.header("webhook-signature").split(' ').next().expect("a signature");
        let seconds = arrival.header("webhook-timestamp").parse().expect("seconds");
        let expected = Signer::parse(&new).unwrap().signature(arrival.webhook_id(), seconds, &arrival.body);
        assert_eq!(first, expected, "the new one's stands first");
    };
    check(&deliver(&server.admin(), &hook, "a"));
    server.stop();
    server.restart(&Setup::usual());
    check(&deliver(&server.admin(), &hook, "b"));

    let again = rotate(&server, &subscriber, &json!({ "secret": OTHER, "grace": "1h" }));
    assert_eq!(again["secret"], OTHER);
    let arrival = deliver(&server.admin(), &hook, "c");
    assert!(fits(&arrival, OTHER) && fits(&arrival, &new));
    assert!(!fits(&arrival, &subscriber.secret), "the newest and the one before it, no more");
}

#[test]
fn a_grace_that_is_over_leaves_one_signature() {
    let server = Server::start();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &Value::Null);
    let rotated = rotate(&server, &subscriber, &json!({ "grace": "0s" }));
    assert_eq!(rotated["grace_until"], Value::Null);
    let arrival = deliver(&server.admin(), &hook, "a");
    arrival.verify(text(&rotated["secret"]));
    assert!(!fits(&arrival, &subscriber.secret));

    // No timer ends a grace: the next attempt after it finds it over.
    let short = rotate(&server, &subscriber, &json!({ "grace": "1ms" }));
    server.admin().until(&subscriber.path, |subscriber| subscriber["grace_until"].is_null());
    let arrival = deliver(&server.admin(), &hook, "b");
    arrival.verify(text(&short["secret"]));
    assert!(!fits(&arrival, text(&rotated["secret"])));
}

#[test]
fn a_rotation_is_checked_and_only_for_admins_of_its_project() {
    let server = Server::start();
    let client = server.admin();
    let subscriber = server.subscribe(&Receiver::start(), &Value::Null);
    let path = format!("{}/rotate-secret", subscriber.path);
    for (body, code, field) in [
        (json!({ "grace": "8d" }), "field_range", "grace"),
        (json!({ "grace": "soon" }), "duration_invalid", "grace"),
        (json!({ "secret": "hunter2" }), "secret_invalid", "secret"),
        (json!({ "secrets": 1 }), "field_unknown", "secrets"),
    ] {
        let problem = client.post(&path, &body).problem(422, code);
        assert_eq!(problem["field"], field);
        assert!(!problem.to_string().contains("hunter2"));
    }
    client.post("/v1/subscribers/sub_none/rotate-secret", &Value::Null).problem(404, "not_found");
    let viewer = client.post("/v1/keys", &json!({ "project": "default", "role": "viewer" })).expect(201);
    client.with_key(text(&viewer["key"])).post(&path, &Value::Null).expect(403);
}

#[test]
fn ed25519_needs_no_secret_at_the_receiver() {
    let mut server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let body = json!({ "destination": { "url": hook.url() }, "signing": { "algorithm": "ed25519" } });
    let created = client.post("/v1/subscribers", &body).expect(201);
    assert_eq!(created["secret"], Value::Null, "a private key leaves the server never");
    let key = text(&created["public_key"]).to_owned();
    let path = format!("/v1/subscribers/{}", text(&created["id"]));
    assert_eq!(client.get(&path).expect(200)["public_key"], key.as_str());
    let arrival = deliver(&client, &hook, "a");
    assert!(key.starts_with("whpk_") && fits(&arrival, &key));
    assert!(arrival.header("webhook-signature").starts_with("v1a,"));
    assert!(!arrival.headers.contains_key("x-webhook-signature"), "nobody could check it without a secret");
    server.stop();
    server.restart(&Setup::usual());
    assert!(fits(&deliver(&server.admin(), &hook, "b"), &key));
    client_can_not_patch_the_algorithm(&server.admin(), &path);
}

#[track_caller]
fn client_can_not_patch_the_algorithm(client: &Client, path: &str) {
    let problem =
        client.patch(path, &json!({ "signing": { "algorithm": "hmac" } })).problem(422, "field_fixed");
    assert_eq!(problem["field"], "signing.algorithm");
}

#[test]
fn a_rotation_switches_the_algorithm_with_a_grace() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &Value::Null);
    let switched = rotate(&server, &subscriber, &json!({ "signing": { "algorithm": "ed25519" } }));
    assert_eq!(switched["signing"]["algorithm"], "ed25519");
    let arrival = deliver(&client, &hook, "a");
    assert!(fits(&arrival, text(&switched["public_key"])) && fits(&arrival, &subscriber.secret));
    assert!(signs_body(&arrival, &subscriber.secret));
    let back = rotate(&server, &subscriber, &json!({ "signing": { "algorithm": "hmac" }, "grace": "1h" }));
    assert_eq!(back["public_key"], Value::Null);
    let arrival = deliver(&client, &hook, "b");
    assert!(fits(&arrival, text(&switched["public_key"])) && fits(&arrival, text(&back["secret"])));
    assert!(signs_body(&arrival, text(&back["secret"])));
}

#[test]
fn receivers_from_elsewhere_find_the_headers_they_know() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let signing = json!({ "signing": { "header_prefix": "svix", "github": true } });
    let subscriber = server.subscribe(&hook, &signing);
    let arrival = deliver(&client, &hook, "a");
    arrival.verify(&subscriber.secret);
    for name in ["id", "timestamp", "signature"] {
        assert_eq!(arrival.header(&format!("svix-{name}")), arrival.header(&format!("webhook-{name}")));
    }
    assert_eq!(arrival.header("x-hub-signature-256"), arrival.header("x-webhook-signature"));

    client.patch(&subscriber.path, &json!({ "signing": null })).expect(200);
    let plain = deliver(&client, &hook, "b");
    assert!(!plain.headers.contains_key("svix-id") && !plain.headers.contains_key("x-hub-signature-256"));
    for prefix in ["webhook", "x-hub", "tidegate", "a b", ""] {
        let patch = json!({ "signing": { "header_prefix": prefix } });
        client.patch(&subscriber.path, &patch).problem(422, "header_refused");
    }
    let clash =
        json!({ "signing": { "header_prefix": "svix" }, "destination": { "headers": { "Svix-Id": "x" } } });
    client.patch(&subscriber.path, &clash).problem(422, "header_refused");
}
