//! Metrics: what a scrape gets, that it is well-formed, and that it stays small whatever users do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::client::{Client, within_patience};
use crate::receiver::{Gate, Receiver, Reply};
use crate::server::{Server, Setup};

const OPENMETRICS: &str = "application/openmetrics-text";

fn scrape(server: &Server) -> String {
    let answer = Client::stranger(server.address).get("/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    answer.text()
}

/// The value of a sample, by its name and labels.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok())
}

/// Every rule of the text format that a scraper or its checker could trip over.
#[track_caller]
fn check(text: &str) {
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut current, mut samples) = (None, BTreeSet::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let (of, kind) =
                lines.next().and_then(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).expect(line);
            assert!(of == name && help.ends_with('.') && help.len() > 5, "{line}");
            assert!(families.insert(name, kind).is_none(), "{name} stands twice");
            current = Some((name, kind));
            continue;
        }
        let (name, kind) = current.unwrap_or_else(|| panic!("no family: {line}"));
        let (sample, number) = line.rsplit_once(' ').expect(line);
        assert!(number.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        assert!(samples.insert(sample), "{line} stands twice");
        let suffix = sample.split('{').next().and_then(|sample| sample.strip_prefix(name)).expect(line);
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.contains(&suffix), "{line} is not of {name}");
    }
    for (name, kind) in families {
        assert!(name.starts_with("tidegate_") || name.starts_with("process_"), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        let abbreviated =
            ["_ms", "_us", "_secs", "_kb", "_mb", "_kib"].iter().any(|unit| name.ends_with(unit));
        assert!(!abbreviated, "{name}: base units only");
    }
    promtool(text);
}

