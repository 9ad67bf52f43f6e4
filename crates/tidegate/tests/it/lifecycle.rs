//! Starting, the first event, stopping, dying, and starting again.

use serde_json::json;

use crate::client::Client;
use crate::receiver::{Arrival, Receiver};
use crate::server::{Server, Setup};

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
