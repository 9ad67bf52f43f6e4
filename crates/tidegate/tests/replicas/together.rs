//! Processes that share a store act as one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::client::{Client, within_patience};
use crate::cluster::{Cluster, alive, event, events};
use crate::receiver::Receiver;
use crate::server::{ADMIN_KEY, Server};

/// How often each event arrived.
fn counts(hook: &Receiver, at_least: usize) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut count = |id: String| *counts.entry(id).or_insert(0) += 1;
    hook.ids(at_least).into_iter().for_each(&mut count);
    hook.rest().iter().for_each(|arrival| count(arrival.event_id()));
    counts
}

/// Everything that was accepted has come to its end.
fn at_rest(server: &Server) {
    for status in ["pending", "retrying"] {
        server.admin().until(&format!("/v1/deliveries?status={status}"), |answer| {
            answer["items"].as_array().is_some_and(Vec::is_empty)
        });
    }
}

#[test]
fn what_any_of_them_accepts_is_delivered_once() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let hook = Receiver::start();
    a.subscribe(&hook, &Value::Null);
    a.admin().publish(&events("a", 200));
    b.admin().publish(&events("b", 200));
    b.admin().publish(&events("a", 3));
    let counts = counts(&hook, 400);
    at_rest(&a);
    assert_eq!(counts.len(), 400);
    assert!(counts.values().all(|count| *count == 1) && hook.rest().is_empty(), "{counts:?}");
}

#[test]
fn a_subscriber_made_on_one_gets_the_next_event_of_the_other() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    for n in 0..10 {
        let hook = Receiver::start();
        let subscriber = a.subscribe(&hook, &json!({ "match": { "types": [format!("t{n}")] } }));
        b.admin().publish(&json!({ "id": format!("e{n}"), "source": "s", "type": format!("t{n}") }));
        let arrival = hook.next();
        arrival.verify(&subscriber.secret);
        let rotated =
            b.admin().post(&format!("{}/rotate-secret", subscriber.path), &json!({ "grace": "0s" }));
        let secret = rotated.expect(200)["secret"].as_str().expect("a secret").to_owned();
        a.admin().publish(&json!({ "id": format!("f{n}"), "source": "s", "type": format!("t{n}") }));
        hook.next().verify(&secret);
    }
}

#[test]
fn no_change_made_on_one_undoes_one_made_on_another() {
    const ROUNDS: usize = 12;
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let hook = Receiver::start();
    let subscriber = a.subscribe(&hook, &Value::Null);
    // Known everywhere as soon as it was answered anywhere.
    b.admin().get(&subscriber.path).expect(200);
    for round in 0..ROUNDS {
        let (one, two) = (a.admin(), b.admin());
        let patch = |client: &Client, body: Value| client.patch(&subscriber.path, &body).expect(200);
        std::thread::scope(|scope| {
            scope.spawn(|| patch(&one, json!({ "name": format!("n{round}") })));
            scope.spawn(|| patch(&two, json!({ "limits": { "concurrency": round + 1 } })));
        });
        for server in [&a, &b] {
            let found = server.admin().get(&subscriber.path).expect(200);
            let expected = (&json!(format!("n{round}")), &json!(round + 1));
            assert_eq!((&found["name"], &found["limits"]["concurrency"]), expected, "round {round}");
        }
    }
    let key = a.admin().post("/v1/keys", &json!({ "project": "default", "role": "publisher" })).expect(201);
    let publisher = b.admin().with_key(key["key"].as_str().expect("a key"));
    publisher.publish(&event("with a key that is new"));
    a.admin().delete(&subscriber.path).expect(200);
    b.admin().get(&subscriber.path).problem(404, "not_found");
}

#[test]
fn a_pause_on_one_stops_the_other_and_a_key_deleted_there_opens_nothing_here() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let hook = Receiver::start();
    let subscriber = a.subscribe(&hook, &Value::Null);
    a.admin().post(&format!("{}/pause", subscriber.path), &Value::Null).expect(200);
    b.admin().publish(&event("held"));
    let held = |answer: &Value| answer["items"].as_array().is_some_and(|items| items.len() == 1);
    b.admin().until("/v1/deliveries?status=held", held);
    assert!(hook.rest().is_empty(), "a pause holds for all");
    b.admin().post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    assert_eq!(hook.ids(1), ["held"]);
    let made = a.admin().post("/v1/keys", &json!({ "project": "default", "role": "viewer" })).expect(201);
    let key = made["key"].as_str().expect("a key").to_owned();
    let viewer = b.admin().with_key(&key);
    assert!(crate::client::within_patience(|| viewer.get("/v1/subscribers").status == 200));
    a.admin().delete(&format!("/v1/keys/{}", made["id"].as_str().expect("an id")));
    assert!(crate::client::within_patience(|| viewer.get("/v1/subscribers").status == 401));
}

#[test]
fn the_order_of_a_lane_holds_whoever_accepts() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let hook = Receiver::start();
    a.subscribe(&hook, &json!({ "order": { "by": "data.user" } }));
    let mut expected = Vec::new();
    for n in 0..60 {
        let server = if n % 3 == 0 { &a } else { &b };
        let id = format!("e{n:02}");
        server.admin().publish(&json!({ "id": id, "source": "s", "type": "t", "data": { "user": "u" } }));
        expected.push(id);
    }
    assert_eq!(hook.ids(60), expected);
}

