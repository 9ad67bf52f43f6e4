//! Windows that several processes share: seen, steered and delivered from any of them.

use serde_json::{Value, json};

use crate::cluster::{Cluster, events, metric};
use crate::receiver::{Arrival, Receiver};

fn ids(arrival: &Arrival) -> Vec<Value> {
    arrival.json()["events"].as_array().expect("a fold").iter().map(|event| event["id"].clone()).collect()
}

#[test]
fn what_any_of_them_accepts_joins_one_window_that_any_of_them_closes() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let hook = Receiver::start();
    let subscriber = a.subscribe(&hook, &json!({ "fold": { "mode": "window", "window": "1h" } }));
    a.admin().publish(&events("a", 60));
    b.admin().publish(&events("b", 60));
    for server in [&a, &b] {
        let windows = server.admin().get("/v1/windows").expect(200)["items"].clone();
        assert_eq!(
            (windows.as_array().map(Vec::len), &windows[0]["count"]),
            (Some(1), &120.into()),
            "{windows}"
        );
        let trace = server.admin().get("/v1/events/a0/trace").expect(200)["subscribers"][0].clone();
        assert_eq!(
            (&trace["outcome"], &trace["window"]["due_at"]),
            (&"pending".into(), &windows[0]["due_at"])
        );
    }
    assert!((metric(&b.admin(), "tidegate_windows_open") - 1.0).abs() < 1e-9);
    let wrong = json!({ "subscriber": subscriber.id, "key": { "data.plan": 1 } });
    b.admin().post("/v1/windows/flush", &wrong).problem(422, "window_key_invalid");
    let key = json!({ "subscriber": subscriber.id, "key": { "type": "t" } });
    assert_eq!(
        b.admin().post("/v1/windows/flush", &key).expect(200),
        json!({ "windows": 1, "complete": true })
    );
    let arrival = hook.next();
    assert_eq!(ids(&arrival).len(), 120);
    let page = a.admin().get("/v1/deliveries").expect(200)["items"][0].clone();
    assert_eq!((&page["count"], page["events"].as_array().map(Vec::len)), (&120.into(), Some(100)));
    let whole = a.admin().get(&format!("/v1/deliveries/{}", arrival.webhook_id())).expect(200);
    assert_eq!((&whole["events"], &whole["fold"]), (&json!(ids(&arrival)), &arrival.json()["fold"]));

    a.admin().publish(&events("c", 2));
    let cancelled = b.admin().post("/v1/windows/cancel", &json!({ "subscriber": subscriber.id })).expect(200);
    assert_eq!(cancelled["windows"], 1);
    assert_eq!(a.admin().get("/v1/events/c1/trace").expect(200)["subscribers"][0]["outcome"], "cancelled");
    b.admin().publish(&events("d", 3));
    assert_eq!(a.admin().post("/v1/trigger", &Value::Null).expect(202)["windows"], 1);
    assert_eq!(ids(&hook.next()), ["d0", "d1", "d2"]);
}
