//! The quarantine: what comes to it, what is told about it, how it is released and discarded.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::Receiver;
use crate::server::{Server, Setup};

/// Declares that `order.paid` of `shop` needs a `total`.
fn declare(client: &Client) {
    let schema = json!({"required": ["total"], "properties": {"total": {"type": "number"}}});
    let answer =
        client.call("PUT", "/v1/catalog/services/shop/types/order.paid", &json!({ "schema": schema }));
    assert!(answer.status < 300, "{}", answer.text());
}

fn order(id: &str, data: &Value) -> Value {
    json!({"id": id, "source": "shop", "type": "order.paid", "time": "2026-01-01T00:00:00Z", "data": data})
}

fn ids(list: &Value) -> Vec<&str> {
    list["items"].as_array().expect("items").iter().map(|item| item["id"].as_str().expect("an id")).collect()
}

#[test]
fn what_the_schema_refuses_is_kept_apart_and_told() {
    let server = Server::start();
    let (admin, hook) = (server.admin(), Receiver::start());
    declare(&admin);
    server.subscribe(&hook, &json!({}));
    let answer =
        admin.publish(&json!([order("a", &json!({"total": 1})), order("b", &json!({"total": "x"}))]));
    assert_eq!((&answer["accepted"], &answer["quarantined"]), (&1.into(), &1.into()));
    assert_eq!(answer["results"][1], json!({"id":"b","status":"quarantined","reason":"SCHEMA_VIOLATION"}));
    let again = admin.publish(&order("b", &json!({"total": "x"})));
    assert_eq!(again["quarantined"], 1, "a repeat is told the same and stores nothing");
    let list = admin.get("/v1/quarantine").expect(200);
    let [item] = &list["items"].as_array().expect("items")[..] else { panic!("one item: {list}") };
    assert_eq!(item["detail"], "data.total: expected number, found string \"x\"");
    let names: Vec<&String> = item.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["at", "detail", "id", "reason", "source", "type"]);
    admin.get("/v1/events/b").problem(404, "not_found");
    assert!(admin.get("/metrics").text().contains("tidegate_events_quarantined_total 2"));

    assert_eq!(admin.publish(&order("b", &json!({"total": 2})))["accepted"], 1, "its id was free");
    assert_eq!(hook.ids(2), ["a", "b"]);
    let long = admin.publish(&order("c", &json!({"total": "y".repeat(5000)})));
    assert_eq!(long["quarantined"], 1);
    let detail = admin.get("/v1/quarantine").expect(200)["items"][0]["detail"].to_string();
    assert!(detail.len() < 200 && detail.contains("yyy"), "{detail}");
}

#[test]
fn a_time_far_ahead_is_kept_apart_without_any_catalog() {
    let server = Server::start();
    let admin = server.admin();
    let ahead = json!({"id": "f", "source": "s", "type": "t", "time": "2100-01-01T00:00:00Z"});
    assert_eq!(admin.publish(&ahead)["results"][0]["reason"], "FUTURE_TIME");
    let inner = json!({"id": "g", "source": "s", "type": "t", "events": [{"type": "u", "time": "2100-01-01T00:00:00Z"}]});
    assert_eq!(admin.publish(&inner)["results"][0]["reason"], "FUTURE_TIME");
    let released = admin.post("/v1/quarantine/release", &json!({"reason": "FUTURE_TIME"})).expect(200);
    assert_eq!(released["released"], 2);
    assert_eq!(admin.get("/v1/events/f").expect(200)["time"], "2100-01-01T00:00:00Z", "it keeps its time");
    admin.get("/v1/events/g~1").expect(200);
}

#[test]
fn released_events_are_delivered_once_and_survive_a_crash() {
    let mut server = Server::start();
    let hook = Receiver::start();
    declare(&server.admin());
    server.subscribe(&hook, &json!({}));
    let odd = r#"{"id":"a","source":"shop","type":"order.paid","time":"2026-01-01T00:00:00Z","data":{ "total" : "1.10" }}"#;
    let sent = server.admin().send("POST", "/v1/events", &[], odd.as_bytes());
    assert_eq!(sent.expect(202)["quarantined"], 1);
    server.kill();
    server.restart(&Setup::usual());
    let admin = server.admin();
    assert_eq!(ids(&admin.get("/v1/quarantine").expect(200)), ["a"]);
    let selector = json!({"ids": ["a", "none"]});
    let released = admin.post("/v1/quarantine/release", &selector).expect(200);
    assert_eq!(released["results"], json!([{"id":"a","source":"shop","status":"accepted"}]));
    assert_eq!((&released["remaining"], &released["next"]), (&0.into(), &Value::Null));
    assert_eq!(hook.next().text(), odd, "byte for byte");
    assert_eq!(admin.post("/v1/quarantine/release", &selector).expect(200)["released"], 0);
    assert_eq!(admin.publish(&serde_json::from_str(odd).expect("JSON"))["duplicates"], 1);
    server.stop();
    assert!(hook.rest().is_empty());
}

#[test]
fn a_release_may_find_the_id_taken_and_a_discard_ends_it() {
    let server = Server::start();
    let admin = server.admin();
    declare(&admin);
    for total in ["x", "y"] {
        admin.publish(&order("a", &json!({ "total": total })));
    }
    admin.publish(&order("b", &json!({"total": "z"})));
    let released = admin.post("/v1/quarantine/release", &json!({"all": true})).expect(200);
    assert_eq!((&released["released"], &released["conflicts"]), (&2.into(), &1.into()), "{released}");
    assert_eq!(ids(&admin.get("/v1/quarantine").expect(200)), ["a"], "what conflicts stays");
    let discarded = admin.post("/v1/quarantine/discard", &json!({"source": "shop"})).expect(200);
    assert_eq!(discarded["discarded"], 1);
    assert!(ids(&admin.get("/v1/quarantine").expect(200)).is_empty());
}

#[test]
fn lists_are_filtered_and_selectors_must_say_something() {
    let server = Server::start();
    let admin = server.admin();
    declare(&admin);
    let events: Vec<Value> = (0..5).map(|n| order(&n.to_string(), &json!({}))).collect();
    admin.publish(&json!(events));
    admin.publish(&json!({"id": "f", "source": "bar", "type": "t", "time": "2100-01-01T00:00:00Z"}));
    let first = admin.get("/v1/quarantine?limit=4").expect(200);
    assert_eq!(ids(&first), ["f", "4", "3", "2"]);
    let next = first["next"].as_str().expect("there is more");
    assert_eq!(ids(&admin.get(&format!("/v1/quarantine?cursor={next}")).expect(200)), ["1", "0"]);
    for query in ["reason=FUTURE_TIME", "source=bar", "type=t"] {
        assert_eq!(ids(&admin.get(&format!("/v1/quarantine?{query}")).expect(200)), ["f"]);
    }
    admin.get("/v1/quarantine?reason=BAD").problem(422, "reason_unknown");
    for (body, code) in [
        (json!({}), "selector_invalid"),
        (json!({"ids": []}), "selector_invalid"),
        (json!({"all": false}), "selector_invalid"),
        (json!({"all": true, "type": "t"}), "selector_invalid"),
        (json!({"reason": "BAD"}), "reason_unknown"),
        (json!({"id": "a"}), "field_unknown"),
        (json!({"all": true, "cursor": "x"}), "cursor_invalid"),
    ] {
        admin.post("/v1/quarantine/release", &body).problem(422, code);
        admin.post("/v1/quarantine/discard", &body).problem(422, code);
    }
    assert_eq!(ids(&admin.get("/v1/quarantine").expect(200)).len(), 6, "nothing was touched");
}
