//! Folding: many events, few deliveries, and every event in exactly one of them.
//!
//! Windows are short where a test waits for them to close and long where it closes them itself. Nothing sleeps: what
//! matters is what arrives, and the times that deliveries carry.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use crate::client::{Client, within_patience};
use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::{Server, Setup};

fn event(id: &str, key: &str) -> Value {
    json!({ "id": id, "source": "s", "type": "t", "data": { "k": key } })
}

fn ids(arrival: &Arrival) -> Vec<String> {
    let body = arrival.json();
    let events = body["events"].as_array().unwrap_or_else(|| panic!("no fold: {body}"));
    assert_eq!(body["count"], events.len());
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

fn closed_by(arrival: &Arrival) -> String {
    arrival.json()["fold"]["closed_by"].as_str().expect("a reason").to_owned()
}

/// How long its window was open.
fn open_for(arrival: &Arrival) -> Duration {
    let at =
        |name: &str| Timestamp::parse(arrival.json()["fold"][name].as_str().expect("a time")).expect("one");
    at("closed_at").since(at("opened_at"))
}

/// Publishes one event after the other until one arrives that is as wanted; answers all arrivals, when every event has
/// arrived, and checks that each has once.
#[track_caller]
fn publish_until(client: &Client, hook: &Receiver, wanted: impl Fn(&Arrival) -> bool) -> Vec<Arrival> {
    let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
    let has_come = within_patience(|| {
        let id = format!("e{:05}", sent.len());
        client.publish(&event(&id, "k"));
        sent.push(id);
        arrivals.extend(hook.rest());
        arrivals.iter().any(&wanted)
    });
    assert!(has_come, "never: {:?}", arrivals.iter().map(closed_by).collect::<Vec<_>>());
    let count = |arrivals: &[Arrival]| arrivals.iter().map(|arrival| ids(arrival).len()).sum::<usize>();
    while count(&arrivals) < sent.len() {
        arrivals.push(hook.next());
    }
    // Nothing keeps two deliveries without an order in order.
    arrivals.sort_by_key(ids);
    assert_eq!(arrivals.iter().flat_map(ids).collect::<Vec<_>>(), sent);
    arrivals
}

#[test]
fn a_window_closes_so_long_after_its_first_event_whatever_comes() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "fold": { "mode": "window", "window": "200ms", "by": ["data.k"] } });
    let subscriber = server.subscribe(&hook, &fold);
    client.publish(&json!([event("a1", "a"), event("b1", "b"), event("a2", "a")]));
    let arrivals = hook.take(2);
    let folded: BTreeMap<String, Vec<String>> =
        arrivals.iter().map(|arrival| (arrival.json()["fold"]["key"].to_string(), ids(arrival))).collect();
    assert_eq!(folded[r#"{"data.k":"a"}"#], ["a1", "a2"]);
    assert_eq!(folded[r#"{"data.k":"b"}"#], ["b1"]);
    for arrival in &arrivals {
        arrival.verify(&subscriber.secret);
        let body = arrival.json();
        assert_eq!(body["delivery"], arrival.webhook_id());
        assert_eq!(body["fold"]["mode"], "window");
        assert!(arrival.text().starts_with(r#"{"delivery":"dlv_"#), "{}", arrival.text());
    }

    let arrivals = publish_until(&client, &hook, |_| true);
    for arrival in &arrivals {
        assert_eq!(closed_by(arrival), "window");
        assert!(open_for(arrival) >= Duration::from_millis(200));
    }
    assert!(ids(&arrivals[0]).len() > 1, "what comes later joins");
}

#[test]
fn a_quiet_window_closes_when_nothing_more_comes_and_never_waits_for_ever() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let fold = json!({ "mode": "quiet", "quiet": "150ms", "max_wait": "250ms" });
    let subscriber = server.subscribe(&hook, &json!({ "fold": fold }));
    client.publish(&json!([event("e1", "k"), event("e2", "k"), event("e3", "k")]));
    let calm = hook.next();
    assert_eq!((ids(&calm).len(), closed_by(&calm)), (3, "quiet".to_owned()));
    assert!(open_for(&calm) >= Duration::from_millis(150));
    assert_eq!(calm.json()["fold"]["key"], json!({ "type": "t" }), "by type unless told otherwise");

    let arrivals = publish_until(&client, &hook, |arrival| closed_by(arrival) == "max_wait");
    let longest = arrivals.iter().find(|arrival| closed_by(arrival) == "max_wait").expect("one");
    assert!(open_for(longest) >= Duration::from_millis(250));
    client.delete(&subscriber.path).expect(200);
}

#[test]
fn a_batch_leaves_when_it_is_full_or_its_time_has_come() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    server.subscribe(&hook, &json!({ "fold": { "mode": "batch", "every": "300ms", "max_events": 3 } }));
    let sent: Vec<String> = (0..7).map(|n| format!("e{n}")).collect();
    client.publish(&sent.iter().map(|id| event(id, id)).collect());
    // Nothing keeps two deliveries without an order in order.
    let mut arrivals = hook.take(3);
    arrivals.sort_by_key(ids);
    assert_eq!(arrivals.iter().flat_map(ids).collect::<Vec<_>>(), sent);
    assert_eq!(arrivals.iter().map(closed_by).collect::<Vec<_>>(), ["max_events", "max_events", "every"]);
    assert_eq!(arrivals[0].json()["fold"]["key"], json!({}), "all types together unless told otherwise");
    let size = json!({ "fold": { "mode": "window", "window": "1h", "max_bytes": 1024 } });
    let small = Receiver::start();
    server.subscribe(&small, &size);
    let heavy = |id: &str| json!({ "id": id, "source": "s", "type": "t", "data": "x".repeat(600) });
    client.publish(&json!([heavy("h1"), heavy("h2")]));
    let arrival = small.next();
    assert_eq!((ids(&arrival), closed_by(&arrival)), (vec!["h1".to_owned()], "max_bytes".to_owned()));
}

#[test]
fn the_first_goes_ahead_the_critical_goes_alone_and_a_recovery_cancels() {
    let server = Server::start();
    let (client, ahead, alone, cancelled) =
        (server.admin(), Receiver::start(), Receiver::start(), Receiver::start());
    let fold = |more: Value| {
        let mut fold = json!({ "mode": "window", "window": "1h", "by": ["data.k"] });
        fold.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        json!({ "fold": fold })
    };
    server.subscribe(&ahead, &fold(json!({ "leading": true })));
    server.subscribe(&alone, &fold(json!({ "bypass": "data.level == 'critical'" })));
    let third = server.subscribe(&cancelled, &fold(json!({ "cancel_on": "data.level == 'ok'" })));
    let level = |id: &str, level: &str| json!({ "id": id, "source": "s", "type": "t", "data": { "k": 1, "level": level } });

    client.publish(&level("e1", "low"));
    let first = ahead.next();
    assert_eq!((ids(&first), closed_by(&first)), (vec!["e1".to_owned()], "leading".to_owned()));
    client.publish(&level("e2", "critical"));
    assert_eq!(alone.next().event_id(), "e2", "as it is, unfolded");
    client.publish(&level("e3", "ok"));
    for id in ["e1", "e2", "e3"] {
        let trace = client.get(&format!("/v1/events/{id}/trace")).expect(200);
        let line = trace["subscribers"]
            .as_array()
            .expect("lines")
            .iter()
            .find(|line| line["subscriber"] == third.id.as_str());
        let line = line.expect("a line");
        assert_eq!(
            (&line["outcome"], &line["window"]["closed_by"]),
            (&"cancelled".into(), &"cancel_on".into())
        );
        assert!(line["reason"].as_str().is_some_and(|reason| reason.contains("cancel_on")), "{line}");
    }
    client.publish(&level("e4", "low"));
    assert_eq!(
        client.post("/v1/windows/flush", &Value::Null).expect(200),
        json!({ "windows": 3, "complete": true })
    );
    assert_eq!(ids(&ahead.next()), ["e2", "e3", "e4"]);
    assert_eq!(ids(&alone.next()), ["e1", "e3", "e4"]);
    assert_eq!(ids(&cancelled.next()), ["e4"], "what was cancelled is not sent");
}

#[test]
fn a_window_keeps_the_condition_it_opened_with() {
    let mut server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = |cancel_on: Value| json!({ "fold": { "mode": "window", "window": "1h", "by": ["data.k"], "cancel_on": cancel_on } });
    let subscriber = server.subscribe(&hook, &fold(Value::Null));
    let event = |id: &str, level: &str| json!({ "id": id, "source": "s", "type": "t", "data": { "k": id[1..], "level": level } });
    client.publish(&event("a1", "low"));
    client.patch(&subscriber.path, &fold(json!("data.level == 'ok'"))).expect(200);
    client.publish(&event("b2", "low"));
    client.patch(&subscriber.path, &fold(Value::Null)).expect(200);
    client.publish(&event("c3", "low"));
    server.kill();
    server.restart(&Setup::usual());
    let client = server.admin();
    client.publish(&json!([event("o1", "ok"), event("o2", "ok"), event("o3", "ok")]));
    let flushed = client.post("/v1/windows/flush", &Value::Null).expect(200);
    assert_eq!(flushed["windows"], 2, "only the one that was opened with the condition is gone");
    let mut arrived = [ids(&hook.next()), ids(&hook.next())];
    arrived.sort();
    assert_eq!(arrived, [["a1", "o1"], ["c3", "o3"]]);
    let trace = client.get("/v1/events/b2/trace").expect(200);
    assert_eq!(trace["subscribers"][0]["window"]["closed_by"], "cancel_on");
}

#[test]
fn what_was_held_when_it_was_killed_is_delivered_late_and_whole() {
    let mut server = Server::start();
    let hook = Receiver::start();
    let fold = json!({ "fold": { "mode": "window", "window": "300ms", "by": ["data.k"] } });
    server.subscribe(&hook, &fold);
    let events: Vec<Value> = (0..15).map(|n| event(&format!("e{n}"), &(n % 3).to_string())).collect();
    for event in &events {
        server.admin().publish(event);
    }
    server.kill();
    let before = hook.rest();
    // Another server, started later, says when the time of the first one's windows is over.
    let (witness, seen) = (Server::start(), Receiver::start());
    witness.subscribe(&seen, &fold);
    witness.admin().publish(&events[0]);
    seen.next();
    server.restart(&Setup::usual());
    let mut arrivals: BTreeMap<String, Arrival> = BTreeMap::new();
    let mut put = |arrival: Arrival| {
        // What left when it was killed may come again, the same.
        let known = arrivals.insert(arrival.webhook_id().to_owned(), arrival.clone());
        assert!(known.is_none_or(|known| known.body == arrival.body));
        arrivals.values().flat_map(ids).count()
    };
    let mut count = before.into_iter().map(&mut put).last().unwrap_or(0);
    while count < 15 {
        count = put(hook.next());
    }
    let mut all: Vec<String> = arrivals.values().flat_map(ids).collect();
    all.sort_by_key(|id| id[1..].parse::<usize>().expect("a number"));
    assert_eq!(all, events.iter().map(|event| event["id"].as_str().expect("one")).collect::<Vec<_>>());
    for arrival in arrivals.values() {
        assert!(open_for(arrival) >= Duration::from_millis(300));
        let keys = arrival.json();
        let own = |event: &Value| event["data"]["k"] == keys["fold"]["key"]["data.k"];
        assert!(keys["events"].as_array().expect("events").iter().all(own), "{keys}");
    }
}

#[test]
fn what_comes_while_its_lane_works_goes_next_and_together() {
    let server = Server::start();
    let client = server.admin();
    let gate = Gate::default();
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |arrival| {
            if arrival.before == 0 {
                gate.wait();
            }
            Reply::status(200)
        })
    };
    let quiet = json!({ "mode": "quiet", "quiet": "50ms", "by": ["data.k"] });
    server.subscribe(&hook, &json!({ "fold": quiet, "order": { "by": "data.k" } }));
    client.publish(&event("e1", "u"));
    assert_eq!(ids(&hook.next()), ["e1"]);
    client.publish(&event("e2", "u"));
    client.until("/v1/deliveries?status=pending", |page| page["items"][0]["count"] == 1);
    client.publish(&event("e3", "u"));
    let joined = client.until("/v1/deliveries?status=pending", |page| page["items"][0]["count"] == 2);
    assert_eq!(joined["items"].as_array().map(Vec::len), Some(1), "never two in one lane's queue");
    client.publish(&event("x1", "other"));
    assert_eq!(ids(&hook.next()), ["x1"], "another lane does not wait");
    client.publish(&json!({ "id": "lost", "source": "s", "type": "t" }));
    let trace = client.get("/v1/events/lost/trace").expect(200);
    assert_eq!(trace["subscribers"][0]["outcome"], "skipped");
    gate.open();
    assert_eq!(ids(&hook.next()), ["e2", "e3"]);
    client.publish(&event("e4", "u"));
    assert_eq!(ids(&hook.next()), ["e4"]);
}

#[test]
fn what_a_paused_subscriber_folds_is_held_and_then_sent() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let body = json!({ "active": false, "fold": { "mode": "window", "window": "50ms" } });
    let subscriber = server.subscribe(&hook, &body);
    client.publish(&json!([event("e1", "k"), event("e2", "k")]));
    let held = client.until("/v1/deliveries?status=held", |page| page["items"][0]["count"] == 2);
    assert_eq!(held["items"][0]["fold"]["closed_by"], "window");
    client.post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    assert_eq!(ids(&hook.next()), ["e1", "e2"]);
}

