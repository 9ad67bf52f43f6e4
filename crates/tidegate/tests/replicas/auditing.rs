//! An audit finds whatever somebody has laid hands on, on PostgreSQL as on the embedded store (`tests/it/auditing.rs`).

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::server::Server;

const ORDERS: &str = "/v1/catalog/services/shop/types/order.paid";
/// What is counted.
const TABLES: [&str; 5] = ["rollups", "rollup_keys", "object_changes", "objects", "postings"];

fn audit(server: &Server) -> Value {
    server.admin().post("/v1/audit", &json!({"service": "shop", "type": "order.paid"})).expect(200)
}

/// For every kind of damage: the metric that it is of, and how it is done.
fn damages() -> Vec<(&'static str, String)> {
    let of = |kind: usize| format!("metric IN (SELECT no FROM metrics WHERE kind = {kind})");
    let named = |name: &str| format!("metric = (SELECT no FROM metrics WHERE name = '{name}')");
    let state = "order data.status";
    // As if the last order had changed nothing, in buckets of any length.
    let forgotten = "INSERT INTO rollups TABLE before ON CONFLICT (metric, grain, bucket, page) DO UPDATE SET cells = excluded.cells";
    vec![
        ("nothing", "UPDATE rollups SET cells = cells".to_owned()),
        ("by_country", format!("DELETE FROM rollups WHERE {} AND grain = 2", named("by_country"))),
        ("total", format!("DELETE FROM rollups WHERE {} AND grain = 5", of(1))),
        (state, format!("DELETE FROM rollups WHERE {} AND grain < 5", of(2))),
        (state, format!("DELETE FROM rollups WHERE {} AND grain = 5", of(2))),
        (state, format!("DELETE FROM rollups WHERE {}", of(3))),
        (state, format!("DELETE FROM rollups WHERE {} AND grain = 0", of(3))),
        (state, forgotten.to_owned()),
        (state, "DELETE FROM object_changes".to_owned()),
        (state, "DELETE FROM objects".to_owned()),
        ("data.country", format!("DELETE FROM postings WHERE {}", named("data.country"))),
        (
            "data.tags",
            format!("UPDATE postings SET value = value || '\\x00'::bytea WHERE {}", named("data.tags")),
        ),
    ]
}

#[test]
fn an_audit_finds_whatever_is_damaged() {
    let cluster = Cluster::new();
    let server = cluster.join();
    let admin = server.admin();
    let declared = json!({
        "index": ["data.country", "data.tags"],
        "counters": {"by_country": {"dimensions": ["data.country"]}},
        "histograms": {"total": {"value": "data.total"}},
        "states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"], "additional": ["*"]}],
    });
    admin.call("PUT", ORDERS, &declared).expect(201);
    let orders: Vec<Value> = ["NEW", "PAID", "SENT"]
        .iter()
        .enumerate()
        .map(|(n, status)| {
            json!({"id": n.to_string(), "source": "shop", "type": "order.paid",
                "data": {"country": "DE", "tags": ["x"], "total": 1.5, "order_id": "a", "status": status}})
        })
        .collect();
    for order in &orders[..2] {
        admin.publish(order);
    }
    assert_eq!(audit(&server)["agrees"], true);
    cluster.execute("CREATE TABLE before AS SELECT * FROM rollups WHERE metric IN (SELECT no FROM metrics WHERE kind = 3)");
    admin.publish(&orders[2]);
    assert_eq!(audit(&server)["agrees"], true);
    for table in TABLES {
        cluster.execute(&format!("CREATE TABLE saved_{table} AS TABLE {table}"));
    }
    for (what, damage) in damages() {
        assert!(cluster.execute(&damage) > 0, "{damage} changes nothing");
        let told = audit(&server);
        assert_eq!(told["agrees"], what == "nothing", "{damage}: {told}");
        let found = told["differences"].as_array().expect("a list");
        assert!(found.iter().all(|difference| difference["metric"] == what), "{damage}: {told}");
        for table in TABLES {
            cluster.execute(&format!("DELETE FROM {table}"));
            cluster.execute(&format!("INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE saved_{table}"));
        }
    }
    assert_eq!(audit(&server)["agrees"], true);
}
