//! Gates: made, changed, listed and deleted; named by subscribers, in requests and in files.

use std::fs;

use serde_json::{Value, json};

use crate::server::Server;
use crate::shell::Shell;

const NOTION: &str = "/v1/gates/notion";

#[test]
fn gates_are_made_changed_listed_and_deleted() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin.call("PUT", NOTION, &json!({ "rate": "3/s" })).expect(201);
    assert_eq!((&made["name"], &made["rate"], &made["burst"]), (&"notion".into(), &"3/s".into(), &3.into()));
    let again = admin.call("PUT", NOTION, &json!({ "rate": "3/s", "burst": 3 })).expect(200);
    assert_eq!(again["updated_at"], made["updated_at"], "saying the same changes nothing");
    assert_eq!(admin.call("PUT", NOTION, &json!({ "rate": "60/m", "burst": 9 })).expect(200)["burst"], 9);
    assert_eq!(admin.get(NOTION).expect(200)["rate"], "60/m");
    for name in ["a", "b"] {
        admin.call("PUT", &format!("/v1/gates/{name}"), &json!({ "rate": "1/s" })).expect(201);
    }
    let first = admin.get("/v1/gates?limit=2").expect(200);
    let next = first["next"].as_str().expect("there is more");
    let rest = admin.get(&format!("/v1/gates?limit=2&cursor={next}")).expect(200);
    assert_eq!((&rest["items"][0]["name"], &rest["next"]), (&"notion".into(), &Value::Null));
    admin.delete(NOTION).expect(200);
    admin.delete(NOTION).problem(404, "not_found");
    admin.get(NOTION).problem(404, "not_found");
}

#[test]
fn what_makes_no_gate_is_refused_with_its_field() {
    let server = Server::start();
    let admin = server.admin();
    for (body, code, field) in [
        (json!({}), "field_missing", "rate"),
        (json!({ "rate": "0/s" }), "rate_invalid", "rate"),
        (json!({ "rate": "3/s", "burst": 0 }), "field_range", "burst"),
        (json!({ "rate": "100001/s" }), "field_range", "rate"),
        (json!({ "rate": "3/s", "brust": 1 }), "field_unknown", "brust"),
    ] {
        assert_eq!(admin.call("PUT", NOTION, &body).problem(422, code)["field"], field);
    }
    for name in ["a%20b", "%2E", "%2E%2E", ".."] {
        admin.call("PUT", &format!("/v1/gates/{name}"), &json!({ "rate": "3/s" })).problem(422, "id_invalid");
    }
    admin.call("PUT", NOTION, &json!({ "rate": "3/s" })).expect(201);
    for (body, field) in
        [(json!({ "until": "2026-01-31T09:30:00Z" }), "until"), (json!({ "for": "0s" }), "for")]
    {
        let problem = admin.post(&format!("{NOTION}/penalize"), &body).problem(422, "field_range");
        assert_eq!(problem["field"], field);
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("30s in `for`")), "{problem}");
    }
    assert_eq!(admin.get(NOTION).expect(200)["penalized_until"], Value::Null);
}

#[test]
fn a_subscriber_passes_a_gate_that_is_there_and_keeps_it() {
    let server = Server::start();
    let admin = server.admin();
    let passing = json!({ "destination": { "url": "https://example.com/" }, "gate": "notion" });
    let refused = admin.post("/v1/subscribers", &passing).problem(422, "gate_unknown");
    assert_eq!(refused["field"], "gate");
    admin.call("PUT", "/v1/subscribers/a", &passing).problem(422, "gate_unknown");
    admin.call("PUT", NOTION, &json!({ "rate": "3/s" })).expect(201);
    assert_eq!(admin.call("PUT", "/v1/subscribers/a", &passing).expect(201)["gate"], "notion");
    admin.patch("/v1/subscribers/a", &json!({ "gate": "other" })).problem(422, "gate_unknown");
    admin.patch("/v1/subscribers/a", &json!({ "gate": "a b" })).problem(422, "id_invalid");
    assert_eq!(admin.delete(NOTION).problem(409, "gate_in_use")["subscriber"], "a");
    assert_eq!(admin.patch("/v1/subscribers/a", &json!({ "gate": null })).expect(200).get("gate"), None);
    admin.delete(NOTION).expect(200);
}

#[test]
fn the_command_line_makes_shows_and_deletes_gates() {
    let server = Server::start();
    let shell = Shell::new(&server);
    assert!(shell.types("tidegate gates list --json").json(0)["items"].as_array().unwrap().is_empty());
    shell.types("tidegate gates set notion --rate 3/s --burst 5").text(0);
    let shown = shell.types("tidegate gates show notion --json").json(0);
    assert_eq!((&shown["rate"], &shown["burst"]), (&"3/s".into(), &5.into()));
    shell.types("tidegate gates delete notion").text(0);
    server.admin().get(NOTION).problem(404, "not_found");
}

const FILES: &str = "\
kind: subscriber
id: writer
destination: {url: https://example.com/}
gate: notion
---
kind: gate
name: notion
rate: 3/s
";

#[test]
fn files_bring_gates_before_the_subscribers_that_pass_them() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let path = server.folder.path().join("all.yaml");
    let file = path.to_str().expect("a path");
    let apply = |text: &str, more: &str| {
        fs::write(&path, text).unwrap();
        shell.types(&format!("tidegate apply -f {file} --json {more}"))
    };
    let counts = |answer: &Value| {
        ["created", "updated", "deleted", "unchanged"].map(|name| answer[name].as_u64().expect("a count"))
    };
    let unknown = apply(FILES.split("---").next().unwrap(), "").everything();
    assert!(unknown.contains("there is no gate"), "{unknown}");
    let wrong = apply(&FILES.replace("3/s", "0/s"), "").everything();
    assert!(wrong.contains("all.yaml:6") && wrong.contains("rate"), "{wrong}");
    assert_eq!(server.admin().get("/v1/subscribers").expect(200)["items"], json!([]), "nothing was applied");
    assert_eq!(counts(&apply(FILES, "").json(0)), [2, 0, 0, 0]);
    assert_eq!(counts(&apply(FILES, "").json(0)), [0, 0, 0, 2]);
    let faster = FILES.replace("3/s", "5/s");
    let trial = apply(&faster, "--dry-run").json(0);
    assert_eq!(trial["results"][0]["fields"][0], json!({"field":"rate","from":"3/s","to":"5/s"}));
    let out = server.folder.path().join("out");
    shell.types(&format!("tidegate export --out {}", out.display())).text(0);
    let exported = shell.types(&format!("tidegate apply -f {} --prune --json", out.display())).json(0);
    assert_eq!(counts(&exported), [0, 0, 0, 2], "{exported}");
    let other = "kind: subscriber\nid: other\ndestination: {url: https://example.com/}\n";
    assert_eq!(counts(&apply(other, "--prune").json(0)), [1, 0, 2, 0]);
}
