//! Commands that change something, as users type them: what a terminal shows, and what a script gets.

use serde_json::{Value, json};

use crate::receiver::{Arrival, Gate, Receiver, Reply};
use crate::server::Server;
use crate::shell::Shell;

const NOBODY: &str = "sub_00000000000000000000000000";

fn event(id: &str) -> Value {
    json!({ "id": id, "source": "s", "type": "t" })
}

#[track_caller]
fn shows(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|shown| shown.trim_end() == *line), "no line `{line}` in\n{text}");
    }
}

/// The one word of a text that begins like this.
#[track_caller]
fn word(text: &str, start: &str) -> String {
    let mut words = text.split_whitespace().filter(|word| word.starts_with(start));
    let found = words.next().unwrap_or_else(|| panic!("no {start} in\n{text}"));
    found.to_owned()
}

#[test]
fn a_secret_is_rotated_and_shown_once() {
    let server = Server::start();
    let (hook, shell) = (Receiver::start(), Shell::new(&server));
    let subscriber = server.subscribe(&hook, &Value::Null);
    let line = format!("tidegate subscribers rotate-secret {}", subscriber.id);

    let shown = shell.types(&format!("{line} --grace 1h")).text(0).to_owned();
    let start = format!("✓ rotated {}; the old secret signs too until 20", subscriber.id);
    assert!(shown.starts_with(&start), "{shown}");
    let second = word(&shown, "whsec_");
    server.admin().publish(&event("e1"));
    let arrival = hook.next();
    assert_eq!(arrival.header("webhook-signature").split(' ').count(), 2, "both sign");

    let shown = shell.types(&format!("{line} --grace 0s")).text(0).to_owned();
    shows(&shown, &[&format!("✓ rotated {}; the old secret is over", subscriber.id)]);
    let third = word(&shown, "whsec_");
    let answer = shell.types(&format!("{line} --grace 0s --json")).json(0);
    let fourth = answer["secret"].as_str().expect("a secret").to_owned();
    assert!(second != third && third != fourth && second != subscriber.secret);
    server.admin().publish(&event("e2"));
    hook.next().verify(&fourth);

    let shown = shell.types(&format!("{line} --algorithm ed25519")).text(0).to_owned();
    assert!(word(&shown, "whpk_").len() > 40 && !shown.contains("whsec_"), "{shown}");
    let missing = shell.types(&format!("tidegate subscribers rotate-secret {NOBODY}"));
    assert!(missing.complaint(3).contains("subscriber"), "{missing:?}");
}

#[test]
fn a_subscriber_is_tested_and_the_exit_code_says_whether_it_arrived() {
    let server = Server::start();
    let (hook, shell) = (Receiver::answering(&[200, 500, 200, 500]), Shell::new(&server));
    let subscriber = server.subscribe(&hook, &json!({ "active": false }));
    let line = format!("tidegate subscribers test {} --type order.paid --data {{\"n\":1}}", subscriber.id);

    let shown = shell.types(&line).text(0).to_owned();
    shows(&shown, &["verdict       delivered", "status        200"]);
    let arrival = hook.next();
    arrival.verify(&subscriber.secret);
    let sample = arrival.json();
    assert_eq!((&sample["type"], &sample["data"]), (&"order.paid".into(), &json!({ "n": 1 })));
    shows(shell.types(&line).text(1), &["status        500"]);
    assert_eq!(shell.types(&format!("{line} --json")).json(0)["verdict"], "delivered");
    assert_eq!(shell.runs(&line).json(1)["status"], 500, "without a terminal it is JSON");
    let wrong = shell.types(&format!("tidegate subscribers test {} --data {{", subscriber.id));
    assert!(wrong.complaint(2).contains("--data is not JSON"), "{wrong:?}");
}

#[test]
fn an_endpoint_is_asked_for_consent_again() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let hook = Receiver::scripted(|arrival: &Arrival| {
        Reply::status(200).body(arrival.json()["challenge"].as_str().unwrap_or_default())
    });
    let subscriber = server.subscribe(&hook, &json!({ "verification": "challenge" }));
    let until_verified = |count| {
        hook.take(count);
        server.admin().until(&subscriber.path, |shown| shown["verification_status"] == "verified");
    };
    until_verified(1);
    let line = format!("tidegate subscribers verify {}", subscriber.id);
    assert_eq!(shell.types(&line).text(0), format!("✓ asked {}\n", subscriber.id));
    until_verified(1);
    assert_eq!(shell.types(&format!("{line} --json")).json(0)["id"], subscriber.id.as_str());
    until_verified(1);
    shell.types(&format!("tidegate subscribers verify {NOBODY}")).complaint(3);
}