/// Prometheus's own checker, where it is installed.
#[track_caller]
fn promtool(text: &str) {
    let spawned = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else { return };
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn metrics_have_the_names_that_monitoring_expects() {
    let server = Server::start();
    let client = server.admin();
    let hook = Receiver::answering(&[500]);
    let body = json!({ "name": "my-label", "retry": { "schedule": ["1ms"] } });
    let subscriber = server.subscribe(&hook, &body);
    for _ in 0..2 {
        client.publish(&json!({ "id": "e", "source": "my-source", "type": "my-type" }));
    }
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 1);
    let text = scrape(&server);
    check(&text);
    for (sample, expected) in [
        ("tidegate_events_accepted_total", 1.0),
        ("tidegate_events_duplicate_total", 1.0),
        ("tidegate_deliveries_delivered_total", 1.0),
        ("tidegate_attempts_failed_total{outcome=\"status\"}", 1.0),
        ("tidegate_attempts_retried_total", 1.0),
        ("tidegate_deliveries_waiting", 0.0),
        ("tidegate_delivery_seconds_count", 1.0),
        ("tidegate_attempt_seconds_count", 2.0),
        ("tidegate_ingest_request_seconds_count", 2.0),
        ("tidegate_connections_open", 1.0),
        ("tidegate_streams_open", 0.0),
        (&format!("tidegate_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0),
        (&format!("tidegate_subscriber_waiting{{subscriber=\"{}\"}}", subscriber.id), 0.0),
    ] {
        let found = value(&text, sample);
        assert!(
            found.is_some_and(|value| (value - expected).abs() < 1e-9),
            "{sample} is {found:?} in\n{text}"
        );
    }
    for (sample, least) in [
        ("tidegate_commit_seconds_count", 3.0),
        ("tidegate_group_events_sum", 2.0),
        ("tidegate_store_size_bytes{part=\"database\"}", 4096.0),
        ("tidegate_store_size_bytes{part=\"wal\"}", 4096.0),
        ("process_resident_memory_bytes", 1e6),
        ("process_open_fds", 5.0),
        ("process_start_time_seconds", 1.6e9),
        (
            &format!(
                "tidegate_subscriber_last_success_timestamp_seconds{{subscriber=\"{}\"}}",
                subscriber.id
            ),
            1.6e9,
        ),
    ] {
        let found = value(&text, sample);
        assert!(found.is_some_and(|value| value >= least), "{sample} is {found:?} in\n{text}");
    }
    assert!(!text.contains("my-"), "no user's text is a label");
}

#[test]
fn folds_are_counted_and_those_who_debug_can_follow_a_lane() {
    let variables = vec![("TIDEGATE_LOG", "debug".to_owned())];
    let server = Server::start_with(&Setup { variables, ..Setup::usual() });
    let client = server.admin();
    let gate = Gate::default();
    let hook = {
        let gate = gate.clone();
        Receiver::scripted(move |arrival| {
            if arrival.before == 0 {
                gate.wait();
            }
            Reply::status(if arrival.before == 1 { 500 } else { 200 })
        })
    };
    let fold = json!({ "mode": "quiet", "quiet": "20ms", "by": ["data.user"] });
    let retry = json!({ "schedule": ["1ms"] });
    let subscriber =
        server.subscribe(&hook, &json!({ "fold": fold, "order": { "by": "data.user" }, "retry": retry }));
    let held = server.subscribe(&hook, &json!({ "fold": { "mode": "window", "window": "1h" } }));
    let event = |id: &str| json!({ "id": id, "source": "s", "type": "t", "data": { "user": "u1", "note": "hush-hush" } });
    client.publish(&event("e1"));
    hook.next();
    client.publish(&json!([event("e2"), event("e3")]));
    client.publish(&json!({ "id": "e4", "source": "s", "type": "t" }));
    client.until("/v1/deliveries?status=pending", |page| page["items"][0]["count"] == 2);
    gate.open();
    hook.take(2);
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 2);
    let text = scrape(&server);
    check(&text);
    for (sample, expected) in [
        ("tidegate_windows_open", 1.0),
        ("tidegate_windows_closed_total{reason=\"quiet\"}", 2.0),
        ("tidegate_window_open_seconds_count", 2.0),
        ("tidegate_window_late_seconds_count", 2.0),
        ("tidegate_fold_queue_seconds_count", 2.0),
        ("tidegate_folded_events_total", 3.0),
        ("tidegate_lane_reruns_total", 1.0),
    ] {
        let found = value(&text, sample);
        assert!(
            found.is_some_and(|value| (value - expected).abs() < 1e-9),
            "{sample} is {found:?} in\n{text}"
        );
    }
    client.post("/v1/windows/flush", &json!({ "subscriber": held.id })).expect(200);
    assert_eq!(value(&scrape(&server), "tidegate_windows_closed_total{reason=\"flush\"}"), Some(1.0));

    let log = server.log();
    let lines = |words: &str| {
        log.lines().filter(|line| line.contains(words) && line.contains(&subscriber.id)).count()
    };
    assert_eq!(lines("a fold is ready"), 2, "{log}");
    let ready = log.lines().find(|line| line.contains("a fold is ready")).expect("one");
    assert!(ready.contains("data.user") && ready.contains("u1"), "its key: {ready}");
    assert_eq!(lines("a lane is requeued"), 1, "{log}");
    let counts = ["a fold is started", "a fold is requeued", "a fold is finished"].map(lines);
    assert_eq!((counts, lines("an event is skipped")), ([3, 1, 2], 1), "{log}");
    let started = log.lines().find(|line| line.contains("a fold is started")).expect("one");
    assert!(started.contains("data.user") && started.contains("u1"), "its key: {started}");
    assert!(!log.contains("hush-hush"), "no event's data is logged");
}

#[test]
fn those_who_debug_read_of_a_fold_in_the_order_of_things_under_the_id_of_its_delivery() {
    const FOLDS: usize = 25;
    let variables = vec![("TIDEGATE_LOG", "debug".to_owned())];
    let server = Server::start_with(&Setup { variables, ..Setup::usual() });
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "mode": "window", "window": "20ms", "by": ["data.user"] });
    server.subscribe(&hook, &json!({ "fold": fold, "order": { "by": "data.user" } }));
    for user in 0..FOLDS {
        client.publish(
            &json!({ "id": user.to_string(), "source": "s", "type": "t", "data": { "user": user } }),
        );
    }
    let delivered = client.until("/v1/deliveries?status=delivered", |page| {
        page["items"].as_array().is_some_and(|items| items.len() == FOLDS)
    });
    let log = server.log();
    for row in delivered["items"].as_array().expect("a list") {
        let id = row["id"].as_str().expect("an id");
        let told = log.lines().filter(|line| line.contains(id) && line.contains("a fold is "));
        let told: Vec<&str> =
            told.filter_map(|line| line.split("a fold is ").nth(1)?.split(' ').next()).collect();
        assert_eq!(told, ["ready", "started", "finished"], "{id} in\n{log}");
    }
}

