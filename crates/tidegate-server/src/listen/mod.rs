//! The door: accepts connections and serves the API on them.
//!
//! An own accept loop, because each connection needs deadlines and all of them together bounds; and because a graceful
//! stop must let requests under way come to their end. [`places`] says who may stay, [`pace`] who is too slow, [`tls`]
//! holds the certificate.
//!
//! Promises: a client that sends nothing, sends slowly or does not read is gone within its deadline, and earlier when
//! the place is needed; a handshake never keeps the next connection from being accepted; a request under way is never
//! cut off for somebody else's sake. Does not: limit requests or bodies, which the API does.

mod pace;
mod places;
mod terms;
pub mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::api::Peer;
use crate::clock::Clock;
use crate::metrics::Metrics;
use pace::{Paced, Phase};
use places::{Place, Places};
pub use terms::{Terms, open_files_max};
use tls::Certificate;

/// A request's head at most.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long requests under way may take to end after a stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How long to wait when the system has no more file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What stands behind the door, and what is asked of those who come through it.
pub struct Door {
    /// Answers requests.
    pub router: Router,
    /// Whether requests are told where they came from.
    pub tells_peers: bool,
    /// Measures patience.
    pub clock: Clock,
    /// Absent means plain http.
    pub certificate: Option<Arc<Certificate>>,
    /// How many, how long.
    pub terms: Terms,
    /// Counts who was sent away.
    pub metrics: Arc<Metrics>,
}

/// Serves until `stop` changes, then lets requests under way end.
pub async fn serve(listener: TcpListener, door: Door, mut stop: watch::Receiver<bool>) {
    let places = Places::new(&door.terms);
    let handshakes = Arc::new(Semaphore::new(door.terms.handshakes));
    let door = Arc::new(door);
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => admit(stream, peer, &door, &places, &handshakes, &stop),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                // Mostly there are no file descriptors left: then somebody who does nothing gives up his.
                places.make_room();
                door.clock.pause(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, places.emptied()).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

/// Gives the connection a place and a task of its own, or closes it.
fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    door: &Arc<Door>,
    places: &Arc<Places>,
    handshakes: &Arc<Semaphore>,
    stop: &watch::Receiver<bool>,
) {
    let Some(place) = places.admit(peer.ip(), door.clock.elapsed()) else {
        door.metrics.connection_refused("full");
        tracing::debug!("a connection was closed: every place is taken by a request under way");
        return;
    };
    let permit = match door.certificate {
        None => None,
        Some(_) => match Arc::clone(handshakes).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => return door.metrics.connection_refused("handshakes"),
        },
    };
    let (door, mut stop) = (Arc::clone(door), stop.clone());
    tokio::spawn(async move {
        let _connected = door.metrics.connected();
        // Answers are small and complete: waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let Some(certificate) = &door.certificate else {
            return speak(stream, &door, &place, stop).await;
        };
        let stream = tokio::select! {
            biased;
            stream = handshake(stream, certificate, &door) => stream,
            () = place.is_wanted() => None,
            _ = stop.wait_for(|stop| *stop) => None,
        };
        drop(permit);
        if let Some(stream) = stream {
            place.pace().enter(Phase::Fresh, door.clock.elapsed());
            speak(stream, &door, &place, stop).await;
        }
    });
}

async fn handshake(
    stream: TcpStream,
    certificate: &Arc<Certificate>,
    door: &Door,
) -> Option<TlsStream<TcpStream>> {
    let config = certificate.current(door.clock.elapsed()).await;
    let accepting = TlsAcceptor::from(config).accept(stream);
    match tokio::time::timeout(door.terms.handshake, accepting).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            door.metrics.connection_refused("slow");
            None
        }
    }
}

/// Answers the requests of one connection until one side has enough.
async fn speak<S>(stream: S, door: &Door, place: &Place, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (pace, clock) = (place.pace(), &door.clock);
    let has_begun = AtomicBool::new(false);
    let service = TowerToHyperService::new(door.router.clone());
    let peer = door.tells_peers.then(|| Peer(place.address()));
    let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        has_begun.store(true, Ordering::Relaxed);
        pace.enter(Phase::Working, clock.elapsed());
        let answering = service.call(request);
        async move {
            let answer = answering.await;
            pace.enter(Phase::Idle, clock.elapsed());
            answer
        }
    });
    let io = TokioIo::new(Paced::new(stream, Arc::clone(pace), clock.clone()));
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
    let served = http.serve_connection(io, service);
    tokio::pin!(served);
    tokio::select! {
        biased;
        result = served.as_mut() => return log(result),
        _ = stop.wait_for(|stop| *stop) => served.as_mut().graceful_shutdown(),
        () = place.is_wanted() => return door.metrics.connection_refused("evicted"),
        () = pace.overdue(&door.terms, clock) => return door.metrics.connection_refused("slow"),
    }
    // A graceful shutdown waits for the first request, which may never come.
    if has_begun.load(Ordering::Relaxed) {
        log(served.await);
    }
}

fn log(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
