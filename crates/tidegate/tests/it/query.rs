//! Questions about metrics: what was counted is told at once, grouped, filtered, in pages, and drawn in a terminal.

use serde_json::{Value, json};

use crate::client::Client;
use crate::recent::Recent;
use crate::server::Server;
use crate::shell::Shell;

const ORDERS: &str = "/v1/catalog/services/shop/types/order.paid";

/// A Monday that is not long ago.
fn days() -> Recent {
    Recent::moving("2026-01-05", true)
}

/// A type with everything that can be asked about, and six events of it on two days.
fn shop(client: &Client) {
    let definition = json!({
        "counters": { "by_country": { "dimensions": ["data.country", "data.n"], "sum": "data.total" }, "all": {} },
        "histograms": { "total": { "value": "data.total", "dimensions": ["data.country"] } },
        "states": [{ "object": "order", "id": "data.order", "attributes": ["data.status"] }],
    });
    client.call("PUT", ORDERS, &definition).expect(201);
    let event = |id: &str, time: &str, data: Value| json!({ "id": id, "source": "shop", "type": "order.paid", "time": time, "data": data });
    let events = json!([
        event(
            "1",
            "2026-01-05T09:00:01Z",
            json!({ "country": "DE", "n": 1, "total": 10.5, "order": "a", "status": "NEW" })
        ),
        event(
            "2",
            "2026-01-05T09:00:59Z",
            json!({ "country": "DE", "n": 2, "total": 31, "order": "b", "status": "NEW" })
        ),
        event(
            "3",
            "2026-01-05T09:01:00Z",
            json!({ "country": "FR", "n": 1, "total": -2, "order": "a", "status": "PAID" })
        ),
        event("4", "2026-01-05T09:02:00Z", json!({ "n": 1, "total": 0 })),
        event(
            "5",
            "2026-01-06T23:59:59Z",
            json!({ "country": "DE", "n": 1, "total": 1e-9, "order": "c", "status": "NEW" })
        ),
        event(
            "1",
            "2026-01-05T09:00:01Z",
            json!({ "country": "DE", "n": 1, "total": 10.5, "order": "a", "status": "NEW" })
        ),
    ]);
    assert_eq!(client.publish(&days().json(&events))["duplicates"], 1);
}

fn counters(rest: &Value) -> Value {
    let mut body = json!({
        "service": "shop", "type": "order.paid", "counter": "by_country",
        "from": "2026-01-05T09:00:00Z", "to": "2026-01-05T09:03:00Z", "every": "1m",
    });
    body.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    days().json(&body)
}

/// The series of each bucket.
fn series(answer: &Value) -> Vec<Value> {
    answer["buckets"].as_array().expect("buckets").iter().map(|bucket| bucket["series"].clone()).collect()
}

