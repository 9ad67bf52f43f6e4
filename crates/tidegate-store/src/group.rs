//! What one group commit writes and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::attempt::Attempt;
use tidegate_core::catalog::{Finding, Reason};
use tidegate_core::delivery::Job;
use tidegate_core::event::Unit;
use tidegate_core::fold::{Bundle, ClosedBy, Decided, Window};
use tidegate_core::id::{
    DeliveryNo, GateNo, Incarnation, JobNo, Lane, Nonce, ProjectNo, QuarantineNo, Seq, SubscriberNo, Version,
    WindowNo,
};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use crate::{Error, EventRow, JobStep, Result, Room};

/// One transaction's worth of work, gathered from everybody who has some.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// When it is.
    pub now: Timestamp,
    /// The configuration version that the submissions were routed by.
    pub version: Version,
    /// Results of attempts.
    pub results: Vec<Finished>,
    /// Subscribers that began to fail, and when, or have ceased to.
    pub streaks: Vec<(SubscriberNo, Option<Timestamp>)>,
    /// Gates that give nothing until then, or do again since then. Kept by a store of one process; several have it in what
    /// coordinates them.
    pub penalties: Vec<(GateNo, Timestamp)>,
    /// Claims given back unsent.
    pub released: Vec<Claim>,
    /// Steps of backfills.
    pub backfills: Vec<BackfillStep>,
    /// Deliveries that somebody wants sent now: claimed if they are due, before everything that is due as well.
    pub asked: Vec<(SubscriberNo, DeliveryNo)>,
    /// Steps of jobs.
    pub steps: Vec<JobStep>,
    /// Folded deliveries that begin to leave.
    pub seals: Vec<Seal>,
    /// Suspects that begin to be sent.
    pub begun: Vec<Claim>,
    /// How many windows whose time has come are to be closed at most.
    pub close: usize,
    /// By how many percent congestion lengthens quiet periods, of those that are lengthened.
    pub stretch: BTreeMap<SubscriberNo, u32>,
    /// New events, request by request.
    pub submissions: Vec<Submission>,
    /// Subscribers whose memory wants more work.
    pub refills: Vec<Refill>,
    /// What memory can take of new work.
    pub room: Room,
}

/// What a store needs that must write a group piece by piece because some submission can not be written: what comes
/// before the submissions, each of them, and the refills, whose answers speak of what all the others left.
impl Group {
    /// Without what is said of claims of other lives, which hold no more, and what becomes of that; none if there is nothing of
    /// the kind.
    pub fn of_life(&self, life: Incarnation) -> Option<(Self, Committed)> {
        let is_own = |claim: &Claim| claim.life == life;
        let results = self.results.iter().map(|one| &one.claim);
        let seals = self.seals.iter().map(|seal| &seal.claim);
        if results.chain(&self.released).chain(seals).chain(&self.begun).all(is_own) {
            return None;
        }
        let (mut own, mut out) = (self.clone(), Committed::default());
        own.results.retain(|one| is_own(&one.claim));
        out.stale = (self.results.len() - own.results.len()) as u64;
        own.released.retain(is_own);
        let sealed = own.seals.extract_if(.., |seal| !is_own(&seal.claim)).map(|seal| seal.claim);
        out.unsealed.extend(sealed);
        out.unsealed.extend(own.begun.extract_if(.., |claim| !is_own(claim)));
        Some((own, out))
    }

    fn bare(&self) -> Self {
        let stretch = self.stretch.clone();
        Self { now: self.now, version: self.version, stretch, ..Self::default() }
    }

    pub(crate) fn before_submissions(&self) -> Self {
        Self {
            results: self.results.clone(),
            streaks: self.streaks.clone(),
            penalties: self.penalties.clone(),
            released: self.released.clone(),
            asked: self.asked.clone(),
            backfills: self.backfills.clone(),
            steps: self.steps.clone(),
            seals: self.seals.clone(),
            begun: self.begun.clone(),
            close: self.close,
            ..self.bare()
        }
    }

