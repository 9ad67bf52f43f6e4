//! The configurations in `presets/`: each is applied as it stands, twice, and a folded delivery arrives, or what is counted
//! is told.
//!
//! Their windows are as long as in life; the tests close them by trigger.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Arrival, Receiver};
use crate::server::{ADMIN_KEY, Server};

/// Applies a preset whose address is the hook's.
#[track_caller]
fn apply(server: &Server, preset: &str, hook: &Receiver) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets").join(format!("{preset}.yaml"));
    for expected in ["created", "unchanged"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["apply", "--json", "-f"]).arg(&file).env_clear();
        command.env("TIDEGATE_URL", format!("http://{}", server.address)).env("TIDEGATE_KEY", ADMIN_KEY);
        command.env(format!("{}_HOOK", preset.to_uppercase()), hook.url());
        let output = command.output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            told["results"].as_array().map(Vec::len),
            told[expected].as_u64().map(|count| count as usize)
        );
        assert!(told[expected].as_u64() > Some(0), "{told}");
    }
}

fn event(source: &str, type_name: &str, id: &str, data: &Value) -> Value {
    json!({ "id": id, "source": source, "type": type_name, "data": data })
}

#[track_caller]
fn trigger(client: &Client, windows: u64) {
    assert_eq!(client.post("/v1/trigger", &Value::Null).expect(202)["windows"], windows);
}

fn ids(arrival: &Arrival) -> Vec<Value> {
    arrival.json()["events"].as_array().expect("a fold").iter().map(|event| event["id"].clone()).collect()
}

#[test]
fn opik_alerts_are_debounced_by_alert_and_type() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    apply(&server, "opik", &hook);
    let alert =
        |id: &str, type_name: &str, alert: &str| event("opik", type_name, id, &json!({ "alert_id": alert }));
    client.publish(&json!([
        alert("e1", "prompt:created", "a1"),
        alert("e2", "prompt:created", "a2"),
        alert("e3", "prompt:created", "a1"),
        alert("e4", "prompt:deleted", "a1"),
    ]));
    client.publish(&alert("cost", "trace:cost", "a1"));
    assert_eq!(hook.next().event_id(), "cost", "a metric's alert does not wait");
    trigger(&client, 3);
    let mut arrivals = hook.take(3);
    arrivals.sort_by_key(|arrival| ids(arrival)[0].to_string());
    assert_eq!(arrivals.iter().map(ids).collect::<Vec<_>>(), [vec!["e1", "e3"], vec!["e2"], vec!["e4"]]);
    let key = json!({ "data.alert_id": "a1", "type": "prompt:created" });
    assert_eq!((&arrivals[0].json()["fold"]["key"], &arrivals[0].json()["count"]), (&key, &2.into()));
}

#[test]
fn neoforge_consumers_get_batches_from_the_beginning() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let version =
        |id: &str, type_name: &str| event("meta-api", type_name, id, &json!({ "component": "NEOFORGE" }));
    client.publish(&version("before", "NEW_VERSION"));
    apply(&server, "neoforge", &hook);
    client.publish(&json!([
        version("e1", "VERSION_UPDATED"),
        version("no", "OTHER"),
        version("e2", "NEW_VERSION")
    ]));
    client.until("/v1/windows", |page| page["items"][0]["count"] == 3);
    trigger(&client, 1);
    let arrival = hook.next();
    assert_eq!(ids(&arrival), ["before", "e1", "e2"]);
    assert_eq!(arrival.json()["events"][1]["eventType"], "VERSION_UPDATED");
    assert_eq!(arrival.json().as_object().map(serde_json::Map::len), Some(1), "a list and nothing else");
}

#[test]
fn nextup_runs_once_for_each_user_who_became_calm() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    apply(&server, "nextup", &hook);
    let edit = |id: &str, user: &str| event("notion", "page.updated", id, &json!({ "assignee": user }));
    client.publish(&json!([edit("e1", "u1"), edit("e2", "u2"), edit("e3", "u1")]));
    client.publish(&event("notion", "page.updated", "nobody", &json!({})));
    let trace = client.get("/v1/events/nobody/trace").expect(200);
    assert_eq!(trace["subscribers"][0]["outcome"], "skipped");
    let waiting = client.get("/v1/windows").expect(200);
    assert_eq!(waiting["items"][0]["mode"], "quiet");
    trigger(&client, 2);
    let arrivals = hook.take(2);
    let mut folded: Vec<Vec<Value>> = arrivals.iter().map(ids).collect();
    folded.sort_by_key(|ids| ids[0].to_string());
    assert_eq!(folded, [vec!["e1", "e3"], vec!["e2"]]);
}

