//! A way to PostgreSQL that can be cut at the worst moment: when a group is on its way there, or its answer on its way
//! back. Of a group that goes step by step, what is cut is its COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const OPEN: u8 = 0;
const CUT_ANSWER: u8 = 1;
const CUT_REQUEST: u8 = 2;
const HAS_CUT: u8 = 3;
/// The answer to a group, and then the first one after a new session has taken the life over.
const CUT_TWICE: u8 = 4;
const CUT_ONCE: u8 = 5;
const CUT_NEXT: u8 = 6;
/// The answer to the COMMIT of a group that goes step by step, or the first COMMIT on its way there.
const CUT_COMMITTED: u8 = 7;
const CUT_COMMIT: u8 = 8;
/// What these look like. A group prepares its COMMIT; other sessions, which may make tables for later meanwhile, just say it, so
/// theirs comes behind no name and is answered without a word about values.
const COMMIT: &[u8] = b"\0COMMIT\0";
const COMMITTED: &[u8] = b"\x04C\0\0\0\x0bCOMMIT\0";

/// Passes everything on, until it is told not to.
pub(crate) struct Proxy {
    url: String,
    order: Arc<AtomicU8>,
}

impl Proxy {
    pub(crate) async fn to(url: &str) -> Self {
        let parsed = url::Url::parse(url).unwrap();
        let target = format!("{}:{}", parsed.host_str().unwrap(), parsed.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut own = parsed;
        own.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        own.set_host(Some("127.0.0.1")).unwrap();
        let order = Arc::new(AtomicU8::new(OPEN));
        tokio::spawn(accept(listener, target, Arc::clone(&order)));
        Self { url: own.into(), order }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Cuts the connection of whoever writes next: `done` tells whether the server still hears of it.
    pub(crate) fn cut_at_next_group(&self, done: bool) {
        self.order.store(if done { CUT_ANSWER } else { CUT_REQUEST }, Ordering::SeqCst);
    }

    /// Cuts the connection of whoever writes next when the server has done it, and again while it is found out what became of
    /// that.
    pub(crate) fn cut_at_next_group_and_again(&self) {
        self.order.store(CUT_TWICE, Ordering::SeqCst);
    }

    /// Cuts the connection of whoever says COMMIT next: `done` tells whether the server still hears of it. On its way there it is
    /// known by its text, which goes there once in a session: no group may have gone step by step before.
    pub(crate) fn cut_at_next_commit(&self, done: bool) {
        self.order.store(if done { CUT_COMMITTED } else { CUT_COMMIT }, Ordering::SeqCst);
    }

    pub(crate) fn has_cut(&self) -> bool {
        self.order.load(Ordering::SeqCst) == HAS_CUT
    }
}

async fn accept(listener: TcpListener, target: String, order: Arc<AtomicU8>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(&target).await.unwrap();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let there = pass(from_client, to_server, Arc::clone(&order), CUT_REQUEST);
        let back = pass(from_server, to_client, Arc::clone(&order), CUT_ANSWER);
        // Whichever ends first takes the other with it.
        tokio::spawn(async move {
            tokio::select! { () = there => {}, () = back => {} }
        });
    }
}

/// Ends, and with it the connection, at the first request, or the first answer that tells the end of a statement, while
/// that is ordered. An ordinary group is one statement, on disk when it is answered.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, order: Arc<AtomicU8>, cuts_at: u8) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let has = |end: &[u8; 9]| piece[..count].windows(9).any(|part| part == end);
        let is_meant = has(b"SELECT 1\0") || cuts_at == CUT_REQUEST;
        let goes_from =
            |before, after| order.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_meant && goes_from(cuts_at, HAS_CUT) {
            return;
        }
        let is_answer = cuts_at == CUT_ANSWER;
        let (mark, commit) = if is_answer { (COMMITTED, CUT_COMMITTED) } else { (COMMIT, CUT_COMMIT) };
        if piece[..count].windows(mark.len()).any(|part| part == mark) && goes_from(commit, HAS_CUT) {
            return;
        }
        if is_answer && (goes_from(CUT_NEXT, HAS_CUT) || is_meant && goes_from(CUT_TWICE, CUT_ONCE)) {
            return;
        }
        if is_answer && has(b"UPDATE 1\0") {
            goes_from(CUT_ONCE, CUT_NEXT);
        }
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