#[test]
fn the_master_key_is_changed_from_the_command_line() {
    let server = Server::start();
    let (hook, shell) = (Receiver::start(), Shell::new(&server));
    let subscriber = server.subscribe(&hook, &Value::Null);
    let id = || server.admin().get("/v1/master-key").expect(200)["id"].as_str().expect("an id").to_owned();
    let first = id();

    // What it is signed with, and where it goes.
    let shown = shell.types("tidegate keys rotate-master").text(0).to_owned();
    let second = id();
    assert_eq!(shown, format!("✓ sealed 2 secrets with the new master key {second}\n"));
    let answer = shell.types("tidegate keys rotate-master --json").json(0);
    let third = id();
    assert_eq!((&answer["id"], &answer["moved"]), (&third.as_str().into(), &2.into()), "{answer}");
    assert!(first != second && second != third);
    server.admin().publish(&event("e"));
    hook.next().verify(&subscriber.secret);
    let refused = Shell::new(&server).with_key("tgk_wrong").types("tidegate keys rotate-master");
    refused.complaint(4);
}

#[test]
fn one_event_and_a_past_are_sent_again() {
    let server = Server::start();
    let (hook, shell) = (Receiver::start(), Shell::new(&server));
    let subscriber = server.subscribe(&hook, &Value::Null);
    server.admin().publish(&json!([event("e1"), event("e2")]));
    hook.take(2);

    let shown = shell.types("tidegate replay --event e1").text(0).to_owned();
    let again = hook.next();
    assert_eq!(shown, format!("✓ e1 goes to {} again as {}\n", subscriber.id, again.webhook_id()));
    let answer = shell.types("tidegate replay --event e2 --json").json(0);
    assert_eq!(answer["deliveries"][0]["id"], hook.next().webhook_id());
    shell.types("tidegate replay --event nothing").complaint(3);

    let past = format!("tidegate replay --subscriber {} --from 1h", subscriber.id);
    let trial = shell.types(&format!("{past} --dry-run"));
    assert_eq!(trial.text(0), "2 would be sent again\n");
    assert_eq!(shell.types(&format!("{past} --dry-run --json")).json(0)["matched"], 2);
    assert!(hook.rest().is_empty(), "a trial sends nothing");
    let shown = shell.types(&past).text(0).to_owned();
    shows(&shown, &["status        done", "sent again    2", &format!("subscriber    {}", subscriber.id)]);
    assert_eq!(hook.take(2)[0].header("tidegate-replay"), "true");
    assert_eq!(shell.types(&format!("{past} --json")).json(0)["matched"], 2);
    hook.take(2);
    let wrong = shell.types("tidegate replay --from 1h");
    assert!(wrong.complaint(2).contains("--subscriber"), "{wrong:?}");
}

#[test]
fn dead_letters_are_sent_again_and_jobs_are_looked_at() {
    let server = Server::start();
    let shell = Shell::new(&server);
    assert_eq!(
        shell.types("tidegate jobs list").text(0),
        "No jobs. Begin one: tidegate replay --help\n",
        "what to do next"
    );
    let hook = Receiver::answering(&[500]);
    server.subscribe(&hook, &json!({ "retry": { "schedule": [] } }));
    server.admin().publish(&event("e"));
    let dead = hook.next();
    let letters = "/v1/deliveries?status=exhausted";
    server.admin().until(letters, |page| page["items"].as_array().map(Vec::len) == Some(1));

    let job = shell.types("tidegate replay --dead-letters --no-wait --json").json(0);
    let id = job["id"].as_str().expect("an id");
    assert_eq!(hook.next().webhook_id(), dead.webhook_id(), "under its own id");
    server.admin().until(&format!("/v1/jobs/{id}"), |job| job["status"] == "done");
    let shown = shell.types("tidegate jobs list").text(0).to_owned();
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ID", "KIND", "STATUS", "DONE", "TOTAL", "SENT", "AGAIN", "STARTED"]);
    assert_eq!((lines.len(), lines[1][0], lines[1][2]), (2, id, "done"), "{shown}");
    assert_eq!(shell.types("tidegate jobs list --json").json(0)["items"][0]["id"], id);
    let shown = shell.types(&format!("tidegate jobs get {id}")).text(0).to_owned();
    shows(&shown, &[&format!("id            {id}"), "status        done", "sent again    1"]);
    assert_eq!(shell.types(&format!("tidegate jobs get {id} --json")).json(0)["status"], "done");
    let shown = shell.types(&format!("tidegate jobs stop {id}")).everything();
    assert!(shown.contains(id) || shown.contains("ended"), "{shown}");
    shell.types("tidegate jobs get job_00000000000000000000000000").complaint(3);
}

