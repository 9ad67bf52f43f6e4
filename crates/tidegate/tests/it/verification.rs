//! Verification: an endpoint gets nothing before it has agreed, by either way of asking.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::{Server, Setup, Subscriber};

/// Repeats challenges, and takes everything else.
fn repeating(arrival: &Arrival) -> Reply {
    match arrival.json()["challenge"].as_str() {
        Some(challenge) => Reply::status(200).body(challenge),
        None => Reply::status(200),
    }
}

fn agreeing(arrival: &Arrival) -> Reply {
    if arrival.line.starts_with("OPTIONS") {
        return Reply::status(200)
            .header("WebHook-Allowed-Origin", "gate.example.com")
            .header("WebHook-Allowed-Rate", "120");
    }
    Reply::status(200)
}

fn publish(client: &Client, id: &str) {
    client.publish(&json!({ "id": id, "source": "s", "type": "t" }));
}

#[track_caller]
fn until_status(server: &Server, subscriber: &Subscriber, status: &str) -> Value {
    server.admin().until(&subscriber.path, |subscriber| subscriber["verification_status"] == status)
}

#[test]
fn a_challenge_that_is_repeated_opens_the_endpoint() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |arrival| {
            gate.wait();
            repeating(arrival)
        })
    };
    // The answer does not wait for the endpoint, which hangs.
    let subscriber = server.subscribe(&hook, &json!({ "verification": "challenge" }));
    let asked = hook.next();
    asked.verify(&subscriber.secret);
    assert_eq!(asked.json()["type"], "tidegate.verification");
    let shown = client.get(&subscriber.path).expect(200);
    assert_eq!((&shown["active"], &shown["inactive_reason"]), (&false.into(), &"unverified".into()));
    assert_eq!(shown["verification_status"], "pending");
    publish(&client, "e");
    let trace = client.get("/v1/events/e/trace").expect(200);
    let line = &trace["subscribers"][0];
    assert_eq!((&line["outcome"], &line["reason"]), (&"held".into(), &"unverified".into()), "{trace}");
    let test = format!("{}/test", subscriber.path);
    client.post(&test, &Value::Null).problem(409, "endpoint_unverified");
    let resumed = client.post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    assert_eq!(resumed["inactive_reason"], "unverified", "nobody but the endpoint can agree");
    assert_eq!(hook.rest().len(), 0, "nothing else before it has agreed");
    gate.open();
    let open = until_status(&server, &subscriber, "verified");
    assert_eq!((&open["active"], &open["inactive_reason"]), (&true.into(), &Value::Null));
    assert_eq!(hook.next().event_id(), "e");
}

#[test]
fn another_url_must_agree_for_itself() {
    let mut server = Server::start();
    let (good, bad) = (Receiver::scripted(repeating), Receiver::start());
    let subscriber = server.subscribe(&good, &json!({ "verification": "challenge" }));
    until_status(&server, &subscriber, "verified");
    good.next();
    let moved =
        server.admin().patch(&subscriber.path, &json!({ "destination": { "url": bad.url() } })).expect(200);
    assert_eq!((&moved["active"], &moved["verification_status"]), (&false.into(), &"pending".into()));
    publish(&server.admin(), "e");
    assert!(bad.next().json()["challenge"].is_string());
    let refused = server.admin().until(&subscriber.path, |row| row["verification_detail"].is_string());
    assert!(refused["verification_detail"].as_str().is_some_and(|text| text.contains("repeat")), "{refused}");
    server.stop();
    server.restart(&Setup::usual());
    assert!(bad.next().json()["challenge"].is_string(), "a restart goes on with it");
    assert_eq!(bad.rest().len(), 0, "and with nothing else");

    // Patching something else asks nobody; moving back asks the old one again.
    server.admin().patch(&subscriber.path, &json!({ "name": "n" })).expect(200);
    server.admin().patch(&subscriber.path, &json!({ "destination": { "url": good.url() } })).expect(200);
    assert!(good.next().json()["challenge"].is_string());
    assert_eq!(good.next().event_id(), "e");
}

#[test]
fn the_handshake_of_cloudevents_grants_an_origin_and_a_rate() {
    let mut setup = Setup::usual();
    setup.variables.push(("TIDEGATE_EGRESS_ORIGIN", "gate.example.com".to_owned()));
    let mut server = Server::start_with(&setup);
    let hook = Receiver::scripted(agreeing);
    let subscriber =
        server.subscribe(&hook, &json!({ "verification": "cloudevents", "limits": { "rate": "100/s" } }));
    let asked = hook.next();
    assert!(asked.line.starts_with("OPTIONS /hook "), "{}", asked.line);
    assert_eq!(asked.header("webhook-request-origin"), "gate.example.com");
    assert_eq!(asked.header("webhook-request-rate"), "6000");
    until_status(&server, &subscriber, "verified");
    server.stop();
    server.restart(&setup);
    let events: Value =
        (0..4).map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect();
    server.admin().publish(&events);
    let arrivals = hook.take(4);
    assert!(arrivals.iter().all(|arrival| arrival.header("webhook-request-origin") == "gate.example.com"));
    let took = arrivals[3].at.as_ms() - arrivals[0].at.as_ms();
    assert!(took >= 400, "120 a minute is two at once, then one every 500 ms; it took {took} ms");
}

#[test]
fn a_refusal_is_explained_and_asked_again_on_request() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::scripted(|arrival| match arrival.before {
        0 => Reply::status(200).header("WebHook-Allowed-Origin", "somebody.else"),
        _ => Reply::status(405).header("WebHook-Allowed-Origin", "*"),
    });
    let subscriber = server.subscribe(&hook, &json!({ "verification": "cloudevents" }));
    let refused = client.until(&subscriber.path, |row| row["verification_detail"].is_string());
    assert_eq!(refused["verification_status"], "pending", "it is tried again, later");
    let asked = client.post(&format!("{}/verify", subscriber.path), &Value::Null).expect(202);
    assert_eq!(asked["verification_detail"], Value::Null);
    let open = until_status(&server, &subscriber, "verified");
    assert_eq!(open["active"], true, "the status of the answer does not matter");
    let off = client.patch(&subscriber.path, &json!({ "verification": "none" })).expect(200);
    assert_eq!((&off["verification_status"], &off["active"]), (&Value::Null, &true.into()));
    client.post(&format!("{}/verify", subscriber.path), &Value::Null).problem(409, "verification_none");
    let body = json!({ "destination": { "url": hook.url() }, "verification": "magic" });
    client.post("/v1/subscribers", &body).problem(422, "field_value");
}
