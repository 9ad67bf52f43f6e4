//! Windows, seen and steered: listed, flushed, cancelled, triggered; in traces, deliveries and on the command line.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Arrival, Receiver};
use crate::server::{Server, Subscriber};
use crate::shell::Shell;

const NOBODY: &str = "sub_00000000000000000000000000";

fn event(id: &str, plan: u32) -> Value {
    json!({ "id": id, "source": "s", "type": "t", "data": { "plan": plan } })
}

/// A subscriber whose windows nobody will see close by themselves.
fn by_plan(server: &Server, hook: &Receiver) -> Subscriber {
    let fold = json!({ "mode": "window", "window": "1h", "by": ["type", "data.plan"] });
    server.subscribe(hook, &json!({ "fold": fold }))
}

fn windows(client: &Client) -> Vec<Value> {
    client.get("/v1/windows").expect(200)["items"].as_array().expect("a list").clone()
}

fn ids(arrival: &Arrival) -> Vec<Value> {
    arrival.json()["events"].as_array().expect("a list").iter().map(|event| event["id"].clone()).collect()
}

fn flush(client: &Client, body: &Value) -> Value {
    client.post("/v1/windows/flush", body).expect(200)["windows"].clone()
}

#[test]
fn what_is_held_is_listed_and_flushed_by_subscriber_and_key() {
    let server = Server::start();
    let (client, hook, other) = (server.admin(), Receiver::start(), Receiver::start());
    let subscriber = by_plan(&server, &hook);
    let second = server.subscribe(&other, &json!({ "fold": { "mode": "batch", "every": "1h" } }));
    client.publish(&json!([event("a", 1), event("b", 2), event("c", 1)]));

    let all = windows(&client);
    assert_eq!(all.len(), 3);
    let names: Vec<&String> = all[0].as_object().expect("an object").keys().collect();
    assert_eq!(names, ["bytes", "count", "due_at", "key", "mode", "opened_at", "reason", "subscriber"]);
    assert_eq!((&all[0]["key"], &all[0]["count"]), (&json!({ "type": "t", "data.plan": 1 }), &2.into()));
    assert!(all[0]["bytes"].as_u64().is_some_and(|bytes| bytes > 100));
    assert!(all[0]["due_at"].as_str() > all[0]["opened_at"].as_str());
    let own = client.get(&format!("/v1/windows?subscriber={}&limit=1", subscriber.id)).expect(200);
    let cursor = own["next"].as_str().expect("more");
    let next = client.get(&format!("/v1/windows?subscriber={}&limit=1&cursor={cursor}", subscriber.id));
    assert_eq!(
        (&next.expect(200)["items"][0]["key"]["data.plan"], &next.expect(200)["next"]),
        (&2.into(), &Value::Null)
    );

    let key = json!({ "data.plan": 2, "type": "t" });
    assert_eq!(flush(&client, &json!({ "subscriber": subscriber.id, "key": key })), 1);
    assert_eq!(ids(&hook.next()), ["b"]);
    assert_eq!(flush(&client, &json!({ "subscriber": subscriber.id, "key": key })), 0, "it is gone");
    assert_eq!(flush(&client, &json!({ "key": { "type": "t", "data.plan": 1 } })), 1, "whosever it is");
    let flushed = hook.next();
    assert_eq!(
        (ids(&flushed), &flushed.json()["fold"]["closed_by"]),
        (vec!["a".into(), "c".into()], &"flush".into())
    );
    assert_eq!(flush(&client, &json!({ "subscriber": second.id })), 1);
    assert_eq!(ids(&other.next()), ["a", "b", "c"]);

    // A window keeps the terms it opened with, its key included.
    client.publish(&event("d", 7));
    client.patch(&subscriber.path, &json!({ "fold": { "by": ["type"], "window": "2h" } })).expect(200);
    let key = json!({ "subscriber": subscriber.id, "key": { "type": "t", "data.plan": 7 } });
    assert_eq!(flush(&client, &key), 1);
    assert_eq!(ids(&hook.next()), ["d"]);
    client.post("/v1/windows/flush", &key).problem(422, "window_key_invalid");
}

