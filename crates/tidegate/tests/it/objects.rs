//! What is known of an object, and what happened to objects: read through the API and at a terminal.

use serde_json::{Value, json};

use crate::server::{Server, Setup};
use crate::shell::Shell;

const ORDERS: &str = "/v1/catalog/services/shop/types/order.changed";
const STATUS: &str = "/v1/objects/order?service=shop&attribute=data.status";

fn order(event: &str, second: u32, id: &str, data: &Value) -> Value {
    let mut data = data.clone();
    data["order_id"] = id.into();
    json!({"id": event, "source": "shop", "type": "order.changed",
        "time": format!("2026-03-02T10:00:{second:02}Z"), "data": data})
}

/// A server that was told of two orders; the last event is older than what was known.
fn told() -> Server {
    let long = [("TIDEGATE_RETENTION_ROLLUPS", "3650d".to_owned())];
    let server = Server::start_with(&Setup { variables: long.to_vec(), ..Setup::usual() });
    let admin = server.admin();
    let attributes = ["data.status", "data.stock"];
    let tells = json!({"states": [{"object": "order", "id": "data.order_id", "attributes": attributes}]});
    admin.call("PUT", ORDERS, &tells).expect(201);
    admin.publish(&order("1", 1, "a/1", &json!({"status": "NEW", "stock": "here"})));
    admin.publish(&order("2", 2, "b", &json!({"status": "NEW"})));
    admin.get("/v1/objects/order/b?service=shop").expect(200);
    admin.publish(&order("3", 20, "a/1", &json!({"status": "PAID"})));
    admin.publish(&order("4", 25, "a/1", &json!({"status": "PAID"})));
    admin.get("/v1/objects/order/b?service=shop").expect(200);
    admin.publish(&order("5", 10, "a/1", &json!({"status": "LOST"})));
    server
}

#[test]
fn a_late_event_is_recorded_and_turns_nothing_back() {
    let server = told();
    let admin = server.admin();
    let known = admin.get("/v1/objects/order/a%2F1?service=shop").expect(200);
    assert_eq!((&known["object"], &known["id"]), (&json!("order"), &json!("a/1")));
    let status = json!({"attribute": "data.status", "state": "PAID", "last_seen": "2026-03-02T10:00:25.000Z",
        "event": "4", "visited": ["NEW", "PAID"]});
    let stock = json!({"attribute": "data.stock", "state": "here", "last_seen": "2026-03-02T10:00:01.000Z",
        "event": "1", "visited": ["here"]});
    assert_eq!(known["states"], json!([status, stock]));
    assert!(known["complete_until"].as_str().is_some_and(|until| until > "2026"), "{known}");

    let change = |event: &str, second: u32, id: &str, from: Value, to: &str, late: bool| {
        let time = format!("2026-03-02T10:00:{second:02}.000Z");
        json!({"id": id, "from_state": from, "to_state": to, "time": time, "late": late, "event": event})
    };
    let all = [
        change("3", 20, "a/1", json!("NEW"), "PAID", false),
        change("5", 10, "a/1", json!("PAID"), "LOST", true),
        change("2", 2, "b", Value::Null, "NEW", false),
        change("1", 1, "a/1", Value::Null, "NEW", false),
    ];
    let items = |rest: &str| admin.get(&format!("{STATUS}{rest}")).expect(200)["items"].clone();
    assert_eq!(items(""), json!(all));
    assert_eq!(items("&id=b"), json!([all[2]]));
    assert_eq!(items("&late=true"), json!([all[1]]));
    assert_eq!(items("&late=false&id=a/1"), json!([all[0], all[3]]));
    assert_eq!(items("&from=2026-03-02T10:00:02Z&to=2026-03-02T10:00:20Z"), json!([all[1], all[2]]));
    let mut paged = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = admin.get(&format!("{STATUS}&limit=1{cursor}")).expect(200);
        paged.extend(page["items"].as_array().expect("a list").clone());
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, all);
    let elsewhere = format!("/v1/objects/order?service=shop&attribute=data.stock&limit=1{cursor}");
    admin.get(&elsewhere).problem(422, "cursor_invalid");
}

#[test]
fn what_is_wrong_is_said() {
    let server = told();
    let admin = server.admin();
    let missing = admin.get("/v1/objects/order/c?service=shop").problem(404, "not_found");
    assert!(missing["detail"].as_str().is_some_and(|text| text.contains("check its id")), "{missing}");
    for path in [
        "/v1/objects/order/b?service=none",
        "/v1/objects/orde/b?service=shop",
        "/v1/objects/order?service=shop&attribute=data.none",
        "/v1/objects/none?service=shop&attribute=data.status",
    ] {
        admin.get(path).problem(404, "not_found");
    }
    for (path, code, field) in [
        ("/v1/objects/order/b".to_owned(), "field_missing", "service"),
        ("/v1/objects/order?service=shop".to_owned(), "field_missing", "attribute"),
        (format!("{STATUS}&late=maybe"), "flag_invalid", "late"),
        (format!("{STATUS}&from=2026-03-02T10:00:02Z&to=2026-03-02T10:00:01Z"), "field_range", "from"),
        (format!("{STATUS}&cursor=ééé"), "cursor_invalid", "cursor"),
        (format!("{STATUS}&limit=0"), "limit_invalid", "limit"),
        (format!("{STATUS}&sort=id"), "parameter_unknown", "sort"),
    ] {
        assert_eq!(admin.get(&path).problem(422, code)["field"], field, "{path}");
    }
    let publisher = json!({"name": "p", "role": "publisher"});
    let made = admin.post("/v1/keys", &publisher).expect(201);
    let publisher = admin.with_key(made["key"].as_str().expect("a key"));
    publisher.get("/v1/objects/order/b?service=shop").problem(403, "role_insufficient");
    publisher.get(STATUS).problem(403, "role_insufficient");
}

#[test]
fn it_is_shown_at_a_terminal() {
    let server = told();
    let shell = Shell::new(&server);
    let known = shell.types("tidegate objects get order a/1 --service shop");
    for word in ["ATTRIBUTE", "data.status", "PAID", "2026-03-02T10:00:25.000Z", "NEW,PAID", "here"] {
        assert!(known.text(0).contains(word), "{}", known.text(0));
    }
    let changes = "tidegate objects changes order --service shop --attribute data.status";
    let table = shell.types(&format!("{changes} --id a/1"));
    for word in ["TIME", "LATE", "LOST", "true", "false"] {
        assert!(table.text(0).contains(word), "{}", table.text(0));
    }
    let late = shell.runs(&format!("{changes} --late --json")).json(0);
    assert_eq!(
        (&late["items"][0]["to_state"], late["items"].as_array().map(Vec::len)),
        (&json!("LOST"), Some(1))
    );
    let json = shell.runs("tidegate objects get order b --service shop --json").json(0);
    assert_eq!(json["states"][0]["state"], "NEW");
    assert!(shell.types(&format!("{changes} --id c")).text(0).contains("Nothing happened"));
    assert!(shell.types("tidegate objects get order c --service shop").complaint(3).contains("check its id"));
}