    /// The same, each thing by itself, in the order in which they are written together.
    pub(crate) fn pieces(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut piece = self.bare();
            change(&mut piece);
            piece
        };
        let results = self.results.iter().map(|one| with(&|piece| piece.results.push(one.clone())));
        let streaks = self.streaks.iter().map(|one| with(&|piece| piece.streaks.push(*one)));
        let penalties = self.penalties.iter().map(|one| with(&|piece| piece.penalties.push(*one)));
        let released = self.released.iter().map(|one| with(&|piece| piece.released.push(*one)));
        let asked = self.asked.iter().map(|one| with(&|piece| piece.asked.push(*one)));
        let seals = self.seals.iter().map(|one| with(&|piece| piece.seals.push(*one)));
        let begun = self.begun.iter().map(|one| with(&|piece| piece.begun.push(*one)));
        let close = (self.close > 0).then(|| with(&|piece| piece.close = self.close));
        let backfills = self.backfills.iter().map(|one| with(&|piece| piece.backfills.push(one.clone())));
        let steps = self.steps.iter().map(|one| with(&|piece| piece.steps.push(one.clone())));
        let first = results.chain(streaks).chain(penalties).chain(released).chain(asked);
        first.chain(seals).chain(begun).chain(close).chain(backfills).chain(steps).collect()
    }

    /// A piece can not be written, whoever tries: it is told and left out, so that nobody else waits for it. A claim whose
    /// result was left out ends with the process.
    pub(crate) fn leave_out(self, error: &Error, all: &mut Committed) {
        let Self { results, seals, begun, .. } = &self;
        let delivery = results.first().map(|one| one.claim.delivery);
        tracing::error!(%error, delivery, "something can not be written and is left out");
        all.unsealed.extend(seals.iter().map(|seal| seal.claim).chain(begun.iter().copied()));
        all.refused += 1;
    }

    pub(crate) fn alone(&self, submission: &Submission) -> Self {
        Self { submissions: vec![submission.clone()], ..self.bare() }
    }

    pub(crate) fn only_refills(&self) -> Self {
        Self { refills: self.refills.clone(), ..self.bare() }
    }

    /// The answers to refills that were not looked at: ask again.
    pub(crate) fn ask_again(&self) -> impl Iterator<Item = Refilled> {
        self.refills.iter().map(|refill| Refilled {
            subscriber: refill.subscriber,
            drained: false,
            next_due: Some(self.now),
        })
    }
}

/// The events of one request, routed.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Whose events.
    pub project: ProjectNo,
    /// Accepted, refused or repeated one by one.
    pub units: Vec<RoutedUnit>,
}

/// A unit, where each of its events goes, and where each is looked up.
#[derive(Clone, Debug)]
pub struct RoutedUnit {
    /// The event and its sub-events.
    pub unit: Unit,
    /// Per event of the unit: who gets it.
    pub routes: Vec<Vec<Route>>,
    /// Per event of the unit: its look-up key.
    pub keys: Vec<i64>,
    /// Whether the catalog lets it in.
    pub admission: Admission,
}

/// Whether a unit that is not there yet comes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It does.
    #[default]
    Granted,
    /// It goes to the quarantine instead.
    Refused(Box<Finding>),
    /// It comes out of the quarantine, which it leaves unless its id is taken by other content.
    Released(QuarantineNo),
}

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitStatus {
    /// It is on disk.
    Accepted,
    /// It was there already, with the same content.
    Duplicate,
    /// Its id was there already, with other content. Nothing changed.
    Conflict,
    /// It is in the quarantine, since now or since an earlier time.
    Quarantined(Reason),
    /// It was to be released and is not in the quarantine any more. Nothing changed.
    Gone,
}

/// The right to act on a delivery: valid until it is claimed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which delivery.
    pub delivery: DeliveryNo,
    /// The delivery's random part: a database that goes back in time may give its number to another one.
    pub nonce: Nonce,
    /// The fencing token of the claim.
    pub token: u32,
    /// The life that made it. In a database that goes back in time a later one may come to the same token.
    pub life: Incarnation,
}

impl Claim {
    /// The claim that a job is.
    pub fn of(job: &Job) -> Self {
        Self { delivery: job.delivery, nonce: job.nonce, token: job.token, life: job.life }
    }
}

