//! What an operator must know: who is left alone, who was given up, and that it arrives where it was asked for.

use serde_json::{Value, json};

use crate::receiver::{Gate, Receiver, Reply};
use crate::server::{Server, Setup};

fn failing_until(gate: &Gate) -> Receiver {
    let gate = gate.clone();
    Receiver::scripted(move |_| Reply::status(if gate.is_open() { 200 } else { 500 }))
}

fn event(id: &str) -> Value {
    json!({ "id": id, "source": "shop", "type": "order.paid" })
}

#[test]
fn a_receiver_that_only_fails_is_given_up_and_its_operator_told() {
    let (server, gate) = (Server::start(), Gate::default());
    let client = server.admin();
    let (hook, watcher, everything) = (failing_until(&gate), Receiver::start(), Receiver::start());
    server.subscribe(&watcher, &json!({ "match": { "types": ["tidegate.*"] } }));
    server.subscribe(&everything, &Value::Null);
    let failing = server.subscribe(
        &hook,
        &json!({
            "name": "billing",
            "match": { "types": ["order.*", "tidegate.*"] },
            "order": { "by": "subscriber" },
            "breaker": { "failures": 2, "probe": "1s" },
            "retry": { "schedule": ["10ms", "10ms", "10ms"] },
            "disable_after": "1s",
        }),
    );
    for id in ["e0", "e1", "e2"] {
        client.publish(&event(id));
    }
    let off = client.until(&failing.path, |subscriber| subscriber["active"] == false);
    assert_eq!(off["inactive_reason"], "failing");
    let told: Vec<Value> = watcher.take(2).iter().map(crate::receiver::Arrival::json).collect();
    assert_eq!(told[0]["type"], "tidegate.subscriber.breaker_opened");
    assert_eq!(told[1]["type"], "tidegate.subscriber.disabled");
    for notice in &told {
        assert_eq!((&notice["source"], &notice["subject"]), (&"tidegate".into(), &failing.id.clone().into()));
        assert_eq!(
            (&notice["data"]["subscriber"], &notice["data"]["name"]),
            (&failing.id.clone().into(), &"billing".into())
        );
        assert!(notice["data"]["since"].is_string(), "{notice}");
    }
    assert_eq!(told[1]["data"]["reason"], "failing");
    let mut seen = everything.ids(3);
    seen.sort();
    assert_eq!(seen, ["e0", "e1", "e2"], "whoever wants everything did not ask for these");
    assert_eq!(everything.rest().len(), 0);
    let listed = client.get("/v1/events?source=tidegate").expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "they are events like others");
    let metrics = client.get("/metrics").text();
    assert!(metrics.contains("tidegate_subscribers_disabled_total{reason=\"failing\"} 1"), "{metrics}");

    assert!(hook.rest().iter().all(|arrival| arrival.event_id() == "e0"), "never about itself, and in order");
    gate.open();
    let resumed = client.post(&format!("{}/resume", failing.path), &Value::Null).expect(200);
    assert_eq!((&resumed["breaker"]["state"], &resumed["failing_since"]), (&"closed".into(), &Value::Null));
    assert_eq!(hook.ids(3), ["e0", "e1", "e2"]);
}

#[test]
fn since_when_it_fails_survives_a_restart() {
    let mut server = Server::start();
    let hook = Receiver::answering(&[500]);
    let failing = server.subscribe(&hook, &json!({ "retry": { "schedule": ["168h"] } }));
    server.admin().publish(&event("e"));
    hook.next();
    let before = server.admin().until(&failing.path, |subscriber| subscriber["failing_since"].is_string());
    server.stop();
    server.restart(&Setup::usual());
    let after = server.admin().get(&failing.path).expect(200);
    assert_eq!(after["failing_since"], before["failing_since"]);
    server.admin().publish(&event("f"));
    hook.next();
    server.admin().until(&failing.path, |subscriber| subscriber["failing_since"].is_null());
    server.stop();
    server.restart(&Setup::usual());
    let ended = server.admin().get(&failing.path).expect(200);
    assert_eq!(ended["failing_since"], Value::Null, "one success begins anew, also for the next life");
}

#[test]
fn exhausted_deliveries_are_told_once_a_minute_and_nobody_speaks_for_us() {
    let server = Server::start();
    let client = server.admin();
    let (hook, watcher) = (Receiver::scripted(|_| Reply::status(500)), Receiver::start());
    server.subscribe(&watcher, &json!({ "match": { "sources": ["tidegate"] } }));
    server.subscribe(&hook, &json!({ "breaker": "off", "retry": { "schedule": [] } }));
    for n in 0..5 {
        client.publish(&event(&format!("e{n}")));
    }
    hook.take(5);
    client.until("/v1/deliveries?status=exhausted", |page| page["items"].as_array().map(Vec::len) == Some(5));
    let notice = watcher.next().json();
    assert_eq!(notice["type"], "tidegate.delivery.exhausted");
    assert!(notice["data"]["delivery"].as_str().is_some_and(|id| id.starts_with("dlv_")), "{notice}");
    let own = json!([event("x"), { "source": "tidegate", "type": "t" }]);
    let refused = client.post("/v1/events", &own).problem(422, "source_reserved");
    assert_eq!((&refused["field"], &refused["index"]), (&"source".into(), &1.into()));
    client.publish(&json!({ "id": "last", "source": "s", "type": "t" }));
    hook.next();
    let listed = client.get("/v1/events?source=tidegate").expect(200);
    assert_eq!(
        listed["items"].as_array().map(Vec::len),
        Some(1),
        "the list has all of them, the notice is one"
    );
    assert_eq!(watcher.rest().len(), 0);
}
