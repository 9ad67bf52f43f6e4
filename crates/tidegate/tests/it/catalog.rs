//! The catalog: declared types, open and strict projects, deprecation.

use serde_json::{Value, json};

use crate::client::Client;
use crate::server::Server;

const ORDERS: &str = "/v1/catalog/services/shop/types/order.paid";

/// A schema that wants a number.
fn paid() -> Value {
    json!({"schema": {"type": "object", "required": ["total"], "properties": {"total": {"type": "number"}}}})
}

fn put(client: &Client, path: &str, body: &Value) -> u16 {
    client.call("PUT", path, body).status
}

/// Publishes one event and tells what became of it.
fn fate(client: &Client, event: &Value) -> Value {
    client.publish(event)["results"][0].clone()
}

#[test]
fn types_are_declared_read_listed_and_taken_back() {
    let server = Server::start();
    let admin = server.admin();
    let definition = json!({"schema": {"type": "object"}, "deprecated": {"replaced_by": "order.settled"}, "description": "paid"});
    let made = admin.call("PUT", ORDERS, &definition).expect(201);
    assert_eq!((&made["service"], &made["type"]), (&"shop".into(), &"order.paid".into()));
    assert_eq!(admin.get(ORDERS).expect(200), made);
    for name in ["schema", "deprecated", "description"] {
        assert_eq!(made[name], definition[name]);
    }
    assert_eq!(put(&admin, ORDERS, &json!({})), 200, "declared anew, with nothing");
    assert_eq!(admin.get(ORDERS).expect(200).get("schema"), None);
    assert_eq!(put(&admin, "/v1/catalog/services/https%3A%2F%2Fa%2Fb/types/t%2Fu", &Value::Null), 201);
    for name in ["a", "b", "c"] {
        assert_eq!(put(&admin, &format!("/v1/catalog/services/shop/types/{name}"), &paid()), 201);
    }
    let services = admin.get("/v1/catalog/services").expect(200);
    assert_eq!(services["items"], json!([{"service":"https://a/b","types":1},{"service":"shop","types":4}]));
    let first = admin.get("/v1/catalog/services/shop?limit=3").expect(200);
    let next = first["next"].as_str().expect("there is more");
    let rest = admin.get(&format!("/v1/catalog/services/shop?limit=3&cursor={next}")).expect(200);
    assert_eq!((&rest["items"][0]["type"], &rest["next"]), (&"order.paid".into(), &Value::Null));
    assert_eq!((&first["items"][0]["has_schema"], first["items"][0].get("schema")), (&true.into(), None));
    admin.get("/v1/catalog/services/shop?cursor=x").problem(422, "cursor_invalid");

    admin.delete(ORDERS).expect(200);
    admin.delete(ORDERS).problem(404, "not_found");
    admin.get(ORDERS).problem(404, "not_found");
    admin.get("/v1/catalog/services/none").problem(404, "not_found");
}

#[test]
fn what_can_not_be_kept_is_refused_with_its_place() {
    let server = Server::start();
    let admin = server.admin();
    for (body, code, field) in [
        (json!({"shema": {}}), "field_unknown", "shema"),
        (json!({"counters": {"n": {"where": "data.a ="}}}), "condition_invalid", "counters.n.where"),
        (json!({"histograms": {"n": {"accuracy": 1}}}), "field_range", "histograms.n.accuracy"),
        (json!({"states": [{"object": "order"}]}), "field_missing", "states[0].id"),
        (json!({"index": ["country"]}), "path_invalid", "index[0]"),
        (
            json!({"schema": {"properties": {"a": {"$ref": "https://x/y"}}}}),
            "schema_reference",
            "schema.properties.a.$ref",
        ),
        (json!({"schema": {"$ref": "#"}}), "schema_invalid", "schema"),
        (json!({"schema": {"pattern": "(?=x)"}}), "schema_invalid", "schema.pattern"),
    ] {
        let problem = admin.call("PUT", ORDERS, &body).problem(422, code);
        assert_eq!(problem["field"], field, "{problem}");
    }
    admin.send("PUT", ORDERS, &[], b"{").problem(400, "json_syntax");
    admin.call("PUT", "/v1/catalog/services/a*/types/t", &json!({})).problem(422, "field_characters");
    admin.get(ORDERS).problem(404, "not_found");
}