/// A folded delivery begins to leave: from now on nothing joins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Whose.
    pub project: ProjectNo,
    /// The window it was.
    pub window: WindowNo,
    /// By which right.
    pub claim: Claim,
}

/// A window that closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedWindow {
    /// Which one.
    pub no: WindowNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// How many events it held.
    pub count: u32,
    /// When it opened.
    pub opened_at: Timestamp,
    /// When it was to close by itself.
    pub due_at: Timestamp,
    /// Why it would have closed then.
    pub due_by: ClosedBy,
    /// What it became; nothing when there is nothing to send.
    pub delivery: Option<DeliveryNo>,
    /// Why it closed.
    pub closed_by: ClosedBy,
}

impl ClosedWindow {
    /// Those of a transaction.
    pub(crate) fn all(decided: &Decided) -> Vec<Self> {
        decided.closed().filter_map(Self::of).collect()
    }

    /// One of them, if it is closed.
    pub(crate) fn of(window: &Window) -> Option<Self> {
        let (_, closed_by) = window.closed?;
        Some(Self {
            no: window.no,
            subscriber: window.subscriber,
            count: window.count,
            opened_at: window.opened_at,
            due_at: window.due_at,
            due_by: window.due_by(),
            delivery: window.delivery,
            closed_by,
        })
    }
}

/// What a folded delivery carries, as far as it was asked for.
#[derive(Clone, Debug)]
pub enum Bundled {
    /// All of it.
    Whole(Bundle),
    /// Its events have so many bytes, and that is too many.
    Larger(usize),
}

/// The result of an attempt.
#[derive(Clone, Debug)]
pub struct Finished {
    /// By which right.
    pub claim: Claim,
    /// Whose delivery.
    pub subscriber: SubscriberNo,
    /// Its lane, to let the next one go.
    pub lane: Option<Lane>,
    /// The number of this attempt, from 1.
    pub n: u32,
    /// What happened.
    pub attempt: Attempt,
    /// What comes next.
    pub next: Next,
    /// It steps aside for those behind it in its lane.
    pub steps_aside: bool,
    /// The bytes that were sent, to be sent again: when they are not the event's own and it was their first attempt.
    pub body: Option<Bytes>,
}

/// An event that shall be sent again.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Whose.
    pub project: ProjectNo,
    /// Which.
    pub event: Seq,
    /// To whom, each once.
    pub routes: Vec<Route>,
    /// The configuration version it was routed by.
    pub version: Version,
}

/// One step of a backfill: the deliveries for the events between two marks.
#[derive(Clone, Debug)]
pub struct BackfillStep {
    /// For whom.
    pub subscriber: SubscriberNo,
    /// Whose events.
    pub project: ProjectNo,
    /// Where the step begins; a step that does not begin where the last one ended is ignored.
    pub after: Seq,
    /// Where it ends.
    pub through: Seq,
    /// The last event of the backfill.
    pub until: Seq,
    /// The configuration that brought the subscriber. Events of this one or a later one came while the backfill ran: those
    /// that were folded into lanes were left to it, the others went their way.
    pub since: Version,
    /// The configuration that it was judged by: ignored if the subscriber has changed since.
    pub version: Version,
    /// The events that matched.
    pub matched: Vec<(Seq, Route)>,
    /// Lanes in which a live event or a replay of this step waits as a delivery of its own: its turn may have come.
    pub passed: BTreeSet<Lane>,
    /// Where events go that came since the step was prepared. With it, a step after which few are left is the last: else live
    /// events that keep coming would keep a backfill from its end.
    pub judge: Option<Judge>,
}

/// What a backfill does with an event.
#[derive(Clone, Debug)]
pub enum Judged {
    /// It is brought.
    Matched(Route),
    /// It waits in this lane as a delivery of its own.
    Passed(Lane),
    /// Nothing.
    Unwanted,
    /// That cannot be said now: the step is not the last.
    Unknown,
}

/// Says what a backfill does with an event. The store asks it in the middle of a commit, so it waits for nothing.
#[derive(Clone)]
pub struct Judge(pub Arc<dyn Fn(EventRow) -> Judged + Send + Sync>);

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

