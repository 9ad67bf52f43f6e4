//! A receiver that only fails is left alone: nothing is used up, everything is visible, and all arrives when it is back.

use serde_json::{Value, json};

use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

/// Fails until the gate is open.
fn failing_until(gate: &Gate) -> Receiver {
    let gate = gate.clone();
    Receiver::scripted(move |_| Reply::status(if gate.is_open() { 200 } else { 503 }))
}

fn terms() -> Value {
    json!({
        "order": { "by": "subscriber" },
        "retry": { "schedule": ["10ms", "10ms"] },
        "breaker": { "failures": 2, "probe": "1s" },
    })
}

#[test]
fn an_outage_uses_nothing_up_and_everything_arrives_in_order_after_it() {
    let (server, gate) = (Server::start(), Gate::default());
    let client = server.admin();
    let (hook, watcher) = (failing_until(&gate), Receiver::start());
    let subscriber = server.subscribe(&hook, &terms());
    server.subscribe(&watcher, &json!({ "match": { "types": ["tidegate.*"] } }));
    for n in 0..5 {
        client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t" }));
    }
    let open = client.until(&subscriber.path, |subscriber| subscriber["breaker"]["state"] == "open");
    assert_eq!((&open["breaker"]["failures"], &open["breaker"]["probe"]), (&2.into(), &"1s".into()));
    assert!(open["breaker"]["since"].is_string() && open["breaker"]["next_probe_at"].is_string(), "{open}");
    assert_eq!(client.get("/v1/events/e4/trace").expect(200)["subscribers"][0]["reason"], "breaker open");
    // More probes than the schedule has retries: the head of the lane is not exhausted by them.
    let failed = hook.take(6);
    assert!(failed.iter().all(|arrival| arrival.event_id() == "e0"));
    for pair in failed[2..].windows(2) {
        assert!(pair[1].at.as_ms() - pair[0].at.as_ms() >= 450, "probes come half a bound apart or more");
    }
    let metrics = client.get("/metrics").text();
    assert!(metrics.contains("tidegate_breakers_open 1"), "{metrics}");
    assert!(metrics.contains("tidegate_breaker_openings_total 1"), "{metrics}");
    gate.open();
    let mut ids = Vec::new();
    while ids.len() < 5 {
        let id = hook.next().event_id();
        if ids.last() != Some(&id) {
            ids.push(id);
        }
    }
    assert_eq!(ids, ["e0", "e1", "e2", "e3", "e4"]);
    let last = client.until("/v1/events/e4/trace", |trace| trace["subscribers"][0]["outcome"] == "delivered");
    assert_eq!(last["subscribers"][0]["attempts"], 1, "those that waited kept their attempts");
    let closed = client.get(&subscriber.path).expect(200);
    assert_eq!(
        (&closed["breaker"]["state"], &closed["breaker"]["consecutive_failures"]),
        (&"closed".into(), &0.into())
    );
    let told: Vec<Value> = watcher.take(2).iter().map(crate::receiver::Arrival::json).collect();
    let kinds: Vec<&str> = told.iter().filter_map(|notice| notice["type"].as_str()).collect();
    assert_eq!(kinds, ["tidegate.subscriber.breaker_opened", "tidegate.subscriber.breaker_closed"]);
    assert!(told[1]["time"].as_str() > told[0]["time"].as_str(), "each with its own time: {told:?}");
}

#[test]
fn a_retry_by_hand_passes_an_open_breaker() {
    let (server, gate) = (Server::start(), Gate::default());
    let client = server.admin();
    let hook = failing_until(&gate);
    let mut terms = terms();
    terms["order"] = json!({ "by": "none" });
    terms["limits"] = json!({ "concurrency": 1 });
    terms["breaker"] = json!({ "failures": 1, "probe": "60m" });
    let subscriber = server.subscribe(&hook, &terms);
    for n in 0..3 {
        client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t" }));
    }
    client.until(&subscriber.path, |subscriber| subscriber["breaker"]["state"] == "open");
    hook.next();
    let trace = client.until("/v1/events/e2/trace", |trace| trace["subscribers"][0]["outcome"] == "pending")
        ["subscribers"][0]
        .clone();
    let path = format!("/v1/deliveries/{}", trace["delivery"].as_str().expect("a delivery"));
    client.until(&path, |delivery| delivery["status"] == "pending" && delivery["reason"] == "breaker open");
    client.post(&format!("{path}/retry"), &Value::Null).expect(202);
    assert_eq!(hook.next().event_id(), "e2", "the one that was asked for, at once");
    client.until(&path, |delivery| delivery["attempts"] == 1);
    assert_eq!(client.get(&subscriber.path).expect(200)["breaker"]["state"], "open");
    gate.open();
    client.post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    let mut ids = hook.ids(3);
    ids.sort();
    assert_eq!(ids, ["e0", "e1", "e2"], "its owner can close it");
}

#[test]
fn off_means_off_and_zero_is_refused() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::answering(&[500; 12]);
    let subscriber =
        server.subscribe(&hook, &json!({ "breaker": "off", "retry": { "schedule": vec!["0ms"; 12] } }));
    client.publish(&json!({ "id": "e", "source": "s", "type": "t" }));
    assert_eq!(hook.take(13).len(), 13);
    assert_eq!(client.get(&subscriber.path).expect(200)["breaker"], "off");
    let zero = client.patch(&subscriber.path, &json!({ "breaker": { "failures": 0 } }));
    assert_eq!(zero.problem(422, "field_range")["field"], "breaker.failures");
}
