//! Processes start together, end, are killed, or stand still; the others go on with their work.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::within_patience;
use crate::cluster::{Cluster, alive, event, events, metric};
use crate::receiver::{Gate, Receiver, Reply};
use crate::server::Server;

/// One at a time, the first of which hangs until the gate opens.
fn hanging(gate: &Gate) -> Receiver {
    let gate = gate.clone();
    Receiver::scripted(move |arrival| {
        if arrival.before == 0 {
            gate.wait();
        }
        Reply::status(200)
    })
}

/// One place for each of two processes.
fn one_at_a_time() -> Value {
    json!({ "limits": { "concurrency": 2, "timeout": "25s" } })
}

/// What `docker compose up` does: nobody has made the tables yet, and all want to.
#[test]
fn three_may_start_at_the_same_moment_on_an_empty_database() {
    let cluster = Cluster::new();
    let at_once = Barrier::new(3);
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let start = || {
            at_once.wait();
            cluster.join()
        };
        let starting = [(); 3].map(|()| scope.spawn(start));
        starting.into_iter().map(|start| start.join().expect("it becomes ready")).collect()
    });
    servers.iter().for_each(|server| alive(server, 3));
    let hook = Receiver::start();
    servers[0].subscribe(&hook, &Value::Null);
    for (n, server) in servers.iter().enumerate() {
        server.admin().publish(&event(&format!("e{n}")));
        server.admin().publish(&event("same"));
    }
    let arrived: BTreeSet<String> = hook.ids(4).into_iter().collect();
    assert_eq!(arrived, ["e0", "e1", "e2", "same"].map(str::to_owned).into());
    servers[1].admin().until("/v1/deliveries?status=delivered", |answer| {
        answer["items"].as_array().is_some_and(|items| items.len() == 4)
    });
    assert!(hook.rest().is_empty(), "each once");
}

#[test]
fn what_a_killed_process_held_is_delivered_by_another() {
    let cluster = Cluster::new();
    let (mut a, b) = cluster.two();
    let gate = Gate::default();
    let hook = hanging(&gate);
    a.subscribe(&hook, &one_at_a_time());
    a.admin().publish(&events("e", 1));
    let first = hook.next();
    a.kill();
    let again = hook.next();
    assert_eq!((again.event_id(), again.webhook_id()), (first.event_id(), first.webhook_id()));
    let waited = again.at.since(first.at);
    assert!(waited.as_millis() < 9_000, "it took {waited:?}");
    b.admin().until("/v1/deliveries?status=delivered", |answer| {
        answer["items"].as_array().is_some_and(|items| items.len() == 1)
    });
    assert!(metric(&b.admin(), "tidegate_takeovers_total") >= 1.0);
    alive(&b, 1);
    gate.open();
    assert!(hook.rest().is_empty());
}

#[test]
fn one_that_stood_still_sends_nothing_stale_and_goes_on_with_a_new_life() {
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let gate = Gate::default();
    let hook = hanging(&gate);
    a.subscribe(&hook, &one_at_a_time());
    a.admin().publish(&events("e", 1));
    let first = hook.next();
    a.admin().publish(&events("f", 5));
    let mut seen = BTreeSet::new();
    let mut arrived = hook.rest();
    a.signal("-STOP");
    // Whatever stands still is delivered by the other, once.
    let all: BTreeSet<String> = events("f", 5)
        .as_array()
        .expect("events")
        .iter()
        .chain([&event("e0")])
        .map(|event| event["id"].as_str().expect("an id").to_owned())
        .collect();
    seen.extend(arrived.iter().map(crate::receiver::Arrival::event_id));
    while seen != all {
        arrived.push(hook.next());
        seen.extend(arrived.last().map(crate::receiver::Arrival::event_id));
    }
    alive(&b, 1);
    // Its request from before gets its answer now, and it finds itself declared dead.
    gate.open();
    a.signal("-CONT");
    assert!(within_patience(|| metric(&a.admin(), "tidegate_lives_begun_anew_total") >= 1.0));
    assert!(within_patience(|| metric(&a.admin(), "tidegate_results_stale_total") >= 1.0), "refused");
    alive(&a, 2);
    a.admin().publish(&event("afterwards"));
    assert_eq!(hook.ids(1), ["afterwards"], "and nothing stale before it");
    let repeats = arrived.iter().filter(|arrival| arrival.event_id() == "e0").count();
    assert_eq!(repeats, 1, "only what was under way is sent twice");
    assert_eq!(arrived.len(), all.len());
    assert_eq!(first.event_id(), "e0");
    assert!(hook.rest().is_empty());
}