#[test]
fn a_number_is_the_same_key_however_it_is_written_and_named() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "mode": "window", "window": "1h", "by": ["data.k"] });
    server.subscribe(&hook, &json!({ "fold": fold, "order": { "by": "data.k" } }));
    let json_body = [("content-type", "application/json")];
    let long = "123456789012345678901234567890";
    let texts = ["675621566002.701", "675621566002.70100", "1e400", "10e399", r#""\ud800""#, long];
    for (n, text) in texts.into_iter().chain([r#""number:123456789012345678901234567890""#]).enumerate() {
        let event = format!(r#"{{"id":"e{n}","source":"s","type":"t","data":{{"k":{text}}}}}"#);
        client.send("POST", "/v1/events", &json_body, event.as_bytes()).expect(202);
    }
    let shown: Vec<(Value, Value)> = windows(&client)
        .into_iter()
        .map(|mut window| (window["key"]["data.k"].take(), window["count"].take()))
        .collect();
    let number = format!("number:{long}");
    let expected = [
        (json!(675_621_566_002.701), json!(2)),
        (json!("number:1e+400"), json!(2)),
        (json!(r"text:\ud800"), json!(1)),
        (json!(number), json!(1)),
        (json!(format!(r"\{number}")), json!(1)),
    ];
    assert_eq!(shown, expected);
    for key in ["6756215660027010e-4", r#""number:1e+400""#, r#""text:\\ud800""#, long] {
        let body = format!(r#"{{"key":{{"data.k":{key}}}}}"#);
        let flushed = client.send("POST", "/v1/windows/flush", &json_body, body.as_bytes()).expect(200);
        assert_eq!(flushed["windows"], 1, "{key}");
    }
    assert_eq!(windows(&client).iter().filter(|window| window["closed_at"].is_null()).count(), 1);
}

#[test]
fn what_is_cancelled_is_never_sent_and_nobody_cancels_everything_by_mistake() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let subscriber = by_plan(&server, &hook);
    client.publish(&json!([event("a", 1), event("b", 2), event("c", 3)]));
    for body in
        [Value::Null, json!({}), json!({ "all": false }), json!({ "key": { "type": "t", "data.plan": 1 } })]
    {
        let problem = client.post("/v1/windows/cancel", &body).problem(422, "selector_invalid");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("\"all\": true")), "{problem}");
    }
    let both = json!({ "all": true, "subscriber": subscriber.id });
    assert_eq!(client.post("/v1/windows/cancel", &both).problem(422, "selector_invalid")["field"], "all");
    assert_eq!(windows(&client).len(), 3);

    let one = json!({ "subscriber": subscriber.id, "key": { "type": "t", "data.plan": 1 } });
    assert_eq!(
        client.post("/v1/windows/cancel", &one).expect(200),
        json!({ "windows": 1, "complete": true })
    );
    let trace = client.get("/v1/events/a/trace").expect(200)["subscribers"][0].clone();
    assert_eq!(
        (&trace["outcome"], &trace["window"]["closed_by"]),
        (&"cancelled".into(), &"cancelled".into())
    );
    assert_eq!(trace["reason"], "its window was cancelled by request");
    client.post("/v1/events/a/replay", &Value::Null).expect(202);
    hook.next();
    assert_eq!(client.post("/v1/windows/cancel", &json!({ "all": true })).expect(200)["windows"], 2);
    assert_eq!((windows(&client).len(), flush(&client, &Value::Null)), (0, 0.into()));
    assert_eq!(hook.rest().len(), 0);
}

