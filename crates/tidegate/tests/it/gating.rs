//! What passes a gate: deliveries of several subscribers and clients, at one rate; and what a receiver's "too many" does.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use crate::client::Client;
use crate::receiver::{Arrival, Receiver, Reply};
use crate::server::{Server, Setup};
use crate::shell::Shell;

const GATE: &str = "/v1/gates/api";

fn set(client: &Client, rate: &str, burst: u32) {
    let status = client.call("PUT", GATE, &json!({ "rate": rate, "burst": burst })).status;
    assert!(matches!(status, 200 | 201));
}

fn publish(client: &Client, n: usize) {
    client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t", "data": n }));
}

/// No stretch of time sees more than a burst and the rate's worth; a little may come late and so close together.
#[track_caller]
fn within(arrivals: &[Arrival], rate: i64, burst: i64) {
    let mut times: Vec<i64> = arrivals.iter().map(|arrival| arrival.at.as_ms()).collect();
    times.sort_unstable();
    for (first, from) in times.iter().enumerate() {
        for (count, until) in times[first..].iter().enumerate() {
            let most = burst + (until - from + 150) * rate / 1000 + 1;
            assert!((count as i64) < most, "{count} in {} ms: {times:?}", until - from);
        }
    }
}

#[test]
fn subscribers_and_clients_share_one_rate() {
    let server = Server::start();
    let (admin, hook) = (server.admin(), Receiver::start());
    set(&admin, "20/s", 2);
    for _ in 0..2 {
        server.subscribe(&hook, &json!({ "gate": "api" }));
    }
    (0..10).for_each(|n| publish(&admin, n));
    let arrivals = hook.take(20);
    within(&arrivals, 20, 2);
    let took = arrivals[19].at.since(arrivals[0].at);
    assert!(took >= Duration::from_millis(850), "18 of 20 wait: {took:?}");
    let shown = admin.until(GATE, |gate| gate["passed"] == 20);
    assert_eq!(shown["waiting"], json!({ "subscribers": 0, "deliveries": 0, "clients": 0 }));
    assert_eq!(
        (&shown["penalized_until"], &shown["effective_rate_per_second"]),
        (&Value::Null, &20.0.into())
    );
    let metrics = admin.get("/metrics").text();
    assert!(metrics.contains("tidegate_gate_passed_total{by=\"delivery\"} 20"), "{metrics}");
    assert!(metrics.contains("tidegate_gate_wait_seconds_count 20"), "{metrics}");
}

#[test]
fn a_client_waits_no_longer_than_it_wants() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin.post("/v1/keys", &json!({ "role": "publisher" })).expect(201);
    let client = admin.with_key(made["key"].as_str().expect("a key"));
    set(&admin, "1/h", 1);
    let acquire = |query: &str| client.post(&format!("{GATE}/acquire{query}"), &Value::Null);
    assert_eq!(acquire("").expect(200)["waited"], "0s");
    let refused = acquire("?wait=50ms");
    refused.problem(429, "gate_busy");
    let retry: u64 = refused.header("retry-after").expect("when to come back").parse().expect("a number");
    assert!((3_500..=3_600).contains(&retry), "{retry}");
    acquire("?wait=0.05s").problem(429, "gate_busy");
    for wait in ["61s", "60.001s", "0.0001s", "0.5m", ".5s", "1.s"] {
        acquire(&format!("?wait={wait}")).problem(422, "duration_invalid");
    }
    acquire("?wait=soon").problem(422, "duration_invalid");
    client.post("/v1/gates/other/acquire", &Value::Null).problem(404, "not_found");

    let waiting = {
        let client = client.clone();
        thread::spawn(move || client.post(&format!("{GATE}/acquire?wait=30s"), &Value::Null).expect(200))
    };
    admin.until(GATE, |gate| gate["waiting"]["clients"] == 1);
    // The change holds for the next token.
    set(&admin, "10/s", 1);
    let granted = waiting.join().expect("a token");
    assert!(granted["granted_at"].is_string() && granted["waited"] != "0s", "{granted}");
}

#[test]
fn what_is_wrong_with_a_wish_at_a_gate_is_named() {
    let server = Server::start();
    let admin = server.admin();
    set(&admin, "1/h", 1);
    let made = admin.post("/v1/keys", &json!({ "role": "viewer" })).expect(201);
    let viewer = admin.with_key(made["key"].as_str().expect("a key"));
    for (verb, what) in [("acquire", "take a token"), ("penalize", "pause a gate")] {
        let refused = viewer.post(&format!("{GATE}/{verb}"), &Value::Null).problem(403, "role_insufficient");
        assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains(what)), "{refused}");
    }
    for (body, code, field) in [
        (json!({ "for": "x" }), "duration_invalid", "for"),
        (json!({ "until": "soon" }), "field_time", "until"),
    ] {
        let refused = admin.post(&format!("{GATE}/penalize"), &body).problem(422, code);
        assert_eq!(refused["field"], field);
    }
}

