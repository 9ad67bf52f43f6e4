//! Sending again: one event, a subscriber's past, and dead letters.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::{Server, Setup};

#[test]
fn an_event_is_sent_again_to_whoever_wants_it_today() {
    let mut server = Server::start();
    let client = server.admin();
    let (first, second) = (Receiver::start(), Receiver::start());
    let one = server.subscribe(&first, &json!({ "match": { "types": ["paid"] } }));
    client.publish(&json!({ "id": "e", "source": "s", "type": "paid", "data": { "n": 1 } }));
    let original = first.next();
    let two = server.subscribe(&second, &Value::Null);

    let answer = client.post("/v1/events/e/replay", &Value::Null).expect(202);
    assert_eq!(answer["event"], "e");
    let made = answer["deliveries"].as_array().expect("deliveries").clone();
    let subscribers: Vec<&str> = made.iter().map(|one| one["subscriber"].as_str().unwrap()).collect();
    assert_eq!(subscribers, [one.id.as_str(), two.id.as_str()]);
    for (hook, secret, delivery) in [(&first, &one.secret, &made[0]), (&second, &two.secret, &made[1])] {
        let again = hook.next();
        again.verify(secret);
        assert_eq!(again.webhook_id(), delivery["id"].as_str().unwrap(), "an id of its own");
        assert_eq!((again.header("tidegate-replay"), again.text()), ("true", original.text()));
    }
    assert!(!original.headers.contains_key("tidegate-replay"));
    let path = format!("/v1/deliveries/{}", made[0]["id"].as_str().unwrap());
    let row = client.until(&path, |row| row["status"] == "delivered");
    assert_eq!((&row["replay"], &row["events"]), (&json!(true), &json!(["e"])));
    let trace = client.get("/v1/events/e/trace").expect(200);
    assert_eq!(trace["subscribers"].as_array().unwrap().len(), 3, "{trace}");

    server.stop();
    server.restart(&Setup::usual());
    let client = server.admin();
    client.post("/v1/events/e/replay", &json!({ "subscriber": two.id })).expect(202);
    assert_eq!(second.next().header("tidegate-replay"), "true");
    assert!(first.rest().is_empty(), "one subscriber only");
}

#[test]
fn a_replay_that_can_not_be_is_refused_with_the_reason() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let paid = server.subscribe(&hook, &json!({ "match": { "types": ["paid"] } }));
    client.publish(
        &json!([{ "id": "e", "source": "s", "type": "made" }, { "id": "e", "source": "t", "type": "made" }]),
    );
    client.post("/v1/events/none/replay", &Value::Null).problem(404, "not_found");
    client.post("/v1/events/e/replay", &Value::Null).problem(409, "event_ambiguous");
    let path = "/v1/events/e/replay?source=s";
    client.post(path, &Value::Null).problem(409, "event_unmatched");
    let problem = client.post(path, &json!({ "subscriber": paid.id })).problem(409, "event_unmatched");
    assert!(problem["detail"].as_str().unwrap().contains("type made is not among"), "{problem}");
    client.post(path, &json!({ "subscriber": "sub_none" })).problem(404, "not_found");
    client.post(path, &json!({ "to": paid.id })).problem(422, "field_unknown");
    let viewer = client.post("/v1/keys", &json!({ "role": "viewer" })).expect(201);
    let viewer = client.with_key(viewer["key"].as_str().unwrap());
    viewer.post(path, &Value::Null).problem(403, "role_insufficient");
    assert!(hook.rest().is_empty());
}

fn ended(client: &Client, job: &Value) -> Value {
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
    client.until(&path, |job| job["status"] != "running")
}

fn publish_many(client: &Client, prefix: &str, count: usize) {
    let event = |n| json!({ "id": format!("{prefix}{n}"), "source": "s", "type": if n % 2 == 0 { "even" } else { "odd" } });
    client.publish(&(0..count).map(event).collect());
}

