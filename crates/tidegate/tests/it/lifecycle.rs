//! Starting, the first event, stopping, dying, and starting again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::{ADMIN_KEY, Folder, Server, Setup};

#[test]
fn the_first_event_arrives_signed_with_the_key_that_was_printed_once() {
    let setup = Setup { admin_key: None, ..Setup::usual() };
    let mut server = Server::start_with(&setup);
    let hook = Receiver::start();
    let key = server.printed_key();
    let client = Client::stranger(server.address).with_key(&key);
    let subscriber = server.subscribe_as(&client, &hook, &json!({ "name": "first" }));
    let body = br#"{ "id": "e1", "source": "shop", "type": "order.paid", "time": "2026-01-31T09:30:00Z",
        "data": {"total": 1.50, "note": "\u00e9 x"} }"#;
    let sent = client.send("POST", "/v1/events", &[("content-type", "application/json")], body).expect(202);
    assert_eq!(sent["results"], json!([{ "id": "e1", "status": "accepted" }]));

    let arrival = hook.next();
    assert_eq!(arrival.line, "POST /hook HTTP/1.1");
    assert_eq!(
        arrival.text(),
        r#"{"id":"e1","source":"shop","type":"order.paid","time":"2026-01-31T09:30:00Z","data":{"total": 1.50, "note": "\u00e9 x"}}"#
    );
    arrival.verify(&subscriber.secret);
    assert_eq!(header_names(&arrival), EXACTLY);
    assert_eq!(arrival.header("content-type"), "application/json");
    assert_eq!(arrival.header("user-agent"), format!("Tidegate/{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(arrival.header("host"), hook.address.to_string());

    server.stop();
    server.restart(&setup);
    Client::stranger(server.address).with_key(&key).get(&subscriber.path).expect(200);
    assert_eq!(server.stop(), Vec::<String>::new(), "no second key");
    assert!(!server.log().contains(&key), "keys are not logged");
}

const EXACTLY: [&str; 8] = [
    "content-length",
    "content-type",
    "host",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-webhook-signature",
];

fn header_names(arrival: &Arrival) -> Vec<&str> {
    arrival.headers.keys().map(String::as_str).collect()
}

#[test]
fn an_open_door_without_a_key_is_refused_with_the_remedy() {
    let folder = Folder::new();
    let setup = Setup { listen: Some("0.0.0.0:0"), ..Setup::default() };
    let refusal = setup.refusal(&folder);
    assert!(refusal.contains("0.0.0.0") && refusal.contains("set TIDEGATE_ADMIN_KEY"), "{refusal}");
    let mut server = Server::start_with(&Setup { admin_key: Some(ADMIN_KEY), ..setup.clone() });
    server.stop();
    server.restart(&setup);
    server.admin().get("/v1/events").expect(200);
}

#[test]
fn a_first_start_that_fails_does_not_swallow_the_key() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address: &'static str = taken.local_addr().expect("an address").to_string().leak();
    let mut server = Server::start_with(&Setup::default());
    server.kill();
    std::fs::remove_dir_all(server.folder.path().join("data")).expect("an empty start");
    let setup = Setup { listen: Some(address), ..Setup::default() };
    let refusal = setup.refusal(&server.folder);
    assert!(refusal.contains(address) && refusal.contains("--listen"), "{refusal}");
    server.restart(&Setup::default());
    assert!(server.printed_key().starts_with("tgk_"));
}

#[test]
fn the_operators_own_admin_key_is_made_once() {
    let mut server = Server::start();
    let keys = |server: &Server| server.admin().get("/v1/keys").expect(200)["items"].clone();
    let first = keys(&server);
    assert_eq!(first.as_array().map(Vec::len), Some(1), "{first}");
    assert_eq!(server.stop(), Vec::<String>::new(), "nothing is printed");
    server.restart(&Setup::usual());
    assert_eq!(keys(&server), first);
    server.stop();
    let refusal = Setup { admin_key: Some("tgk_short"), ..Setup::usual() }.refusal(&server.folder);
    assert!(refusal.contains("TIDEGATE_ADMIN_KEY") && !refusal.contains("tgk_short"), "{refusal}");
}

#[test]
fn a_second_process_on_the_same_data_is_refused() {
    let server = Server::start();
    let refusal = Setup::usual().refusal(&server.folder);
    assert!(refusal.contains("another process") && refusal.contains("--data-dir"), "{refusal}");
    server.admin().get("/readyz").expect(200);
}