#[test]
fn counters_are_grouped_filtered_filled_and_summed() {
    let server = Server::start();
    let admin = server.admin();
    shop(&admin);
    let ask = |rest: Value| admin.post("/v1/query/counters", &counters(&rest)).expect(200);

    let all = ask(json!({}));
    assert_eq!((&all["every"], &all["points"]), (&json!("1m"), &json!(3)));
    assert!(all["complete_until"].as_str().is_some_and(|until| until > "2026"), "{all}");
    let one = |count: u64, sum: Value| json!([{ "key": {}, "count": count, "sum": sum }]);
    assert_eq!(series(&all), [one(2, json!(41.5)), one(1, json!(-2)), one(1, json!(0))]);

    let by_country = ask(json!({ "group_by": ["data.country"], "fill": "none", "every": "1h" }));
    let expected = json!([
        { "key": { "data.country": "(none)" }, "count": 1, "sum": 0 },
        { "key": { "data.country": "DE" }, "count": 2, "sum": 41.5 },
        { "key": { "data.country": "FR" }, "count": 1, "sum": -2 },
    ]);
    assert_eq!(series(&by_country), [expected]);

    let narrow = ask(json!({ "where": { "data.n": [2], "data.country": "DE" }, "format": "columns" }));
    assert_eq!(narrow["columns"]["count"], json!([1, 0, 0]));
    assert_eq!(narrow["columns"]["from"][2], days().text("2026-01-05T09:02:00.000Z"));

    let week = ask(json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-12T00:00:00Z", "every": "7d" }));
    assert_eq!(week["buckets"][1]["from"], days().text("2026-01-05T00:00:00.000Z"), "a Monday");
    assert_eq!(series(&week)[1], one(5, json!(39.500_000_001)));
    let without_sum = ask(json!({ "counter": "all" }));
    assert_eq!(without_sum["buckets"][0]["series"][0], json!({ "key": {}, "count": 2 }));
}

/// Whichever way a number is written, and however long a text is.
#[test]
fn values_are_asked_for_as_events_have_them() {
    let server = Server::start();
    let admin = server.admin();
    let definition = json!({
        "counters": { "by": { "dimensions": ["data.v"] } },
        "states": [{ "object": "thing", "id": "subject", "attributes": ["data.v"] }],
    });
    admin.call("PUT", "/v1/catalog/services/shop/types/v", &definition).expect(201);
    let texts = ["x".repeat(254), "y".repeat(255), "z\"".repeat(150), "é".repeat(400)];
    let values =
        [vec![json!(2), json!(-0.5), json!(1e30)], texts.iter().map(|text| json!(text)).collect()].concat();
    let event = |value: &Value| json!({ "source": "shop", "type": "v", "subject": value.to_string(), "data": { "v": value } });
    admin.publish(&values.iter().map(event).collect::<Value>());
    let count = |value: &Value| {
        let ask = json!({ "service": "shop", "type": "v", "counter": "by", "every": "1d", "where": { "data.v": value } });
        admin.post("/v1/query/counters", &ask).expect(200)["buckets"]
            .to_string()
            .matches("\"count\":1")
            .count()
    };
    for value in values.iter().chain(&[json!(2.0), json!("2"), json!(-0.5e0)]) {
        assert_eq!(count(value), 1, "{value}");
    }
    assert_eq!(count(&json!(2.5)), 0);
    for text in &texts {
        let ask = json!({ "service": "shop", "object": "thing", "attribute": "data.v", "states": [text] });
        assert_eq!(admin.post("/v1/query/states", &ask).expect(200)["states"][0]["count"], 1, "{text}");
    }
}

#[test]
fn an_answer_is_told_in_pages_that_belong_together() {
    let server = Server::start();
    let admin = server.admin();
    shop(&admin);
    let mut question = counters(&json!({ "group_by": ["data.country"], "limit": 4 }));
    let mut found = Vec::new();
    loop {
        let page = admin.post("/v1/query/counters", &question).expect(200);
        assert_eq!(page["points"], 9);
        found.extend(series(&page).iter().flat_map(|bucket| bucket.as_array().expect("a list").clone()));
        let Some(next) = page["next"].as_str() else { break };
        question["cursor"] = next.into();
    }
    assert_eq!(found.len(), 9);
    assert_eq!(found.iter().map(|point| point["count"].as_u64().unwrap_or(0)).sum::<u64>(), 4);
    question["group_by"] = json!(["data.n"]);
    admin.post("/v1/query/counters", &question).problem(422, "cursor_invalid");
}

#[test]
fn histograms_states_and_transitions_are_told() {
    let server = Server::start();
    let admin = server.admin();
    shop(&admin);
    let range = json!({ "from": "2026-01-05T09:00:00Z", "to": "2026-01-05T10:00:00Z", "every": "1h" });
    let ask = |kind: &str, body: Value| {
        let mut question = range.clone();
        question.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        admin.post(&format!("/v1/query/{kind}"), &days().json(&question)).expect(200)
    };
    let total =
        json!({ "service": "shop", "type": "order.paid", "histogram": "total", "percentiles": [0, 0.5, 1] });
    let told = &series(&ask("histograms", total))[0][0];
    assert_eq!((&told["count"], &told["sum"], &told["mean"]), (&json!(4), &json!(39.5), &json!(9.875)));
    let number = |value: &Value| value.as_f64().expect("a number");
    assert!((number(&told["min"]) + 2.0).abs() < 1e-12 && (number(&told["max"]) - 31.0).abs() < 1e-12);
    assert!((number(&told["percentiles"]["0"]) + 2.0).abs() <= 0.02, "{told}");
    assert!(
        number(&told["percentiles"]["0.5"]).abs() < 1e-12
            && (number(&told["percentiles"]["1"]) - 31.0).abs() <= 0.31
    );

    let order = json!({ "service": "shop", "object": "order", "attribute": "data.status" });
    let now = admin.post("/v1/query/states", &order).expect(200);
    assert_eq!(now["states"], json!([{ "state": "NEW", "count": 2 }, { "state": "PAID", "count": 1 }]));
    let mut then = order.clone();
    then["at"] = days().text("2026-01-05T09:01:00Z").into();
    assert_eq!(
        admin.post("/v1/query/states", &then).expect(200)["states"],
        json!([{ "state": "NEW", "count": 2 }])
    );
    let over_time = ask("states", order.clone());
    assert_eq!(
        over_time["buckets"][0]["states"],
        json!([{ "state": "NEW", "count": 1 }, { "state": "PAID", "count": 1 }])
    );
    let transitions = ask("transitions", order);
    let expected = json!([
        { "from_state": "(none)", "to_state": "NEW", "count": 2 },
        { "from_state": "NEW", "to_state": "PAID", "count": 1 },
    ]);
    assert_eq!(transitions["buckets"][0]["transitions"], expected);
}

#[test]
fn questions_about_what_is_not_there_are_refused() {
    let server = Server::start();
    let admin = server.admin();
    shop(&admin);
    let path = "/v1/query/counters";
    admin.post(path, &counters(&json!({ "counter": "none" }))).problem(404, "not_found");
    admin.post(path, &counters(&json!({ "type": "none" }))).problem(404, "not_found");
    let object = json!({ "service": "shop", "object": "user", "attribute": "data.status" });
    admin.post("/v1/query/states", &object).problem(404, "not_found");
    for (rest, code, field) in [
        (json!({ "every": "1s" }), "field_value", "every"),
        (json!({ "group_by": ["data.x"] }), "field_value", "group_by[0]"),
        (json!({ "from": "2026-01-01T00:00:00Z", "every": "5s" }), "query_too_large", "every"),
        (json!({ "bucket": "5s" }), "field_unknown", "bucket"),
        (json!({ "limit": 5, "cursor": "n0" }), "cursor_invalid", "cursor"),
    ] {
        assert_eq!(admin.post(path, &counters(&rest)).problem(422, code)["field"], field);
    }
    admin.send("POST", path, &[], b"{").problem(400, "json_syntax");
    admin.post("/v1/projects", &json!({ "id": "other" })).expect(201);
    let key = admin.post("/v1/keys", &json!({ "project": "other", "role": "viewer" })).expect(201);
    let stranger = admin.with_key(key["key"].as_str().expect("a key"));
    stranger.post(path, &counters(&json!({}))).problem(404, "not_found");
    let key = admin.post("/v1/keys", &json!({ "project": "default", "role": "publisher" })).expect(201);
    let publisher = admin.with_key(key["key"].as_str().expect("a key"));
    publisher.post(path, &counters(&json!({}))).problem(403, "role_insufficient");
}

#[test]
fn answers_are_drawn_in_a_terminal() {
    let server = Server::start();
    shop(&server.admin());
    let shell = Shell::new(&server);
    let range = days().text("--from 2026-01-05T09:00:00Z --to 2026-01-05T09:03:00Z");
    let line = format!(
        "tidegate query counters shop order.paid by_country {range} --every 1m --where data.country=DE,FR"
    );
    let shown = shell.types(&line).text(0).to_owned();
    let row = days().text("2026-01-05 09:00:00  2      41.5  ████████████████████████");
    assert!(shown.contains(&row), "{shown}");
    let drawn = shell.types(&format!("{line} --by data.country --chart")).text(0).to_owned();
    assert!(drawn.contains("DE            0       2        0     █"), "{drawn}");
    let script = shell.runs(&format!("{line} --json")).json(0);
    assert_eq!(script["points"], 3);
    let states = shell.types("tidegate query states shop order data.status").text(0).to_owned();
    assert!(states.contains("PAID   1"), "{states}");
    assert!(
        shell
            .types("tidegate query counters shop order.paid by_country --where x")
            .complaint(2)
            .contains("PATH=VALUE")
    );
    assert!(shell.types("tidegate query counters shop order.paid none").complaint(3).contains("counter"));
    let nothing = shell.types("tidegate query counters shop order.paid by_country --last 0s");
    assert!(nothing.complaint(2).contains("--last 0s"));
    assert!(
        shell.types("tidegate query histograms shop order.paid total --last 7d").text(0).contains("P0.99")
    );
}