#[test]
fn a_client_hears_at_once_that_its_gate_is_gone() {
    let server = Server::start();
    let admin = server.admin();
    set(&admin, "1/h", 1);
    admin.post(&format!("{GATE}/acquire"), &Value::Null).expect(200);
    let waiting = {
        let client = admin.clone();
        thread::spawn(move || client.post(&format!("{GATE}/acquire?wait=60s"), &Value::Null))
    };
    admin.until(GATE, |gate| gate["waiting"]["clients"] == 1);
    admin.delete(GATE).expect(200);
    waiting.join().expect("an answer").problem(404, "not_found");
}

#[test]
fn a_client_that_goes_away_gives_its_place_back() {
    use std::io::Write as _;

    let server = Server::start();
    let admin = server.admin();
    set(&admin, "1/h", 1);
    admin.post(&format!("{GATE}/acquire"), &Value::Null).expect(200);
    let mut gone = admin.connect();
    let key = crate::server::ADMIN_KEY;
    let request = format!(
        "POST {GATE}/acquire?wait=60s HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\ncontent-length: 0\r\n\r\n"
    );
    gone.write_all(request.as_bytes()).expect("sent");
    admin.until(GATE, |gate| gate["waiting"]["clients"] == 1);
    drop(gone);
    admin.until(GATE, |gate| gate["waiting"]["clients"] == 0);
    assert_eq!(admin.get(GATE).expect(200)["passed"], 1);
}

#[test]
fn a_paused_gate_says_when_its_pause_ends() {
    let server = Server::start();
    let admin = server.admin();
    set(&admin, "1/m", 1);
    for _ in 0..2 {
        admin.post(&format!("{GATE}/penalize"), &json!({ "for": "20s" })).expect(200);
    }
    let refused = admin.post(&format!("{GATE}/acquire"), &Value::Null);
    refused.problem(429, "gate_busy");
    let retry: u64 = refused.header("retry-after").expect("when to come back").parse().expect("a number");
    assert!((15..=20).contains(&retry), "{retry}: one goes as soon as the pause is over");
}

#[test]
fn a_penalty_pauses_the_gate_and_is_shown() {
    let server = Server::start();
    let (admin, hook) = (server.admin(), Receiver::start());
    set(&admin, "50/s", 50);
    server.subscribe(&hook, &json!({ "gate": "api" }));
    let paused = admin.post(&format!("{GATE}/penalize"), &json!({ "for": "700ms" })).expect(200);
    let shown = admin.get(GATE).expect(200);
    assert!(paused["penalized_until"].is_string() && shown["penalized_until"].is_string(), "{shown}");
    assert_eq!((&shown["tokens"], &shown["effective_rate_per_second"]), (&0.into(), &0.0.into()));
    admin.post(&format!("{GATE}/acquire"), &Value::Null).problem(429, "gate_busy");
    publish(&admin, 1);
    let until = Timestamp::parse(paused["penalized_until"].as_str().unwrap()).expect("a time");
    let early = until.since(hook.next().at);
    assert!(early < Duration::from_millis(50), "{early:?} before it may");
    let shown = admin.until(GATE, |gate| gate["penalized_until"].is_null());
    assert_eq!((&shown["effective_rate_per_second"], &shown["penalties"]), (&6.25.into(), &1.into()));

    let penalize = |body: Value| admin.post(&format!("{GATE}/penalize"), &body);
    penalize(json!({ "for": "2h" })).problem(422, "field_range");
    penalize(json!({ "until": "2999-01-01T00:00:00Z" })).problem(422, "field_range");
    penalize(json!({ "for": "1s", "until": "2026-01-01T00:00:00Z" })).problem(422, "field_conflict");
    penalize(json!({ "fro": "1s" })).problem(422, "field_unknown");
    penalize(json!({ "until": "2020-01-01T00:00:00Z" })).problem(422, "field_range");
}

#[test]
fn a_pause_is_lifted_and_the_gate_recovers() {
    let server = Server::start();
    let (admin, hook) = (server.admin(), Receiver::start());
    set(&admin, "50/s", 50);
    server.subscribe(&hook, &json!({ "gate": "api" }));
    let penalty = format!("{GATE}/penalty");
    assert_eq!(admin.delete(&penalty).expect(200)["penalized_until"], Value::Null, "nothing to lift");
    assert_eq!(admin.get(GATE).expect(200)["effective_rate_per_second"], 50.0);
    admin.post(&format!("{GATE}/penalize"), &json!({ "for": "1h" })).expect(200);
    publish(&admin, 1);
    admin.until(GATE, |gate| gate["waiting"]["deliveries"] == 1);
    for _ in 0..2 {
        let lifted = admin.delete(&penalty).expect(200);
        assert_eq!((&lifted["name"], &lifted["penalized_until"]), (&"api".into(), &Value::Null));
    }
    hook.next();
    assert_eq!(admin.get(GATE).expect(200)["effective_rate_per_second"], 6.25);
    admin.delete("/v1/gates/other/penalty").problem(404, "not_found");
    let made = admin.post("/v1/keys", &json!({ "role": "publisher" })).expect(201);
    let publisher = admin.with_key(made["key"].as_str().expect("a key"));
    publisher.post(&format!("{GATE}/penalize"), &json!({ "for": "1s" })).expect(200);
    publisher.delete(&penalty).problem(403, "role_insufficient");
}

