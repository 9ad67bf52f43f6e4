//! Looking: lists and their filters, traces and health.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::Receiver;
use crate::server::Server;

/// Follows a list from page to page; returns the ids and the number of pages.
fn pages(client: &Client, path: &str) -> (Vec<String>, usize) {
    let (mut ids, mut cursor, mut count) = (Vec::new(), String::new(), 0);
    loop {
        let page = client.get(&format!("{path}{cursor}")).expect(200);
        let items = page["items"].as_array().expect("items");
        ids.extend(items.iter().map(|item| item["id"].as_str().expect("an id").to_owned()));
        count += 1;
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (ids, count),
        }
    }
}

#[test]
fn events_are_listed_newest_first_filtered_and_in_pages() {
    let server = Server::start();
    let client = server.admin();
    let event = |n: usize| {
        json!({ "id": format!("e{n:02}"), "source": format!("s{}", n % 2), "type": format!("t{}", n % 3),
            "subject": format!("x {}", n % 4), "time": format!("2026-01-{:02}T00:00:00Z", n + 1) })
    };
    client.publish(&(0..12).map(event).collect());
    let ids = |range: Vec<usize>| range.into_iter().map(|n| format!("e{n:02}")).collect::<Vec<_>>();
    assert_eq!(pages(&client, "/v1/events?limit=5"), (ids((0..12).rev().collect()), 3));
    assert_eq!(pages(&client, "/v1/events?limit=6").1, 2, "no empty page at the end");
    for (filter, expected) in [
        ("source=s1", vec![11, 9, 7, 5, 3, 1]),
        ("type=t0", vec![9, 6, 3, 0]),
        ("subject=x%203", vec![11, 7, 3]),
        ("subject=x+3&source=s1&type=t1", vec![7]),
        ("from=2026-01-11T00:00:00Z", vec![11, 10]),
        ("to=2026-01-03T01:00:00%2B01:00", vec![1, 0]),
        ("from=2026-01-05T00:00:00Z&to=2026-01-06T00:00:00Z", vec![4]),
        ("type=none", vec![]),
    ] {
        assert_eq!(pages(&client, &format!("/v1/events?limit=2&{filter}")).0, ids(expected), "{filter}");
    }
    let one = client.get("/v1/events?limit=1").expect(200);
    assert_eq!(one["items"][0], client.get("/v1/events/e11").expect(200), "items are whole events");
}

#[test]
fn other_lists_come_in_pages_too() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let subscribers: Vec<_> = (0..5).map(|_| server.subscribe(&hook, &json!({ "active": false }))).collect();
    client.publish(&json!([{ "source": "s", "type": "t" }, { "source": "s", "type": "t" }]));
    let of_one = format!("{}/deliveries?limit=1", subscribers[0].path);
    for n in 0..3 {
        client.post("/v1/keys", &json!({ "role": "viewer" })).expect(201);
        client.post("/v1/projects", &json!({ "id": format!("p{n}") })).expect(201);
    }
    for (path, items, count) in [
        ("/v1/subscribers?limit=2", 5, 3),
        ("/v1/deliveries?limit=4", 10, 3),
        ("/v1/deliveries?status=held&limit=10", 10, 1),
        ("/v1/deliveries?status=delivered&limit=10", 0, 1),
        (of_one.as_str(), 2, 2),
        ("/v1/keys?limit=3", 4, 2),
        ("/v1/projects?limit=2", 4, 2),
    ] {
        let (mut ids, found) = pages(&client, path);
        assert_eq!((ids.len(), found), (items, count), "{path}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), items, "{path} repeats itself");
    }
}

