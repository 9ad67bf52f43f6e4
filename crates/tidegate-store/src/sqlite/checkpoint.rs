//! Checkpoints beside the commits.
//!
//! SQLite brings its log into the database in the commit that makes the log too long, and that commit's events wait
//! for it. So a connection of its own does most of that work while commits go on. It can not do all: the log starts
//! anew only when nothing is left of it, which under load is never so for anybody but the writer. Therefore the writer
//! keeps its own threshold, further out, and finds little left to do there.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Counts what is written, and checkpoints when it is much.
pub(super) struct Checkpointer {
    path: PathBuf,
    calls: Calls,
    pages: AtomicUsize,
    is_running: AtomicBool,
    conn: Mutex<Option<Connection>>,
}

impl Checkpointer {
    pub(super) fn new(path: PathBuf, calls: Calls) -> Arc<Self> {
        Arc::new(Self {
            path,
            calls,
            pages: AtomicUsize::new(0),
            is_running: AtomicBool::new(false),
            conn: Mutex::default(),
        })
    }

    /// A group was committed.
    pub(super) fn written(self: &Arc<Self>, group: &Group) {
        let pages = self.pages.fetch_add(about_pages(group), Ordering::Relaxed);
        if pages < PAGES || self.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        self.pages.store(0, Ordering::Relaxed);
        let checkpointer = Arc::clone(self);
        match self.calls {
            Calls::Inline => checkpointer.run(),
            Calls::Blocking => {
                tokio::task::spawn_blocking(move || checkpointer.run());
            }
        }
    }

    /// A failure is nobody's loss: the log stays as it is, and the writer's own checkpoint tells of a broken file.
    fn run(&self) {
        let mut conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner);
        let open =
            conn.take().map_or_else(|| db::open_writer(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE), Ok);
        *conn =
            open.ok().filter(|open| open.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).is_ok());
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
