//! Servers that take a connection and never answer: the others are found, and nothing that is under way is lost.

use std::sync::Arc;

use tidegate_core::lease::BEAT_TIMEOUT;
use tidegate_store::{Load, Store};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::NOW;
use super::schema::Schema;

/// Beats that may fail until one comes through: as many as a lease can miss, and some more on a slow machine.
const BEATS: usize = 5;

/// A URL with another server in front.
fn with_first(url: &str, first: &TcpListener) -> String {
    let at = url.rfind('@').map_or_else(|| url.find("://").unwrap() + 3, |at| at + 1);
    format!("{}127.0.0.1:{},{}", &url[..at], first.local_addr().unwrap().port(), &url[at..])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_server_that_never_answers_keeps_nobody_from_beating() {
    let schema = Schema::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = schema.open(&with_first(schema.url(), &silent), NOW).await;
    for _ in 0..BEATS {
        if let Ok(Ok(_)) = timeout(BEAT_TIMEOUT, store.beat(Load::default())).await {
            return;
        }
    }
    panic!("no beat comes through");
}

/// The way to a server. After it was shut, only the first that comes is let through, and only when that is said.
struct Door {
    url: String,
    state: watch::Sender<State>,
    came: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Shut,
    First,
}

impl Door {
    async fn to(url: &str) -> Self {
        let mut own = url::Url::parse(url).unwrap();
        let server = format!("{}:{}", own.host_str().unwrap(), own.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        own.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        own.set_host(Some("127.0.0.1")).unwrap();
        let (state, came) = (watch::Sender::new(State::Open), Arc::new(Notify::new()));
        let (states, tell) = (state.subscribe(), Arc::clone(&came));
        tokio::spawn(async move {
            let mut since_shut = 0;
            while let Ok((client, _)) = listener.accept().await {
                if *states.borrow() != State::Open {
                    since_shut += 1;
                    tell.notify_one();
                }
                tokio::spawn(pass(client, server.clone(), states.clone(), since_shut));
            }
        });
        Self { url: own.into(), state, came }
    }
}

async fn pass(mut client: TcpStream, server: String, mut states: watch::Receiver<State>, place: u32) {
    let goes_on = move |state: &State| match state {
        State::Open => true,
        State::Shut => false,
        State::First => place == 1,
    };
    if states.wait_for(goes_on).await.is_err() {
        return;
    }
    let mut server = TcpStream::connect(server).await.unwrap();
    // Who came before it was shut is cut off.
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = states.wait_for(|state| place == 0 && *state != State::Open) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_outlives_the_beat_that_began_it() {
    let schema = Schema::new();
    let door = Door::to(schema.url()).await;
    let store = schema.open(&door.url, NOW).await;
    door.state.send_replace(State::Shut);
    tokio::select! {
        biased;
        beat = store.beat(Load::default()) => panic!("{beat:?} through a door that is shut"),
        () = door.came.notified() => {}
    }
    // The beat was given up. What it began is all that gets through.
    door.state.send_replace(State::First);
    for _ in 0..BEATS {
        if let Ok(Ok(_)) = timeout(BEAT_TIMEOUT, store.beat(Load::default())).await {
            return;
        }
    }
    panic!("no beat comes through");
}
