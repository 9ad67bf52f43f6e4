//! What was counted is compared with what the events say, whatever was declared in another way or laid hands on.

use serde_json::{Value, json};

use crate::observing::{ORDERS, TRAILS, counters, declared, order, orders, states, trail, transitions};
use crate::server::{Server, Setup};
use crate::shell::Shell;

/// By which attribute orders are told apart, and which transitions count, may be declared in another way: the past follows.
#[test]
fn a_state_that_is_declared_in_another_way_is_counted_anew() {
    let server = Server::start();
    let admin = server.admin();
    let tells = |id: &str, more: &Value| {
        let mut entry = json!({"object": "order", "id": id, "attributes": ["data.status"]});
        entry.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"states": [entry]})
    };
    let told = |n: usize, customer: &str, status: &str| {
        let mut event = trail(n, "trail", n, status);
        event["data"]["customer"] = customer.into();
        event
    };
    admin.call("PUT", TRAILS, &tells("data.order_id", &json!({}))).expect(201);
    admin.publish(&json!([told(0, "ann", "NEW"), told(1, "ann", "PAID"), told(2, "bob", "NEW")]));
    assert_eq!(states(&admin), [("NEW".to_owned(), 2), ("PAID".to_owned(), 1)]);
    let backfill = || admin.post(&format!("{TRAILS}/backfill"), &json!({}));
    backfill().problem(409, "conflict");

    admin.call("PUT", TRAILS, &tells("data.customer", &json!({}))).expect(200);
    admin.publish(&told(3, "bob", "PAID"));
    backfill().expect(202);
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    assert_eq!(states(&admin), [("PAID".to_owned(), 2)], "of ann and bob");
    assert_eq!(transitions(&admin), 4);
    backfill().problem(409, "conflict");

    admin.call("PUT", TRAILS, &tells("data.customer", &json!({"only": ["NEW"]}))).expect(200);
    admin.publish(&told(4, "bob", "SENT"));
    backfill().expect(202);
    admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
    // (none) to NEW twice, NEW to PAID twice, and NEW to SENT, which was not the state before.
    assert_eq!(transitions(&admin), 5);
    assert_eq!(states(&admin), [("PAID".to_owned(), 1), ("SENT".to_owned(), 1)]);
    backfill().problem(409, "conflict");
    let shell = Shell::new(&server);
    assert_eq!(shell.runs("tidegate audit shop trail").json(0)[0]["audit"]["agrees"], true);
}

/// What is said of a store that somebody has laid hands on.
fn audit_after(server: &mut Server, kind: &str, damage: &str) -> Value {
    server.stop();
    let path = server.folder.path().join("data/tidegate.db");
    let store = rusqlite::Connection::open(&path).expect("it is closed");
    let changed = store.execute(damage, []).expect("what is damaged is there");
    assert!(changed > 0 || damage.starts_with("CREATE"), "{damage} changes nothing");
    drop(store);
    server.restart(&Setup::usual());
    let asked = json!({"service": "shop", "type": kind});
    server.admin().post("/v1/audit", &asked).expect(200)
}