#[test]
fn limits_hold_while_processes_come_and_go() {
    const LIMIT: usize = 3;
    let cluster = Cluster::new();
    let (mut a, mut b) = cluster.two();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let hook = Receiver::scripted(move |_| {
        seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // A receiver that takes its time: nobody ever sends anything here.
        let (_sender, receiver) = mpsc::channel::<()>();
        let _ = receiver.recv_timeout(Duration::from_millis(10));
        now.fetch_sub(1, Ordering::SeqCst);
        Reply::status(200)
    });
    a.subscribe(&hook, &json!({ "limits": { "concurrency": LIMIT } }));
    let mut sent = 0;
    for round in 0..4 {
        let (restarted, other) = if round % 2 == 0 { (&mut a, &b) } else { (&mut b, &a) };
        for server in [&*restarted, other] {
            server.admin().publish(&events(&format!("{round}-{}-", server.address.port()), 100));
            sent += 100;
        }
        restarted.stop();
        restarted.restart(&cluster.setup());
    }
    assert_eq!(hook.ids(sent).into_iter().collect::<BTreeSet<_>>().len(), sent);
    let most = most.load(Ordering::SeqCst);
    assert!(most <= LIMIT, "{most} at once");
}

/// Two processes with a place each: what one of them accepted alone goes out over both.
#[test]
fn what_one_accepts_is_sent_by_whoever_has_a_free_place() {
    const EVENTS: usize = 400;
    let cluster = Cluster::new();
    let (a, b) = cluster.two();
    let (gate, under_way) = (Gate::default(), AtomicUsize::new(0));
    let hook = Receiver::scripted({
        let gate = gate.clone();
        move |_| {
            // Nobody is answered before somebody else is here.
            if under_way.fetch_add(1, Ordering::SeqCst) == 1 {
                gate.open();
            }
            gate.wait();
            Reply::status(200)
        }
    });
    a.subscribe(&hook, &one_at_a_time());
    a.admin().publish(&events("e", EVENTS));
    assert_eq!(hook.ids(EVENTS).into_iter().collect::<BTreeSet<_>>().len(), EVENTS);
    let sent = |server: &Server| metric(&server.admin(), "tidegate_deliveries_delivered_total");
    assert!(within_patience(|| sent(&a) + sent(&b) == EVENTS as f64));
    assert!(sent(&b) > 0.0 && hook.rest().is_empty());
}

#[test]
fn a_rolling_restart_makes_no_duplicate() {
    let cluster = Cluster::new();
    let (mut a, mut b) = cluster.two();
    let hook = Receiver::start();
    a.subscribe(&hook, &json!({ "limits": { "concurrency": 4 } }));
    let (mut sent, mut arrived) = (0, Vec::new());
    for round in 0..4 {
        let (old, other) = if round % 2 == 0 { (&mut a, &b) } else { (&mut b, &a) };
        old.admin().publish(&events(&format!("r{round}-old"), 300));
        other.admin().publish(&events(&format!("r{round}-other"), 50));
        sent += 350;
        old.stop();
        other.admin().publish(&events(&format!("r{round}-meanwhile"), 50));
        sent += 50;
        old.restart(&cluster.setup());
        alive(old, 2);
    }
    while arrived.len() < sent {
        arrived.push(hook.next().event_id());
    }
    assert!(arrived.iter().collect::<BTreeSet<_>>().len() == sent, "each of {sent} once");
    a.admin().until("/v1/deliveries?status=pending", |answer| {
        answer["items"].as_array().is_some_and(Vec::is_empty)
    });
    assert!(hook.rest().is_empty());
}
