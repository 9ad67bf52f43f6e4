//! Counting, measuring, states and search: declared in the catalog, asked in one call, exact after duplicates and kills.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::client::Client;
use crate::recent::Recent;
use crate::server::{ADMIN_KEY, Server, Setup};
use crate::shell::Shell;

pub(crate) const ORDERS: &str = "/v1/catalog/services/shop/types/order.paid";
const DAY: [&str; 2] = ["2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"];

/// Not long ago: short buckets are kept for some days.
pub(crate) fn days() -> Recent {
    Recent::moving("2026-03-02", false)
}

/// What the design shows.
pub(crate) fn declared() -> Value {
    json!({
        "index": ["data.country", "data.tags"],
        "counters": {"by_country": {"dimensions": ["data.country"], "sum": "data.total"}, "all": {}},
        "histograms": {"total": {"value": "data.total", "dimensions": ["data.country"], "accuracy": 0.01}},
        "states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"]}],
    })
}

pub(crate) fn order(id: &str, time: &str, data: &Value) -> Value {
    json!({"id": id, "source": "shop", "type": "order.paid", "time": days().text(time), "data": data})
}

pub(crate) fn orders() -> Value {
    json!([
        order(
            "1",
            "2026-03-02T10:00:01Z",
            &json!({"country":"DE","total":10.5,"order_id":"a","status":"NEW","tags":["x","y"]})
        ),
        order("2", "2026-03-02T10:00:02Z", &json!({"country":"DE","total":31,"order_id":"b","status":"NEW"})),
        order(
            "3",
            "2026-03-02T10:01:00Z",
            &json!({"country":"FR","total":7,"order_id":"a","status":"PAID","tags":"x"})
        ),
        order("4", "2026-03-02T12:00:00Z", &json!({"total":"0.000000001","order_id":"c","status":"PAID"})),
    ])
}

pub(crate) fn counters(client: &Client, rest: &Value) -> Value {
    let mut ask = json!({"service": "shop", "type": "order.paid", "counter": "by_country", "from": DAY[0], "to": DAY[1],
        "every": "1d", "fill": "none"});
    ask.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    client.post("/v1/query/counters", &days().json(&ask)).expect(200)
}

fn by_country(client: &Client, every: &str) -> Vec<Value> {
    let answer = counters(client, &json!({"every": every, "group_by": ["data.country"]}));
    let buckets = answer["buckets"].as_array().expect("a list").clone();
    buckets.iter().flat_map(|bucket| bucket["series"].as_array().expect("a list").clone()).collect()
}