impl BackfillStep {
    /// What becomes of one of its events.
    pub fn add(&mut self, event: Seq, judged: Judged) {
        match judged {
            Judged::Matched(route) => self.matched.push((event, route)),
            Judged::Passed(lane) => drop(self.passed.insert(lane)),
            Judged::Unwanted | Judged::Unknown => {}
        }
    }

    /// The step and what follows it up to `until`; nothing if that cannot be said of all.
    pub(crate) fn with_rest(&self, until: Seq, events: Vec<EventRow>) -> Option<Self> {
        let judge = self.judge.as_ref()?;
        let mut all = self.clone();
        for event in events {
            let seq = event.seq;
            match (judge.0)(event) {
                Judged::Unknown => return None,
                judged => all.add(seq, judged),
            }
        }
        all.through = until;
        Some(all)
    }
}

/// A wish for more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refill {
    /// For whom.
    pub subscriber: SubscriberNo,
    /// How many deliveries at most.
    pub jobs: usize,
}

/// What a refill found beyond the jobs it brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refilled {
    /// For whom.
    pub subscriber: SubscriberNo,
    /// Nothing that is due now was left behind.
    pub drained: bool,
    /// When the next of what is left is due.
    pub next_due: Option<Timestamp>,
}

/// What a group commit did.
#[derive(Debug, Default)]
pub struct Committed {
    /// One answer per submission, in order.
    pub submissions: Vec<Result<Vec<UnitStatus>>>,
    /// The numbers of the events that were accepted, in order; none where they are not known here.
    pub numbers: Vec<Seq>,
    /// Claimed deliveries for memory, in order. Among them may be those of an earlier group that was reported as
    /// failed and turned out to be written.
    pub jobs: Vec<Job>,
    /// Subscribers with due deliveries that memory had no room for.
    pub spilled: Vec<SubscriberNo>,
    /// Subscribers with deliveries that are due in the store again, and when.
    pub postponed: Vec<(SubscriberNo, Timestamp)>,
    /// One answer per refill, in order.
    pub refilled: Vec<Refilled>,
    /// Subscribers whose backfill has reached its end.
    pub backfilled: Vec<SubscriberNo>,
    /// Jobs whose step was written.
    pub stepped: Vec<JobNo>,
    /// Results refused because their claim was no longer valid.
    pub stale: u64,
    /// What could not be written and was left out, beside submissions.
    pub refused: u64,
    /// Claims by which something was to be sealed or begun and that were no longer valid: it must not be sent by them.
    pub unsealed: Vec<Claim>,
    /// Windows that closed.
    pub closed: Vec<ClosedWindow>,
    /// When the next window closes by itself, as far as this process knows.
    pub close_due: Option<Timestamp>,
}

impl Committed {
    /// Adds what a later part of the same group, or a later group, did.
    pub(crate) fn absorb(&mut self, later: Self) {
        self.submissions.extend(later.submissions);
        self.numbers.extend(later.numbers);
        self.jobs.extend(later.jobs);
        self.spilled.extend(later.spilled);
        self.postponed.extend(later.postponed);
        self.refilled.extend(later.refilled);
        self.backfilled.extend(later.backfilled);
        self.stepped.extend(later.stepped);
        self.stale += later.stale;
        self.refused += later.refused;
        self.unsealed.extend(later.unsealed);
        self.closed.extend(later.closed);
        self.close_due = [self.close_due, later.close_due].into_iter().flatten().min();
    }

    /// What it claimed is this life's.
    pub(crate) fn claimed_in(&mut self, life: Incarnation) {
        self.jobs.iter_mut().for_each(|job| job.life = life);
    }

    /// The last word of a group that was written piece by piece.
    pub(crate) fn end(mut self, group: &Group, refilled: Option<Self>) -> Self {
        match refilled {
            Some(refilled) => self.absorb(refilled),
            None => self.refilled.extend(group.ask_again()),
        }
        self.spilled.sort_unstable();
        self.spilled.dedup();
        self
    }
}
