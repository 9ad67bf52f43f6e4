//! One master key for all, and how it changes while all go on.

use serde_json::{Value, json};

use crate::cluster::{Cluster, MASTER_KEY, alive, event};
use crate::receiver::Receiver;
use crate::server::Setup;

const OTHER: &str = "HxweHRobGBkWFxQVEhMQEQ4PDA0KCwgJBgcEBQIDAAE=";

fn with(cluster: &Cluster, key: Option<&'static str>, more: Option<(&'static str, &str)>) -> Setup {
    let mut setup = Setup { master_key: key, ..cluster.setup() };
    setup.variables.extend(more.map(|(name, value)| (name, value.to_owned())));
    setup
}

#[test]
fn a_process_without_the_key_or_with_another_is_refused() {
    let cluster = Cluster::new();
    let a = cluster.join();
    let refusal = cluster.refusal(&with(&cluster, None, None));
    assert!(refusal.contains("openssl rand -base64 32"), "{refusal}");
    let refusal = cluster.refusal(&with(&cluster, Some(OTHER), None));
    assert!(refusal.contains("not the master key of the store"), "{refusal}");
    let id = a.admin().get("/v1/master-key").expect(200)["id"].as_str().expect("an id").to_owned();
    assert!(refusal.contains(&id), "it says which one: {refusal}");
    let file = a.folder.path().join("key");
    std::fs::write(&file, format!("{MASTER_KEY}\n")).expect("written");
    let path = file.display().to_string();
    let b =
        crate::server::Server::start_with(&with(&cluster, None, Some(("TIDEGATE_MASTER_KEY_FILE", &path))));
    assert_eq!(b.admin().get("/v1/master-key").expect(200)["origin"], "given_file");
    a.admin().post("/v1/master-key/rotate", &Value::Null).problem(409, "master_key_external");
}

#[test]
fn the_key_changes_one_process_at_a_time() {
    let cluster = Cluster::new();
    let (mut a, mut b) = cluster.two();
    let hook = Receiver::start();
    let mut subscribers = vec![a.subscribe(&hook, &Value::Null)];
    let mut round = 0;
    for (key, more) in [
        (MASTER_KEY, Some(("TIDEGATE_MASTER_KEY_NEXT", OTHER))),
        (OTHER, Some(("TIDEGATE_MASTER_KEY_PREVIOUS", MASTER_KEY))),
        (OTHER, None),
    ] {
        for turn in 0..2 {
            let (restarted, other) = if turn == 0 { (&mut a, &b) } else { (&mut b, &a) };
            restarted.stop();
            restarted.restart(&with(&cluster, Some(key), more));
            alive(restarted, 2);
            // What either of them seals can be opened by both.
            for server in [&*restarted, other] {
                let hook = Receiver::start();
                subscribers.push(server.subscribe(&hook, &Value::Null));
                drop(hook);
            }
            for server in [&*restarted, other] {
                round += 1;
                server.admin().publish(&event(&format!("e{round}")));
                hook.next().verify(&subscribers[0].secret);
            }
        }
        // The last one to start with it has moved what others sealed meanwhile.
        b.admin().post("/v1/master-key/rotate", &Value::Null);
        let known = b.admin().get("/v1/master-key").expect(200);
        assert_eq!(known["unmoved"], 0, "{known}");
    }
    let refusal = cluster.refusal(&with(&cluster, Some(MASTER_KEY), None));
    assert!(refusal.contains("not the master key of the store"), "the proof has moved: {refusal}");
}

#[test]
fn no_log_tells_what_is_written_to_the_database() {
    let cluster = Cluster::new();
    let loud = with(&cluster, Some(MASTER_KEY), Some(("TIDEGATE_LOG", "trace,tokio_postgres=trace")));
    let mut server = crate::server::Server::start_with(&loud);
    let hook = Receiver::start();
    let fold = json!({ "mode": "window", "window": "10ms" });
    let url = format!("{}?t=LEAKinQuery", hook.url());
    server.subscribe(&hook, &json!({ "destination": { "url": url }, "fold": fold }));
    let event = json!({ "id": "e", "source": "s", "type": "t", "data": { "name": "LEAKinData" } });
    server.admin().publish(&event);
    assert!(String::from_utf8_lossy(&hook.next().body).contains("LEAKinData"));
    server.stop();
    let log = server.log();
    assert!(log.contains("a fold is started"), "what is for debugging is logged: {log}");
    for told in ["LEAK", "executing statement", "preparing query"] {
        assert!(!log.contains(told), "the log tells {told}: {log}");
    }
}