/// A command shows all of these at a terminal.
fn shows(shell: &Shell<'_>, command: &str, words: &[&str]) {
    let ended = shell.types(&format!("tidegate {command}"));
    let text = ended.text(0);
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn what_the_catalog_declares_is_counted_and_asked_in_one_call() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin.call("PUT", ORDERS, &declared()).expect(201);
    for name in ["index", "counters", "histograms", "states"] {
        assert_eq!(made[name], declared()[name]);
    }
    assert_eq!(admin.publish(&orders())["accepted"], 4);

    let all = counters(&admin, &json!({}));
    assert_eq!(all["every"], "1d");
    let bucket = &all["buckets"][0];
    assert_eq!(
        (&bucket["from"], &bucket["to"]),
        (&days().text("2026-03-02T00:00:00.000Z").into(), &days().text("2026-03-03T00:00:00.000Z").into())
    );
    assert_eq!(bucket["series"], json!([{"key": {}, "count": 4, "sum": 48.500_000_001}]));
    assert!(all["complete_until"].as_str().is_some());
    let mut found = by_country(&admin, "1d");
    found.sort_by_key(|series| series["key"]["data.country"].to_string());
    assert_eq!(
        found,
        [
            json!({"key": {"data.country": "(none)"}, "count": 1, "sum": 0.000_000_001}),
            json!({"key": {"data.country": "DE"}, "count": 2, "sum": 41.5}),
            json!({"key": {"data.country": "FR"}, "count": 1, "sum": 7}),
        ]
    );
    let only = counters(
        &admin,
        &json!({"where": {"data.country": ["DE"]}, "every": "5s", "to": "2026-03-02T11:00:00Z", "from": "2026-03-02T10:00:00Z"}),
    );
    assert_eq!(only["buckets"].as_array().map(Vec::len), Some(1), "both in one bucket of five seconds");
    assert_eq!(only["buckets"][0]["series"][0]["count"], 2);
    let filled = counters(&admin, &json!({"every": "6h", "fill": "zero"}));
    let counts: Vec<&Value> =
        filled["buckets"].as_array().expect("a list").iter().map(|b| &b["series"][0]["count"]).collect();
    assert_eq!(counts, [0, 3, 1, 0].map(Value::from).iter().collect::<Vec<_>>());

    let ask = json!({"service": "shop", "type": "order.paid", "histogram": "total", "from": DAY[0], "to": DAY[1],
        "every": "1d", "percentiles": [0.5, 0.99]});
    let answer = admin.post("/v1/query/histograms", &days().json(&ask)).expect(200);
    let series = &answer["buckets"][0]["series"][0];
    assert_eq!((&series["count"], &series["min"], &series["max"]), (&4.into(), &json!(1e-9), &31.into()));
    let median = series["percentiles"]["0.5"].as_f64().expect("a number");
    assert!((6.93..=7.07).contains(&median), "{series}");

    let states = admin
        .post("/v1/query/states", &json!({"service": "shop", "object": "order", "attribute": "data.status"}));
    let mut states = states.expect(200)["states"].as_array().expect("a list").clone();
    states.sort_by_key(|state| state["state"].to_string());
    assert_eq!(states, [json!({"state": "NEW", "count": 1}), json!({"state": "PAID", "count": 2})]);
    let ask = json!({"service": "shop", "object": "order", "attribute": "data.status", "from": DAY[0], "to": DAY[1], "every": "1d"});
    let answer = admin.post("/v1/query/transitions", &days().json(&ask)).expect(200);
    let mut changes = answer["buckets"][0]["transitions"].as_array().expect("a list").clone();
    changes.sort_by_key(Value::to_string);
    changes.sort_by_key(|change| (change["from_state"].to_string(), change["to_state"].to_string()));
    let told: Vec<_> = changes
        .iter()
        .map(|c| (c["from_state"].as_str(), c["to_state"].as_str(), c["count"].as_i64()))
        .collect();
    assert_eq!(
        told,
        [
            (Some("(none)"), Some("NEW"), Some(2)),
            (Some("(none)"), Some("PAID"), Some(1)),
            (Some("NEW"), Some("PAID"), Some(1)),
        ]
    );
}

#[test]
fn events_are_found_by_what_they_say() {
    let server = Server::start();
    let admin = server.admin();
    admin.call("PUT", ORDERS, &declared()).expect(201);
    admin.publish(&orders());
    let found = |condition: &str| -> Vec<String> {
        let coded: String = url::form_urlencoded::byte_serialize(condition.as_bytes()).collect();
        let page = admin.get(&format!("/v1/events?where={coded}")).expect(200);
        let items = page["items"].as_array().expect("a list").clone();
        items.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(found("data.country == 'DE'"), ["2", "1"], "newest first");
    let page = admin.get("/v1/events?where=true&limit=1").expect(200);
    assert!(page["complete_until"].as_str().is_some_and(|until| until > "2026"), "{page}");
    assert!(admin.get("/v1/events").expect(200)["complete_until"].is_null());
    assert_eq!(found("data.country in ['FR', 'IT']"), ["3"]);
    assert_eq!(found("!has(data.country) && type == 'order.paid'"), ["4"]);
    assert_eq!(found("'x' in data.tags"), ["1"]);
    assert_eq!(found("data.country.startsWith('D') || data.country == 'FR'"), ["3", "2", "1"]);
    let refused = admin.get("/v1/events?where=data.total%20%3E%2010").problem(422, "where_not_searchable");
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("data.total")), "{refused}");
    admin.get("/v1/events?where=data.country%20%3D%3D").problem(422, "condition_invalid");

    let names = admin.get("/v1/catalog/attributes/shop").expect(200);
    let names: Vec<&Value> =
        names["items"].as_array().expect("a list").iter().map(|item| &item["name"]).collect();
    assert_eq!(names, ["data.country", "data.tags", "source", "type"]);
    let values = admin.get("/v1/catalog/attributes/shop/data.country").expect(200);
    assert_eq!(values["items"], json!([{"value": "DE", "count": 2}, {"value": "FR", "count": 1}]));
    let some = admin.get("/v1/catalog/attributes/shop/data.country?prefix=F").expect(200);
    assert_eq!(some["items"], json!([{"value": "FR", "count": 1}]));
    let first = admin.get("/v1/catalog/attributes/shop/data.country?limit=1").expect(200);
    let next = first["next"].as_str().expect("there is more");
    let rest =
        admin.get(&format!("/v1/catalog/attributes/shop/data.country?limit=1&cursor={next}")).expect(200);
    assert_eq!((&rest["items"][0]["value"], &rest["next"]), (&"FR".into(), &Value::Null));
    admin.get("/v1/catalog/attributes/shop/data.total").problem(404, "not_found");
    admin.get("/v1/catalog/attributes/none").problem(404, "not_found");
}