#[test]
fn a_closed_window_that_waits_for_its_gate_can_be_cancelled() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    client.call("PUT", "/v1/gates/slow", &json!({ "rate": "1/h", "burst": 1 })).expect(201);
    let fold = json!({ "mode": "window", "window": "1h", "by": ["data.plan"] });
    let subscriber =
        server.subscribe(&hook, &json!({ "fold": fold, "order": { "by": "data.plan" }, "gate": "slow" }));
    client.publish(&event("a", 1));
    assert_eq!(flush(&client, &Value::Null), 1);
    assert_eq!(ids(&hook.next()), ["a"]);
    client.publish(&event("b", 2));
    assert_eq!(flush(&client, &Value::Null), 1);
    let listed = client.until("/v1/windows", |page| {
        page["items"][0]["reason"].as_str().is_some_and(|reason| reason.contains("gate"))
    });
    let delivery = listed["items"][0]["delivery"].as_str().expect("it is one already").to_owned();
    assert_eq!(flush(&client, &Value::Null), 0, "it is closed already");
    let whose = json!({ "subscriber": subscriber.id });
    assert_eq!(
        client.post("/v1/windows/cancel", &whose).expect(200),
        json!({ "windows": 1, "complete": true })
    );
    assert!(windows(&client).is_empty());
    let shown = client.get(&format!("/v1/deliveries/{delivery}")).expect(200);
    assert_eq!(
        (&shown["status"], &shown["reason"], &shown["attempts"]),
        (&"cancelled".into(), &"its window was cancelled by request".into(), &0.into())
    );
    let line = client.get("/v1/events/b/trace").expect(200)["subscribers"][0].clone();
    assert_eq!((&line["outcome"], &line["window"]["closed_by"]), (&"cancelled".into(), &"cancelled".into()));
    let retry = client.post(&format!("/v1/deliveries/{delivery}/retry"), &Value::Null);
    retry.problem(409, "delivery_cancelled");
    client.patch(&subscriber.path, &json!({ "gate": null })).expect(200);
    client.publish(&event("c", 2));
    assert_eq!(flush(&client, &Value::Null), 1);
    assert_eq!(ids(&hook.next()), ["c"], "what was cancelled is never sent, and its lane goes on");
}

#[test]
fn what_is_wrong_with_a_wish_is_named() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let subscriber = by_plan(&server, &hook);
    let plain = server.subscribe(&hook, &Value::Null);
    for verb in ["flush", "cancel"] {
        let path = format!("/v1/windows/{verb}");
        let twice = format!(r#"{{"subscriber":"{}","key":{{"type":"a","type":"b"}}}}"#, subscriber.id);
        let answer = client.send("POST", &path, &[("content-type", "application/json")], twice.as_bytes());
        assert_eq!(answer.problem(422, "field_repeated")["field"], "key.type");
        let key = |id: &str, key: Value| json!({ "subscriber": id, "key": key });
        for (body, status, code, field, remedy) in [
            (json!({ "subscriber": NOBODY }), 404, "not_found", Value::Null, "no such subscriber"),
            (json!({ "subscriber": 1 }), 422, "field_type", "subscriber".into(), "subscriber"),
            (json!({ "subscribers": "x" }), 422, "field_unknown", "subscribers".into(), "subscribers"),
            (json!({ "subscriber": subscriber.id, "key": [] }), 422, "field_type", "key".into(), "key"),
            // What is left out widens a wish; what is null may have been meant to narrow it.
            (key(&subscriber.id, Value::Null), 422, "selector_invalid", "key".into(), "leave `key` out"),
            (json!({ "subscriber": null }), 422, "selector_invalid", "subscriber".into(), "whose windows"),
            (
                json!({ "subscriber": null, "all": true }),
                422,
                "selector_invalid",
                "subscriber".into(),
                "null",
            ),
            (
                key(&subscriber.id, json!({ "type": "t", "data.pln": 1 })),
                422,
                "window_key_invalid",
                "key".into(),
                "remove `data.pln`",
            ),
            (
                key(&subscriber.id, json!({ "type": "t" })),
                422,
                "window_key_invalid",
                "key".into(),
                "add `data.plan`",
            ),
            (key(&plain.id, json!({})), 422, "window_key_invalid", "key".into(), "does not fold"),
        ] {
            let problem = client.post(&path, &body).problem(status, code);
            assert_eq!(problem["field"], field, "{problem}");
            assert!(problem["detail"].as_str().is_some_and(|text| text.contains(remedy)), "{problem}");
        }
        assert_eq!(
            client.post(&path, &key(&subscriber.id, json!({ "type": "t", "data.plan": null }))).expect(200)["windows"],
            0
        );
    }
    client.get(&format!("/v1/windows?subscriber={NOBODY}")).problem(404, "not_found");
    client.get("/v1/windows?key=x").problem(422, "parameter_unknown");
    client.publish(&event("a", 1));
    for path in ["/v1/windows/flush", "/v1/windows/cancel", "/v1/trigger"] {
        let target = format!("{path}?subscriber={}", subscriber.id);
        let problem = client.post(&target, &Value::Null).problem(422, "parameter_unknown");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("in the body")), "{problem}");
    }
    let less = json!({ "subscriber": subscriber.id });
    assert_eq!(client.post("/v1/trigger", &less).problem(422, "field_unknown")["field"], "subscriber");
    assert_eq!(windows(&client).len(), 1, "nothing was done");
}

