//! What waits says what it waits for: a gate, another delivery of its lane, a window that was cancelled in vain.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

fn event(id: &str, data: &Value) -> Value {
    json!({ "id": id, "source": "s", "type": "t", "data": data })
}

fn line(client: &Client, event: &str) -> Value {
    client.get(&format!("/v1/events/{event}/trace")).expect(200)["subscribers"][0].clone()
}

/// The delivery that carries an event, by its id.
fn delivery(client: &Client, event: &str) -> String {
    line(client, event)["delivery"].as_str().expect("a delivery").to_owned()
}

#[test]
fn a_delivery_at_a_gate_says_so_everywhere() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    client.call("PUT", "/v1/gates/narrow", &json!({ "rate": "1/h", "burst": 1 })).expect(201);
    server.subscribe(&hook, &json!({ "gate": "narrow" }));
    client.publish(&json!([event("a", &Value::Null), event("b", &Value::Null)]));
    hook.next();
    // What arrived is written a moment later.
    client.until("/v1/events/a/trace", |trace| trace["subscribers"][0]["outcome"] == "delivered");
    let id = delivery(&client, "b");
    let path = format!("/v1/deliveries/{id}");
    let shown = client.until(&path, |row| row["reason"] == "waits for gate narrow");
    assert_eq!((&shown["status"], &shown["attempts"]), (&"pending".into(), &0.into()));
    for (status, expected) in [("pending", json!([id])), ("sending", json!([])), ("retrying", json!([]))] {
        let page = client.get(&format!("/v1/deliveries?status={status}")).expect(200);
        let listed: Value =
            page["items"].as_array().expect("a list").iter().map(|row| row["id"].clone()).collect();
        assert_eq!(listed, expected, "{status}");
    }
    let traced = line(&client, "b");
    assert_eq!((&traced["outcome"], &traced["reason"]), (&"pending".into(), &"waits for gate narrow".into()));
    let refused = client.post(&format!("{path}/retry"), &Value::Null).problem(409, "delivery_in_flight");
    assert!(
        refused["detail"].as_str().is_some_and(|text| text.contains("waits for gate narrow")),
        "{refused}"
    );
    let busy = client.post("/v1/gates/narrow/acquire", &Value::Null);
    busy.problem(429, "gate_busy");
    let seconds: u64 = busy.header("retry-after").and_then(|text| text.parse().ok()).expect("a number");
    assert_eq!(seconds, 3_600, "no shorter than the line, and an hour at most");
}

#[test]
fn a_delivery_behind_another_of_its_lane_names_it() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::scripted(|_| Reply::status(500)));
    let order = json!({ "order": { "by": "data.user" }, "retry": { "schedule": ["1h"] } });
    server.subscribe(&hook, &order);
    let user = json!({ "user": 1 });
    client.publish(&json!([event("a", &user), event("b", &user), event("c", &json!({ "user": 2 }))]));
    hook.take(2);
    client.until("/v1/deliveries?status=retrying", |page| page["items"].as_array().unwrap().len() == 2);
    let reason = format!("waits behind delivery {} of its lane", delivery(&client, "a"));
    assert_eq!(line(&client, "b")["reason"], reason);
    let shown = client.get(&format!("/v1/deliveries/{}", delivery(&client, "b"))).expect(200);
    assert_eq!((&shown["status"], &shown["reason"]), (&"pending".into(), &reason.into()));
    for alone in ["a", "c"] {
        assert_eq!(line(&client, alone)["reason"], Value::Null, "it waits for nothing but its time");
    }
}

#[test]
fn a_closed_fold_that_waits_is_listed_with_what_it_waits_for() {
    let server = Server::start();
    let (client, gate) = (server.admin(), Gate::default());
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |arrival| {
            if arrival.before == 0 {
                gate.wait();
            }
            Reply::status(200)
        })
    };
    let fold = json!({ "mode": "window", "window": "10ms", "by": ["data.user"] });
    server.subscribe(&hook, &json!({ "fold": fold, "order": { "by": "data.user" } }));
    let user = json!({ "user": 1 });
    client.publish(&event("a", &user));
    hook.next();
    client.publish(&event("b", &user));
    let page = client.until("/v1/windows", |page| page["items"][0]["closed_by"] == "window");
    let window = &page["items"][0];
    let id = window["delivery"].as_str().expect("its delivery");
    let reason = format!("closed by window; its delivery {id}: waits for its turn in its lane");
    assert_eq!((&window["reason"], &window["count"]), (&reason.into(), &1.into()));
    client.publish(&event("c", &user));
    assert_eq!(client.get("/v1/windows").expect(200)["items"][0]["count"], 2, "it takes what comes");
    gate.open();
    assert_eq!(hook.next().json()["count"], 2);
    client.until("/v1/windows", |page| page["items"].as_array().is_some_and(Vec::is_empty));
}

#[test]
fn a_trace_tells_what_cancelled_a_window() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold =
        json!({ "mode": "window", "window": "1h", "by": ["data.n"], "cancel_on": "data.over == true" });
    let subscriber = server.subscribe(&hook, &json!({ "fold": fold }));
    for n in 1..=3 {
        client.publish(&event(&format!("e{n}"), &json!({ "n": n })));
    }
    client.publish(&event("over", &json!({ "n": 1, "over": true })));
    let one = json!({ "subscriber": subscriber.id, "key": { "data.n": 2 } });
    assert_eq!(client.post("/v1/windows/cancel", &one).expect(200)["windows"], 1);
    client.delete(&subscriber.path).expect(200);
    for (event, by, words) in [
        ("e1", "cancel_on", "fold.cancel_on"),
        ("over", "cancel_on", "fold.cancel_on"),
        ("e2", "cancelled", "by request"),
        ("e3", "deleted", "its subscriber was deleted"),
    ] {
        let traced = line(&client, event);
        assert_eq!(
            (&traced["outcome"], &traced["window"]["closed_by"]),
            (&"cancelled".into(), &by.into()),
            "{traced}"
        );
        assert!(traced["reason"].as_str().is_some_and(|reason| reason.contains(words)), "{traced}");
    }
    assert!(hook.rest().is_empty());
}