/// Source and type are what every event has, whether or not its type is declared.
#[test]
fn events_are_found_by_type_and_source_whoever_indexes_them() {
    let server = Server::start();
    let admin = server.admin();
    let event = |id: usize, source: &str, kind: &str| json!({"id": id.to_string(), "source": source, "type": kind, "data": {"a": id}});
    admin.publish(&json!([event(1, "shop", "i"), event(2, "shop", "h")]));
    let ask = |condition: &str, limit: usize| {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/events?limit={limit}&where={}{cursor}", encoded(condition));
            let page = admin.get(&path).expect(200);
            let items = page["items"].as_array().expect("a list");
            assert!(items.len() <= limit);
            found.extend(items.iter().map(|event| event["id"].as_str().expect("text").to_owned()));
            let Some(next) = page["next"].as_str() else { return found.join(" ") };
            cursor = format!("&cursor={next}");
        }
    };
    assert_eq!(ask("type == 'h'", 10), "2", "nothing is declared");
    admin.get(&format!("/v1/events?where={}", encoded("data.a == 1"))).problem(422, "where_not_searchable");
    admin.call("PUT", "/v1/catalog/services/shop/types/i", &json!({"index": ["data.a"]})).expect(201);
    admin.call("PUT", "/v1/catalog/services/shop/types/c", &json!({"counters": {"all": {}}})).expect(201);
    admin.publish(&json!([event(3, "shop", "i"), event(4, "shop", "h"), event(5, "else", "i")]));
    admin.publish(&json!([event(6, "shop", "c"), event(7, "shop", "i"), event(8, "else", "x")]));
    for limit in [1, 2, 100] {
        assert_eq!(ask("type == 'h'", limit), "4 2");
        assert_eq!(ask("source == 'shop'", limit), "7 6 4 3 2 1");
        assert_eq!(ask("source == 'shop' && type != 'i'", limit), "6 4 2");
        assert_eq!(ask("type == 'h' || data.a == 3", limit), "4 3 2");
        assert_eq!(
            ask("type == 'i' && data.a > 1", limit),
            "7 3",
            "what has no index is not known to say so"
        );
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn duplicates_sub_events_and_kills_change_nothing() {
    let mut server = Server::start();
    let admin = server.admin();
    admin.call("PUT", ORDERS, &declared()).expect(201);
    admin.call("PUT", "/v1/catalog/services/shop/types/step", &json!({"counters": {"all": {}}})).expect(201);
    admin.publish(&orders());
    assert_eq!(admin.publish(&orders())["duplicates"], 4);
    let nested = json!({"id": "5", "source": "shop", "type": "order.paid", "time": days().text("2026-03-02T10:00:03Z"),
        "data": {"country": "IT", "total": 1}, "events": [{"type": "step", "data": {}}, {"type": "step", "data": {}}]});
    assert_eq!(admin.publish(&nested)["accepted"], 1);
    server.kill();
    server.restart(&Setup::usual());
    let admin = server.admin();
    admin.publish(&orders());
    assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 5);
    server.kill();
    server.restart(&Setup::usual());
    let admin = server.admin();
    for every in ["5s", "1m", "5m", "1h", "1d", "7d"] {
        let ask = json!({"every": every, "from": "2026-03-02T00:00:00Z", "to": "2026-03-02T12:00:05Z"});
        let answer = counters(&admin, &ask);
        let counts =
            answer["buckets"].as_array().expect("a list").iter().map(|b| b["series"][0]["count"].as_i64());
        assert_eq!(counts.flatten().sum::<i64>(), 5, "{every}");
    }
    let ask = json!({"service": "shop", "type": "step", "counter": "all", "from": DAY[0], "to": DAY[1], "every": "1d"});
    let steps = admin.post("/v1/query/counters", &days().json(&ask)).expect(200);
    assert_eq!(steps["buckets"][0]["series"][0]["count"], 2, "sub-events happen when their parent does");
    let audit = admin.post("/v1/audit", &json!({"service": "shop", "type": "order.paid"})).expect(200);
    assert_eq!(
        (&audit["events"], &audit["agrees"], &audit["differences"]),
        (&5.into(), &true.into(), &json!([]))
    );
    let compared: Vec<&Value> =
        audit["metrics"].as_array().expect("a list").iter().map(|m| &m["name"]).collect();
    let (state, implicit) = ("order data.status", ["source", "type"]);
    let named = ["all", "by_country", "total", state, state, "data.country", "data.tags"];
    assert_eq!(compared, [&named[..], &implicit].concat());
    shows(
        &Shell::new(&server),
        "audit",
        &["SERVICE", "by_country", "step", "what was counted is what the events say"],
    );
}

