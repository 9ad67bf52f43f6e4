//! Persist: the group commit.
//!
//! Everybody who has something to write leaves it here and, if it matters to them, waits. One loop takes all there
//! is, commits it in one transaction, hands the new work to the desk and answers. While a commit is under way the
//! next group gathers by itself, so there is no waiting window: one event alone is written at once, and under load
//! a commit carries many.
//!
//! Results of attempts do not wake the loop: they ride with the next group, or go alone after a few milliseconds
//! (`pending.rs`). Results of ordered deliveries do wake it, because the next of their lane waits for them.
//!
//! Promises: whoever is told "accepted" is told after the commit. Results survive a failing store: they are kept
//! and written when it works again. Whatever was judged and routed by an old
//! configuration is judged and routed again before it is written.

mod apart;
mod crowds;
mod notes;
mod patience;
mod pending;
mod windows;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::{CLOSE_WINDOWS_MAX, STALE_ROUNDS_MAX, STOP_WRITES_MAX};
use tidegate_core::span::SpanContext;
use tidegate_core::time::Timestamp;
use tidegate_store::coordination::{Coordination, News};
use tidegate_store::{
    BackfillStep, Claim, Committed, Error, Finished, Group, JobStep, Store, Submission, UnitStatus,
};
use tokio::sync::{Notify, oneshot};

use self::crowds::Crowds;
use self::pending::{Batch, Pending, Waiting};
use super::Parts;
use super::desk::Desk;
use super::ingest::Rerouting;
use super::lanes;
use super::observe::Observe;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::roster::{Roster, Rosters};
use crate::spans::{Ending, Kind, LINKS_MAX, Spans, Value};
use crate::standing::Standing;
use crate::watch::Watch;

/// A group that answers so many is one of a process that is busy.
const CROWD: usize = 4;
/// How long those who were answered have to come again, while others keep the database busy.
const GATHER: Duration = Duration::from_micros(500);
/// How long the loop waits before it tries a failing store again.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// It can not be taken now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// The store does not take it.
    Store,
    /// The configuration changes faster than it can be routed. Nothing of it was written.
    Configuration,
}

/// The group commit.
pub struct Persist {
    store: Arc<dyn Store>,
    rosters: Arc<Rosters>,
    desk: Arc<Desk>,
    observe: Arc<Observe>,
    clock: Clock,
    metrics: Arc<Metrics>,
    watch: Arc<Watch>,
    spans: Arc<Spans>,
    standing: Arc<Standing>,
    coordination: Option<Arc<dyn Coordination>>,
    pending: Mutex<Pending>,
    wake: Notify,
    is_healthy: AtomicBool,
    /// When the last commit came back, on the steady clock in milliseconds.
    committed_ms: AtomicU64,
    crowds: Crowds,
}

/// What the loop finds when it looks.
enum Look {
    Work(Box<Batch>),
    /// Nothing before this time, unless somebody brings something.
    Nothing(Option<Timestamp>),
    End,
}

/// What became of a group.
enum Written {
    /// It is written, and everybody is answered.
    Done,
    /// The configuration moved in every round.
    Stale(Box<Batch>),
    /// The store failed.
    Failed,
    /// The same, and nobody will try again.
    GivenUp,
}