#[test]
fn obsinity_profiles_are_counted_measured_followed_and_found() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    apply(&server, "obsinity", &hook);
    let days = crate::recent::Recent::moving("2026-01-05", true);
    let update = |id: &str, times: [&str; 2], profile: &str, status: &str, outcome: &str| {
        json!({
            "id": id, "source": "profiles", "type": "user_profile.updated",
            "time": days.text(times[0]), "ended": days.text(times[1]),
            "data": {"user": {"profile_id": profile, "status": status}, "channel": "web", "region": "eu", "outcome": outcome},
        })
    };
    let mut first = update("1", ["2026-01-05T10:00:00Z", "2026-01-05T10:00:00.100Z"], "p1", "NEW", "SUCCESS");
    first["events"] = json!([{"type": "user_profile.step", "time": days.text("2026-01-05T10:00:00Z"),
        "ended": days.text("2026-01-05T10:00:00.040Z"), "data": {"step": "validate"}}]);
    let events = json!([
        first,
        update("2", ["2026-01-05T10:00:10Z", "2026-01-05T10:00:10.300Z"], "p1", "ACTIVE", "FAILURE"),
        update("3", ["2026-01-05T10:00:20Z", "2026-01-05T10:00:20.200Z"], "p1", "BLOCKED", "SUCCESS"),
    ]);
    client.publish(&events);
    assert_eq!(client.publish(&events)["accepted"], 0, "sent again");
    let range = json!({"service": "profiles", "type": "user_profile.updated",
        "from": "2026-01-05T10:00:00Z", "to": "2026-01-05T11:00:00Z", "every": "1h"});
    let ask = |kind: &str, more: Value| {
        let mut body = range.clone();
        let members = body.as_object_mut().expect("an object");
        members.extend(more.as_object().expect("an object").clone());
        members.retain(|_, value| !value.is_null());
        client.post(&format!("/v1/query/{kind}"), &days.json(&body)).expect(200)["buckets"][0].clone()
    };
    let count = |more: Value| ask("counters", more)["series"][0]["count"].clone();
    assert_eq!(count(json!({"counter": "all"})), 3);
    assert_eq!(count(json!({"counter": "by_channel", "where": {"data.channel": "web"}})), 3);
    assert_eq!(count(json!({"counter": "failed"})), 1);
    assert_eq!(
        count(json!({"type": "user_profile.step", "counter": "by_step", "where": {"data.step": "validate"}})),
        1
    );
    let measured = ask("histograms", json!({"histogram": "duration"}))["series"][0].clone();
    assert_eq!((&measured["count"], &measured["sum"]), (&json!(3), &json!(600)), "{measured}");
    let of = json!({"type": null, "object": "user_profile", "attribute": "data.user.status", "fill": "none"});
    let told = ask("transitions", of)["transitions"].clone();
    let change = |from: &str, to: &str| json!({"from_state": from, "to_state": to, "count": 1});
    let mut changes = told.as_array().expect("a list").clone();
    changes.sort_by_key(Value::to_string);
    let mut expected = vec![
        change("(none)", "NEW"),
        change("NEW", "ACTIVE"),
        change("ACTIVE", "BLOCKED"),
        change("NEW", "BLOCKED"),
    ];
    expected.sort_by_key(Value::to_string);
    assert_eq!(changes, expected);
    let found = client.get("/v1/events?where=data.user.status%20%3D%3D%20%27ACTIVE%27").expect(200);
    assert_eq!(found["items"][0]["id"], "2");
    let audit = json!({"service": "profiles", "type": "user_profile.updated"});
    assert_eq!(client.post("/v1/audit", &audit).expect(200)["agrees"], true);
}