#[test]
fn what_was_accepted_before_is_counted_when_somebody_asks() {
    let server = Server::start();
    let admin = server.admin();
    admin.publish(&orders());
    admin.call("PUT", ORDERS, &declared()).expect(201);
    admin.publish(&order("6", "2026-03-02T23:00:00Z", &json!({"country": "DE", "total": 1})));
    assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 1);
    let path = format!("{ORDERS}/backfill");
    admin.post(&path, &json!({"metrics": ["none"]})).problem(422, "metric_unknown");
    let begun = admin.post(&path, &json!({"metrics": ["by_country", "data.country"]})).expect(202);
    assert_eq!(begun["metrics"], json!(["by_country", "data.country"]));
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 5);
    assert_eq!(counters(&admin, &json!({"counter": "all"}))["buckets"][0]["series"][0]["count"], 1);
    admin.post(&path, &json!({"metrics": ["by_country"]})).problem(409, "conflict");
    let shell = Shell::new(&server);
    shows(&shell, "backfill shop order.paid", &["5 events of shop order.paid counted"]);
    shows(&shell, "backfill", &["SERVICE", "order.paid", "done", "by_country"]);
    assert_eq!(shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"], true);
    assert_eq!(counters(&admin, &json!({"counter": "all"}))["buckets"][0]["series"][0]["count"], 5);
    assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 5, "what was counted stays");
    let values = admin.get("/v1/catalog/attributes/shop/data.country").expect(200);
    assert_eq!(values["items"], json!([{"value": "DE", "count": 3}, {"value": "FR", "count": 1}]));
}

#[test]
fn kinds_can_be_switched_off() {
    let off =
        Setup { variables: vec![("TIDEGATE_OBSERVE_HISTOGRAMS", "false".to_owned())], ..Setup::usual() };
    let server = Server::start_with(&off);
    let admin = server.admin();
    let mut quiet = declared();
    quiet["observe"] = json!({"states": false});
    admin.call("PUT", ORDERS, &quiet).expect(201);
    admin.publish(&orders());
    assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 4);
    let ask = json!({"service": "shop", "type": "order.paid", "histogram": "total", "from": DAY[0], "to": DAY[1], "every": "1d"});
    let answer = admin.post("/v1/query/histograms", &days().json(&ask)).expect(200);
    assert_eq!(answer["buckets"][0]["series"][0]["count"], 0);
}

