//! A process whose requests keep it busy is alive, and the others see that.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use tidegate_core::lease::{BEAT_EVERY, BEAT_TTL};
use tidegate_server::boot;
use tidegate_server::settings::File;
use tidegate_server::settings::store::{Address, Secrets};

use crate::client::within_patience;
use crate::cluster::{Cluster, MASTER_KEY};

/// A server within this process, so that the loop that judges events can be held for as long as the test likes: the start is
/// announced from there.
#[test]
fn a_request_that_takes_longer_than_the_lease_does_not_end_the_process() {
    let cluster = Cluster::new();
    let mut file = File { listen: Some("127.0.0.1:0".to_owned()), ..File::default() };
    file.store.url = Some(Address(cluster.url().to_owned()));
    let secrets = Secrets { master_key: Some(MASTER_KEY.to_owned()), ..Secrets::default() };
    let settings = file.settle(secrets).expect("settings");
    let (held, is_held) = mpsc::channel();
    let (let_go, may_go) = mpsc::channel::<()>();
    let running = thread::spawn(move || {
        boot::run(settings, move |_, _| {
            held.send(()).expect("the test waits for this");
            // Ends with the test, whatever becomes of that.
            let _ = may_go.recv();
        })
    });
    is_held.recv().expect("it starts");
    // Times of a beat are the database's: from here on, by its clock.
    assert_eq!(cluster.execute("UPDATE beats SET began_at = at"), 1);
    let enough = (BEAT_TTL + BEAT_EVERY).as_millis();
    let has_beaten = || cluster.execute(&format!("SELECT FROM beats WHERE at >= began_at + {enough}")) == 1;
    assert!(within_patience(has_beaten), "it was silent for longer than a process may be");
    drop(let_go);
    let ended = Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
    assert!(ended.expect("kill").success());
    running.join().expect("no panic").expect("it ends in good order");
    assert_eq!(cluster.execute("SELECT FROM beats"), 0, "and leaves");
}