#[test]
fn a_trace_tells_the_window_and_a_delivery_tells_its_fold() {
    let server = Server::start();
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "mode": "quiet", "quiet": "1h", "max_wait": "2h" });
    server.subscribe(&hook, &json!({ "fold": fold }));
    let sent: Vec<String> = (0..150).map(|n| format!("e{n}")).collect();
    client.publish(&event(&sent[0], 0));
    let line = |id: &str| client.get(&format!("/v1/events/{id}/trace")).expect(200)["subscribers"][0].clone();
    let pending = line("e0");
    assert_eq!((&pending["outcome"], &pending["delivery"]), (&"pending".into(), &Value::Null));
    assert_eq!(pending["window"]["key"], json!({ "type": "t" }));
    assert_eq!(pending["window"]["closed_at"], Value::Null);
    client.publish(&sent[1..].iter().map(|id| event(id, 0)).collect());
    let listed = &windows(&client)[0];
    assert_eq!(listed["count"], 150);
    assert_eq!(
        line("e0")["window"]["due_at"],
        listed["due_at"],
        "each event moves it, for the first one too"
    );

    assert_eq!(
        client.post("/v1/trigger", &Value::Null).expect(202),
        json!({ "windows": 1, "triggered": 0, "complete": true })
    );
    let arrival = hook.next();
    assert_eq!(ids(&arrival), sent);
    client.until("/v1/deliveries?status=delivered", |page| {
        page["items"].as_array().is_some_and(|items| items.len() == 1)
    });
    for id in ["e0", "e77", "e149"] {
        let line = line(id);
        assert_eq!(
            (&line["outcome"], &line["delivery"]),
            (&"delivered".into(), &arrival.webhook_id().into())
        );
        assert_eq!(line["window"]["closed_by"], "trigger", "{line}");
        assert!(line["window"]["closed_at"].is_string());
    }
    let page = client.get("/v1/deliveries").expect(200);
    let item = &page["items"][0];
    assert_eq!(
        (&item["count"], &item["events"]),
        (&150.into(), &json!(sent[50..])),
        "of many the last hundred"
    );
    let whole = client.get(&format!("/v1/deliveries/{}", arrival.webhook_id())).expect(200);
    assert_eq!((&whole["count"], &whole["events"]), (&150.into(), &json!(sent)));
    assert_eq!(whole["fold"], arrival.json()["fold"], "as it was sent");
}

