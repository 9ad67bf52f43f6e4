//! A project in files: applied, shown, applied again; and the commands that look after an installation.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::server::{ADMIN_KEY, Server};

const FILES: &str = "\
kind: subscriber
id: billing
name: Billing
match: {types: ['order.*']}
destination: {url: 'https://example.com/${HOOK}'}
limits: {rate: 10/s}
---
kind: subscriber
name: Audit log
destination: {url: https://example.com/audit}
";

fn tidegate(server: &Server, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_clear().current_dir(server.folder.path());
    command.env("TIDEGATE_URL", format!("http://{}", server.address)).env("TIDEGATE_KEY", ADMIN_KEY);
    command.env("HOOK", "token-1");
    command.output().expect("the binary runs")
}

#[track_caller]
fn done(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[track_caller]
fn told(output: &Output) -> String {
    assert!(!output.status.success(), "it did not fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn counts(answer: &Value) -> [u64; 4] {
    ["created", "updated", "deleted", "unchanged"].map(|name| answer[name].as_u64().expect("a count"))
}

#[test]
fn applying_twice_changes_nothing_and_a_trial_changes_nothing_at_all() {
    let server = Server::start();
    fs::create_dir(server.folder.path().join("files")).unwrap();
    fs::write(server.folder.path().join("files/all.yaml"), FILES).unwrap();
    let apply = |more: &[&str]| done(&tidegate(&server, &[&["apply", "-f", "files"], more].concat()));
    let admin = server.admin();

    assert_eq!(counts(&apply(&["--dry-run"])), [2, 0, 0, 0]);
    assert_eq!(admin.get("/v1/subscribers").expect(200)["items"], json!([]));

    let first = apply(&[]);
    assert_eq!(counts(&first), [2, 0, 0, 0]);
    assert!(first["results"][0]["secret"].as_str().expect("its secret").starts_with("whsec_"));
    assert_eq!(counts(&apply(&[])), [0, 0, 0, 2]);
    admin.get("/v1/subscribers/audit-log").expect(200);

    let changed = FILES.replace("10/s", "20/s");
    fs::write(server.folder.path().join("files/all.yaml"), changed).unwrap();
    let second = apply(&["--dry-run"]);
    assert_eq!(counts(&second), [0, 1, 0, 1]);
    assert_eq!(second["results"][0]["fields"], json!([{"field":"limits.rate","from":"10/s","to":"20/s"}]));
    assert_eq!(admin.get("/v1/subscribers/billing").expect(200)["limits"]["rate"], "10/s");
    assert_eq!(counts(&apply(&[])), [0, 1, 0, 1]);
    assert_eq!(admin.get("/v1/subscribers/billing").expect(200)["limits"]["rate"], "20/s");
}

#[test]
fn a_mistake_in_one_document_leaves_all_of_them_unapplied() {
    let server = Server::start();
    let path = server.folder.path().join("all.yaml");
    let wrong = format!("{FILES}---\nkind: subscriber\nid: bad\ndestination: {{url: 'http://10.0.0.1/'}}\n");
    fs::write(&path, wrong).unwrap();
    let problem = told(&tidegate(&server, &["apply", "-f", "all.yaml"]));
    assert!(problem.contains("all.yaml:12") && problem.contains("destination.url"), "{problem}");
    assert_eq!(server.admin().get("/v1/subscribers").expect(200)["items"], json!([]));

    for (text, part) in [
        ("kind: subscriber\nid: a\ndestination: {url: 'https://e.com/${NOPE}'}\n", "NOPE is not set"),
        ("kind: gizmo\n", "no kind of document"),
        ("kind: subscriber\nid: a\nfoo: 1\ndestination: {url: 'https://e.com/'}\n", "foo"),
    ] {
        fs::write(&path, text).unwrap();
        let problem = told(&tidegate(&server, &["apply", "-f", "all.yaml"]));
        assert!(problem.contains(part), "{problem}");
    }
}

#[test]
fn a_mistake_in_one_type_leaves_all_of_them_undeclared() {
    let server = Server::start();
    let path = server.folder.path().join("all.yaml");
    let good = "kind: type\nservice: shop\ntype: good\ncounters: {all: {}}\n";
    for (wrong, part) in [
        ("kind: type\nservice: shop\ntype: bad\ncouters: {all: {}}\n", "couters"),
        ("kind: type\nservice: shop\ntype: bad\ncounters: {all: {dimensions: [nothing]}}\n", "dimensions"),
        ("kind: type\nservice: shop\ntype: bad\nschema: {type: nonsense}\n", "schema"),
        ("kind: gate\nname: bad\nrate: much\n", "rate"),
    ] {
        fs::write(&path, format!("{good}---\n{wrong}")).unwrap();
        for more in [&["--dry-run"][..], &[]] {
            let problem = told(&tidegate(&server, &[&["apply", "-f", "all.yaml"], more].concat()));
            assert!(problem.contains("all.yaml:6") && problem.contains(part), "{problem}");
            assert_eq!(server.admin().get("/v1/catalog/services").expect(200)["items"], json!([]));
        }
    }
    fs::write(&path, good).unwrap();
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "all.yaml"]))), [1, 0, 0, 0]);
    // What is written in another way and means the same is no change.
    fs::write(&path, format!("{good}schema: null\n")).unwrap();
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "all.yaml"]))), [0, 0, 0, 1]);
    fs::write(&path, good.replace("{}", "{dimensions: [data.country]}")).unwrap();
    let changed = done(&tidegate(&server, &["apply", "-f", "all.yaml", "--dry-run"]));
    let field = json!({"field": "counters.all.dimensions", "from": null, "to": ["data.country"]});
    assert_eq!((counts(&changed), &changed["results"][0]["fields"]), ([0, 1, 0, 0], &json!([field])));
}