#[test]
fn a_subscribers_past_is_replayed_by_a_job() {
    let mut server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    publish_many(&client, "before", 30);
    let subscriber = server.subscribe(&hook, &json!({ "order": { "by": "subscriber" } }));
    publish_many(&client, "after", 10);
    hook.take(10);
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 10);
    let path = format!("{}/replay", subscriber.path);
    let body = json!({ "from": "2020-01-01T00:00:00Z", "types": ["even"], "dry_run": true });
    let dry = client.post(&path, &body).expect(200);
    assert_eq!((&dry["matched"], &dry["complete"], &dry["done"]), (&json!(20), &json!(true), &json!(40)));
    assert!(hook.rest().is_empty(), "a dry run sends nothing");

    let asked = json!({ "from": "2020-01-01T00:00:00Z", "types": ["even"] });
    let job = client.post(&path, &asked).expect(202);
    assert_eq!((&job["kind"], &job["selector"]["subscriber"]), (&json!("replay"), &json!(subscriber.id)));
    let job = ended(&client, &job);
    let counts = (&job["status"], &job["total"], &job["done"], &job["matched"]);
    assert_eq!(counts, (&json!("done"), &json!(40), &json!(40), &json!(20)), "{job}");
    let again = hook.take(20);
    assert!(again.iter().all(|arrival| arrival.header("tidegate-replay") == "true"));
    let ids: Vec<String> = again.iter().map(Arrival::event_id).collect();
    let expected =
        (0..15).map(|n| format!("before{}", 2 * n)).chain((0..5).map(|n| format!("after{}", 2 * n)));
    assert_eq!(ids, expected.collect::<Vec<_>>(), "in the order of acceptance");

    let delivered = json!({ "from": "2020-01-01T00:00:00Z", "status": "delivered" });
    assert_eq!(ended(&client, &client.post(&path, &delivered).expect(202))["matched"], 10);
    hook.take(10);
    server.stop();
    server.restart(&Setup::usual());
    let client = server.admin();
    let jobs = client.get("/v1/jobs").expect(200);
    assert_eq!(jobs["items"].as_array().unwrap().len(), 2);
    client
        .post(&format!("/v1/jobs/{}/stop", job["id"].as_str().unwrap()), &Value::Null)
        .problem(409, "job_ended");
    client.post("/v1/jobs/job_none/stop", &Value::Null).problem(404, "not_found");
    client.get("/v1/jobs/job_none").problem(404, "not_found");
    for (body, field) in [
        (json!({}), "from"),
        (json!({ "from": "yesterday" }), "from"),
        (json!({ "from": "2020-01-02T00:00:00Z", "to": "2020-01-01T00:00:00Z" }), "to"),
        (json!({ "from": "2020-01-01T00:00:00Z", "status": "held" }), "status"),
    ] {
        let problem = client.post(&path, &body).json();
        assert_eq!((&problem["status"], &problem["field"]), (&json!(422), &json!(field)), "{problem}");
    }
}

#[test]
fn dead_letters_are_listed_and_tried_again_under_their_ids() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let repaired = gate.clone();
    let hook = Receiver::scripted(move |_| Reply::status(if repaired.is_open() { 200 } else { 500 }));
    let broken = server.subscribe(&hook, &json!({ "retry": { "schedule": [] } }));
    publish_many(&client, "e", 6);
    let list = "/v1/dead-letters?limit=100";
    let dead = client.until(list, |page| page["items"].as_array().unwrap().len() == 6);
    let first: Vec<String> = hook.take(6).iter().map(|arrival| arrival.webhook_id().to_owned()).collect();
    assert!(dead["items"].as_array().unwrap().iter().all(|row| row["status"] == "exhausted"));
    client.get(&format!("/v1/dead-letters?subscriber={}", broken.id)).expect(200);
    client.get("/v1/dead-letters?status=held").problem(422, "parameter_unknown");

    gate.open();
    let one = dead["items"][0]["id"].clone();
    let job = client.post("/v1/dead-letters/replay", &json!({ "ids": [one] })).expect(202);
    assert_eq!(ended(&client, &job)["matched"], 1);
    assert_eq!(hook.next().webhook_id(), one.as_str().unwrap());
    let dry = client.post("/v1/dead-letters/replay?dry_run=true", &Value::Null).expect(200);
    assert_eq!(dry["matched"], 5);
    let body = json!({ "subscriber": broken.id, "types": ["odd"] });
    let job = ended(&client, &client.post("/v1/dead-letters/replay", &body).expect(202));
    let odd = job["matched"].as_u64().unwrap();
    assert!((2..=3).contains(&odd), "{job}");
    let job = ended(&client, &client.post("/v1/dead-letters/replay", &Value::Null).expect(202));
    assert_eq!((job["matched"].as_u64().unwrap() + odd, &job["kind"]), (5, &json!("dead_letters")));
    let mut again: Vec<String> = hook.take(5).iter().map(|arrival| arrival.webhook_id().to_owned()).collect();
    again.push(one.as_str().unwrap().to_owned());
    again.sort();
    let mut first = first;
    first.sort();
    assert_eq!(again, first, "the same ids, each once");
    client.until(list, |page| page["items"].as_array().unwrap().is_empty());
    client.post("/v1/dead-letters/replay", &json!({ "ids": ["dlv_no"] })).problem(422, "delivery_unknown");
    client.post("/v1/dead-letters/replay", &json!({ "subscriber": "sub_no" })).problem(404, "not_found");
}

#[test]
fn a_long_job_survives_a_kill_and_leaves_live_events_their_way() {
    const PAST: usize = 5_000;
    let mut server = Server::start();
    let client = server.admin();
    let past = Receiver::start();
    for batch in 0..PAST / 500 {
        publish_many(&client, &format!("p{batch}-"), 500);
    }
    let subscriber = server.subscribe(&past, &json!({ "limits": { "concurrency": 4 } }));
    let path = format!("{}/replay", subscriber.path);
    let job = client.post(&path, &json!({ "from": "2020-01-01T00:00:00Z" })).expect(202);
    let before = past.take(200);
    server.kill();
    server.restart(&Setup::usual());
    let client = server.admin();
    client.publish(&json!({ "id": "live", "source": "s", "type": "live" }));
    let job = ended(&client, &job);
    assert_eq!((&job["status"], &job["matched"]), (&json!("done"), &json!(PAST)), "{job}");
    let mut seen: BTreeSet<String> = before.iter().map(Arrival::event_id).collect();
    let mut count = 0;
    while seen.len() < PAST + 1 {
        seen.insert(past.next().event_id());
        count += 1;
    }
    assert!(seen.contains("live") && count < PAST + 200, "each once, but for what the kill hid: {count}");
}
