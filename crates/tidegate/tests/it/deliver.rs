//! Verdicts: what an answer means for a delivery, and what is remembered of it.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

fn publish(client: &Client, id: &str) {
    client.publish(&json!({ "id": id, "source": "s", "type": "t", "data": { "n": 1.0 } }));
}

/// The one delivery of an event, once it has this status, with its attempts.
#[track_caller]
fn delivery(client: &Client, event: &str, status: &str) -> Value {
    let trace = client
        .until(&format!("/v1/events/{event}/trace"), |trace| trace["subscribers"][0]["outcome"] == status);
    let id = trace["subscribers"][0]["delivery"].as_str().expect("a delivery");
    client.get(&format!("/v1/deliveries/{id}")).expect(200)
}

#[test]
fn a_failure_is_tried_again_with_the_same_id_and_body() {
    let server = Server::start();
    let hook = Receiver::answering(&[500]);
    let subscriber = server.subscribe(&hook, &json!({ "retry": { "schedule": ["10ms"] } }));
    publish(&server.admin(), "e");
    let (first, second) = (hook.next(), hook.next());
    assert_eq!((first.webhook_id(), &first.body), (second.webhook_id(), &second.body));
    first.verify(&subscriber.secret);
    second.verify(&subscriber.secret);

    let delivery = delivery(&server.admin(), "e", "delivered");
    assert_eq!(delivery["id"], first.webhook_id());
    assert_eq!((&delivery["attempts"], &delivery["events"]), (&2.into(), &json!(["e"])));
    let log = delivery["attempt_log"].as_array().expect("attempts");
    assert_eq!(
        (&log[0]["n"], &log[0]["status"], &log[0]["error"]),
        (&1.into(), &500.into(), &"status".into())
    );
    assert_eq!((&log[1]["n"], &log[1]["status"], &log[1]["error"]), (&2.into(), &200.into(), &Value::Null));
    assert!(log[0]["phases"]["connect_us"].is_u64() && log[0]["phases"]["total_us"].is_u64(), "{delivery}");
    assert!(delivery["finished_at"].is_string(), "{delivery}");
}

#[test]
fn each_attempt_is_signed_with_its_own_time() {
    let server = Server::start();
    let hook = Receiver::scripted(|arrival| match arrival.before {
        0 => Reply::status(429).header("retry-after", "1"),
        _ => Reply::status(200),
    });
    let subscriber = server.subscribe(&hook, &json!({ "retry": { "schedule": ["0ms"] } }));
    publish(&server.admin(), "e");
    let (first, second) = (hook.next(), hook.next());
    assert!(second.at.as_ms() - first.at.as_ms() >= 1000, "never earlier than asked");
    second.verify(&subscriber.secret);
    assert_ne!(first.header("webhook-timestamp"), second.header("webhook-timestamp"));
    assert_ne!(first.header("webhook-signature"), second.header("webhook-signature"));
    assert_eq!(first.header("x-webhook-signature"), second.header("x-webhook-signature"));
}

#[test]
fn gone_makes_the_subscriber_inactive_and_holds_its_deliveries() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::answering(&[410]);
    let subscriber = server.subscribe(&hook, &Value::Null);
    publish(&client, "e");
    hook.next();
    let gone = client.until(&subscriber.path, |subscriber| subscriber["active"] == false);
    assert_eq!(gone["inactive_reason"], "gone");
    assert_eq!(delivery(&client, "e", "held")["attempt_log"][0]["status"], 410);
    publish(&client, "f");
    delivery(&client, "f", "held");
    assert_eq!(hook.rest().len(), 0);
    client.post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    let mut ids = hook.ids(2);
    ids.sort();
    assert_eq!(ids, ["e", "f"]);
}

