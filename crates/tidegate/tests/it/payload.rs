//! The forms of a body: what each looks like on the wire, and that a retry resends what was sent.

use serde_json::{Value, json};

use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::{Server, Setup};

fn destination(hook: &Receiver, payload: &str) -> Value {
    json!({ "destination": { "url": hook.url(), "payload": payload } })
}

fn event(id: &str) -> Value {
    json!({ "id": id, "source": "shop", "type": "order.paid", "subject": "o", "time": "2026-01-31T09:30:00Z",
        "data": { "component": "NEOFORGE", "version": "21.0.1" } })
}

#[test]
fn every_form_is_signed_as_it_is_sent() {
    let server = Server::start();
    let hooks = [(); 4].map(|()| Receiver::start());
    let subscribers: Vec<_> = ["full", "thin", "cloudevents", "events"]
        .into_iter()
        .zip(&hooks)
        .map(|(payload, hook)| server.subscribe(hook, &destination(hook, payload)))
        .collect();
    server.admin().publish(&event("e"));
    let arrivals = [0, 1, 2, 3].map(|n| {
        let arrival = hooks[n].next();
        arrival.verify(&subscribers[n].secret);
        arrival
    });
    let [full, thin, cloudevents, events] = arrivals.each_ref().map(Arrival::json);
    let whole = server.admin().get("/v1/events/e").expect(200);
    assert_eq!(full["data"], whole["data"]);
    assert_eq!(
        (&thin["data"], &thin["type"], &thin["subject"]),
        (&Value::Null, &"order.paid".into(), &"o".into())
    );
    let fetched = server.admin().get(thin["url"].as_str().expect("a url")).expect(200);
    assert_eq!(fetched["data"], full["data"]);
    assert_eq!((&cloudevents["specversion"], &cloudevents["data"]), (&"1.0".into(), &full["data"]));
    assert_eq!(arrivals[2].header("content-type"), "application/cloudevents+json; charset=utf-8");
    assert_eq!(arrivals[1].header("content-type"), "application/json");
    let listed = json!([{ "id": "e", "eventType": "order.paid", "createdAt": full["time"], "component": "NEOFORGE",
        "componentVersion": "21.0.1", "data": full["data"] }]);
    assert_eq!(events, json!({ "events": listed }));
    // What goes out as a CloudEvent comes in as one.
    let back = server.admin().send(
        "POST",
        "/v1/events",
        &[("content-type", "application/cloudevents+json")],
        &arrivals[2].body,
    );
    assert_eq!(back.expect(202)["duplicates"], 1);
}

#[test]
fn a_retry_resends_the_bytes_of_the_first_attempt_whatever_was_chosen_since() {
    let mut server = Server::start();
    for (before, after) in [("cloudevents", "full"), ("full", "thin"), ("thin", "events")] {
        let gate = Gate::default();
        let hook = {
            let gate = gate.clone();
            Receiver::scripted(move |_| Reply::status(if gate.is_open() { 200 } else { 500 }))
        };
        let mut rest = destination(&hook, before);
        rest["retry"] = json!({ "schedule": [] });
        let subscriber = server.subscribe(&hook, &rest);
        server.admin().publish(&event(before));
        let first = hook.next();
        let deliveries = format!("{}/deliveries?status=exhausted", subscriber.path);
        let page = server.admin().until(&deliveries, |page| page["items"][0].is_object());
        let patch = json!({ "destination": { "payload": after } });
        server.admin().patch(&subscriber.path, &patch).expect(200);
        server.stop();
        server.restart(&Setup::usual());
        gate.open();
        let retry = format!("/v1/deliveries/{}/retry", page["items"][0]["id"].as_str().expect("an id"));
        server.admin().post(&retry, &Value::Null).expect(202);
        let second = hook.next();
        assert_eq!((second.text(), second.webhook_id()), (first.text(), first.webhook_id()));
        assert_eq!(second.header("content-type"), first.header("content-type"));
        second.verify(&subscriber.secret);
        server.admin().publish(&event(&format!("later-{before}")));
        let members = |body: &Value| body.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_ne!(members(&hook.next().json()), members(&first.json()), "new deliveries have the new form");
        server.admin().delete(&subscriber.path).expect(200);
    }
}