#[test]
fn what_fails_while_it_is_applied_is_told_with_its_place() {
    let server = Server::start();
    let path = server.folder.path().join("all.yaml");
    let files = "kind: subscriber\nid: a\nactive: false\ndestination: {url: https://example.com/}\n";
    fs::write(&path, files).unwrap();
    done(&tidegate(&server, &["apply", "-f", "all.yaml"]));
    server.admin().post("/v1/events", &json!({"source": "shop", "type": "t", "data": {}})).expect(202);
    // No dry run looks for unfinished deliveries, which an order does not survive.
    fs::write(&path, format!("kind: gate\nname: g\nrate: 1/s\n---\n{files}order: {{by: subject}}\n"))
        .unwrap();
    let problem = told(&tidegate(&server, &["apply", "-f", "all.yaml"]));
    assert!(problem.contains("all.yaml:5") && problem.contains("1 of 2 changes were made"), "{problem}");
    server.admin().get("/v1/gates/g").expect(200);
}

#[test]
fn pruning_deletes_what_the_files_do_not_name_and_its_id_can_come_back() {
    let server = Server::start();
    let path = server.folder.path().join("all.yaml");
    fs::write(&path, FILES).unwrap();
    done(&tidegate(&server, &["apply", "-f", "all.yaml"]));
    let first = FILES.split("---").next().unwrap();
    fs::write(&path, first).unwrap();
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "all.yaml"]))), [0, 0, 0, 1]);
    let pruned = done(&tidegate(&server, &["apply", "-f", "all.yaml", "--prune"]));
    assert_eq!(counts(&pruned), [0, 0, 1, 1]);
    server.admin().get("/v1/subscribers/audit-log").problem(404, "not_found");
    fs::write(&path, FILES).unwrap();
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "all.yaml"]))), [1, 0, 0, 1]);
}

#[test]
fn what_was_exported_is_what_is_there() {
    let server = Server::start();
    let types = "---\nkind: type\nservice: shop\ntype: order.paid\nschema: {type: object, required: [total]}\n\
        index: [data.country]\ncounters: {all: {}, sold: {dimensions: [data.country], sum: data.total, retention: 7d}}\n\
        histograms: {total: {value: data.total, accuracy: 0.02}}\nobserve: {histograms: false}\nretention: 30d\n\
        states: [{object: order, id: data.id, attributes: [data.status], additional: [NEW, '*']}]\n";
    let breaker = FILES.replace(
        "limits:",
        "breaker: {failures: 3, probe: 5s}\nfold: {mode: quiet, quiet: 5s, by: [type, data.plan], leading: true, bypass: data.n > 3}\nlimits:",
    );
    fs::write(server.folder.path().join("all.yaml"), format!("{breaker}{types}")).unwrap();
    done(&tidegate(&server, &["apply", "-f", "all.yaml"]));
    let exported = tidegate(&server, &["export", "--out", "out"]);
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let again = done(&tidegate(&server, &["apply", "-f", "out", "--prune"]));
    assert_eq!(counts(&again), [0, 0, 0, 3], "{again}");
    // Another mode is another fold: nothing of the old one is in the way.
    let folded = "kind: subscriber\nid: billing\nfold: {mode: batch, every: 1m}\ndestination: {url: https://example.com/}\n";
    fs::write(server.folder.path().join("fold.yaml"), folded).unwrap();
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "fold.yaml"]))), [0, 1, 0, 0]);
    assert_eq!(counts(&done(&tidegate(&server, &["apply", "-f", "fold.yaml"]))), [0, 0, 0, 1]);
    let other = server.admin().with("x-tidegate-project", "copy");
    server.admin().post("/v1/projects", &json!({ "id": "copy" })).expect(201);
    let copied = tidegate(&server, &["apply", "-f", "out/type-shop-order.paid.yaml", "--project", "copy"]);
    assert_eq!(counts(&done(&copied)), [1, 0, 0, 0]);
    let kept = other.get("/v1/catalog/services/shop/types/order.paid").expect(200);
    assert_eq!(kept["schema"]["required"], json!(["total"]));
}