#[test]
fn what_a_type_switches_off_keeps_what_it_has_counted() {
    let server = Server::start();
    let admin = server.admin();
    let count = |answer: Value| answer["buckets"][0]["series"][0]["count"].clone();
    let found = || {
        let page = admin.get("/v1/events?where=data.country%20%3D%3D%20%27DE%27").expect(200);
        page["items"].as_array().expect("a list").len()
    };
    admin.call("PUT", ORDERS, &declared()).expect(201);
    admin.publish(&orders());
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(4), 2));
    let before = states(&admin);

    let mut quiet = declared();
    quiet["observe"] = json!({"index": false, "counters": false, "histograms": false, "states": false});
    admin.call("PUT", ORDERS, &quiet).expect(200);
    let meanwhile = json!({"country": "DE", "total": 1, "order_id": "z", "status": "NEW"});
    admin.publish(&order("5", "2026-03-02T13:00:00Z", &meanwhile));
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(4), 2));
    assert_eq!(states(&admin), before);
    let backfill = format!("{ORDERS}/backfill");
    admin.post(&backfill, &json!({"metrics": ["by_country"]})).problem(422, "metric_unknown");

    admin.call("PUT", ORDERS, &declared()).expect(200);
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(4), 2));
    let shell = Shell::new(&server);
    assert_eq!(shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"], true);
    admin.post(&backfill, &json!({})).expect(202);
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(5), 3));
    assert_eq!(states(&admin), [("NEW".to_owned(), 2), ("PAID".to_owned(), 2)]);
    assert_eq!(shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"], true);
    admin.post(&backfill, &json!({})).problem(409, "conflict");

    // The same once more: what came meanwhile is what is left.
    admin.call("PUT", ORDERS, &quiet).expect(200);
    admin.publish(&order("6", "2026-03-02T13:00:01Z", &meanwhile));
    admin.call("PUT", ORDERS, &declared()).expect(200);
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(5), 3));
    assert_eq!(shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"], true);
    admin.post(&backfill, &json!({})).expect(202);
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    assert_eq!((count(counters(&admin, &json!({}))), found()), (json!(6), 4));
    assert_eq!(shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"], true);
    admin.post(&backfill, &json!({})).problem(409, "conflict");
}

pub(crate) const TRAILS: &str = "/v1/catalog/services/shop/types/trail";

pub(crate) fn trail(n: usize, kind: &str, second: usize, status: &str) -> Value {
    let time = days().text(&format!("2026-03-02T10:{:02}:{:02}Z", second / 60, second % 60));
    json!({"id": format!("{kind}-{n}"), "source": "shop", "type": kind, "time": time,
        "data": {"order_id": format!("o{}", n % 7), "status": status}})
}

/// How many objects are in each state now.
pub(crate) fn states(client: &Client) -> Vec<(String, i64)> {
    let ask = json!({"service": "shop", "object": "order", "attribute": "data.status"});
    let answer = client.post("/v1/query/states", &ask).expect(200);
    let mut states: Vec<(String, i64)> = answer["states"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|state| {
            (state["state"].as_str().expect("text").to_owned(), state["count"].as_i64().expect("a number"))
        })
        .filter(|(_, count)| *count != 0)
        .collect();
    states.sort();
    states
}

pub(crate) fn transitions(client: &Client) -> i64 {
    let ask = json!({"service": "shop", "object": "order", "attribute": "data.status", "from": DAY[0], "to": DAY[1], "every": "1d"});
    let answer = client.post("/v1/query/transitions", &days().json(&ask)).expect(200);
    let counts = answer["buckets"][0]["transitions"].as_array().expect("a list").clone();
    counts.iter().map(|change| change["count"].as_i64().expect("a number")).sum()
}

#[test]
fn the_past_of_states_is_counted_too_whatever_is_killed() {
    let few = Setup { variables: vec![("TIDEGATE_OBSERVE_BATCH", "20".to_owned())], ..Setup::usual() };
    let mut server = Server::start_with(&few);
    let admin = server.admin();
    let tells =
        json!({"states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"]}]});
    // Seven orders go from A to B and so on, eighty times; what comes last happened first.
    let names = ["A", "B", "C", "D"];
    let status = |n: usize| names[n / 7 % 4];
    let (first, second): (Vec<usize>, Vec<usize>) = (0..560).partition(|n| *n < 300);
    let events =
        |some: &[usize]| -> Value { some.iter().map(|n| trail(*n, "trail", *n, status(*n))).collect() };
    assert_eq!(admin.publish(&events(&first))["accepted"], 300);
    admin.call("PUT", TRAILS, &tells).expect(201);
    admin.call("PUT", "/v1/catalog/services/shop/types/step", &tells).expect(201);
    admin.publish(&events(&second[..100]));
    assert_eq!(transitions(&admin), 100, "from where it was declared on");
    let begun =
        admin.post(&format!("{TRAILS}/backfill"), &json!({"metrics": ["order data.status"]})).expect(202);
    assert_eq!(begun["metrics"], json!(["order data.status"]));
    for (round, some) in second[100..].chunks(40).enumerate() {
        server.kill();
        server.restart(&few);
        let admin = server.admin();
        assert_eq!(admin.publish(&events(some))["accepted"], 40);
        assert_eq!(admin.publish(&events(some))["duplicates"], 40);
        if round == 1 {
            admin
                .post(&format!("{TRAILS}/backfill"), &json!({"metrics": ["none"]}))
                .problem(422, "metric_unknown");
        }
    }
    let admin = server.admin();
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    assert_eq!(transitions(&admin), 560, "each event is a change");
    assert_eq!(states(&admin), [("D".to_owned(), 7)]);
    // Too late, in time, and of another type.
    admin.publish(&json!([
        trail(560, "trail", 5, "A"),
        trail(561, "step", 561, "A"),
        trail(562, "trail", 570, "B")
    ]));
    assert_eq!(states(&admin), [("A".to_owned(), 1), ("B".to_owned(), 1), ("D".to_owned(), 5)]);
    assert_eq!(transitions(&admin), 562);
    let shell = Shell::new(&server);
    for kind in ["trail", "step"] {
        assert_eq!(shell.runs(&format!("tidegate audit shop {kind}")).json(0)[0]["audit"]["agrees"], true);
    }
    shows(&shell, "backfill", &["trail", "done", "order data.status"]);
    let again = admin.post(&format!("{TRAILS}/backfill"), &json!({})).problem(409, "conflict");
    assert!(
        again["detail"].as_str().is_some_and(|text| text.contains("nothing is left to count")),
        "{again}"
    );
}