impl Persist {
    pub(super) fn new(parts: &Parts, desk: Arc<Desk>, observe: Arc<Observe>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&parts.store),
            rosters: Arc::clone(&parts.rosters),
            desk,
            observe,
            clock: parts.clock.clone(),
            metrics: Arc::clone(&parts.metrics),
            watch: Arc::clone(&parts.watch),
            spans: Arc::clone(&parts.spans),
            standing: Arc::clone(&parts.standing),
            coordination: parts.coordination.clone(),
            pending: Mutex::default(),
            wake: Notify::new(),
            is_healthy: AtomicBool::new(true),
            committed_ms: AtomicU64::new(0),
            crowds: Crowds::default(),
        })
    }

    /// Whether the last commit worked.
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Writes new events that this roster has routed; answers after the commit.
    pub async fn submit(
        &self,
        submission: Submission,
        roster: Arc<Roster>,
        span: Option<SpanContext>,
    ) -> Result<Vec<UnitStatus>, Unavailable> {
        // It could be lost although it was answered.
        if self.standing.weakness().is_some() {
            return Err(Unavailable::Store);
        }
        let (reply, answer) = oneshot::channel();
        {
            let mut pending = self.lock();
            if pending.is_stopping || pending.is_stuck {
                return Err(Unavailable::Store);
            }
            pending.submissions.push(Waiting { submission, roster, span, reply });
        }
        self.wake.notify_one();
        answer.await.unwrap_or(Err(Unavailable::Store))
    }

    /// Writes the result of an attempt, soon.
    pub fn finished(&self, finished: Finished) {
        let wakes = self.lock().push_result(finished, self.clock.now());
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Gives claims back, soon.
    pub fn release(&self, claims: Vec<Claim>) {
        if claims.is_empty() {
            return;
        }
        let mut pending = self.lock();
        pending.released.extend(claims);
        pending.is_urgent = true;
        drop(pending);
        self.wake.notify_one();
    }

    /// A suspect begins to be sent; answers after the commit, and with an error if it is no longer ours.
    pub async fn begin(&self, claim: Claim) -> Result<(), Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.lock().begun.push((claim, reply));
        self.wake.notify_one();
        answer.await.map_err(|_| Unavailable::Store)
    }

    /// Writes a step of a backfill; answers after the commit.
    pub async fn backfill(&self, step: BackfillStep) -> Result<(), Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.lock().backfills.push((step, reply));
        self.wake.notify_one();
        answer.await.map_err(|_| Unavailable::Store)
    }

    /// Writes a step of a job; answers after the commit whether it was the next one.
    pub async fn step(&self, step: JobStep) -> Result<bool, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.lock().steps.push((step, reply));
        self.wake.notify_one();
        answer.await.map_err(|_| Unavailable::Store)
    }

    /// Commits something, if only nothing, to find out how this process stands.
    pub fn look_again(&self) {
        self.lock().is_urgent = true;
        self.wake.notify_one();
    }

    /// Lets the loop write what is there and end. If the store is away, it tries again for a while.
    pub fn stop(&self) {
        {
            let mut pending = self.lock();
            pending.is_stopping = true;
            pending.stop_until = self.clock.steady() + STOP_WRITES_MAX;
        }
        self.wake.notify_one();
    }

    /// Whether there are results of attempts that are not written.
    pub fn has_results(&self) -> bool {
        !self.lock().results.is_empty()
    }

    /// The loop.
    pub async fn run(self: Arc<Self>) {
        while let Some(batch) = self.gather().await {
            self.clock.check();
            let written = match self.write(batch, STALE_ROUNDS_MAX).await {
                Written::Stale(batch) => self.write_apart(*batch).await,
                written => written,
            };
            if matches!(written, Written::GivenUp) {
                return;
            }
        }
    }

    /// Writes a group and answers, unless the configuration moves in every one of these rounds.
    async fn write(&self, mut batch: Batch, rounds: u32) -> Written {
        match self.commit(&mut batch, rounds).await {
            Ok(committed) => {
                lanes::ready(&self.rosters.current(), &self.store, &committed.closed).await;
                let answered = batch.submitters.len();
                self.settle(committed, batch);
                self.let_gather(answered).await;
                Written::Done
            }
            Err(Error::Stale { .. }) if !batch.group.submissions.is_empty() => {
                Written::Stale(Box::new(batch))
            }
            Err(error) => {
                if self.fail(&error, batch) {
                    return Written::GivenUp;
                }
                self.clock.pause(STORE_RETRY).await;
                Written::Failed
            }
        }
    }

    /// A group costs the database nearly the same, be it small or large. While others write there too, whoever was just
    /// answered may come again before the next one is taken; alone, that time would only be lost.
    async fn let_gather(&self, answered: usize) {
        if answered >= CROWD && self.standing.has_busy_fellows() {
            self.clock.stand_still(GATHER).await;
        }
    }

    /// Waits until there is something to write, and takes it. `None` when the loop shall end.
    async fn gather(&self) -> Option<Batch> {
        loop {
            let due = match self.look() {
                Look::Work(batch) => return Some(*batch),
                Look::End => return None,
                Look::Nothing(due) => due,
            };
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.desk.appetite() => {}
                () = self.clock.doze_until_some(due) => {}
            }
        }
    }

    fn look(&self) -> Look {
        let now = self.clock.now();
        let mut pending = self.lock();
        let (refills, asked) = if pending.is_stopping { Default::default() } else { self.desk.wishes(now) };
        let closes = !pending.is_stopping && pending.close_due.is_some_and(|at| at <= now);
        if pending.is_due(now) || closes || !refills.is_empty() || !asked.is_empty() || !self.is_healthy() {
            let mut batch = pending.take();
            batch.group.close = if closes { CLOSE_WINDOWS_MAX } else { 0 };
            batch.group.refills = refills;
            batch.group.asked = asked;
            return Look::Work(Box::new(batch));
        }
        if pending.is_stopping {
            return Look::End;
        }
        let times = [pending.results_due, self.desk.store_due_at(), pending.close_due];
        Look::Nothing(times.into_iter().flatten().min())
    }

    /// Commits a group, routing it again when the configuration moves under it, in so many rounds.
    async fn commit(&self, batch: &mut Batch, mut rounds: u32) -> Result<Committed, Error> {
        loop {
            rounds = rounds.saturating_sub(1);
            self.prepare(batch);
            let group = Arc::new(std::mem::take(&mut batch.group));
            let began = self.clock.elapsed();
            let span = if batch.spans.is_empty() { None } else { self.spans.begin_linked() };
            let result = self.patiently(Arc::clone(&group), batch).await;
            if let Ok(committed) = &result {
                self.metrics.committed(&group, committed, self.clock.elapsed() - began);
            }
            if let Some(span) = &span {
                self.spans.end(span, commit_ending(&group, &batch.spans, result.is_err()));
            }
            batch.group = Arc::unwrap_or_clone(group);
            match result {
                Err(error @ Error::Stale { .. }) => {
                    self.rosters.refresh().await?;
                    if rounds == 0 {
                        return Err(error);
                    }
                }
                Err(Error::Fenced) => self.begin_anew().await?,
                result => return result,
            }
        }
    }

    /// Another process has taken over what this one held, or the database went back in time. Nothing of it is sent any more
    /// and nothing in memory is true; results of what was under way are refused when they come. Then a new life begins, with
    /// what the store has.
    async fn begin_anew(&self) -> Result<(), Error> {
        self.standing.lose();
        self.desk.forget();
        let began = self.clock.steady();
        self.rosters.refresh().await?;
        let incarnation = self.store.join(self.clock.now()).await?;
        self.observe.forget();
        self.standing.renew(began);
        match self.metrics.began_anew(self.store.rewinds()) {
            true => tracing::warn!(incarnation, "the database went back in time: a new life begins"),
            false => {
                tracing::warn!(
                    incarnation,
                    "another process took over what this one held: a new life begins"
                );
            }
        }
        self.release(self.desk.follow(&self.rosters.current()));
        Ok(())
    }

    /// Routes what the newest roster has not routed, and says what memory can take.
    fn prepare(&self, batch: &mut Batch) {
        let roster = self.rosters.current();
        let now = self.observe.begin_group();
        let mut rerouting = Rerouting::to(&roster, now);
        for (submission, routed_by) in batch.group.submissions.iter_mut().zip(&mut batch.rosters) {
            if routed_by.version != roster.version {
                rerouting.route(routed_by, submission);
                *routed_by = Arc::clone(&roster);
            }
        }
        batch.group.now = now;
        batch.group.version = roster.version;
        batch.group.room = self.desk.room(&concerned(&batch.group));
        batch.group.stretch = self.stretch(&batch.group);
    }

    /// The commit is done: hand over the work, then answer.
    fn settle(&self, mut committed: Committed, mut batch: Batch) {
        if !self.is_healthy.swap(true, Ordering::Relaxed) {
            tracing::info!("the store works again");
        }
        self.remember_commit();
        self.desk.go_on();
        if let Some(coordination) = &self.coordination {
            self.tell(&**coordination, &committed, &batch.group);
        }
        self.follow_windows(&committed, &batch.group);
        lanes::heads_ready(&self.rosters.current(), &self.store, &committed.jobs);
        self.release(self.desk.take(&mut committed));
        self.watch.committed(&batch.group, committed.stale);
        self.observe.committed(&mut batch.group, &committed);
        self.observe.end_group();
        batch.answer_senders(&committed.unsealed);
        for (submitter, result) in batch.submitters.into_iter().zip(committed.submissions) {
            if let Err(error) = &result {
                tracing::error!(%error, "a submission could not be written");
            }
            // A client that has gone away does not change what was committed.
            let _ = submitter.send(result.map_err(|_| Unavailable::Store));
        }
        for backfiller in batch.backfillers {
            let _ = backfiller.send(());
        }
        for (stepper, step) in batch.steppers.into_iter().zip(&batch.group.steps) {
            let _ = stepper.send(committed.stepped.contains(&step.job));
        }
    }

    /// What others can do, or look at, is told to them.
    fn tell(&self, others: &dyn Coordination, committed: &Committed, group: &Group) {
        let stepped = group.steps.iter().flat_map(|step| &step.replays).map(|(_, route)| route.subscriber);
        let filled = group.backfills.iter().map(|step| step.subscriber);
        // What was given back here is for whoever has a free place.
        let is_back = |(_, at): &&(_, Timestamp)| !group.released.is_empty() && *at <= group.now;
        let back = committed.postponed.iter().filter(is_back).map(|(subscriber, _)| *subscriber);
        let spilled = committed.spilled.iter().copied();
        let mut news = News::work(spilled.chain(stepped).chain(filled).chain(back));
        news.events = !group.submissions.is_empty() && self.standing.is_watched_elsewhere();
        if !news.is_empty() {
            others.tell(news);
        }
    }

    /// The commit failed: submitters are told by their dropped channel, results and releases are kept for the next
    /// try. Says whether to give up, as a stopping loop does when it has nothing to write or its time is over: the next start
    /// finds these claims void anyway.
    fn fail(&self, error: &Error, batch: Batch) -> bool {
        // Told once: until it works again, every try fails the same way.
        if self.is_healthy.swap(false, Ordering::Relaxed) {
            tracing::error!(%error, "the store failed: nothing is accepted until it works again");
        }
        self.desk.hold_back();
        self.observe.forget();
        let mut pending = self.lock();
        let mut results = batch.group.results;
        results.append(&mut pending.results);
        pending.results = results;
        pending.released.extend(batch.group.released);
        for (subscriber, since) in batch.group.streaks {
            pending.streaks.entry(subscriber).or_insert(since);
        }
        for (gate, until) in batch.group.penalties {
            pending.penalties.entry(gate).or_insert(until);
        }
        if !pending.is_stopping {
            return false;
        }
        // Requests that arrived in the meantime get the same answer: nothing reads the queue after this.
        pending.submissions.clear();
        pending.backfills.clear();
        pending.steps.clear();
        pending.seals.clear();
        pending.begun.clear();
        let results = pending.results.len();
        if self.clock.steady() < pending.stop_until {
            return results == 0 && pending.released.is_empty();
        }
        if results > 0 {
            tracing::error!(
                results,
                "the results of attempts cannot be written: these deliveries are sent again"
            );
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A commit works for many requests at once, so it is linked to them and a child of none.
fn commit_ending(group: &Group, spans: &[SpanContext], has_failed: bool) -> Ending {
    let count = |count: usize| Value::Int(i64::try_from(count).unwrap_or(i64::MAX));
    let attributes = vec![
        ("tidegate.group.requests", count(group.submissions.len())),
        ("tidegate.group.results", count(group.results.len())),
    ];
    let links = spans.iter().take(LINKS_MAX).copied().collect();
    Ending { name: "commit", kind: Kind::Internal, attributes, links, has_failed }
}

/// The subscribers that work of this group may be for.
fn concerned(group: &Group) -> BTreeSet<SubscriberNo> {
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let routed = units.flat_map(|unit| unit.routes.iter().flatten().map(|route| route.subscriber));
    let next =
        group.results.iter().filter(|finished| finished.lane.is_some()).map(|finished| finished.subscriber);
    let refilled = group.refills.iter().map(|refill| refill.subscriber);
    let asked = group.asked.iter().map(|(subscriber, _)| *subscriber);
    let (mut all, mut last) = (BTreeSet::new(), None);
    // Most events go where the one before them went.
    routed.chain(next).chain(refilled).chain(asked).for_each(|subscriber| {
        if last.replace(subscriber) != Some(subscriber) {
            all.insert(subscriber);
        }
    });
    all
}