#[test]
fn those_who_debug_follow_lanes_that_do_not_fold() {
    let variables = vec![("TIDEGATE_LOG", "debug".to_owned())];
    let server = Server::start_with(&Setup { variables, ..Setup::usual() });
    let client = server.admin();
    let hook = Receiver::answering(&[500, 500]);
    let order = json!({ "by": "data.user", "on_failure": { "skip_after": 2 } });
    let retry = json!({ "schedule": ["1ms", "1ms"] });
    let subscriber = server.subscribe(&hook, &json!({ "order": order, "retry": retry, "breaker": "off" }));
    let event =
        |id: &str, user: &str| json!({ "id": id, "source": "s", "type": "t", "data": { "user": user } });
    client.publish(&json!([event("aside", "hush-hush"), event("behind", "hush-hush")]));
    client.publish(&json!({ "id": "without", "source": "s", "type": "t" }));
    client.until("/v1/deliveries?status=delivered", |page| page["items"].as_array().unwrap().len() == 2);
    let lines = |words: &str| {
        let log = server.log();
        log.lines().filter(|line| line.contains(words) && line.contains(&subscriber.id)).count()
    };
    let told = ["ready", "started", "requeued", "skipped", "finished"];
    // The one that stepped aside is no longer of the lane when it arrives.
    let expected = [3, 3, 1, 1, 1];
    let counted = || told.map(|what| lines(&format!("a lane's head is {what}")));
    assert!(within_patience(|| counted() == expected), "{:?} in\n{}", counted(), server.log());
    assert_eq!(lines("an event is skipped"), 1);
    assert!(!server.log().contains("hush-hush"), "no event's data is logged");
}

#[test]
fn those_who_debug_see_folds_that_are_never_sent_too() {
    let variables = vec![("TIDEGATE_LOG", "debug".to_owned())];
    let server = Server::start_with(&Setup { variables, ..Setup::usual() });
    let (client, hook) = (server.admin(), Receiver::start());
    let fold = json!({ "mode": "window", "window": "1h" });
    let held = server.subscribe(&hook, &json!({ "fold": fold }));
    let leading = json!({ "mode": "window", "window": "1h", "leading": true });
    let silent = server.subscribe(&hook, &json!({ "active": false, "fold": leading }));
    client.publish(&json!({ "id": "e1", "source": "s", "type": "t" }));
    let told = |words: &str, id: &str| {
        within_patience(|| {
            let log = server.log();
            log.lines().filter(|line| line.contains(words) && line.contains(id)).count() == 1
        })
    };
    client.post("/v1/windows/cancel", &json!({ "subscriber": held.id })).expect(200);
    assert!(told("a fold is cancelled", &held.id), "{}", server.log());
    client.post("/v1/windows/flush", &json!({ "subscriber": silent.id })).expect(200);
    assert!(told("a fold ends with nothing to send", &silent.id), "{}", server.log());
    assert!(told("a fold is ready", &silent.id), "the first event alone: {}", server.log());
}

#[test]
fn a_scraper_that_asks_for_openmetrics_gets_it() {
    let server = Server::start();
    let accept = format!("{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5");
    let answer = Client::stranger(server.address).with("accept", &accept).get("/metrics");
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with(OPENMETRICS)));
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"));
    assert!(
        text.contains("# TYPE tidegate_events_accepted counter\ntidegate_events_accepted_total 0\n"),
        "{text}"
    );
}

#[test]
fn a_scrape_stays_small_whatever_users_do() {
    let server = Server::start();
    let client = server.admin();
    // A hundred thousand types, and as many sources as fit into one request.
    for round in 0..10 {
        let event =
            |n: usize| json!({ "source": format!("theirs-{n}"), "type": format!("theirs.{round}.{n}") });
        client.publish(&(0..10_000).map(event).collect());
    }
    let hook = Receiver::start();
    let held = json!({ "active": false });
    let busy: Vec<String> = (0..3).map(|_| server.subscribe(&hook, &held).id).collect();
    client.publish(&json!({ "source": "s", "type": "t" }));
    for _ in 0..510 {
        server.subscribe(&hook, &held);
    }
    let mut text = String::new();
    assert!(within_patience(|| {
        text = scrape(&server);
        busy.iter()
            .all(|id| value(&text, &format!("tidegate_subscriber_held{{subscriber=\"{id}\"}}")) == Some(1.0))
    }));
    check(&text);
    assert!(!text.contains("theirs"), "no user's text is a label");
    let lines = text.lines().filter(|line| line.starts_with("tidegate_subscriber_held{")).count();
    assert_eq!(lines, 501, "five hundred and the rest");
    assert_eq!(value(&text, "tidegate_subscriber_held{subscriber=\"other\"}"), Some(0.0));
    assert!(text.len() < 256 * 1024, "{} bytes", text.len());
}

#[test]
fn a_new_server_is_well_formed_too() {
    check(&scrape(&Server::start()));
}