/// Steps of one event make it last.
#[test]
fn who_waits_for_a_backfill_waits_through_a_restart() {
    let variables = vec![("TIDEGATE_OBSERVE_BATCH", "1".to_owned())];
    let mut server = Server::start_with(&Setup { variables: variables.clone(), ..Setup::usual() });
    let all: Vec<Value> = (0..600).map(|n| trail(n, "trail", n, "NEW")).collect();
    server.admin().publish(&json!(all));
    server.admin().call("PUT", TRAILS, &json!({"counters": {"all": {}}})).expect(201);
    let waiting = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["backfill", "shop", "trail", "--json"])
        .env_clear()
        .env("TIDEGATE_URL", format!("http://{}", server.address))
        .env("TIDEGATE_KEY", ADMIN_KEY)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // So far on its way that whoever began it has been answered.
    server.admin().until("/v1/backfills", |list| list["items"][0]["events"].as_u64() >= Some(50));
    let address: &'static str = Box::leak(server.address.to_string().into_boxed_str());
    server.kill();
    server.restart(&Setup { listen: Some(address), variables, ..Setup::usual() });
    let ended = waiting.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{ended:?}");
    let told: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    assert_eq!((&told["status"], &told["events"]), (&json!("done"), &json!(600)));
}

#[test]
fn a_second_type_brings_its_past_into_a_state() {
    let server = Server::start();
    let admin = server.admin();
    let tells = json!({"states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"], "additional": ["*"]}]});
    admin.publish(&json!([trail(0, "step", 0, "NEW"), trail(1, "step", 1, "NEW")]));
    admin.call("PUT", TRAILS, &tells).expect(201);
    admin.publish(&json!([trail(7, "trail", 10, "PAID"), trail(14, "trail", 20, "SENT")]));
    assert_eq!(transitions(&admin), 2);
    admin.call("PUT", "/v1/catalog/services/shop/types/step", &tells).expect(201);
    let shell = Shell::new(&server);
    shows(&shell, "backfill shop step", &["events of shop step counted"]);
    // (none) to NEW twice, NEW to PAID, PAID to SENT and NEW to SENT.
    assert_eq!(transitions(&admin), 5);
    assert_eq!(states(&admin), [("NEW".to_owned(), 1), ("SENT".to_owned(), 1)]);
    assert_eq!(shell.runs("tidegate audit shop trail").json(0)[0]["audit"]["agrees"], true);
}