#[test]
fn a_stream_shows_what_others_accept() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.join(), cluster.join_with_redis());
    alive(&a, 2);
    alive(&b, 2);
    let mut stream = b.admin().connect();
    let head = format!(
        "GET /v1/stream?kinds=event HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("written");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line in time"));
    assert!(lines.any(|line| line.starts_with("id: ")), "it is open");
    for n in 0..20 {
        let server = if n % 2 == 0 { &a } else { &b };
        let id = format!("e{n}");
        server.admin().publish(&event(&id));
        let shown = lines.find(|line| line.starts_with("data: ")).expect("the stream goes on");
        assert!(shown.contains(&format!("\"id\":\"{id}\"")), "{shown}");
    }
}

#[test]
fn jobs_begun_on_any_of_them_come_to_their_end() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    a.admin().publish(&events("e", 30));
    let hook = Receiver::start();
    let subscriber = b.subscribe(&hook, &json!({ "from": "2020-01-01T00:00:00Z" }));
    let mut ids = hook.ids(30);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 30, "a backfill");
    let body = json!({ "from": "2020-01-01T00:00:00Z" });
    let job = b.admin().post(&format!("{}/replay", subscriber.path), &body).expect(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("an id"));
    a.admin().until(&path, |job| job["status"] == "done");
    let mut ids = hook.ids(30);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 30, "a replay");
}

/// Nothing else happens meanwhile that would make the one that leads look.
#[test]
fn a_past_that_any_of_them_is_asked_for_is_counted() {
    const TYPE: &str = "/v1/catalog/services/s/types/t";
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let event = |n: u32| json!({ "id": format!("e{n}"), "source": "s", "type": "t", "data": { "n": n, "is": "new" } });
    a.admin().publish(&(0..30).map(event).collect());
    let states = json!([{ "object": "thing", "id": "data.n", "attributes": ["data.is"] }]);
    a.admin().call("PUT", TYPE, &json!({ "counters": { "all": {} }, "states": states })).expect(201);
    let ask = json!({ "service": "s", "type": "t", "counter": "all", "every": "1d" });
    a.admin().post("/v1/query/counters", &ask).expect(200);
    b.admin().until("/v1/catalog/services", |list| !list["items"][0].is_null());
    b.admin().post(&format!("{TYPE}/backfill"), &json!({})).expect(202);
    b.admin().until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    let of_things = json!({ "service": "s", "object": "thing", "attribute": "data.is" });
    let known = b.admin().post("/v1/query/states", &of_things).expect(200);
    assert_eq!(known["states"], json!([{ "state": "new", "count": 30 }]), "states have new numbers by now");
    let counted = b.admin().post("/v1/query/counters", &ask).expect(200);
    let counts = counted["buckets"].as_array().expect("a list").iter();
    let counts: Vec<u64> = counts.filter_map(|bucket| bucket["series"][0]["count"].as_u64()).collect();
    assert_eq!(counts.iter().sum::<u64>(), 30);
}

#[test]
fn a_gate_is_one_for_all_of_them() {
    const GATE: &str = "/v1/gates/api";
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    a.admin().call("PUT", GATE, &json!({ "rate": "1/h", "burst": 3 })).expect(201);
    let acquire =
        |server: &Server, query: &str| server.admin().post(&format!("{GATE}/acquire{query}"), &Value::Null);
    for server in [&a, &b, &a] {
        acquire(server, "?wait=5s").expect(200);
    }
    for server in [&a, &b] {
        acquire(server, "").problem(429, "gate_busy");
        assert_eq!(server.admin().get(GATE).expect(200)["tokens"], 0);
    }
    b.admin().call("PUT", GATE, &json!({ "rate": "1000/s", "burst": 100 })).expect(200);
    acquire(&a, "?wait=5s").expect(200);
    a.admin().post(&format!("{GATE}/penalize"), &json!({ "for": "60s" })).expect(200);
    assert!(b.admin().get(GATE).expect(200)["penalized_until"].is_string(), "all know it");
    acquire(&b, "").problem(429, "gate_busy");
    a.admin().delete(&format!("{GATE}/penalty")).expect(200);
    acquire(&b, "?wait=5s").expect(200);
}

/// Minutes from the beginning of a window to its end.
fn span(window: &Value) -> i64 {
    let minute = |field: &str| {
        let time = window[field].as_str().expect("a time");
        let part = |at: usize| time[at..at + 2].parse::<i64>().expect("a number");
        part(11) * 60 + part(14)
    };
    (minute("due_at") - minute("opened_at")).rem_euclid(24 * 60)
}

#[test]
fn a_penalty_given_to_one_stretches_windows_that_another_opens() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    a.admin().call("PUT", "/v1/gates/api", &json!({ "rate": "100/s" })).expect(201);
    let fold =
        json!({ "mode": "quiet", "quiet": "10m", "max_wait": "3h", "by": ["data.k"], "adaptive": true });
    a.subscribe(&Receiver::start(), &json!({ "gate": "api", "fold": fold }));
    let mut opened = 0;
    let mut open = || {
        opened += 1;
        let id = format!("e{opened}");
        b.admin().publish(&json!({ "id": id, "source": "s", "type": "t", "data": { "k": opened } }));
        let trace = b.admin().get(&format!("/v1/events/{id}/trace")).expect(200);
        span(&trace["subscribers"][0]["window"])
    };
    assert!((10..=11).contains(&open()), "it is calm");
    a.admin().post("/v1/gates/api/penalize", &json!({ "for": "1h" })).expect(200);
    assert!(within_patience(|| open() >= 60), "it would wait for an hour anyway");
}
