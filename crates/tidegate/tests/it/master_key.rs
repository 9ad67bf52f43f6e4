//! The master key changes while deliveries go on, and whatever happens in between.

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::server::{ADMIN_KEY, Server, Setup, Subscriber};

const A: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const B: &str = "HxweHRobGBkWFxQVEhMQEQ4PDA0KCwgJBgcEBQIDAAE=";

fn with_keys(current: Option<&'static str>, previous: Option<&str>) -> Setup {
    let variables = previous.map(|key| ("TIDEGATE_MASTER_KEY_PREVIOUS", key.to_owned()));
    Setup { master_key: current, variables: variables.into_iter().collect(), ..Setup::usual() }
}

fn key_file(server: &Server) -> String {
    fs::read_to_string(server.folder.path().join("data/master.key")).expect("a key")
}

/// Waits until nothing needs the old key any more.
fn settled(server: &Server) -> Value {
    server.admin().until("/v1/master-key", |key| key["unmoved"] == 0 && key["previous"].is_null())
}

#[track_caller]
fn delivers(server: &Server, hook: &Receiver, subscriber: &Subscriber) {
    server.admin().publish(&json!({ "source": "s", "type": "t" }));
    let arrival = hook.next();
    arrival.verify(&subscriber.secret);
    assert_eq!(arrival.header("x-token"), "a value", "what is sealed beside the secret is there too");
}

fn subscribe(server: &Server, hook: &Receiver) -> Subscriber {
    let destination = json!({ "url": hook.url(), "headers": { "x-token": "a value" } });
    server.subscribe(hook, &json!({ "destination": destination }))
}

#[test]
fn no_delivery_is_signed_wrongly_while_the_key_changes() {
    const ROTATIONS: usize = 3;
    let mut server = Server::start();
    let hooks: Vec<(Receiver, Subscriber)> = (0..10)
        .map(|_| {
            let hook = Receiver::start();
            let subscriber = subscribe(&server, &hook);
            (hook, subscriber)
        })
        .collect();
    let (first, is_over) = (key_file(&server), AtomicBool::new(false));
    let admin = server.admin();
    let paths: Vec<&String> = hooks.iter().map(|(_, subscriber)| &subscriber.path).collect();
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0;
            while !is_over.load(Ordering::Relaxed) || sent == 0 {
                admin.publish(&json!({ "source": "s", "type": "t" }));
                sent += 1;
            }
            sent
        });
        let changing = scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                let headers = json!({ "x-n": n.to_string() });
                let path = paths[n % paths.len()];
                admin.patch(path, &json!({ "destination": { "headers": headers } })).expect(200);
                n += 1;
            }
        });
        for _ in 0..ROTATIONS {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
            command.env_clear().env("TIDEGATE_KEY", ADMIN_KEY);
            command.args(["keys", "rotate-master", "--url", &format!("http://{}", server.address)]);
            let output = command.output().expect("it runs");
            assert!(output.status.success(), "{output:?}");
        }
        is_over.store(true, Ordering::Relaxed);
        changing.join().expect("no panic");
        sending.join().expect("no panic")
    });
    for (hook, subscriber) in &hooks {
        hook.take(sent).iter().for_each(|arrival| arrival.verify(&subscriber.secret));
    }
    assert_ne!(key_file(&server), first);
    assert_eq!(key_file(&server).lines().count(), 1, "the old key is gone");
    let known = settled(&server);
    server.stop();
    server.restart(&Setup::usual());
    assert_eq!(settled(&server)["id"], known["id"]);
    for (hook, subscriber) in &hooks {
        server.admin().post(&format!("{}/pause", subscriber.path), &Value::Null).expect(200);
        drop(hook.rest());
    }
    let hook = Receiver::start();
    let subscriber = subscribe(&server, &hook);
    delivers(&server, &hook, &subscriber);
}

#[test]
fn a_change_that_was_interrupted_goes_on_at_the_next_start() {
    let mut server = Server::start();
    let hook = Receiver::start();
    let subscriber = subscribe(&server, &hook);
    server.stop();
    // As a process leaves it that ended when the new key was on disk and nothing was sealed with it.
    let data = server.folder.path().join("data");
    fs::write(data.join("master.key"), format!("{A}\n{}", key_file(&server))).expect("written");
    fs::write(data.join("master.key.new"), "half a k").expect("written");
    server.restart(&Setup::usual());
    settled(&server);
    assert_eq!(key_file(&server), format!("{A}\n"));
    delivers(&server, &hook, &subscriber);
    server.stop();
    server.restart(&with_keys(Some(A), None));
    delivers(&server, &hook, &subscriber);
}

#[test]
fn a_kill_at_any_point_loses_no_secret() {
    let mut server = Server::start();
    let hook = Receiver::start();
    let subscriber = subscribe(&server, &hook);
    for round in 0..8 {
        let mut stream = server.admin().connect();
        let request = format!(
            "POST /v1/master-key/rotate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("written");
        // A little later each time; the database is asked because it takes about as long as a step.
        (0..round / 2).for_each(|_| drop(server.admin().get("/v1/subscribers")));
        server.kill();
        server.restart(&Setup::usual());
        settled(&server);
        assert_eq!(key_file(&server).lines().count(), 1);
        delivers(&server, &hook, &subscriber);
    }
}

#[test]
fn a_key_from_the_environment_is_changed_there() {
    let mut server = Server::start_with(&with_keys(Some(A), None));
    let hook = Receiver::start();
    let subscriber = subscribe(&server, &hook);
    server.admin().post("/v1/master-key/rotate", &Value::Null).problem(409, "master_key_external");
    server.stop();
    let refusal = with_keys(Some(B), None).refusal(&server.folder);
    assert!(refusal.contains("TIDEGATE_MASTER_KEY_PREVIOUS"), "{refusal}");
    let refusal = with_keys(None, Some(A)).refusal(&server.folder);
    assert!(refusal.contains("needs TIDEGATE_MASTER_KEY"), "{refusal}");
    server.restart(&with_keys(Some(B), Some(A)));
    delivers(&server, &hook, &subscriber);
    server.until_logged("TIDEGATE_MASTER_KEY_PREVIOUS can be removed");
    assert_eq!(server.admin().get("/v1/master-key").expect(200)["unmoved"], 0);
    server.stop();
    server.restart(&with_keys(Some(B), None));
    delivers(&server, &hook, &subscriber);
}
