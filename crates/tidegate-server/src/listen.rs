//! The door: accepts connections and serves the API on them.
//!
//! An own accept loop, because each connection needs a deadline for its headers and all of them together a bound;
//! and because a graceful stop must let requests under way come to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Connections at once: one file descriptor each.
const CONNECTIONS_MAX: usize = 4096;
/// How long a client may take to send a request's head, also after the last answer.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// A request's head at most.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long requests under way may take to end after a stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How long to wait when the system has no more file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Serves until `stop` changes, then lets requests under way end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    mut stop: watch::Receiver<bool>,
    clock: crate::clock::Clock,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    connection(stream, router, stop).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                clock.pause(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    // All places are free when all connections have ended.
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    if tokio::time::timeout(DRAIN, places.acquire_many(all)).await.is_err() {
        tracing::warn!("some connections did not end in time");
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(stream: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    // Answers are small and complete: waiting for more to send only delays them.
    let _ = stream.set_nodelay(true);
    let has_begun = AtomicBool::new(false);
    let service = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        has_begun.store(true, Ordering::Relaxed);
        service.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    tokio::select! {
        biased;
        result = served.as_mut() => return log(result),
        _ = stop.wait_for(|stop| *stop) => served.as_mut().graceful_shutdown(),
    }
    // A graceful shutdown waits for the first request, which may never come.
    if !has_begun.load(Ordering::Relaxed) {
        return;
    }
    log(served.await);
}

fn log(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