#[test]
fn what_is_exhausted_is_listed_and_retried_by_hand() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::scripted(|arrival| match arrival.before {
        0..2 => Reply::status(503).header("content-type", "text/plain").body(&"sorry ".repeat(1000)),
        _ => Reply::status(204),
    });
    server.subscribe(&hook, &json!({ "retry": { "schedule": ["1ms"] } }));
    publish(&client, "e");
    let exhausted = delivery(&client, "e", "exhausted");
    assert_eq!((&exhausted["attempts"], &exhausted["reason"]), (&2.into(), &"all 2 attempts failed".into()));
    let response = &exhausted["attempt_log"][1]["response"];
    assert_eq!((&response["content_type"], &response["truncated"]), (&"text/plain".into(), &true.into()));
    assert_eq!(response["body"].as_str().map(str::len), Some(1024));
    assert_eq!(client.get("/v1/deliveries?status=exhausted").expect(200)["items"][0]["id"], exhausted["id"]);

    let retry = format!("/v1/deliveries/{}/retry", exhausted["id"].as_str().expect("an id"));
    assert_eq!(client.post(&retry, &Value::Null).expect(202)["id"], exhausted["id"]);
    let again = delivery(&client, "e", "delivered");
    assert_eq!((&again["attempts"], &again["reason"]), (&3.into(), &Value::Null));
    assert_eq!(hook.take(3)[2].webhook_id(), exhausted["id"]);
    client.post(&retry, &Value::Null).problem(409, "delivery_delivered");
    assert_eq!(client.get("/v1/deliveries?status=exhausted").expect(200)["items"], json!([]));
}

#[test]
fn failures_without_an_answer_have_their_class() {
    let server = Server::start();
    let client = server.admin();
    let hung = Receiver::scripted(|_| {
        Gate::default().wait();
        Reply::status(200)
    });
    let once = json!({ "retry": { "schedule": [] }, "limits": { "timeout": "100ms" }, "match": { "types": ["hung"] } });
    server.subscribe(&hung, &once);
    client.publish(&json!({ "id": "hung", "source": "s", "type": "hung" }));
    let attempt = delivery(&client, "hung", "exhausted")["attempt_log"][0].clone();
    assert_eq!((&attempt["error"], &attempt["status"]), (&"timeout".into(), &Value::Null), "{attempt}");
    assert!(attempt["detail"].as_str().is_some_and(|detail| detail.contains("100ms")), "{attempt}");

    let closed = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let body = json!({ "destination": { "url": format!("http://{closed}/") }, "retry": { "schedule": [] },
        "match": { "types": ["closed"] } });
    client.post("/v1/subscribers", &body).expect(201);
    client.publish(&json!({ "id": "closed", "source": "s", "type": "closed" }));
    let found =
        client.until("/v1/deliveries?status=exhausted", |page| page["items"].as_array().unwrap().len() == 2);
    let path = format!("/v1/deliveries/{}", found["items"][0]["id"].as_str().expect("an id"));
    assert_eq!(client.get(&path).expect(200)["attempt_log"][0]["error"], "connect");
}

#[test]
fn a_hung_receiver_slows_nobody_else() {
    const EVENTS: usize = 300;
    let server = Server::start();
    let hung = Receiver::scripted(|_| {
        Gate::default().wait();
        Reply::status(200)
    });
    server.subscribe(&hung, &json!({ "limits": { "concurrency": 8 } }));
    let quick = Receiver::start();
    server.subscribe(&quick, &Value::Null);
    let events: Value =
        (0..EVENTS).map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect();
    server.admin().publish(&events);
    quick.take(EVENTS);
    hung.take(8);
    assert_eq!(hung.rest().len(), 0, "within its concurrency");
}

#[test]
fn a_rate_is_kept() {
    let server = Server::start();
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({ "limits": { "rate": "5/s" } }));
    let events: Value =
        (0..8).map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect();
    server.admin().publish(&events);
    let arrivals = hook.take(8);
    let took = arrivals[7].at.as_ms() - arrivals[0].at.as_ms();
    assert!(took >= 400, "one second's worth at once, then one every 200 ms; it took {took} ms");
}
