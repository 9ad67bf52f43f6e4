//! Idle connections of one target.
//!
//! Last in, first out: the same few connections stay warm and the rest expire. A connection is not reused after being
//! idle for [`IDLE_MAX`] or for what its receiver allows, nor after [`AGE_MAX`], by when its address is due to be
//! looked up and judged again. One sweep
//! task per target closes what expired; it lives only while something is idle, so that an idle process is idle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::sync::oneshot;
use tokio::time::Instant;

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
    idle_max: Duration,
    /// Dropped with the connection: its driver then closes the socket, politely if that is quick.
    _owned: oneshot::Sender<()>,
}

impl Connection {
    pub(crate) fn new(sender: SendRequest<Full<Bytes>>, owned: oneshot::Sender<()>) -> Self {
        Self { sender, born: now(), idle_max: IDLE_MAX, _owned: owned }
    }

    /// Takes the receiver's word on how long it keeps an idle connection, within our own limit.
    pub(crate) fn allow_idle(&mut self, asked: Option<Duration>) {
        self.idle_max = asked.unwrap_or(IDLE_MAX).min(IDLE_MAX);
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
        (self.since + self.connection.idle_max).min(self.connection.born + AGE_MAX)
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

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tidegate_core::egress::Url;
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    use super::*;

    /// A target, and a connection to it with the receiver's end.
    async fn connected() -> (Arc<Target>, Connection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(driver);
        let mut connection = Connection::new(sender, oneshot::channel().0);
        connection.sender.ready().await.unwrap();
        (Target::new(Url::parse("https://receiver.test/").unwrap()), connection, theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_used_until_it_expires() {
        let (target, connection, _theirs) = connected().await;
        let start = now();
        keep(&target, connection, start);
        let connection = target.idle().take(start + IDLE_MAX - Duration::from_millis(1)).unwrap();
        assert!(target.idle().take(start).is_none(), "it is in use");
        keep(&target, connection, start);
        assert!(target.idle().take(start + IDLE_MAX).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_may_ask_for_less() {
        let (target, mut connection, _theirs) = connected().await;
        let start = now();
        connection.allow_idle(Some(AGE_MAX));
        assert_eq!(connection.idle_max, IDLE_MAX);
        connection.allow_idle(Some(Duration::from_secs(4)));
        keep(&target, connection, start);
        assert!(target.idle().take(start + Duration::from_secs(4)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_is_not_used_however_busy() {
        let (target, connection, _theirs) = connected().await;
        let end = now() + AGE_MAX;
        keep(&target, connection, end - Duration::from_secs(1));
        let connection = target.idle().take(end - Duration::from_millis(1)).unwrap();
        keep(&target, connection, end - Duration::from_millis(1));
        assert!(target.idle().take(end).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn expired_connections_are_closed_by_a_sweep_that_ends() {
        let (target, connection, mut theirs) = connected().await;
        let start = now();
        keep(&target, connection, start);
        assert!(target.idle().lock().is_swept);
        let closed = tokio::time::timeout(AGE_MAX, theirs.read(&mut [0; 1])).await;
        assert_eq!(closed.expect("closed in time").unwrap(), 0);
        assert_eq!(now() - start, IDLE_MAX);
        assert!(!target.idle().lock().is_swept);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_the_receiver_closed_is_not_taken() {
        let (target, connection, theirs) = connected().await;
        keep(&target, connection, now());
        drop(theirs);
        tokio::task::yield_now().await;
        assert!(target.idle().take(now()).is_none());
    }
}