#[test]
fn a_project_is_strict_or_open_and_a_declaration_binds_the_next_event() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin.post("/v1/projects", &json!({"id": "p1", "catalog": "strict"})).expect(201);
    assert_eq!(made["catalog"], "strict");
    let p1 = admin.with("x-tidegate-project", "p1");
    let event = |id: &str| json!({"id": id, "source": "shop", "type": "order.paid", "data": {"total": "1"}});
    assert_eq!(fate(&p1, &event("1"))["reason"], "UNCONFIGURED_SERVICE");
    assert_eq!(put(&p1, "/v1/catalog/services/shop/types/other", &json!({})), 201);
    assert_eq!(fate(&p1, &event("2"))["reason"], "UNCONFIGURED_EVENT_TYPE");
    assert_eq!(put(&p1, ORDERS, &json!({})), 201);
    assert_eq!(fate(&p1, &event("3"))["status"], "accepted");
    assert_eq!(put(&p1, ORDERS, &paid()), 200);
    assert_eq!(fate(&p1, &event("4"))["reason"], "SCHEMA_VIOLATION");
    p1.delete(ORDERS).expect(200);
    let changed = admin.patch("/v1/projects/p1", &json!({"catalog": "open"})).expect(200);
    assert_eq!((&changed["id"], &changed["catalog"]), (&"p1".into(), &"open".into()));
    assert_eq!(fate(&p1, &event("5"))["status"], "accepted");
    admin.patch("/v1/projects/p1", &json!({"catalog": "shut"})).problem(422, "field_value");
    admin.patch("/v1/projects/p9", &json!({"catalog": "open"})).problem(404, "not_found");
    let nested =
        json!({"id": "6", "source": "shop", "type": "other", "events": [{"type": "other"}, {"type": "x"}]});
    admin.patch("/v1/projects/p1", &json!({"catalog": "strict"})).expect(200);
    assert_eq!(fate(&p1, &nested)["reason"], "UNCONFIGURED_NESTED_EVENT_TYPE");
}

#[test]
fn deprecated_types_are_accepted_with_a_warning() {
    let mut server = Server::start();
    let admin = server.admin();
    put(&admin, ORDERS, &json!({"deprecated": {"replaced_by": "order.settled"}}));
    let events: Vec<Value> = ["order.paid", "order.settled", "order.paid"]
        .iter()
        .enumerate()
        .map(|(n, kind)| json!({"id": n.to_string(), "source": "shop", "type": kind}))
        .collect();
    let answer = admin.publish(&json!(events));
    assert_eq!(answer["accepted"], 3);
    let warning = answer["results"][0]["warning"].as_str().expect("a warning");
    assert!(warning.contains("order.settled"), "{warning}");
    assert_eq!(answer["results"][1].get("warning"), None);
    assert!(admin.get("/metrics").text().contains("tidegate_events_deprecated_total 2"));
    put(&admin, ORDERS, &json!({"deprecated": true}));
    assert_eq!(fate(&admin, &events[0])["warning"], "the type order.paid is deprecated");
    put(&admin, ORDERS, &json!({"deprecated": false}));
    assert_eq!(fate(&admin, &events[0]).get("warning"), None);
    server.stop();
    assert_eq!(server.log().matches("a deprecated type is still sent").count(), 1, "once a minute at most");
}

#[test]
fn the_catalog_is_described_to_those_who_may_read_it() {
    let server = Server::start();
    let admin = server.admin();
    put(&admin, ORDERS, &paid());
    let document = admin.get("/asyncapi.json").expect(200);
    assert_eq!(
        (&document["asyncapi"], &document["info"]["title"]),
        (&"3.0.0".into(), &"Events of default".into())
    );
    let message = &document["channels"]["shop.order.paid"]["messages"]["event"];
    assert_eq!(message["payload"]["properties"]["data"], paid()["schema"]);
    Client::stranger(server.address).get("/asyncapi.json").problem(401, "key_invalid");
    admin.post("/v1/projects", &json!({"id": "p1"})).expect(201);
    let other = admin.with("x-tidegate-project", "p1").get("/asyncapi.json").expect(200);
    assert_eq!(other["channels"], json!({}), "another project's");
}
