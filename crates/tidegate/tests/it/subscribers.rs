//! `/v1/subscribers`: made, shown, changed, paused, resumed, ended; and what they then get.

use std::thread;

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::Receiver;
use crate::server::{Server, Setup};

fn event(id: &str, type_name: &str, data: &Value) -> Value {
    json!({ "id": id, "source": "shop", "type": type_name, "data": data })
}

fn numbered(range: std::ops::Range<usize>) -> Value {
    range.map(|n| event(&format!("e{n}"), "t", &Value::Null)).collect()
}

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("e{n}")).collect()
}

#[test]
fn a_subscriber_lives_from_post_to_delete_and_shows_its_secret_once() {
    let server = Server::start();
    let client = server.admin();
    let body = json!({ "name": "n", "destination": { "url": "http://127.0.0.1:9/x" } });
    let mut created = client.post("/v1/subscribers", &body).expect(201);
    let secret = created.as_object_mut().unwrap().remove("secret").expect("the secret, this once");
    assert!(secret.as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{secret}");
    assert_eq!(created["active"], true);
    assert_eq!(created["limits"], json!({ "concurrency": 16, "timeout": "30s" }));
    assert_eq!(created["retry"], json!({ "schedule": ["1m", "2m", "4m", "8m", "16m"] }));
    assert_eq!(created["order"], json!({ "by": "none", "missing": "skip", "on_failure": "block" }));
    assert_eq!(created["fold"], json!({ "mode": "each" }));

    let id = created["id"].as_str().expect("an id");
    let path = format!("/v1/subscribers/{id}");
    assert_eq!(client.get(&path).expect(200), created);
    assert_eq!(client.get("/v1/subscribers").expect(200), json!({ "items": [created], "next": null }));

    let patch = json!({ "name": "m", "limits": { "rate": "10/s" }, "retry": { "schedule": [] } });
    let patched = client.patch(&path, &patch).expect(200);
    assert_eq!(patched["limits"], json!({ "concurrency": 16, "rate": "10/s", "timeout": "30s" }));
    assert_eq!((&patched["name"], &patched["retry"]["schedule"]), (&"m".into(), &json!([])));
    let back = client.patch(&path, &json!({ "limits": null, "retry": null, "name": "n" })).expect(200);
    assert_eq!(back, created);
    assert_eq!(client.patch(&path, &Value::Null).expect(200), created, "an empty body changes nothing");

    let paused = client.post(&format!("{path}/pause"), &Value::Null).expect(200);
    assert_eq!((&paused["active"], &paused["inactive_reason"]), (&false.into(), &"paused".into()));
    let resumed = client.post(&format!("{path}/resume"), &Value::Null).expect(200);
    assert_eq!(resumed, created);
    assert_eq!(client.delete(&path).expect(200), json!({ "id": id, "deleted": true }));
    client.get(&path).problem(404, "not_found");
    client.delete(&path).problem(404, "not_found");
    assert_eq!(client.get("/v1/subscribers").expect(200)["items"], json!([]));
}

#[test]
fn a_secret_of_its_owners_choice_signs() {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let server = Server::start();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &json!({ "secret": SECRET }));
    assert_eq!(subscriber.secret, SECRET);
    server.admin().publish(&event("e", "t", &Value::Null));
    hook.next().verify(SECRET);
}