#[test]
fn a_pause_outlives_the_process() {
    let mut server = Server::start();
    set(&server.admin(), "50/s", 50);
    let paused = server.admin().post(&format!("{GATE}/penalize"), &json!({ "for": "1h" })).expect(200);
    server.stop();
    server.restart(&Setup::usual());
    let shown = server.admin().get(GATE).expect(200);
    assert_eq!(minute(&shown["penalized_until"]), minute(&paused["penalized_until"]), "{shown}");
    assert_eq!(shown["tokens"], 0);
    server.admin().delete(&format!("{GATE}/penalty")).expect(200);
    server.stop();
    server.restart(&Setup::usual());
    let shown = server.admin().get(GATE).expect(200);
    assert_eq!(
        (&shown["penalized_until"], &shown["effective_rate_per_second"]),
        (&Value::Null, &6.25.into())
    );
}

/// A time without its seconds.
fn minute(time: &Value) -> String {
    time.as_str().expect("a time")[..16].to_owned()
}

#[test]
fn acquiring_takes_no_more_than_it_says() {
    let server = Server::start();
    let admin = server.admin();
    set(&admin, "50/s", 50);
    let acquire = format!("{GATE}/acquire");
    let problem = admin.post(&acquire, &json!({ "wait": "10s" })).problem(422, "field_unknown");
    assert_eq!(problem["field"], "wait");
    assert_eq!(admin.get(GATE).expect(200)["passed"], 0);
    admin.post(&acquire, &json!({})).expect(200);
}

#[test]
fn too_many_from_one_receiver_pauses_all_that_pass_the_gate() {
    let server = Server::start();
    let admin = server.admin();
    let busy = Receiver::scripted(|arrival| match arrival.before {
        0 => Reply::status(429).header("retry-after", "1"),
        _ => Reply::status(200),
    });
    let calm = Receiver::start();
    set(&admin, "100/s", 100);
    let gated = json!({ "gate": "api", "retry": { "schedule": [] }, "match": { "types": ["busy"] } });
    server.subscribe(&busy, &gated);
    server.subscribe(&calm, &json!({ "gate": "api", "match": { "types": ["calm"] } }));
    let free = Receiver::start();
    server.subscribe(&free, &json!({ "match": { "types": ["calm"] } }));
    let publish = |id: &str, kind: &str| admin.publish(&json!({ "id": id, "source": "s", "type": kind }));
    publish("a", "busy");
    let refused = busy.next();
    admin.until(GATE, |gate| gate["penalties"] == 1);
    publish("b", "calm");
    free.next();
    let (retried, other) = (busy.next(), calm.next());
    let delay = |arrival: &Arrival| arrival.at.as_ms() - refused.at.as_ms();
    assert!(delay(&retried) >= 950, "not before it may: {}", delay(&retried));
    assert!(delay(&other) >= 950, "nor anybody else: {}", delay(&other));
    assert_eq!(retried.header("webhook-id"), refused.header("webhook-id"));
    admin.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 3);
    assert!(admin.get("/metrics").text().contains("tidegate_gate_refusals_total 1"));
}

#[test]
fn a_test_of_a_subscriber_takes_a_token_too() {
    let server = Server::start();
    let (admin, hook) = (server.admin(), Receiver::start());
    set(&admin, "1/h", 1);
    let subscriber = server.subscribe(&hook, &json!({ "gate": "api" }));
    assert_eq!(
        admin.post(&format!("{}/test", subscriber.path), &Value::Null).expect(200)["verdict"],
        "delivered"
    );
    admin.post(&format!("{GATE}/acquire"), &Value::Null).problem(429, "gate_busy");
}

#[test]
fn the_command_line_acquires_and_penalises() {
    let server = Server::start();
    let shell = Shell::new(&server);
    set(&server.admin(), "1/h", 2);
    assert_eq!(shell.types("tidegate gates acquire api --json").json(0)["waited"], "0s");
    assert!(shell.types("tidegate gates acquire api").text(0).contains("waited"));
    assert!(shell.runs("tidegate gates acquire api --wait 10ms").everything().contains("gate_busy"));
    shell.types("tidegate gates penalize api --for 30s").text(0);
    let shown = shell.types("tidegate gates show api").text(0).to_owned();
    assert!(shown.contains("penalised") && shown.contains("passed"), "{shown}");
    assert!(shell.types("tidegate gates resume api").text(0).contains("api"));
    assert_eq!(shell.types("tidegate gates show api --json").json(0)["penalized_until"], Value::Null);
}