#[test]
fn a_declared_subscriber_keeps_its_secret_and_its_pause() {
    let server = Server::start();
    let admin = server.admin();
    let body = json!({"destination": {"url": "https://example.com/"}});
    let made = admin.call("PUT", "/v1/subscribers/a", &body).expect(201);
    let mut with_secret = body.clone();
    with_secret["secret"] = made["secret"].clone();
    assert_eq!(admin.call("PUT", "/v1/subscribers/a", &with_secret).expect(200)["change"], "none");
    with_secret["secret"] = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz".into();
    admin.call("PUT", "/v1/subscribers/a", &with_secret).problem(422, "field_fixed");

    admin.post("/v1/subscribers/a/pause", &Value::Null).expect(200);
    assert_eq!(admin.call("PUT", "/v1/subscribers/a", &body).expect(200)["active"], false);
    let awake = json!({"destination": {"url": "https://example.com/"}, "active": true});
    assert_eq!(admin.call("PUT", "/v1/subscribers/a", &awake).expect(200)["active"], true);
    admin.call("PUT", "/v1/subscribers/a%20b", &body).problem(422, "id_invalid");
}

#[test]
fn the_same_id_in_two_projects_is_two_subscribers() {
    let server = Server::start();
    let admin = server.admin();
    admin.post("/v1/projects", &json!({ "id": "other" })).expect(201);
    let elsewhere = admin.with("x-tidegate-project", "other");
    let body = |url: &str| json!({"destination": {"url": url}, "name": url});
    admin.call("PUT", "/v1/subscribers/a", &body("https://one.example.com/")).expect(201);
    elsewhere.call("PUT", "/v1/subscribers/a", &body("https://two.example.com/")).expect(201);
    elsewhere.delete("/v1/subscribers/a").expect(200);
    assert_eq!(admin.get("/v1/subscribers/a").expect(200)["name"], "https://one.example.com/");
}

#[test]
fn the_doctor_names_what_is_wrong_and_what_to_do() {
    let mut server = Server::start();
    let admin = server.admin();
    let body = json!({"destination": {"url": "https://example.com/"}, "active": false});
    admin.call("PUT", "/v1/subscribers/quiet", &body).expect(201);
    let healthy = done(&tidegate(&server, &["doctor", "--data-dir", "data"]));
    assert_eq!(healthy["healthy"], true, "{healthy}");
    let checks = healthy["checks"].as_array().expect("checks");
    let quiet = checks.iter().find(|check| check["check"] == "subscriber").expect("the paused one");
    assert!(quiet["remedy"].as_str().expect("a remedy").contains("resume quiet"));

    let key = server.folder.path().join("data/master.key");
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let sick = tidegate(&server, &["doctor", "--data-dir", "data"]);
    assert_eq!(sick.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&sick.stdout).contains("chmod 600"));
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();

    server.stop();
    let gone = tidegate(&server, &["doctor", "--data-dir", "data"]);
    assert_eq!(gone.status.code(), Some(1));
}

#[test]
fn a_configuration_is_checked_without_starting_anything() {
    let server = Server::start();
    let path = server.folder.path().join("tidegate.yaml");
    fs::write(&path, "listen: 127.0.0.1:1\n").unwrap();
    assert_eq!(done(&tidegate(&server, &["config", "check", "tidegate.yaml"]))["valid"], true);
    for (text, place) in
        [("limits:\n  connections: 0\n", "line 2"), ("listen: 127.0.0.1:1\nlisten2: 3\n", "2")]
    {
        fs::write(&path, text).unwrap();
        let problem = told(&tidegate(&server, &["config", "check", "tidegate.yaml"]));
        assert!(problem.contains("tidegate.yaml") && problem.contains(place), "{problem}");
    }
    for args in [&["completions", "bash"][..], &["man"], &["config", "reference"]] {
        let output = tidegate(&server, args);
        assert!(output.status.success() && output.stdout.len() > 1_000, "{args:?}");
    }
}