/// What is merged into a good definition, and what it is refused for.
fn wrong() -> Vec<(Value, &'static str, &'static str)> {
    let header = |name: &str, value: &str| json!({ "destination": { "headers": { name: value } } });
    let mut wrong = vec![
        (json!({ "match": { "where": "data.x ==\n  " } }), "condition_invalid", "match.where"),
        (
            json!({ "match": { "where": "[1].map(x, [1].map(y, [1].map(z, z))) == []" } }),
            "condition_invalid",
            "match.where",
        ),
        (json!({ "match": { "types": ["a*"] } }), "pattern_invalid", "match.types[0]"),
        (json!({ "match": { "typs": [] } }), "field_unknown", "match.typs"),
        (json!({ "order": { "by": "data..k" } }), "path_invalid", "order.by"),
        (json!({ "order": { "missing": "drop" } }), "field_value", "order.missing"),
        (json!({ "limits": { "concurrency": 0 } }), "field_range", "limits.concurrency"),
        (json!({ "limits": { "rate": "0/s" } }), "rate_invalid", "limits.rate"),
        (json!({ "limits": { "timeout": "10ms" } }), "field_range", "limits.timeout"),
        (json!({ "retry": { "schedule": ["1m", "8d"] } }), "field_range", "retry.schedule[1]"),
        (json!({ "retry": { "schedule": ["soon"] } }), "duration_invalid", "retry.schedule[0]"),
        (json!({ "name": "a\u{0}b" }), "field_characters", "name"),
        (json!({ "name": "n".repeat(257) }), "field_too_long", "name"),
        (json!({ "active": "yes" }), "field_type", "active"),
        (json!({ "colour": 1 }), "field_unknown", "colour"),
        (header("x-a", "b\r\nhost: c"), "header_refused", "destination.headers"),
        (header("x a", "b"), "header_refused", "destination.headers"),
    ];
    let reserved = [
        "Host",
        "content-length",
        "transfer-encoding",
        "connection",
        "TE",
        "upgrade",
        "expect",
        "trailer",
        "proxy-authorization",
        "webhook-id",
        "webhook-signature",
        "x-webhook-signature",
        "content-type",
        "user-agent",
        "tidegate-replay",
    ];
    wrong.extend(reserved.map(|name| (header(name, "x"), "header_refused", "destination.headers")));
    wrong.extend(wrong_folds());
    wrong
}

fn wrong_folds() -> [(Value, &'static str, &'static str); 8] {
    let quiet_by_type = json!({ "fold": { "mode": "quiet" }, "order": { "by": "data.user" } });
    [
        (json!({ "fold": { "mode": "debounce" } }), "fold_unsupported", "fold.mode"),
        (json!({ "fold": { "mode": "window", "quiet": "5s" } }), "fold_term", "fold.quiet"),
        (json!({ "fold": { "mode": "window", "window": "0s" } }), "field_range", "fold.window"),
        (json!({ "fold": { "mode": "batch", "every": "25h" } }), "field_range", "fold.every"),
        (json!({ "fold": { "mode": "window", "bypass": "data.x ==" } }), "condition_invalid", "fold.bypass"),
        (json!({ "fold": { "mode": "window", "cancel_on": "1" } }), "condition_invalid", "fold.cancel_on"),
        (json!({ "fold": { "mode": "window", "by": ["user"] } }), "path_invalid", "fold.by[0]"),
        (quiet_by_type, "order_not_folded", "order.by"),
    ]
}

#[test]
fn what_is_wrong_is_named_when_made_and_when_changed() {
    let server = Server::start();
    let client = server.admin();
    let subscriber = server.subscribe(&Receiver::start(), &json!({ "name": "good" }));
    let before = client.get("/v1/subscribers").expect(200);
    for (part, code, field) in wrong() {
        let patched = client.patch(&subscriber.path, &part).problem(422, code);
        assert_eq!(patched["field"], field, "{part}: {patched}");
        let mut whole = part.clone();
        whole["destination"]["url"] = "http://127.0.0.1:9/".into();
        let created = client.post("/v1/subscribers", &whole).problem(422, code);
        assert_eq!(created["field"], field, "{part}: {created}");
    }
    let fixed = [("id", "field_fixed"), ("from", "field_fixed"), ("secret", "field_fixed")];
    for (name, code) in fixed {
        client.patch(&subscriber.path, &json!({ name: "now" })).problem(422, code);
    }
    client.post("/v1/subscribers", &Value::Null).problem(422, "field_missing");
    client.send("POST", "/v1/subscribers", &[], b"{").problem(400, "json_syntax");
    let position = client.patch(&subscriber.path, &json!({ "match": { "where": "true &&\n data.x == }" } }));
    let detail = position.problem(422, "condition_invalid")["detail"].to_string();
    assert!(detail.contains("line 2, column"), "{detail}");
    assert_eq!(client.get("/v1/subscribers").expect(200), before, "nothing was stored");
}

