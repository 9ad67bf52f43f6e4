//! Checkpoints beside the commits.
//!
//! SQLite brings its log into the database in the commit that makes the log too long, and that commit's events wait
//! for it. So a connection of its own does most of that work while commits go on. It can not do all: the log starts
//! anew only when nothing is left of it, which under load is never so for anybody but the writer. Therefore the writer
//! keeps its own threshold, further out, and finds little left to do there.
//!
//! Promises: when the store is dropped, nothing of this touches its files any more.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OpenFlags};

use super::db::{self, Calls};
use crate::Group;

/// Pages that may gather in the log before a checkpoint is worth its two flushes.
const PAGES: usize = 1_000;
/// Pages that a commit writes whatever it carries: the last one of each table and index it adds to.
const PAGES_PER_COMMIT: usize = 8;
const PAGE_BYTES: usize = 4_096;
/// What an event, a delivery or a result takes beside the bodies.
const ROW_BYTES: usize = 256;

/// Counts what is written, and checkpoints when it is much. Dropping it waits for a checkpoint that is under way.
pub(super) struct Checkpointer(Arc<Inner>);

struct Inner {
    path: PathBuf,
    calls: Calls,
    pages: AtomicUsize,
    is_running: AtomicBool,
    state: Mutex<State>,
}

enum State {
    /// With a connection, if there was need of one already.
    Open(Option<Connection>),
    Over,
}

impl Checkpointer {
    pub(super) fn new(path: PathBuf, calls: Calls) -> Self {
        Self(Arc::new(Inner {
            path,
            calls,
            pages: AtomicUsize::new(0),
            is_running: AtomicBool::new(false),
            state: Mutex::new(State::Open(None)),
        }))
    }

    /// A group was committed.
    pub(super) fn written(&self, group: &Group) {
        let pages = self.0.pages.fetch_add(about_pages(group), Ordering::Relaxed);
        if pages < PAGES || self.0.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        self.0.pages.store(0, Ordering::Relaxed);
        let inner = Arc::clone(&self.0);
        match self.0.calls {
            Calls::Inline => inner.run(),
            Calls::Blocking => {
                tokio::task::spawn_blocking(move || inner.run());
            }
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        *self.0.lock() = State::Over;
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A failure is nobody's loss: the log stays as it is, and the writer's own checkpoint tells of a broken file.
    fn run(&self) {
        if let State::Open(conn) = &mut *self.lock() {
            let open = || db::open_writer(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE);
            let open = conn.take().map_or_else(open, Ok).ok();
            let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
            *conn = open.filter(|open| open.query_row(checkpoint, [], |_| Ok(())).is_ok());
        }
        self.is_running.store(false, Ordering::Relaxed);
    }
}

fn about_pages(group: &Group) -> usize {
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let bytes: usize = units
        .map(|unit| {
            let bodies: usize = unit.unit.events.iter().map(|event| event.body.len() + ROW_BYTES).sum();
            bodies + unit.routes.iter().map(|routes| routes.len() * ROW_BYTES).sum::<usize>()
        })
        .sum();
    let rows = group.results.len() + group.refills.iter().map(|refill| refill.jobs).sum::<usize>();
    PAGES_PER_COMMIT + (bytes + rows * ROW_BYTES) / PAGE_BYTES
}