#[test]
fn what_comes_while_a_new_subscriber_catches_up_waits_behind_the_past() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let id = |n: usize| format!("e{n:05}");
    let events = |range: std::ops::Range<usize>| {
        Value::Array(range.map(|n| event(&id(n), ["a", "b"][n % 2])).collect())
    };
    client.publish(&events(0..900));
    client.publish(&events(900..1_800));
    let body = json!({
        "fold": { "mode": "window", "window": "100ms", "by": ["data.k"], "max_events": 40 },
        "order": { "by": "data.k" },
        "from": "beginning",
    });
    server.subscribe(&hook, &body);
    // Windows of forty fill at once, so whatever is not kept back would leave before the past has come that far.
    for from in (1_800..2_400).step_by(100) {
        client.publish(&events(from..from + 100));
    }
    let mut arrived: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while arrived.values().map(Vec::len).sum::<usize>() < 2_400 {
        let arrival = hook.next();
        arrived.entry(arrival.json()["fold"]["key"].to_string()).or_default().extend(ids(&arrival));
    }
    for (key, offset) in [("a", 0), ("b", 1)] {
        let expected: Vec<String> = (offset..2_400).step_by(2).map(id).collect();
        assert_eq!(arrived[&format!(r#"{{"data.k":"{key}"}}"#)], expected, "in order, each once");
    }
}

#[test]
fn what_came_while_a_subscriber_catches_up_goes_by_the_rules_of_then() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let events = |range: std::ops::Range<usize>| {
        Value::Array(range.map(|n| event(&format!("e{n:05}"), "a")).collect())
    };
    (0..4).for_each(|page| drop(client.publish(&events(page * 900..(page + 1) * 900))));
    let body = json!({
        "fold": { "mode": "window", "window": "100ms", "by": ["data.k"], "max_events": 100 },
        "order": { "by": "data.k" },
        "from": "beginning",
    });
    let subscriber = server.subscribe(&hook, &body);
    client.publish(&events(3_600..3_700));
    // From here on it wants nothing; what was accepted before was promised.
    client.patch(&subscriber.path, &json!({ "match": { "types": ["other"] } })).expect(200);
    client.publish(&events(3_700..3_800));
    let mut last = Vec::new();
    while last.len() < 100 {
        let arrived = ids(&hook.next());
        last.extend(arrived.into_iter().filter(|id| id.as_str() >= "e03600"));
    }
    assert_eq!(last, (3_600..3_700).map(|n| format!("e{n:05}")).collect::<Vec<_>>(), "each once, in order");
}