#[test]
fn an_audit_finds_whatever_is_damaged() {
    let of = |kind: usize| format!("metric IN (SELECT no FROM metrics WHERE kind = {kind})");
    for (what, damage) in [
        ("nothing", "UPDATE rollups SET cells = cells".to_owned()),
        (
            "by_country",
            "DELETE FROM rollups WHERE metric = (SELECT no FROM metrics WHERE name = 'by_country') AND grain = 2".to_owned(),
        ),
        ("total", format!("DELETE FROM rollups WHERE {} AND grain = 5", of(1))),
        ("order data.status", format!("DELETE FROM rollups WHERE {} AND grain < 5", of(2))),
        ("order data.status", format!("DELETE FROM rollups WHERE {} AND grain = 5", of(2))),
        ("order data.status", format!("DELETE FROM rollups WHERE {}", of(3))),
        ("order data.status", format!("DELETE FROM rollups WHERE {} AND grain = 0", of(3))),
        ("order data.status", "DELETE FROM object_changes".to_owned()),
        ("order data.status", "DELETE FROM objects".to_owned()),
        (
            "data.country",
            "DELETE FROM postings WHERE metric = (SELECT no FROM metrics WHERE name = 'data.country')".to_owned(),
        ),
        (
            "data.tags",
            "UPDATE postings SET value = CAST(value || x'00' AS BLOB) WHERE metric = (SELECT no FROM metrics WHERE name = 'data.tags')"
                .to_owned(),
        ),
    ] {
        let mut server = Server::start();
        let admin = server.admin();
        admin.call("PUT", ORDERS, &declared()).expect(201);
        admin.publish(&orders());
        assert_eq!(counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"], 4);
        let told = audit_after(&mut server, "order.paid", &damage);
        assert_eq!(told["agrees"], what == "nothing", "{damage}: {told}");
        let found = told["differences"].as_array().expect("a list");
        assert!(found.iter().all(|difference| difference["metric"] == what), "{damage}: {told}");
        let named = told["metrics"].as_array().expect("a list").iter().map(|metric| metric["kind"].clone());
        let kinds: std::collections::BTreeSet<String> =
            named.map(|kind| kind.as_str().expect("text").to_owned()).collect();
        assert_eq!(kinds.len(), 5, "{told}");
    }
}

#[test]
fn an_audit_knows_which_transitions_a_policy_counts() {
    let mut server = Server::start();
    let tells = |more: &str| json!({"states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"], more: ["*"]}]});
    let step = "/v1/catalog/services/shop/types/step";
    server.admin().call("PUT", TRAILS, &tells("additional")).expect(201);
    server.admin().call("PUT", step, &tells("only")).expect(201);
    let publish = |server: &Server, n: usize, kind: &str, status: &str| {
        server.admin().publish(&trail(n * 7, kind, n, status));
    };
    for (n, (kind, status)) in [("trail", "A"), ("step", "B"), ("trail", "C")].into_iter().enumerate() {
        publish(&server, n, kind, status);
    }
    let save =
        "CREATE TABLE saved AS SELECT * FROM rollups WHERE metric IN (SELECT no FROM metrics WHERE kind = 3)";
    assert_eq!(audit_after(&mut server, "trail", save)["agrees"], true);
    publish(&server, 3, "step", "D");
    // (none) to A, A to B, A and B to C, A and B and C to D.
    assert_eq!(transitions(&server.admin()), 7);
    for kind in ["trail", "step"] {
        let told = audit_after(&mut server, kind, "UPDATE rollups SET cells = cells");
        assert_eq!(
            (&told["agrees"], &told["metrics"][0]["kind"]),
            (&true.into(), &"transition".into()),
            "{told}"
        );
    }
    // As if the last had never been counted, in buckets of any length.
    let told = audit_after(&mut server, "trail", "INSERT OR REPLACE INTO rollups SELECT * FROM saved");
    let found = told["differences"].as_array().expect("a list");
    let of = |key: &Value| found.iter().filter(|difference| difference["key"] == *key).count();
    assert_eq!(
        ["A", "B", "C"].map(|from| of(&json!([from, "D"]))),
        [6; 3],
        "one in each length of bucket: {told}"
    );
    assert_eq!(found.len(), 18, "{told}");
}

#[test]
fn an_audit_of_states_takes_late_events_and_other_transitions_as_they_are() {
    let server = Server::start();
    let admin = server.admin();
    let tells = json!({"states": [{"object": "order", "id": "data.order_id", "attributes": ["data.status"], "additional": ["*"]}]});
    admin.call("PUT", TRAILS, &tells).expect(201);
    admin.call("PUT", "/v1/catalog/services/shop/types/step", &tells).expect(201);
    let agrees = || {
        ["trail", "step"].into_iter().all(|kind| {
            let told = admin.post("/v1/audit", &json!({"service": "shop", "type": kind})).expect(200);
            assert_eq!(told["agrees"], true, "{told}");
            true
        })
    };
    for round in 0..5 {
        let some: Vec<Value> = (0..30)
            .map(|n| {
                let (n, status) = (round * 30 + n, ["A", "B", "C"][n * 7 % 3]);
                trail(n, ["trail", "step"][n % 2], (n * 37) % 150, status)
            })
            .collect();
        admin.publish(&json!(some));
        assert!(agrees());
    }
}

/// What the installation switches off is not counted meanwhile, is no difference in an audit, and can be counted later.
#[test]
fn what_an_installation_switches_off_can_be_counted_later() {
    let off =
        ["COUNTERS", "STATES", "INDEX"].map(|kind| (format!("TIDEGATE_OBSERVE_{kind}"), "false".to_owned()));
    let off: Vec<(&'static str, String)> =
        off.into_iter().map(|(name, value)| (&*Box::leak(name.into_boxed_str()), value)).collect();
    let quiet = Setup { variables: off, ..Setup::usual() };
    let mut server = Server::start();
    server.admin().call("PUT", ORDERS, &declared()).expect(201);
    server.admin().publish(&orders());
    let meanwhile = json!({"country": "DE", "total": 1, "order_id": "z", "status": "NEW"});
    for round in 0..2 {
        // Not even asked about before: what was on when it came is counted though it is off by now.
        server.kill();
        server.restart(&quiet);
        server.admin().publish(&order(&format!("5{round}"), "2026-03-02T13:00:00Z", &meanwhile));
        server.stop();
        server.restart(&Setup::usual());
        let admin = server.admin();
        let count = || counters(&admin, &json!({}))["buckets"][0]["series"][0]["count"].clone();
        let shell = Shell::new(&server);
        let agrees = || shell.runs("tidegate audit shop order.paid").json(0)[0]["audit"]["agrees"].clone();
        assert_eq!((count(), agrees()), (json!(4 + round), json!(true)));
        admin.post(&format!("{ORDERS}/backfill"), &json!({})).expect(202);
        admin.until("/v1/backfills", |list| list["items"][0]["status"] == "done");
        assert_eq!((count(), agrees()), (json!(5 + round), json!(true)));
        assert_eq!(states(&admin), [("NEW".to_owned(), 2), ("PAID".to_owned(), 2)]);
        admin.post(&format!("{ORDERS}/backfill"), &json!({})).problem(409, "conflict");
    }
}
