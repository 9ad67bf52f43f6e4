//! Trouble is told before it hurts, and only what keeps events from being accepted makes a server unready.

use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::server::{Server, Setup};

fn with(name: &'static str, value: &str) -> Setup {
    Setup { variables: vec![(name, value.to_owned())], ..Setup::usual() }
}

fn event(n: usize) -> Value {
    json!({ "id": format!("e{n}"), "source": "shop", "type": "order.paid" })
}

#[test]
fn a_paused_installation_keeps_everything_and_sends_it_later_in_order() {
    let mut server = Server::start_with(&with("TIDEGATE_DELIVER_ENABLED", "false"));
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &json!({ "order": { "by": "subscriber" } }));
    let client = server.admin();
    (0..20).for_each(|n| drop(client.publish(&event(n))));
    server.until_logged("deliver.enabled is false");
    let ready = client.get("/readyz").expect(200);
    assert_eq!(
        (&ready["status"], &ready["checks"]["deliver"]["state"]),
        (&"degraded".into(), &"degraded".into())
    );
    assert!(ready["checks"]["deliver"]["remedy"].is_string(), "{ready}");
    assert!(client.get("/metrics").text().contains("tidegate_deliver_enabled 0"));
    let trace = client.get("/v1/events/e0/trace").expect(200);
    assert_eq!(trace["subscribers"][0]["reason"], "deliver.enabled is false");
    let path =
        format!("/v1/deliveries/{}", trace["subscribers"][0]["delivery"].as_str().expect("a delivery"));
    client.post(&format!("{path}/retry"), &Value::Null).expect(202);
    client.post(&format!("{}/resume", subscriber.path), &Value::Null).expect(200);
    server.stop();
    assert_eq!(hook.rest().len(), 0, "not even by hand");
    server.restart(&Setup::usual());
    let expected: Vec<String> = (0..20).map(|n| format!("e{n}")).collect();
    assert_eq!(hook.ids(20), expected);
    assert!(server.admin().get("/metrics").text().contains("tidegate_deliver_enabled 1"));
}

#[test]
fn a_disk_without_reserve_takes_nothing_new_and_delivers_what_it_has() {
    let mut server = Server::start_with(&with("TIDEGATE_DELIVER_ENABLED", "false"));
    let hook = Receiver::start();
    server.subscribe(&hook, &Value::Null);
    server.admin().publish(&event(0));
    server.stop();
    server.restart(&with("TIDEGATE_STORE_DISK_RESERVE", "1000000TiB"));
    let client = server.admin();
    let refused = client.post("/v1/events", &event(1));
    refused.problem(503, "disk_reserve");
    assert!(refused.header("retry-after").is_some());
    let unready = client.get("/readyz").expect(503);
    assert_eq!(
        (&unready["status"], &unready["checks"]["disk"]["state"]),
        (&"unavailable".into(), &"failing".into())
    );
    assert_eq!(hook.next().event_id(), "e0");
    client.until("/v1/events/e0/trace", |trace| trace["subscribers"][0]["outcome"] == "delivered");
}

#[test]
fn many_dead_letters_are_told() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::scripted(|_| crate::receiver::Reply::status(500));
    server.subscribe(&hook, &json!({ "breaker": "off", "retry": { "schedule": [] } }));
    client.publish(&(0..101).map(event).collect::<Value>());
    let ready = client.until("/readyz", |ready| ready["status"] == "degraded");
    assert_eq!(ready["checks"]["dead_letters"]["state"], "degraded");
    assert_eq!(ready["checks"].as_object().map(serde_json::Map::len), Some(1), "{ready}");
}

#[test]
fn a_server_is_never_its_own_receiver() {
    let server = Server::start();
    for host in ["127.0.0.1", "localhost", "0x7f.1"] {
        let url = format!("http://{host}:{}/v1/events", server.address.port());
        let problem = server.admin().post("/v1/subscribers", &json!({ "destination": { "url": url } }));
        let problem = problem.problem(422, "url_refused");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("own")), "{problem}");
    }
}