#[test]
fn a_question_that_is_not_understood_is_refused() {
    let server = Server::start();
    let client = server.admin();
    for (path, code, field) in [
        ("/v1/events?sorce=x", "parameter_unknown", "sorce"),
        ("/v1/events?where=data.a+%3D%3D+1", "where_not_searchable", "where"),
        ("/v1/events?type=a&type=b", "parameter_repeated", "type"),
        ("/v1/events?limit=0", "limit_invalid", "limit"),
        ("/v1/events?limit=501", "limit_invalid", "limit"),
        ("/v1/events?limit=ten", "limit_invalid", "limit"),
        ("/v1/events?cursor=5", "cursor_invalid", "cursor"),
        ("/v1/events?from=yesterday", "time_invalid", "from"),
        ("/v1/events?from=2026-01-02T00:00:00Z&to=2026-01-01T23:59:59Z", "field_range", "from"),
        ("/v1/deliveries?status=lost", "status_unknown", "status"),
        ("/v1/subscribers?status=active", "parameter_unknown", "status"),
        ("/v1/keys?page=2", "parameter_unknown", "page"),
        ("/v1/projects?%00=2", "parameter_unknown", "\u{0}"),
        ("/readyz?loud", "parameter_unknown", "loud"),
    ] {
        assert_eq!(client.get(path).problem(422, code)["field"], field, "{path}");
    }
    for path in
        ["/v1/events/%00", "/v1/events/e%FF", "/v1/events/a%2Fb", "/v1/deliveries/dlv_1", "/v1/keys/x"]
    {
        let answer = if path.contains("keys") { client.delete(path) } else { client.get(path) };
        answer.problem(404, "not_found");
    }
    client.publish(&json!({ "id": "a/b c%", "source": "s", "type": "t" }));
    client.get("/v1/events/a%2Fb%20c%25").expect(200);
}

fn lines(client: &Client, event: &str) -> Vec<(Value, Value)> {
    let trace = client.get(&format!("/v1/events/{event}/trace")).expect(200);
    let lines = trace["subscribers"].as_array().expect("lines").iter();
    lines.map(|line| (line["outcome"].clone(), line["reason"].clone())).collect()
}

#[test]
fn a_trace_judges_by_the_rules_of_its_day() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({ "name": "all" }));
    let paid = server.subscribe(&hook, &json!({ "match": { "types": ["paid"] } }));
    let large = server.subscribe(&hook, &json!({ "match": { "where": "data.total > 10" } }));
    let laned = server.subscribe(&hook, &json!({ "order": { "by": "data.order" } }));
    client.publish(&json!({ "id": "e", "source": "s", "type": "made", "data": { "total": 1 } }));
    hook.next();
    client.until("/v1/events/e/trace", |trace| trace["subscribers"][0]["outcome"] == "delivered");
    let expected = [
        (json!("delivered"), Value::Null),
        (json!("unmatched"), json!("type made is not among match.types")),
        (json!("unmatched"), json!("where is false")),
        (json!("skipped"), json!("order.by data.order is missing")),
    ];
    assert_eq!(lines(&client, "e"), expected);
    let trace = client.get("/v1/events/e/trace").expect(200);
    assert_eq!(trace["event"], client.get("/v1/events/e").expect(200));

    client.patch(&paid.path, &json!({ "match": { "types": ["made"] } })).expect(200);
    client.patch(&large.path, &json!({ "match": null })).expect(200);
    client.patch(&laned.path, &json!({ "order": null })).expect(200);
    let late = server.subscribe(&hook, &Value::Null);
    client.delete(&late.path).expect(200);
    server.subscribe(&hook, &Value::Null);
    let now = lines(&client, "e");
    assert_eq!(now[..4], expected, "later changes do not change what happened");
    let created_after = json!("the subscriber was created after the event was accepted");
    assert_eq!(now[4..], [(json!("unmatched"), created_after)]);
    client.publish(&json!({ "id": "f", "source": "s", "type": "made" }));
    hook.take(5);
    client.until("/v1/events/f/trace", |trace| {
        trace["subscribers"].as_array().unwrap().iter().all(|line| line["outcome"] == "delivered")
    });
    client.get("/v1/events/g/trace").problem(404, "not_found");
}

#[test]
fn health_is_told_without_a_key() {
    let server = Server::start();
    let client = Client::stranger(server.address);
    assert_eq!(client.get("/livez").expect(200), json!({ "status": "ok" }));
    assert_eq!(client.get("/readyz").expect(200), json!({ "status": "ready" }));
    let verbose = client.get("/readyz?verbose").expect(200);
    assert_eq!(verbose["status"], "ready");
    for check in ["accepting", "store", "disk", "deliver", "stuck", "dead_letters"] {
        assert_eq!(verbose["checks"][check], json!({ "state": "ok" }), "{verbose}");
    }
    assert_eq!(client.get("/openapi.json").expect(200)["info"]["version"], env!("CARGO_PKG_VERSION"));
}
