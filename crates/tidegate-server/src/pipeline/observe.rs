//! Observe: events that are stored are counted, slice by slice.
//!
//! Nothing is counted on the way in: a slice of events is taken from behind the mark, judged by the catalog of each
//! event's day, and what it adds is written in the transaction that moves the mark. So a crash costs nothing but the
//! slice's work, and whatever a dead process left is observed by whoever finds its mark. What was just committed is
//! still at hand (`held.rs`), everything else is read from the store.
//!
//! The loop sleeps until enough has been accepted, or the oldest of it has waited long enough, or somebody asks. Where no
//! type declares a metric it never wakes.

mod past;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::id::{ProjectNo, Seq};
use tidegate_core::limits::SLICE_BYTES_MAX;
use tidegate_core::observe::Slab;
use tidegate_core::time::Timestamp;
use tidegate_store::{Advance, Committed, Error, EventRow, Flush, Group, Mark, Slice, Store};
use tokio::sync::{Notify, oneshot};

use super::held::{self, Held};
use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::observing::{Terms, Types};
use crate::roster::Rosters;
use crate::standing::Standing;

/// How long somebody who asks waits for what is not counted yet.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events that are looked at before others get their turn on this thread.
const STRIDE: usize = 256;

/// The loop, and what it is told.
pub struct Observe {
    store: Arc<dyn Store>,
    clock: Clock,
    entropy: Entropy,
    standing: Arc<Standing>,
    metrics: Arc<Metrics>,
    rosters: Arc<Rosters>,
    terms: Terms,
    state: Mutex<State>,
    wake: Notify,
    /// Whether any type declares a metric.
    is_on: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Events that were committed since the last pass began.
    waiting: usize,
    due: Option<Timestamp>,
    asks: Vec<oneshot::Sender<()>>,
    held: Held,
    /// The time of the earliest group that may be written and has not been settled. Its events may come to be seen at any moment.
    under_way: Option<Timestamp>,
    is_stopping: bool,
}

/// A slice of events, and what they add.
struct Read {
    /// The last of them.
    through: Seq,
    /// Up to when everything is among them.
    at: Timestamp,
    /// There were no more.
    is_end: bool,
    count: usize,
    slab: Slab,
}