#[test]
fn windows_are_steered_from_the_command_line() {
    let server = Server::start();
    let (client, hook, shell) = (server.admin(), Receiver::start(), Shell::new(&server));
    let empty = shell.types("tidegate windows").text(0).to_owned();
    assert!(empty.starts_with("No window is open. Fold events: tidegate subscribers create"), "{empty}");
    assert_eq!(
        shell.types("tidegate windows flush").text(0),
        "No such window is open. See what is: tidegate windows\n"
    );

    let line = format!(
        "tidegate subscribers create --name digest --to {} --fold window:1h,max_events=50 --fold-by type,data.plan --json",
        hook.url()
    );
    let made = shell.types(&line).json(0);
    assert_eq!(made["fold"]["max_events"], 50);
    let id = made["id"].as_str().expect("an id");
    let shown = shell.types(&format!("tidegate subscribers show {id}")).text(0).to_owned();
    for line in
        ["fold          window", "window        1h", "fold by       type,data.plan", "max events    50"]
    {
        assert!(shown.lines().any(|shown| shown.trim_end() == line), "no `{line}` in\n{shown}");
    }
    client.call("PUT", "/v1/gates/notion", &json!({ "rate": "3/s" })).expect(201);
    let line = format!(
        "tidegate subscribers create --name calm --to {} --types calm --fold quiet:1s,adaptive --gate notion --json",
        hook.url()
    );
    let made = shell.types(&line).json(0);
    assert_eq!((&made["gate"], &made["fold"]["adaptive"]), (&"notion".into(), &true.into()));
    let shown = shell.types(&format!("tidegate subscribers show {}", made["id"].as_str().expect("an id")));
    for line in ["gate          notion", "adaptive      true"] {
        assert!(shown.text(0).lines().any(|shown| shown.trim_end() == line), "no `{line}` in\n{shown:?}");
    }
    let wrong = shell.types("tidegate subscribers create --name n --to https://example.com --fold 60s");
    assert!(wrong.complaint(2).contains("window:60s"), "{wrong:?}");

    client.publish(&json!([event("a", 1), event("b", 2), event("c", 3), event("d", 4)]));
    let table = shell.types("tidegate windows").text(0).to_owned();
    assert!(table.starts_with("SUBSCRIBER") && table.contains(r#"{"data.plan":1,"type":"t"}"#), "{table}");
    assert!(table.contains("  59m ") || table.contains("  1h 0m "), "{table}");
    assert_eq!(shell.types("tidegate windows --json").json(0)["items"].as_array().map(Vec::len), Some(4));
    assert_eq!(
        shell
            .types(&format!("tidegate windows --subscriber {id} --limit 1"))
            .text(0)
            .lines()
            .filter(|line| line.starts_with(id))
            .count(),
        1
    );
    let trace = shell.types("tidegate trace a").text(0).to_owned();
    assert!(trace.contains("WINDOW") && trace.contains("open until 20"), "{trace}");

    let flush = format!("tidegate windows flush --subscriber {id} --fold-key type=t --fold-key data.plan=1");
    assert_eq!(shell.types(&flush).text(0), "✓ 1 window closed\n");
    assert_eq!(ids(&hook.next()), ["a"]);
    let cancel = format!("tidegate windows cancel --subscriber {id}");
    assert_eq!(
        shell.types(&format!("{cancel} --fold-key {{\"type\":\"t\",\"data.plan\":2}}")).text(0),
        "✓ 1 window cancelled\n"
    );
    shell.types("tidegate windows cancel").complaint(2);
    assert_eq!(shell.types("tidegate trigger").text(0), "✓ 2 windows closed and sent\n");
    assert_eq!(hook.take(2).iter().flat_map(ids).count(), 2);
    assert_eq!(
        shell.types("tidegate windows cancel --all --json").json(0),
        json!({ "windows": 0, "complete": true })
    );
    let deliveries = shell.types("tidegate deliveries list").text(0).to_owned();
    assert!(deliveries.contains("COUNT"), "{deliveries}");
    shell.with_key("tgk_wrong").types("tidegate windows").complaint(4);
}
