//! One life of the process: its clock, and the ways it can end at any moment.
//!
//! Whoever is about to do something that others can see passes a [`Life::point`] before and after. There the life
//! may end: then nothing of it is ever seen again, as after a power cut. The fuse counts points, so a crash can fall
//! between any two of them; the world itself crashes between any two polls.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_server::clock::Clock;
use tokio::sync::Notify;

/// One life.
pub(crate) struct Life {
    no: AtomicUsize,
    pub(crate) clock: Clock,
    /// True time when it began.
    began_t: i64,
    is_dead: AtomicBool,
    fuse: Mutex<Option<u32>>,
    /// Until then, in true time, nothing reaches it and it reaches nobody but receivers.
    cut_until: AtomicI64,
    /// Since when, in true time, it knows that nothing can be written; 0 while something can.
    failing_since: AtomicI64,
    bell: Notify,
}

impl Life {
    pub(crate) fn new(no: usize, clock: Clock, began_t: i64) -> Self {
        Self {
            no: AtomicUsize::new(no),
            clock,
            began_t,
            is_dead: AtomicBool::new(false),
            fuse: Mutex::new(None),
            cut_until: AtomicI64::new(0),
            failing_since: AtomicI64::new(0),
            bell: Notify::new(),
        }
    }

    /// Its number.
    pub(crate) fn no(&self) -> usize {
        self.no.load(Ordering::Relaxed)
    }

    /// The same process begins another one.
    pub(crate) fn renumber(&self, no: usize) {
        self.no.store(no, Ordering::Relaxed);
    }

    /// Cuts it off from the store and from the other processes.
    pub(crate) fn cut(&self, until: i64) {
        self.cut_until.store(until, Ordering::Relaxed);
    }

    /// For how long it is cut off yet.
    pub(crate) fn cut_for(&self) -> Option<Duration> {
        let ms = self.cut_until.load(Ordering::Relaxed) - self.t();
        (ms > 0).then(|| Duration::from_millis(ms.unsigned_abs()))
    }

    /// It is told what became of a group.
    pub(crate) fn note_commit(&self, is_written: bool) {
        let since = if is_written { 0 } else { self.t().max(1) };
        if is_written || self.failing_since.load(Ordering::Relaxed) == 0 {
            self.failing_since.store(since, Ordering::Relaxed);
        }
    }

    /// For how long it has known that what becomes of deliveries can not be written.
    pub(crate) fn fails_for_ms(&self) -> i64 {
        match self.failing_since.load(Ordering::Relaxed) {
            0 => 0,
            since => self.t() - since,
        }
    }

    /// True time.
    pub(crate) fn t(&self) -> i64 {
        self.began_t + i64::try_from(self.clock.elapsed().as_millis()).expect("runs are short")
    }

    /// Lets it end `points` points from now, or not at all.
    pub(crate) fn set_fuse(&self, points: Option<u32>) {
        *self.fuse.lock().unwrap_or_else(PoisonError::into_inner) = points;
    }

    /// A moment at which the life may end; then this never returns.
    pub(crate) async fn point(&self) {
        if self.is_over() {
            std::future::pending::<()>().await;
        }
    }

    fn is_over(&self) -> bool {
        if self.is_dead.load(Ordering::Relaxed) {
            return true;
        }
        let mut fuse = self.fuse.lock().unwrap_or_else(PoisonError::into_inner);
        match fuse.as_mut() {
            None => return false,
            Some(0) => {}
            Some(points) => {
                *points -= 1;
                return false;
            }
        }
        drop(fuse);
        self.end();
        true
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&self) {
        self.bell.notified().await;
    }
}