#[test]
fn a_delivery_is_shown_with_its_attempts_and_why_it_ended() {
    let server = Server::start();
    let (hook, shell) = (Receiver::scripted(|_| Reply::status(503)), Shell::new(&server));
    server.subscribe(&hook, &json!({ "breaker": "off", "retry": { "schedule": ["1ms"] } }));
    server.admin().publish(&event("e1"));
    let dead = server.admin().until("/v1/deliveries?status=exhausted", |page| page["items"] != json!([]));
    let id = dead["items"][0]["id"].as_str().expect("an id");
    let shown = shell.types(&format!("tidegate deliveries show {id}")).text(0).to_owned();
    shows(&shown, &["status        exhausted", "reason        all 2 attempts failed"]);
    assert!(shown.contains("ended         20"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains(" 503 ")).count(), 2, "{shown}");
    let subscriber = dead["items"][0]["subscriber"].as_str().expect("an id");
    let shown = shell.types(&format!("tidegate subscribers show {subscriber}")).text(0).to_owned();
    assert!(
        shown.contains("active") && !shown.contains("sources"),
        "nothing is shown of what is empty: {shown}"
    );
}

#[test]
fn a_wrong_configuration_is_told_in_one_line_with_its_place() {
    let server = Server::start();
    let shell = Shell::new(&server);
    let file = std::env::temp_dir().join(format!("tidegate-wrong-{}.yaml", std::process::id()));
    for (text, complaint) in [
        (
            "listen: 127.0.0.1:1\nretenton:\n  events: 7d\n",
            "line 2 column 1: unknown field `retenton`, expected",
        ),
        ("retention:\n  events: 7x\n", "line 2 column 11: expected a duration such as"),
    ] {
        std::fs::write(&file, text).expect("a file");
        let line = format!("tidegate config check {}", file.display());
        let told = shell.types(&line).complaint(1).to_owned();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 2, "{told}");
        assert!(lines[0].contains(&format!("{}: {complaint}", file.display())), "{told}");
        assert!(lines[1].contains("fix: "), "{told}");
    }
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn what_waits_is_tried_at_the_trigger() {
    let (server, gate) = (Server::start(), Gate::default());
    let shell = Shell::new(&server);
    assert_eq!(
        shell.types("tidegate trigger").text(0),
        "No window is open, and nothing waits for a later try.\n"
    );
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |_| Reply::status(if gate.is_open() { 200 } else { 500 }))
    };
    let retry = json!({ "breaker": "off", "retry": { "schedule": ["1h", "1h"] } });
    server.subscribe(&hook, &retry);
    server.admin().publish(&json!([event("e1"), event("e2")]));
    hook.take(2);
    let retrying = |count| {
        let path = "/v1/deliveries?status=retrying";
        server.admin().until(path, |page| page["items"].as_array().map(Vec::len) == Some(count));
    };
    retrying(2);
    assert_eq!(shell.types("tidegate trigger").text(0), "✓ 2 deliveries are tried now\n");
    hook.take(2);
    retrying(2);
    gate.open();
    assert_eq!(
        shell.types("tidegate trigger --json").json(0),
        json!({ "windows": 0, "triggered": 2, "complete": true })
    );
    hook.take(2);
    retrying(0);
    shell.with_key("tgk_wrong").types("tidegate trigger").complaint(4);
}
