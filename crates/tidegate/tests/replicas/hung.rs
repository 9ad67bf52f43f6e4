//! A database that takes what it is sent and says nothing: nobody is left waiting, and nothing is lost.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::client::within_patience;
use crate::cluster::{Cluster, event};
use crate::server::Server;

/// Whether nothing passes.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    moved: Condvar,
}

/// A way to the database on which everything stops for a while.
struct Way {
    url: String,
    gate: Arc<Gate>,
}

impl Way {
    fn to(url: &str) -> Self {
        let mut parsed = url::Url::parse(url).unwrap();
        let target = format!("{}:{}", parsed.host_str().unwrap(), parsed.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        parsed.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let gate = Arc::new(Gate::default());
        let shared = Arc::clone(&gate);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&target) else { return };
                pass(&client, &server, &shared);
                pass(&server, &client, &shared);
            }
        });
        Self { url: parsed.into(), gate }
    }

    fn shut(&self, is_shut: bool) {
        *self.gate.is_shut.lock().unwrap() = is_shut;
        self.gate.moved.notify_all();
    }
}

fn pass(from: &TcpStream, to: &TcpStream, gate: &Arc<Gate>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let gate = Arc::clone(gate);
    thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            drop(gate.moved.wait_while(gate.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn a_database_that_says_nothing_leaves_nobody_waiting() {
    let cluster = Cluster::new();
    let way = Way::to(cluster.url());
    let mut setup = cluster.setup();
    setup.variables = vec![("TIDEGATE_STORE", way.url.clone())];
    let server = Server::start_with(&setup);
    let client = server.admin();
    assert_eq!(client.post("/v1/events", &event("before")).status, 202);
    way.shut(true);
    // It waits for its commit, until it is told to come again; whoever comes then is told at once.
    let refused = client.post("/v1/events", &event("meanwhile"));
    refused.problem(503, "store_unavailable");
    assert!(refused.header("retry-after").is_some());
    client.post("/v1/events", &event("later")).problem(503, "store_unavailable");
    way.shut(false);
    assert!(
        within_patience(|| client.post("/v1/events", &event("meanwhile")).status == 202),
        "it never works again"
    );
    let kept =
        client.until("/v1/events", |events| events["items"].as_array().is_some_and(|items| items.len() == 2));
    assert!(kept["items"].as_array().unwrap().iter().any(|event| event["id"] == "meanwhile"), "{kept}");
}
