//! Lanes: what must not overtake what, and what need not wait.

use serde_json::{Value, json};

use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::Server;

#[test]
fn a_failing_head_holds_its_own_lane_only() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let repaired = gate.clone();
    let hook = Receiver::scripted(move |arrival| {
        let is_broken = arrival.json()["data"]["k"] == "a" && !repaired.is_open();
        Reply::status(if is_broken { 500 } else { 200 })
    });
    let schedule = vec!["10ms"; 50];
    server.subscribe(&hook, &json!({ "order": { "by": "data.k" }, "retry": { "schedule": schedule } }));
    let event = |id: &str, k: &str| json!({ "id": id, "source": "s", "type": "t", "data": { "k": k } });
    client.publish(&json!([
        event("a1", "a"),
        event("a2", "a"),
        event("b1", "b"),
        event("b2", "b"),
        event("c1", "c")
    ]));
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 3);
    assert_eq!(client.get("/v1/events/a2/trace").expect(200)["subscribers"][0]["attempts"], 0);
    gate.open();
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 5);
    let ids: Vec<String> = hook.rest().iter().map(Arrival::event_id).collect();
    let of = |lane: char| ids.iter().filter(|id| id.starts_with(lane)).cloned().collect::<Vec<_>>();
    assert_eq!(of('b'), ["b1", "b2"]);
    let mut a = of('a');
    assert_eq!(a.pop().as_deref(), Some("a2"));
    assert!(a.len() > 1 && a.iter().all(|id| id == "a1"), "{a:?}");
}

#[test]
fn a_failing_head_steps_aside_if_its_owner_wants_that() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let repaired = gate.clone();
    let hook = Receiver::scripted(move |arrival| {
        let is_broken = arrival.event_id() == "a1" && !repaired.is_open();
        Reply::status(if is_broken { 500 } else { 200 })
    });
    let order = json!({ "by": "subscriber", "on_failure": { "skip_after": 2 } });
    server.subscribe(&hook, &json!({ "order": order, "retry": { "schedule": ["1ms", "1h"] } }));
    let event = |id: &str| json!({ "id": id, "source": "s", "type": "t" });
    client.publish(&json!([event("a1"), event("a2"), event("a3")]));
    assert_eq!(hook.ids(4), ["a1", "a1", "a2", "a3"]);
    gate.open();
    client.until("/v1/deliveries?status=retrying", |page| page["items"].as_array().unwrap().len() == 1);
    assert_eq!(client.post("/v1/trigger", &Value::Null).expect(202)["triggered"], 1);
    let late = hook.next();
    assert_eq!((late.event_id().as_str(), late.header("tidegate-out-of-order")), ("a1", "true"));
    let shown = client.get(&format!("/v1/deliveries/{}", late.webhook_id())).expect(200);
    assert_eq!(shown["out_of_order"], true);
}

#[test]
fn a_lane_that_is_blocked_now_goes_on_when_its_owner_says_so() {
    let server = Server::start();
    let client = server.admin();
    let hook =
        Receiver::scripted(|arrival| Reply::status(if arrival.event_id() == "a1" { 500 } else { 200 }));
    let subscriber =
        server.subscribe(&hook, &json!({ "order": { "by": "subscriber" }, "retry": { "schedule": ["1h"] } }));
    let path = format!("/v1/subscribers/{}", subscriber.id);
    let event = |id: &str| json!({ "id": id, "source": "s", "type": "t" });
    client.publish(&json!([event("a1"), event("a2"), event("a3")]));
    client.until("/v1/deliveries?status=retrying", |page| page["items"].as_array().unwrap().len() == 1);
    let refused = client.patch(&path, &json!({ "order": { "by": "data.k" } })).expect(409);
    assert_eq!(refused["code"], "order_unfinished");
    let missing = json!({ "order": { "missing": "unordered" } });
    assert_eq!(client.patch(&path, &missing).problem(422, "field_conflict")["field"], "order.missing");
    client.patch(&path, &json!({ "order": { "on_failure": { "skip_after": 2 } } })).expect(200);
    assert_eq!(client.get("/v1/events/a2/trace").expect(200)["subscribers"][0]["attempts"], 0);
    let order = json!({ "by": "subscriber", "missing": "skip", "on_failure": { "skip_after": 1 } });
    assert_eq!(client.patch(&path, &json!({ "order": order })).expect(200)["order"], order);
    assert_eq!(hook.ids(3), ["a1", "a2", "a3"]);
    let shown = client.get("/v1/events/a1/trace").expect(200);
    assert_eq!(shown["subscribers"][0]["outcome"], "retrying");
}

#[test]
fn a_subscribers_order_is_kept_over_failures() {
    const EVENTS: usize = 200;
    let server = Server::start();
    let hook = Receiver::scripted(|arrival| Reply::status(if arrival.before % 7 == 3 { 500 } else { 200 }));
    let schedule = vec!["1ms"; 10];
    server.subscribe(&hook, &json!({ "order": { "by": "subscriber" }, "retry": { "schedule": schedule } }));
    for half in [0..EVENTS / 2, EVENTS / 2..EVENTS] {
        let events: Value =
            half.map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect();
        server.admin().publish(&events);
    }
    let mut delivered = Vec::new();
    while delivered.len() < EVENTS {
        let arrival = hook.next();
        if arrival.before % 7 != 3 {
            delivered.push(arrival.event_id());
        }
    }
    let expected: Vec<String> = (0..EVENTS).map(|n| format!("e{n}")).collect();
    assert_eq!(delivered, expected);
}

#[test]
fn an_event_without_the_attribute_is_skipped_or_goes_outside_the_lanes() {
    let server = Server::start();
    let client = server.admin();
    let (strict, lax) = (Receiver::start(), Receiver::start());
    server.subscribe(&strict, &json!({ "order": { "by": "data.k" } }));
    server.subscribe(&lax, &json!({ "order": { "by": "data.k", "missing": "unordered" } }));
    client.publish(&json!({ "id": "without", "source": "s", "type": "t", "data": {} }));
    client.publish(&json!({ "id": "with", "source": "s", "type": "t", "data": { "k": 1 } }));
    assert_eq!(strict.next().event_id(), "with");
    let mut both = lax.ids(2);
    both.sort();
    assert_eq!(both, ["with", "without"]);
    let trace = client.get("/v1/events/without/trace").expect(200);
    let line = &trace["subscribers"][0];
    assert_eq!(
        (&line["outcome"], &line["reason"]),
        (&"skipped".into(), &"order.by data.k is missing".into())
    );
}
