//! Idle connections of one target.
//!
//! Last in, first out: the same few connections stay warm and the rest expire. A connection is not reused after
//! [`IDLE_MAX`], nor after [`AGE_MAX`], by when its address is due to be looked up and judged again. One sweep
//! task per target closes what expired; it lives only while something is idle, so that an idle process is idle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::oneshot;

use crate::target::Target;
use crate::transport::now;

/// Idle connections of one target: its concurrency at most.
const IDLE_CONNECTIONS_MAX: usize = tidegate_core::limits::CONCURRENCY_MAX as usize;
/// Receivers close idle connections after a minute or more; well below that, reuse seldom fails.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long an address once judged stays good.
const AGE_MAX: Duration = Duration::from_secs(300);
/// How long a connection may take to become ready again after its answer was read.
const READY_WITHIN: Duration = Duration::from_secs(1);

/// An open connection, with no request on it.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    born: Instant,
    /// Dropped with the connection: its driver then closes the socket, politely if that is quick.
    _owned: oneshot::Sender<()>,
}

impl Connection {
    pub(crate) fn new(sender: SendRequest<Full<Bytes>>, owned: oneshot::Sender<()>) -> Self {
        Self { sender, born: now(), _owned: owned }
    }
}

/// The idle connections of a target, longest idle first.
#[derive(Default)]
pub(crate) struct Idle {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<Kept>,
    is_swept: bool,
}

struct Kept {
    connection: Connection,
    since: Instant,
}

impl Kept {
    fn expires(&self) -> Instant {
        (self.since + IDLE_MAX).min(self.connection.born + AGE_MAX)
    }
}

impl Idle {
    /// The connection that was used last, if it can still be used.
    pub(crate) fn take(&self, now: Instant) -> Option<Connection> {
        let mut state = self.lock();
        while let Some(kept) = state.connections.pop() {
            if now < kept.expires() && kept.connection.sender.is_ready() {
                return Some(kept.connection);
            }
        }
        None
    }

    /// Keeps a connection. Answers whether a sweep must be started.
    fn put(&self, connection: Connection, since: Instant) -> bool {
        let mut state = self.lock();
        if state.connections.len() >= IDLE_CONNECTIONS_MAX {
            return false;
        }
        state.connections.push(Kept { connection, since });
        !std::mem::replace(&mut state.is_swept, true)
    }

    /// Drops what expired or was closed by the receiver; answers how long until there is more to do, or `None` when
    /// nothing is idle and the sweep ends.
    fn expire(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        state.connections.retain(|kept| now < kept.expires() && !kept.connection.sender.is_closed());
        let next = state.connections.iter().map(Kept::expires).min();
        state.is_swept = next.is_some();
        next.map(|next| next.saturating_duration_since(now))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step under the lock can leave the list half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a connection to its target. Usually it is ready at once; otherwise someone else waits for it, not the
/// delivery that was just answered.
pub(crate) fn give_back(target: &Arc<Target>, mut connection: Connection, now: Instant) {
    if connection.sender.is_ready() {
        keep(target, connection, now);
    } else if !connection.sender.is_closed() {
        let target = Arc::downgrade(target);
        tokio::spawn(async move {
            let ready = tokio::time::timeout(READY_WITHIN, connection.sender.ready()).await;
            if let (Ok(Ok(())), Some(target)) = (ready, target.upgrade()) {
                keep(&target, connection, now);
            }
        });
    }
}

fn keep(target: &Arc<Target>, connection: Connection, now: Instant) {
    if target.idle().put(connection, now) {
        tokio::spawn(sweep(Arc::downgrade(target)));
    }
}

async fn sweep(target: Weak<Target>) {
    while let Some(wait) = target.upgrade().and_then(|target| target.idle().expire(now())) {
        let _ = tokio::time::timeout(wait, std::future::pending::<()>()).await;
    }
}