impl Observe {
    pub(super) fn new(parts: &Parts) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&parts.store),
            clock: parts.clock.clone(),
            entropy: parts.entropy.clone(),
            standing: Arc::clone(&parts.standing),
            metrics: Arc::clone(&parts.metrics),
            rosters: Arc::clone(&parts.rosters),
            terms: parts.observing,
            state: Mutex::default(),
            wake: Notify::new(),
            is_on: AtomicBool::new(false),
        })
    }

    /// A group was committed; its events are taken from it.
    pub(super) fn committed(&self, group: &mut Group, committed: &Committed) {
        if !self.is_on.load(Ordering::Relaxed) || group.submissions.is_empty() {
            return;
        }
        let units: usize = group.submissions.iter().map(|submission| submission.units.len()).sum();
        let brought = held::brought(group, committed);
        let mut state = self.lock();
        state.waiting += units;
        match brought {
            Some(events) => state.held.push(events),
            None => state.held.forget(),
        }
        let is_first = state.due.is_none();
        if is_first {
            state.due = Some(self.clock.now().plus(self.terms.interval));
        }
        if is_first || state.waiting >= self.terms.batch {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// A group is about to be committed; says what time its events have. One whose outcome is not known stays under way until
    /// another one was committed behind it.
    pub(super) fn begin_group(&self) -> Timestamp {
        let mut state = self.lock();
        // While the state is held: whoever asks up to when everything is known sees this group, or asked before its time.
        let now = self.clock.now();
        state.under_way = Some(state.under_way.map_or(now, |earlier| earlier.min(now)));
        now
    }

    /// Everything that was under way has been committed and told, or came to nothing.
    pub(super) fn end_group(&self) {
        self.lock().under_way = None;
    }

    /// Whatever was accepted here before this can be seen now.
    fn settled_before(&self) -> Timestamp {
        let state = self.lock();
        let now = self.clock.now();
        state.under_way.map_or(now, |under_way| under_way.min(now))
    }

    /// Something may have been committed that nobody tells of.
    pub(super) fn forget(&self) {
        self.lock().held.forget();
    }

    /// There may be something to observe that was not committed here: another catalog, or what a dead process left.
    pub(crate) fn look_again(&self) {
        self.lock().due = Some(self.clock.now());
        self.wake.notify_one();
    }

    /// Waits until everything that was accepted here before is counted, but not for ever. Says up to when all
    /// processes have counted what they accepted.
    pub async fn catch_up(&self) -> tidegate_store::Result<Timestamp> {
        let (reply, answer) = oneshot::channel();
        self.lock().asks.push(reply);
        self.wake.notify_one();
        tokio::select! {
            biased;
            _ = answer => {}
            () = self.clock.pause(PATIENCE) => {}
        }
        self.store.observed_until(self.settled_before()).await
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopping = true;
        self.wake.notify_one();
    }

    /// The loop. What was accepted before it is stopped is counted before it ends, if the store lets it.
    pub(super) async fn run(self: Arc<Self>) {
        let mut types = Types::new(self.terms);
        let mut has_failed = false;
        self.look_again();
        while let Some((asks, is_last)) = self.gather().await {
            match self.pass(&mut types).await {
                Ok(()) => {
                    if std::mem::take(&mut has_failed) {
                        tracing::info!("events are counted again");
                    }
                    for ask in asks {
                        // Whoever asked may have gone away.
                        let _ = ask.send(());
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "events are not counted until the store works again");
                    }
                    if !is_last {
                        self.clock.pause(STORE_RETRY).await;
                        self.look_again();
                    }
                }
            }
            if is_last {
                return;
            }
        }
    }

    /// Waits until there is a reason to look; says who asked, and whether it is the last time.
    async fn gather(&self) -> Option<(Vec<oneshot::Sender<()>>, bool)> {
        loop {
            let due = {
                let mut state = self.lock();
                let is_due = state.due.is_some_and(|at| at <= self.clock.now());
                if is_due || state.is_stopping || !state.asks.is_empty() || state.waiting >= self.terms.batch
                {
                    (state.waiting, state.due) = (0, None);
                    return Some((std::mem::take(&mut state.asks), state.is_stopping));
                }
                state.due
            };
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.clock.doze_until_some(due) => {}
            }
        }
    }

    /// Observes everything that is there: of this life, of those that ended, and of the past where somebody wants that.
    async fn pass(&self, types: &mut Types) -> tidegate_store::Result<()> {
        types.refresh(&*self.store).await?;
        if self.is_on.swap(types.is_observing(), Ordering::Relaxed) != types.is_observing() {
            self.forget();
        }
        if types.is_empty() {
            return Ok(());
        }
        let generation = self.lock().held.generation();
        for mark in self.store.marks().await? {
            self.follow(mark, generation, types).await?;
        }
        if self.standing.leads() {
            self.step_back(types).await?;
        }
        Ok(())
    }

    /// Observes what lies behind one mark. While one slice is written the next one is read.
    async fn follow(&self, mut mark: Mark, generation: u64, types: &mut Types) -> tidegate_store::Result<()> {
        let mut read = self.read_behind(mark, generation, types).await?;
        while read.through > mark.seq {
            let Read { through, at, is_end, count, slab } = read;
            let flush = self.flush(Advance::Mark { of: mark.of, after: mark.seq, through, at }, slab, count);
            if is_end && !mark.is_orphan {
                flush.await?;
                return Ok(());
            }
            mark = Mark { seq: through, at, ..mark };
            let (is_counted, next) = tokio::join!(flush, self.read_behind(mark, generation, types));
            if !is_counted? {
                return Ok(());
            }
            read = next?;
        }
        if mark.is_orphan { self.store.end_mark(mark).await } else { Ok(()) }
    }

    /// Reads a slice of the events behind a mark.
    async fn read_behind(
        &self,
        mark: Mark,
        generation: u64,
        types: &mut Types,
    ) -> tidegate_store::Result<Read> {
        let before = self.settled_before();
        let slice = self.slice(mark, generation).await?;
        let at = if slice.is_end && !mark.is_orphan { before } else { slice.at.unwrap_or(mark.at) };
        if slice.events.iter().any(|(_, event)| event.version > types.version()) {
            types.refresh(&*self.store).await?;
        }
        let count = slice.events.len();
        let (through, is_end) = (slice.through, slice.is_end);
        let slab = if self.terms.workers > 1 && count > STRIDE {
            types.observe_together(slice.events, self.entropy.u64()).await
        } else {
            self.read(&slice, |project, event, slab| types.observe(project, event, slab)).await
        };
        Ok(Read { through, at, is_end, count, slab })
    }

    /// The events behind a mark, from memory if they are there.
    async fn slice(&self, mark: Mark, generation: u64) -> tidegate_store::Result<Slice> {
        let (after, batch) = (mark.seq, self.terms.batch);
        let is_own = !mark.is_orphan;
        let held = is_own.then(|| self.lock().held.take(generation, after, batch)).flatten();
        match held {
            Some(held) => Ok(held),
            None => self.store.unobserved(mark.of, after, batch, SLICE_BYTES_MAX).await,
        }
    }

    /// Sums up what a slice says, and lets others have their turn meanwhile.
    async fn read(&self, slice: &Slice, mut observe: impl FnMut(ProjectNo, &EventRow, &mut Slab)) -> Slab {
        let mut slab = Slab::new(self.entropy.u64());
        for events in slice.events.chunks(STRIDE) {
            for (project, event) in events {
                observe(*project, event, &mut slab);
            }
            tokio::task::yield_now().await;
        }
        slab
    }

    /// Says whether this process was the one that counted them.
    async fn flush(&self, advance: Advance, slab: Slab, events: usize) -> tidegate_store::Result<bool> {
        let began = self.clock.elapsed();
        let flush = Flush { advance, delta: slab.into_delta() };
        match self.store.observe(flush, self.clock.now()).await {
            Ok(()) => self.metrics.observed(events, self.clock.elapsed() - began),
            // Another process was quicker: what it moved on from is its.
            Err(Error::Conflict(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
