//! `POST /v1/subscribers/{id}/test`: what is sent, what is reported, and what stays untouched.

use std::thread;

use serde_json::{Value, json};

use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

#[test]
fn a_sample_is_a_real_request_and_leaves_no_trace() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::scripted(|_| Reply::status(202).header("content-type", "text/plain").body("thanks"));
    let rest = json!({ "active": false, "limits": { "rate": "1/h" },
        "destination": { "url": hook.url(), "payload": "cloudevents", "headers": { "authorization": "Bearer s3cret" } } });
    let subscriber = server.subscribe(&hook, &rest);
    let path = format!("{}/test", subscriber.path);
    let report = client.post(&path, &json!({ "type": "order.paid", "data": { "n": 1.0 } })).expect(200);
    let arrival = hook.next();
    arrival.verify(&subscriber.secret);
    assert_eq!((arrival.header("authorization"), arrival.header("tidegate-test")), ("Bearer s3cret", "true"));
    let event = arrival.json();
    assert_eq!((&event["specversion"], &event["type"]), (&"1.0".into(), &"order.paid".into()));
    assert_eq!((&report["verdict"], &report["status"]), (&"delivered".into(), &202.into()));
    assert_eq!((&report["error"], &report["response"]["body"]), (&Value::Null, &"thanks".into()));
    assert!(report["phases"]["connect_us"].is_u64() && report["phases"]["total_us"].is_u64(), "{report}");
    assert_eq!(report["request"]["body"], arrival.text());
    let sent = &report["request"]["headers"];
    assert_eq!(sent["webhook-signature"], arrival.header("webhook-signature"));
    assert_eq!(sent["authorization"], "***");
    assert!(!report.to_string().contains("s3cret"));
    assert_eq!(client.post(&path, &Value::Null).expect(200)["verdict"], "delivered", "no rate holds it back");
    assert_eq!(hook.next().json()["type"], "tidegate.test");
    assert_eq!(client.get("/v1/events").expect(200)["items"], json!([]));
    assert_eq!(client.get("/v1/deliveries").expect(200)["items"], json!([]));
}

#[test]
fn a_sample_of_a_fold_looks_like_one() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "mode": "quiet", "by": ["type", "data.plan"], "bypass": "true" });
    let subscriber = server.subscribe(&hook, &json!({ "fold": fold }));
    client.post(&format!("{}/test", subscriber.path), &json!({ "data": { "plan": 7 } })).expect(200);
    let arrival = hook.next();
    arrival.verify(&subscriber.secret);
    let body = arrival.json();
    assert_eq!((&body["delivery"], &body["count"]), (&arrival.webhook_id().into(), &1.into()));
    assert_eq!(body["fold"]["key"], json!({ "type": "tidegate.test", "data.plan": 7 }));
    assert_eq!(body["events"][0]["data"], json!({ "plan": 7 }));
    assert_eq!(client.get("/v1/windows").expect(200)["items"], json!([]), "nothing is stored");
}

#[test]
fn what_goes_wrong_is_reported_and_changes_nothing() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::answering(&[410, 500]);
    let subscriber = server.subscribe(&hook, &Value::Null);
    let path = format!("{}/test", subscriber.path);
    let gone = client.post(&path, &Value::Null).expect(200);
    assert_eq!((&gone["verdict"], &gone["error"]), (&"gone".into(), &"status".into()));
    assert_eq!(client.get(&subscriber.path).expect(200)["active"], true, "a test decides nothing");
    assert_eq!(client.post(&path, &Value::Null).expect(200)["verdict"], "retry_later");
    client.post(&path, &json!({ "type": "" })).expect(422);
    client.post(&path, &json!({ "typ": "x" })).problem(422, "field_unknown");
    client.post("/v1/subscribers/sub_none/test", &Value::Null).problem(404, "not_found");

    let closed = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let body = json!({ "destination": { "url": format!("http://{closed}/?token=s3cret") } });
    let refused = client.post("/v1/subscribers", &body).expect(201);
    let path = format!("/v1/subscribers/{}/test", refused["id"].as_str().expect("an id"));
    let report = client.post(&path, &Value::Null).expect(200);
    assert_eq!((&report["error"], &report["status"]), (&"connect".into(), &Value::Null));
    assert!(!report.to_string().contains("s3cret"), "{report}");
}

#[test]
fn few_samples_are_under_way_at_once() {
    let server = Server::start();
    let gate = Gate::default();
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |_| {
            gate.wait();
            Reply::status(200)
        })
    };
    let subscriber = server.subscribe(&hook, &Value::Null);
    let path = format!("{}/test", subscriber.path);
    let send = || {
        let (client, path) = (server.admin(), path.clone());
        thread::spawn(move || client.post(&path, &Value::Null).expect(200))
    };
    let waiting = [send(), send()];
    hook.take(2);
    server.admin().post(&path, &Value::Null).problem(429, "tests_in_flight");
    gate.open();
    for sample in waiting {
        assert_eq!(sample.join().expect("no panic")["verdict"], "delivered");
    }
    assert_eq!(server.admin().post(&path, &Value::Null).expect(200)["verdict"], "delivered");
}

#[test]
fn tokens_in_a_url_are_shown_once() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let url = format!("http://{}/in/0123456789abcdef0123?token=s3cret&v=", hook.address);
    let masked = format!("http://{}/in/***?token=***&v=", hook.address);
    let created = client.post("/v1/subscribers", &json!({ "destination": { "url": url } })).expect(201);
    assert_eq!(created["destination"]["url"], url.as_str());
    let path = format!("/v1/subscribers/{}", created["id"].as_str().expect("an id"));
    let shown = client.get(&path).expect(200);
    assert_eq!(shown["destination"]["url"], masked.as_str());
    assert_eq!(client.get("/v1/subscribers").expect(200)["items"][0], shown);
    let patch = json!({ "name": "n", "destination": { "url": masked, "headers": { "x-a": "b" } } });
    let patched = client.patch(&path, &patch).expect(200);
    assert_eq!((&patched["name"], &patched["destination"]["url"]), (&"n".into(), &masked.as_str().into()));
    client.publish(&json!({ "id": "e", "source": "s", "type": "t" }));
    assert_eq!(hook.next().line, "POST /in/0123456789abcdef0123?token=s3cret&v= HTTP/1.1");
    assert!(!server.log().contains("s3cret"));
}
