//! Retention: what has been kept long enough goes by itself, and what could not be delivered ends visibly.

use serde_json::{Value, json};

use crate::client::{Client, within_patience};
use crate::receiver::{Receiver, Reply};
use crate::server::{Folder, Server, Setup};

fn keeping(events: &str, deliveries: &str, undelivered: &str) -> Setup {
    let variables = [
        ("TIDEGATE_RETENTION_EVENTS", events),
        ("TIDEGATE_RETENTION_DELIVERIES", deliveries),
        ("TIDEGATE_RETENTION_UNDELIVERED", undelivered),
    ];
    let variables = variables.map(|(name, value)| (name, value.to_owned())).to_vec();
    Setup { variables, ..Setup::usual() }
}

fn is_empty(page: &Value) -> bool {
    page["items"].as_array().expect("items").is_empty()
}

/// Waits until everything has been removed; if it is not, the log says why.
fn until_empty(server: &Server, path: &str) {
    let client = server.admin();
    let is_gone = within_patience(|| is_empty(&client.get(path).expect(200)));
    assert!(is_gone, "{path} is never empty; the log:\n{}", server.log());
}

#[test]
fn everything_goes_in_its_time() {
    let server = Server::start_with(&keeping("700ms", "2s", "1s"));
    let client = server.admin();
    let hook =
        Receiver::scripted(|arrival| Reply::status(if arrival.event_id() == "bad" { 500 } else { 200 }));
    server.subscribe(&hook, &json!({ "retry": { "schedule": [] } }));
    client.publish(
        &json!([{ "id": "good", "source": "s", "type": "t" }, { "id": "bad", "source": "s", "type": "t" }]),
    );
    hook.take(2);
    let good = client.until("/v1/deliveries?status=delivered", |page| !is_empty(page));
    let path = format!("/v1/deliveries/{}", good["items"][0]["id"].as_str().unwrap());
    let gone = |client: &Client, id: &str| client.get(&format!("/v1/events/{id}")).status == 404;
    assert!(crate::client::within_patience(|| gone(&client, "good")));
    assert_eq!(client.get(&path).expect(200)["events"], json!([]), "its delivery is still listed");
    let expired = client.until("/v1/deliveries?status=expired", |page| !is_empty(page));
    assert!(expired["items"][0]["reason"].as_str().unwrap().contains("retention"), "{expired}");
    let retry = format!("/v1/deliveries/{}/retry", expired["items"][0]["id"].as_str().unwrap());
    client.post(&retry, &Value::Null).problem(409, "delivery_expired");
    until_empty(&server, "/v1/deliveries");
    until_empty(&server, "/v1/events");
    let text = client.get("/metrics").text();
    for name in ["events_removed", "deliveries_removed", "deliveries_expired"] {
        let sample = format!("tidegate_{name}_total 0");
        assert!(
            text.contains(&format!("tidegate_{name}_total ")) && !text.contains(&sample),
            "{name}:\n{text}"
        );
    }
    let again = client.publish(&json!({ "id": "good", "source": "s", "type": "t" }));
    assert_eq!(again["accepted"], 1, "its id is new again");
}

#[test]
fn types_and_metrics_have_terms_of_their_own() {
    let server = Server::start_with(&keeping("2s", "5s", "5s"));
    let client = server.admin();
    let put = |name: &str, definition: Value| {
        client.call("PUT", &format!("/v1/catalog/services/s/types/{name}"), &definition).expect(201);
    };
    put("long", json!({ "retention": "1d", "counters": { "all": { "retention": "1h" } } }));
    put("short", json!({ "retention": "100ms", "counters": { "all": {} } }));
    let event = |name: &str| json!({ "id": name, "source": "s", "type": name });
    client.publish(&json!([event("long"), event("short"), event("usual")]));
    let is_gone = |id: &str| client.get(&format!("/v1/events/{id}")).status == 404;
    assert!(crate::client::within_patience(|| is_gone("usual")));
    assert!(is_gone("short") && !is_gone("long"));
    for name in ["long", "short"] {
        let ask = json!({ "service": "s", "type": name, "counter": "all", "every": "1h" });
        let answer = client.post("/v1/query/counters", &ask).expect(200);
        let buckets = answer["buckets"].as_array().expect("a list").iter();
        let counts: Option<i64> = buckets.map(|bucket| bucket["series"][0]["count"].as_i64()).sum();
        assert_eq!(counts, Some(1), "it was counted before it went");
    }
    let days = crate::recent::Recent::moving("2026-01-15", false);
    let ask = json!({ "service": "s", "type": "long", "counter": "all", "from": "2026-01-05T00:00:00Z" });
    let refused = client.post("/v1/query/counters", &days.json(&ask)).problem(422, "not_kept");
    assert_eq!(refused["field"], "from");
    let usual = json!({ "service": "s", "type": "short", "counter": "all", "from": "2026-01-05T00:00:00Z" });
    client.post("/v1/query/counters", &days.json(&usual)).expect(200);
    let mut fine = usual.clone();
    fine["every"] = "90s".into();
    fine["to"] = "2026-01-05T00:30:00Z".into();
    let refused = client.post("/v1/query/counters", &days.json(&fine)).problem(422, "not_kept");
    assert_eq!(refused["field"], "every");
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("`every` 1m")), "{refused}");
    let audit = json!({ "service": "s", "type": "short" });
    assert_eq!(client.post("/v1/audit", &audit).expect(200)["agrees"], true, "what is gone is not missed");
    let text = client.get("/metrics").text();
    assert!(
        text.contains("tidegate_rollups_removed_total ") && text.contains("tidegate_objects_removed_total ")
    );
}

#[test]
fn a_late_subscriber_gets_what_is_left() {
    let server = Server::start_with(&keeping("700ms", "5s", "5s"));
    let client = server.admin();
    client.publish(&json!({ "id": "old", "source": "s", "type": "t" }));
    until_empty(&server, "/v1/events");
    client.publish(&json!({ "id": "new", "source": "s", "type": "t" }));
    let hook = Receiver::start();
    server.subscribe(&hook, &json!({ "from": "beginning" }));
    assert_eq!(hook.next().event_id(), "new");
}

#[test]
fn terms_that_make_no_sense_are_refused() {
    for (setup, word) in [
        (keeping("0s", "1d", "1d"), "zero"),
        (keeping("7d", "30d", "1d"), "shorter"),
        (keeping("7d", "99999d", "30d"), "at most"),
    ] {
        let refusal = setup.refusal(&Folder::new());
        assert!(refusal.contains("retention") && refusal.contains(word), "{refusal}");
    }
}