#[test]
fn only_what_matches_is_delivered_with_the_custom_headers() {
    let server = Server::start();
    let hook = Receiver::start();
    let matching = json!({ "types": ["order.*", "paid"], "sources": ["shop"], "where": "data.total > 10 && subject != 'x'" });
    let destination =
        json!({ "url": hook.url(), "headers": { "X-Team": "core", "authorization": "Bearer abc" } });
    server.subscribe(
        &hook,
        &json!({ "match": matching, "destination": destination, "order": { "by": "subscriber" } }),
    );
    let total = |total: f64| json!({ "total": total });
    let mut elsewhere = event("6", "paid", &total(11.0));
    elsewhere["source"] = "shop.eu".into();
    let mut subject = event("7", "paid", &total(11.0));
    subject["subject"] = "x".into();
    server.admin().publish(&json!([
        event("0", "order.a", &total(10.5)),
        event("1", "order.a.b", &total(11.0)),
        event("2", "order", &total(11.0)),
        event("3", "paid", &total(11.0)),
        event("4", "paid", &total(10.0)),
        event("5", "paid", &Value::Null),
        elsewhere,
        subject,
        event("8", "paid", &total(12.0)),
    ]));
    let arrivals = hook.take(4);
    let got: Vec<String> = arrivals.iter().map(crate::receiver::Arrival::event_id).collect();
    assert_eq!(got, ["0", "1", "3", "8"]);
    assert_eq!((arrivals[0].header("x-team"), arrivals[0].header("authorization")), ("core", "Bearer abc"));
}

#[test]
fn a_backfill_arrives_in_order_and_live_events_after_it() {
    let server = Server::start();
    let client = server.admin();
    client.publish(&numbered(0..1500));
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({ "from": "beginning", "order": { "by": "subscriber" } }));
    client.publish(&numbered(1500..1510));
    assert_eq!(hook.ids(1510), ids(0..1510));

    let now = Receiver::start();
    server.subscribe(&now, &json!({ "from": "now" }));
    let since = Receiver::start();
    server.subscribe(&since, &json!({ "from": "2999-01-01T00:00:00Z" }));
    client.publish(&event("last", "t", &Value::Null));
    assert_eq!((now.next().event_id(), since.next().event_id()), ("last".to_owned(), "last".to_owned()));
    assert_eq!((now.rest().len(), since.rest().len()), (0, 0));
}

fn statuses(client: &Client, path: &str) -> Vec<Value> {
    let page = client.get(path).expect(200);
    page["items"].as_array().expect("items").iter().map(|item| item["status"].clone()).collect()
}

#[test]
fn a_pause_holds_and_a_resume_releases_in_order() {
    let mut server = Server::start();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &json!({ "order": { "by": "subscriber" }, "active": false }));
    server.admin().publish(&numbered(0..10));
    let list = format!("{}/deliveries", subscriber.path);
    assert_eq!(statuses(&server.admin(), &list), vec![json!("held"); 10]);
    server.stop();
    server.restart(&Setup::usual());
    let client = server.admin();
    client.publish(&numbered(10..20));
    assert_eq!(statuses(&client, "/v1/deliveries?status=held"), vec![json!("held"); 20]);
    assert_eq!(hook.rest().len(), 0);
    client.patch(&subscriber.path, &json!({ "active": true })).expect(200);
    assert_eq!(hook.ids(20), ids(0..20));
}

