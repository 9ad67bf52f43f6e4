//! `tidegate doctor` and `tidegate replicas`, and what is told of a store that is shared.

use std::process::Command;

use serde_json::Value;

use crate::client::within_patience;
use crate::cluster::{Cluster, metric};
use crate::server::{ADMIN_KEY, Server};

fn tidegate(server: &Server, args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().env("TIDEGATE_KEY", ADMIN_KEY).args(args);
    command.args(["--json", "--url", &format!("http://{}", server.address)]);
    let output = command.current_dir(server.folder.path()).output().expect("it runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn every_part_is_looked_at() {
    let cluster = Cluster::new();
    let a = cluster.join_with_redis();
    let redis = std::env::var("TIDEGATE_TEST_REDIS").expect("a Redis");
    let told = tidegate(&a, &["doctor", "--store", cluster.url(), "--redis", &redis]);
    assert_eq!(told["healthy"], true, "{told:#}");
    let checks = told["checks"].as_array().expect("checks");
    for name in [
        "database",
        "durability",
        "clock",
        "connections",
        "upkeep",
        "replication",
        "tables",
        "redis",
        "redis server",
        "eviction",
    ] {
        let check = checks.iter().find(|check| check["check"] == name);
        assert_eq!(check.unwrap_or_else(|| panic!("no {name}: {told:#}"))["state"], "ok", "{told:#}");
    }
    for check in checks {
        let alike = checks.iter().filter(|other| other["check"] == check["check"]).count();
        assert_eq!(alike, 1, "a name tells which is meant: {told:#}");
    }
    let folder = a.folder.path().to_str().expect("a path");
    let told = tidegate(&a, &["doctor", "--store", cluster.url(), "--data-dir", folder]);
    let has_data = told["checks"].as_array().expect("checks").iter().any(|check| check["check"] == "data");
    assert!(!has_data, "its data is in PostgreSQL: {told:#}");
    let wrong = tidegate(&a, &["doctor", "--store", "mysql://u:hunter2@127.0.0.1:1/x"]);
    assert_eq!((&wrong["healthy"], &wrong["checks"][0]["state"]), (&false.into(), &"failing".into()));
    assert!(!wrong.to_string().contains("hunter2"));
    let wrong = tidegate(&a, &["doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/x"]);
    let check = &wrong["checks"][0];
    assert_eq!((&check["check"], &check["state"]), (&"database".into(), &"failing".into()), "{wrong:#}");
    assert!(!wrong.to_string().contains("hunter2"));
}

#[test]
fn a_redis_that_is_away_is_told_and_changes_nothing() {
    let cluster = Cluster::new();
    let mut setup = cluster.setup();
    setup.variables.push(("TIDEGATE_REDIS", "redis://127.0.0.1:1/".to_owned()));
    let server = crate::server::Server::start_with(&setup);
    let ready = server.admin().get("/readyz?verbose").expect(200);
    assert_eq!((&ready["status"], &ready["checks"]["redis"]["state"]), (&"ready".into(), &"degraded".into()));
    let detail = ready["checks"]["redis"]["detail"].as_str().expect("what it means");
    assert!(detail.contains("through PostgreSQL") && detail.contains("refused"), "what was found: {ready}");
    assert_eq!(metric(&server.admin(), "tidegate_redis_up"), 0.0);
}

#[test]
fn a_database_that_takes_no_writes_is_refused_with_the_remedy() {
    let cluster = Cluster::new();
    let mut setup = cluster.setup();
    let url = format!("{}&options=-c%20default_transaction_read_only%3Don", cluster.url());
    setup.variables.retain(|(name, _)| *name != "TIDEGATE_STORE");
    setup.variables.push(("TIDEGATE_STORE", url));
    let refusal = cluster.refusal(&setup);
    assert!(refusal.contains("RESET default_transaction_read_only"), "{refusal}");
}

#[test]
fn processes_that_would_count_different_things_are_told() {
    let cluster = Cluster::new();
    let a = cluster.join();
    let mut setup = cluster.setup();
    setup.variables.push(("TIDEGATE_OBSERVE_COUNTERS", "false".to_owned()));
    let b = Server::start_with(&setup);
    // A server whose disk is busy may not answer for a moment: events are accepted as ever after that.
    let told = |server: &Server, words: &str| {
        let is_told = within_patience(|| {
            let ready = server.admin().get("/readyz?verbose").json();
            let detail = ready["checks"]["observing"]["detail"].as_str().unwrap_or_default();
            ready["status"] == "ready" && detail.contains(words)
        });
        assert!(is_told, "nobody says `{words}`");
    };
    for server in [&a, &b] {
        told(server, "counts everything; ");
        let checks = tidegate(server, &["doctor"])["checks"].clone();
        let check = checks.as_array().expect("checks").iter().find(|check| check["check"] == "observing");
        assert_eq!(check.expect("it is looked at")["state"], "warning", "{checks:#}");
    }
    let replicas = a.admin().get("/v1/replicas").expect(200);
    let off: Vec<&Value> =
        replicas["items"].as_array().expect("items").iter().map(|of| &of["observe_off"]).collect();
    assert_eq!(off, [&Value::from(Vec::<Value>::new()), &Value::from(vec!["counters"])]);
    drop(b);
    told(&a, "all processes count the same");
}

#[test]
fn who_shares_the_store_is_listed_and_counted() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let told = tidegate(&b, &["replicas"]);
    let items = told["items"].as_array().expect("items");
    assert_eq!((items.len(), &items[0]["leads"], &items[1]["answers"]), (2, &true.into(), &true.into()));
    assert_eq!(
        (metric(&a.admin(), "tidegate_replica_leads"), metric(&b.admin(), "tidegate_replica_leads")),
        (1.0, 0.0)
    );
    assert_eq!(metric(&a.admin(), "tidegate_replicas_alive"), 2.0);
    assert!(metric(&a.admin(), "tidegate_lease_age_seconds") < 4.0);
    let text = a.admin().get("/metrics").text();
    for name in [
        "tidegate_postgres_dead_rows{part=\"deliveries\"}",
        "tidegate_postgres_oldest_transaction_seconds",
        "tidegate_replica_deliveries_queued{replica=",
    ] {
        assert!(text.contains(name), "no {name} in\n{text}");
    }
    let ready = a.admin().get("/readyz?verbose").expect(200);
    assert_eq!(ready["checks"]["lease"]["state"], "ok", "{ready}");
    let age = ready["checks"]["lease"]["detail"].as_str().expect("its age, also while it is well");
    assert!(age.contains("ms ago"), "{ready}");
    for (name, words) in [
        ("cleaning", "dead rows: deliveries "),
        ("cleaning", ", windows "),
        ("cleaning", ", rollups "),
        ("takeovers", "0 processes were taken over here"),
        ("replicas", "2 live: "),
    ] {
        let check = &ready["checks"][name];
        assert!(
            check["state"] == "ok" && check["detail"].as_str().is_some_and(|told| told.contains(words)),
            "{ready}"
        );
    }
    let with_redis = cluster.join_with_redis();
    let ready = with_redis
        .admin()
        .until("/readyz?verbose", |ready| ready["checks"]["redis"]["detail"] == "it answers");
    assert_eq!(ready["status"], "ready");
    drop(with_redis);
    let offsets = a.admin().until("/v1/replicas", |told| {
        told["items"].as_array().expect("items").iter().all(|item| item["clock_offset_ms"].is_i64())
    });
    assert!(offsets["items"][0]["clock_offset_ms"].as_i64().expect("a number").abs() < 2_000, "{offsets}");
    let told = tidegate(&a, &["doctor"]);
    let checks = told["checks"].as_array().expect("checks");
    assert!(checks.iter().any(|check| check["check"] == "clocks" && check["state"] == "ok"), "{told:#}");
    b.admin()
        .with_key("tgk_nobody00000000000000000000000000")
        .get("/v1/replicas")
        .problem(401, "key_invalid");
}
