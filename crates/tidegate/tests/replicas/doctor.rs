//! `tidegate doctor` and `tidegate replicas`, and what is told of a store that is shared.

use std::process::Command;

use serde_json::Value;

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
        "eviction",
    ] {
        let check = checks.iter().find(|check| check["check"] == name);
        assert_eq!(check.unwrap_or_else(|| panic!("no {name}: {told:#}"))["state"], "ok", "{told:#}");
    }
    let wrong = tidegate(&a, &["doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/x"]);
    let check = &wrong["checks"][0];
    assert_eq!((&check["check"], &check["state"]), (&"database".into(), &"failing".into()), "{wrong:#}");
    assert!(!wrong.to_string().contains("hunter2"));
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
    b.admin()
        .with_key("tgk_nobody00000000000000000000000000")
        .get("/v1/replicas")
        .problem(401, "key_invalid");
}