#[test]
fn deleting_a_subscriber_cancels_what_was_not_sent() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &json!({ "active": false }));
    client.publish(&numbered(0..3));
    client.delete(&subscriber.path).expect(200);
    let cancelled = client.get("/v1/deliveries?status=cancelled").expect(200);
    assert_eq!(cancelled["items"].as_array().map(Vec::len), Some(3), "{cancelled}");
    let id = cancelled["items"][0]["id"].as_str().expect("an id");
    client.post(&format!("/v1/deliveries/{id}/retry"), &Value::Null).problem(409, "delivery_cancelled");
    assert_eq!(client.get("/v1/events/e0/trace").expect(200)["subscribers"][0]["outcome"], "cancelled");
    client.publish(&numbered(3..4));
    assert_eq!(client.get("/v1/events/e3/trace").expect(200)["subscribers"], json!([]));
    assert_eq!(hook.rest().len(), 0);
}

#[test]
fn the_order_can_not_change_under_unfinished_deliveries() {
    let server = Server::start();
    let client = server.admin();
    let subscriber = server.subscribe(&Receiver::start(), &json!({ "active": false }));
    client.publish(&numbered(0..1));
    let reordered = json!({ "order": { "by": "subscriber" } });
    let refused = client.patch(&subscriber.path, &reordered).problem(409, "order_unfinished");
    assert_eq!(refused["field"], "order.by");
    client.patch(&subscriber.path, &json!({ "name": "still possible" })).expect(200);
}

#[test]
fn an_open_window_keeps_the_order_too_and_the_refusal_says_how_to_end_it() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let subscriber = server.subscribe(&hook, &json!({ "fold": { "mode": "window", "window": "1h" } }));
    client.publish(&numbered(0..1));
    let reordered = json!({ "order": { "by": "subscriber" } });
    let refused = client.patch(&subscriber.path, &reordered).problem(409, "order_unfinished");
    let detail = refused["detail"].as_str().expect("a detail");
    assert!(detail.contains("window") && detail.contains("/v1/windows/flush"), "{detail}");
    client.post("/v1/windows/flush", &json!({ "subscriber": subscriber.id })).expect(200);
    hook.next();
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 1);
    client.patch(&subscriber.path, &reordered).expect(200);
}

#[test]
fn the_longest_wait_follows_the_quiet_period_until_it_is_said() {
    let server = Server::start();
    let client = server.admin();
    let fold = json!({ "mode": "quiet", "quiet": "1s" });
    let subscriber = server.subscribe(&Receiver::start(), &json!({ "fold": fold }));
    let patch = |fold: Value| client.patch(&subscriber.path, &json!({ "fold": fold }));
    assert_eq!(client.get(&subscriber.path).expect(200)["fold"]["max_wait"], "12s");
    assert_eq!(patch(json!({ "quiet": "30s" })).expect(200)["fold"]["max_wait"], "6m");
    assert_eq!(patch(json!({ "max_wait": "6m" })).expect(200)["fold"]["max_wait"], "6m");
    assert_eq!(patch(json!({ "quiet": "1m" })).expect(200)["fold"]["max_wait"], "6m", "as it was said");
    patch(json!({ "quiet": "7m" })).problem(422, "field_range");
    assert_eq!(patch(json!({ "max_wait": null })).expect(200)["fold"]["max_wait"], "12m");
    assert_eq!(patch(json!({ "quiet": "10s" })).expect(200)["fold"]["max_wait"], "2m");
}

#[test]
fn patches_at_the_same_time_do_not_undo_each_other() {
    let server = Server::start();
    let subscriber = server.subscribe(&Receiver::start(), &Value::Null);
    for round in 1..20_u32 {
        let (name, rate) = (format!("n{round}"), format!("{round}/s"));
        thread::scope(|scope| {
            for patch in [json!({ "name": name }), json!({ "limits": { "rate": rate } })] {
                let (client, path) = (server.admin(), &subscriber.path);
                scope.spawn(move || client.patch(path, &patch).expect(200));
            }
        });
        let now = server.admin().get(&subscriber.path).expect(200);
        assert_eq!((&now["name"], &now["limits"]["rate"]), (&name.into(), &rate.into()));
    }
}