#[test]
fn another_master_key_is_refused_and_the_right_one_still_works() {
    const OTHER: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let mut server = Server::start();
    let hook = Receiver::start();
    let subscriber = server.subscribe(&hook, &Value::Null);
    server.stop();
    let refusal = Setup { master_key: Some(OTHER), ..Setup::usual() }.refusal(&server.folder);
    assert!(refusal.contains("another master key") && refusal.contains("TIDEGATE_MASTER_KEY"), "{refusal}");
    let refusal = Setup { master_key: Some("short"), ..Setup::usual() }.refusal(&server.folder);
    assert!(refusal.contains("32 bytes") && !refusal.contains("short"), "{refusal}");
    server.restart(&Setup::usual());
    server.admin().publish(&json!({ "source": "s", "type": "t" }));
    hook.next().verify(&subscriber.secret);
}

fn numbered(count: usize) -> Value {
    (0..count).map(|n| json!({ "id": format!("e{n}"), "source": "s", "type": "t" })).collect()
}

#[test]
fn a_graceful_stop_delivers_what_is_in_flight_once_and_the_rest_after() {
    const IN_FLIGHT: usize = 20;
    const ALL: usize = 50;
    let mut server = Server::start();
    let gate = Gate::default();
    let slow = gate.clone();
    let hook = Receiver::scripted(move |_| {
        slow.wait();
        Reply::status(200)
    });
    server.subscribe(&hook, &json!({ "limits": { "concurrency": IN_FLIGHT } }));
    server.admin().publish(&numbered(ALL));
    let mut seen = hook.ids(IN_FLIGHT);
    server.terminate();
    server.until_logged("stopping");
    server.lives_on();
    gate.open();
    let (status, _) = server.wait();
    assert_eq!(status.code(), Some(0));
    seen.extend(hook.rest().iter().map(Arrival::event_id));
    server.restart(&Setup::usual());
    seen.extend(hook.ids(ALL - seen.len()));
    let deliveries = server.admin().until("/v1/deliveries?limit=500", |page| {
        page["items"].as_array().is_some_and(|items| items.iter().all(|item| item["status"] == "delivered"))
    });
    assert!(deliveries["items"].as_array().unwrap().iter().all(|item| item["attempts"] == 1));
    assert_eq!(hook.rest().len(), 0, "nothing arrives twice");
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), ALL);
}

#[test]
fn a_hangup_ends_nothing_where_nothing_is_to_be_read_again() {
    let mut server = Server::start();
    server.signal("-HUP");
    server.until_logged("no certificate to read again");
    server.lives_on();
    server.admin().get("/readyz").expect(200);
    server.stop();
}

#[test]
fn a_stop_does_not_wait_for_clients_that_say_nothing() {
    let mut server = Server::start();
    let silent = server.admin().connect();
    let mut half = server.admin().connect();
    half.write_all(b"POST /v1/events HTTP/1.1\r\nhost: x\r\n").expect("written");
    server.admin().get("/livez").expect(200);
    server.stop();
    assert!(!server.log().contains("did not end in time"), "{}", server.log());
    drop((silent, half));
}

#[test]
fn whatever_was_acknowledged_survives_a_kill() {
    const ROUNDS: usize = 3;
    const EVENTS: usize = 100;
    let mut server = Server::start();
    let hook = Receiver::start();
    server.subscribe(&hook, &Value::Null);
    let mut seen = BTreeSet::new();
    for round in 0..ROUNDS {
        let events: Value = (0..EVENTS)
            .map(|n| json!({ "id": format!("{round}-{n}"), "source": "s", "type": "t" }))
            .collect();
        assert_eq!(server.admin().publish(&events)["accepted"], EVENTS);
        seen.insert(hook.next().event_id());
        server.kill();
        server.restart(&Setup::usual());
    }
    let listed = server.admin().until("/v1/deliveries?limit=500", |page| {
        page["items"].as_array().is_some_and(|items| items.iter().all(|item| item["status"] == "delivered"))
    });
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(ROUNDS * EVENTS));
    seen.extend(hook.rest().iter().map(Arrival::event_id));
    assert_eq!(seen.len(), ROUNDS * EVENTS);
}

#[test]
fn a_duplicate_after_a_kill_has_the_same_id_and_body() {
    let mut server = Server::start();
    let gate = Gate::default();
    let slow = gate.clone();
    let hook = Receiver::scripted(move |_| {
        slow.wait();
        Reply::status(200)
    });
    server.subscribe(&hook, &Value::Null);
    server.admin().publish(&numbered(5));
    let identity = |arrivals: Vec<Arrival>| -> BTreeMap<String, Vec<u8>> {
        arrivals.into_iter().map(|arrival| (arrival.webhook_id().to_owned(), arrival.body)).collect()
    };
    let before = identity(hook.take(5));
    server.kill();
    gate.open();
    server.restart(&Setup::usual());
    assert_eq!(identity(hook.take(5)), before);
}
