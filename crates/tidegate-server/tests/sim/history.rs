//! What really happened in one run, written down by those who see it: the store's wrapper, the receivers, the
//! clients. The checkers read it; nothing in the product does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tidegate_core::attempt::ErrorClass;
use tidegate_core::id::{
    BackfillNo, DeliveryNo, Incarnation, JobNo, Lane, Nonce, ProjectNo, SubscriberNo, Version,
};
use tidegate_core::retry::Next;
use tidegate_store::Claim;

use super::catalog::{Cataloged, Quarantined};
use super::endings::Endings;
use super::folds::FoldSent;
use super::gates::GateTruth;
use super::pasts::Past;
use super::spec::{Content, Spec};
use super::terms::FoldSpec;

/// (project, source, id): what makes an event one.
pub(crate) type EventKey = (ProjectNo, String, String);

/// The history, shared.
#[derive(Clone, Default)]
pub(crate) struct Histories(Arc<Mutex<History>>);

impl Histories {
    /// To read or write it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that happened. Times `t` are milliseconds of true time since the run began, `now` is the product's clock.
#[derive(Default)]
pub(crate) struct History {
    /// For people.
    pub(crate) lines: Vec<String>,
    /// Promises already seen broken.
    pub(crate) violations: Vec<String>,
    /// Rare paths that this run took.
    pub(crate) reached: BTreeSet<&'static str>,
    /// Committed events, in order of acceptance.
    pub(crate) accepted: Vec<Fact>,
    pub(crate) index: BTreeMap<EventKey, usize>,
    /// What each project's catalog lets in.
    pub(crate) catalogs: BTreeMap<ProjectNo, Cataloged>,
    /// What each type was, from which version on.
    pub(crate) types: Vec<tidegate_store::TypeVersion>,
    /// Backfills of metrics.
    pub(crate) pasts: BTreeMap<BackfillNo, Past>,
    /// What is quarantined.
    pub(crate) quarantined: Quarantined,
    /// What clients were told.
    pub(crate) told: Vec<Told>,
    pub(crate) posts_open: usize,
    /// Every attempt, in order.
    pub(crate) sends: Vec<Sent>,
    /// The same at folded deliveries.
    pub(crate) folds: Vec<FoldSent>,
    /// What was ended by hand.
    pub(crate) endings: Endings,
    /// Subscriber and key of those of the present life that are under way, by their places in `folds`.
    pub(crate) folds_under_way: BTreeMap<usize, (SubscriberNo, String)>,
    /// Attempts of the present life that are under way, as places in `sends`.
    pub(crate) under_way: Vec<usize>,
    /// Beginnings (`true`) and ends of attempts as they happened, as places in `sends`.
    pub(crate) beats: Vec<(usize, bool)>,
    /// How often each delivery was attempted.
    pub(crate) attempts: BTreeMap<DeliveryNo, u32>,
    pub(crate) subs: BTreeMap<SubscriberNo, Truth>,
    pub(crate) specs: BTreeMap<String, Spec>,
    /// How often an endpoint was asked at each edition of its address.
    pub(crate) asks: BTreeMap<(String, u32), u32>,
    /// To which it agreed.
    pub(crate) consents: BTreeSet<(String, u32)>,
    /// The configuration in force in the store.
    pub(crate) version: Version,
    /// Claims in the hands of those that live.
    pub(crate) claims: BTreeMap<DeliveryNo, Claimed>,
    /// When each suspect was begun for the last time, and in which life.
    pub(crate) begun: BTreeMap<DeliveryNo, (i64, usize)>,
    /// Commits in one instant, and which.
    pub(crate) spins: (i64, u32),
    /// Successful retries by hand.
    pub(crate) retries: Vec<(i64, DeliveryNo)>,
    /// How often each subscriber was promised an event again.
    pub(crate) replays: BTreeMap<(SubscriberNo, EventKey), usize>,
    /// What became of each job.
    pub(crate) jobs: BTreeMap<JobNo, JobTruth>,
    /// One entry per life of the process.
    pub(crate) lives: Vec<Ended>,
    /// Spans of true time in which nothing is promised to be quick.
    pub(crate) disturbed: Vec<(i64, i64)>,
    /// Spans of true time in which the store fails.
    pub(crate) outages: Vec<(i64, i64)>,
    /// By how much the times that two processes say may lie apart.
    pub(crate) apart_ms: i64,
    /// What happened at gates.
    pub(crate) gates: GateTruth,
    /// When the clock was moved.
    pub(crate) jumps: Vec<i64>,
    /// And by how much.
    pub(crate) moves: Vec<i64>,
    /// Up to when somebody was told that everything is counted.
    pub(crate) complete_until: i64,
    /// The run is over, and its remains are removed by a clock that may be wrong.
    pub(crate) is_ageing: bool,
}

/// A committed event.
pub(crate) struct Fact {
    pub(crate) key: EventKey,
    pub(crate) content: Content,
    pub(crate) body: Bytes,
    /// The configuration that was in force when it was committed, whatever its row says.
    pub(crate) version: Version,
    pub(crate) t: i64,
    pub(crate) now: i64,
    /// Its place among all.
    pub(crate) place: usize,
}

/// One client's answer about one event it sent.
pub(crate) struct Told {
    pub(crate) key: EventKey,
    pub(crate) status: tidegate_store::UnitStatus,
}

/// One attempt as the transport saw it.
pub(crate) struct Sent {
    pub(crate) t: i64,
    pub(crate) now: i64,
    pub(crate) life: usize,
    pub(crate) subscriber: SubscriberNo,
    /// Its `webhook-id`.
    pub(crate) id: String,
    pub(crate) delivery: DeliveryNo,
    pub(crate) event: EventKey,
    pub(crate) lane: Option<String>,
    /// It said that it is one.
    pub(crate) is_replay: bool,
    pub(crate) body: Bytes,
    /// When the receiver had it.
    pub(crate) arrived: Option<i64>,
    /// What the receiver answered, whether or not that arrived.
    pub(crate) answered: Option<u16>,
    /// When and what the sender was told; never, if it died.
    pub(crate) told: Option<(i64, Heard)>,
    /// Not before this, said the receiver, in the product's time.
    pub(crate) asked: Option<i64>,
    /// What the store has been told of it.
    pub(crate) recorded: Option<Next>,
}

impl Sent {
    /// The key that a window in its lane would have.
    fn fold_lane(&self) -> Option<String> {
        self.lane.as_ref().map(|lane| serde_json::json!({"data.key": lane}).to_string())
    }
}

/// What is true of a job.
pub(crate) struct JobTruth {
    pub(crate) scope: tidegate_store::Scope,
    /// How far it has come.
    pub(crate) mark: i64,
    /// The configuration when it began, and when it looked for the last time.
    pub(crate) versions: (Version, Version),
    /// What it sent again: events or deliveries.
    pub(crate) covered: Vec<i64>,
}

/// What the sender learned of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Status(u16),
    Failure(ErrorClass),
}

impl Heard {
    /// The receiver took it.
    pub(crate) fn is_success(self) -> bool {
        matches!(self, Self::Status(200..=299))
    }
}

/// A claim that memory holds.
#[derive(Clone, Copy)]
pub(crate) struct Claimed {
    pub(crate) nonce: Nonce,
    pub(crate) token: u32,
    pub(crate) subscriber: SubscriberNo,
    pub(crate) lane: Option<Lane>,
    pub(crate) attempts: u32,
    /// Whose.
    pub(crate) life: usize,
    /// The same, as the store calls it.
    pub(crate) made_in: Incarnation,
    /// It must be begun before it is sent.
    pub(crate) is_suspect: bool,
}

/// What is true of a subscriber.
pub(crate) struct Truth {
    pub(crate) id: String,
    pub(crate) project: ProjectNo,
    /// Its definitions, and since when.
    pub(crate) specs: Vec<(Version, Spec)>,
    /// The same in true time.
    pub(crate) specs_t: Vec<i64>,
    pub(crate) deleted: Option<Version>,
    pub(crate) active: bool,
    /// Its owner wants it to be.
    pub(crate) is_wanted: bool,
    /// Its endpoint has not agreed yet.
    pub(crate) is_unverified: bool,
    /// The change that made it so.
    pub(crate) active_since: Version,
    /// Its owner was told that it is paused or deleted: nothing may begin any more.
    pub(crate) is_silenced: bool,
    /// It wanted events accepted since this time.
    pub(crate) backfill: Option<i64>,
    /// Definitions known when its backfill ended; `None` while it runs.
    pub(crate) backfilled: Option<Version>,
    /// How many events had been accepted by then: it may have brought any of them.
    pub(crate) caught_up: usize,
    /// When anything about it changed.
    pub(crate) touched: Vec<i64>,
    /// When it was not sent to; the last span may be open.
    pub(crate) pauses: Vec<(i64, i64)>,
}

impl Truth {
    /// The definition in force.
    pub(crate) fn spec_at(&self, version: Version) -> Option<&Spec> {
        if self.deleted.is_some_and(|deleted| deleted <= version) {
            return None;
        }
        self.specs.iter().rev().find(|(since, _)| *since <= version).map(|(_, spec)| spec)
    }

    /// The lane of an event accepted under this version. A backfill may have met any of the definitions since: where
    /// they disagree, nothing is said.
    pub(crate) fn lane_of(&self, content: &Content, version: Version) -> Option<String> {
        if version >= self.created() {
            return self.spec_at(version)?.wants(content)?;
        }
        let lanes: BTreeSet<Option<String>> =
            self.specs.iter().filter_map(|(_, spec)| spec.wants(content)).collect();
        if lanes.len() == 1 { lanes.into_iter().next().flatten() } else { None }
    }

    /// The lane of a replay. While one is unfinished the order can not change, so the newest definition made it.
    pub(crate) fn lane_of_replay(&self, content: &Content) -> Option<String> {
        self.specs.last().and_then(|(_, spec)| spec.wants(content)).flatten()
    }

    /// Whether an event of its project was accepted in its days, or in the past that it wanted.
    pub(crate) fn is_owed(&self, fact: &Fact) -> bool {
        let is_past = self.backfill.is_some_and(|from| fact.now >= from);
        fact.key.0 == self.project && (fact.version >= self.created() || is_past)
    }

    /// Whether an event came to it when it was accepted, and by no backfill.
    pub(crate) fn is_new(&self, fact: &Fact) -> bool {
        let is_caught_up =
            self.backfill.is_none() || self.backfilled.is_some() && fact.place >= self.caught_up;
        fact.key.0 == self.project && fact.version >= self.created() && is_caught_up
    }

    /// How an event is folded. What a backfill brings is folded as is said when it does, which nobody knows if that changed.
    pub(crate) fn fold_of(&self, fact: &Fact) -> Option<&FoldSpec> {
        self.folding_spec(fact)?.fold.as_ref()
    }

    /// The definition that an event is folded by.
    pub(crate) fn folding_spec(&self, fact: &Fact) -> Option<&Spec> {
        let is_known = self.specs.len() == 1 || self.is_new(fact);
        let version = fact.version.max(self.created());
        self.spec_at(version).filter(|_| is_known)
    }

    /// It is sent to again, or not any more.
    pub(crate) fn set_active(&mut self, active: bool, version: Version, t: i64) {
        self.active_since = version;
        self.is_silenced &= !active;
        match (self.active, active) {
            (true, false) => self.pauses.push((t, i64::MAX)),
            (false, true) => self.pauses.last_mut().expect("it was paused").1 = t,
            _ => {}
        }
        self.active = active;
    }

    pub(crate) fn created(&self) -> Version {
        self.specs[0].0
    }

    /// The definition that most attempts at this true time were made by; exact where nothing changed lately.
    pub(crate) fn latest_before(&self, t: i64) -> &Spec {
        let at = self.specs_t.iter().rposition(|since| *since <= t).unwrap_or(0);
        &self.specs[at].1
    }
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Not,
    /// Everything it knew was written down.
    Cleanly,
    /// It may have known things that nobody wrote down.
    Suddenly,
}

impl History {
    /// Adds a line for people.
    pub(crate) fn line(&mut self, t: i64, text: fmt::Arguments<'_>) {
        self.lines.push(format!("{:>9.3} {text}", t as f64 / 1000.0));
    }

    /// A promise was broken.
    pub(crate) fn violation(&mut self, text: String) {
        self.lines.push(format!("          VIOLATION {text}"));
        self.violations.push(text);
    }

    /// A rare path was taken.
    pub(crate) fn reach(&mut self, what: &'static str) {
        self.reached.insert(what);
    }

    /// The number of a subscriber, by its public id.
    pub(crate) fn sub_no(&self, id: &str) -> Option<SubscriberNo> {
        self.subs.iter().find(|(_, truth)| truth.id == id).map(|(no, _)| *no)
    }

    /// Whether anything disturbed a span of true time.
    pub(crate) fn is_disturbed(&self, from: i64, to: i64) -> bool {
        self.disturbed.iter().chain(&self.outages).any(|(begin, end)| *begin <= to && from <= *end)
    }

    /// Whether the store was away in a span of true time, or just before it.
    pub(crate) fn is_store_away(&self, from: i64, to: i64) -> bool {
        self.outages.iter().any(|(begin, end)| *begin <= to && from <= *end + 1_000)
    }

    /// Whether a claim is in the hands of this life.
    pub(crate) fn holds(&self, claim: &Claim, life: usize) -> bool {
        let known = self.claims.get(&claim.delivery);
        let made = |known: &Claimed| (known.token, known.made_in) == (claim.token, claim.life);
        known.is_some_and(|known| known.life == life && made(known))
    }

    /// An event that is under way by itself in the lane of a subscriber that folds, by the key of its window.
    pub(crate) fn alone_in_lane(&self, subscriber: SubscriberNo, key: &str) -> Option<&str> {
        let mut own = self.under_way.iter().map(|index| &self.sends[*index]);
        let is_there =
            |sent: &&Sent| sent.subscriber == subscriber && sent.fold_lane().as_deref() == Some(key);
        own.find(is_there).map(|sent| sent.event.2.as_str())
    }

    /// What is wrong with a life that sends this delivery, if it is not its own.
    pub(crate) fn unheld(&self, delivery: DeliveryNo, life: usize) -> Option<String> {
        let Some(claimed) = self.claims.get(&delivery).filter(|claimed| claimed.life == life) else {
            return Some(format!("P3 life {life} sends delivery {delivery}, which is not its own"));
        };
        let is_begun = self.begun.get(&delivery).is_some_and(|(_, begun_in)| *begun_in == life);
        let is_early = claimed.is_suspect && !is_begun;
        is_early
            .then(|| format!("P2 life {life} sends suspect {delivery} before it is written that it begins"))
    }

    /// Whatever a life still does is seen by nobody, or known to be void.
    pub(crate) fn silence(&mut self, life: usize) {
        self.lives[life] = Ended::Suddenly;
        let sends = &self.sends;
        self.under_way.retain(|index| sends[*index].life != life);
        let folds = &self.folds;
        self.folds_under_way.retain(|index, _| folds[*index].life != life);
    }

    /// An attempt begins. Lanes and concurrency are judged on the spot.
    pub(crate) fn begin(&mut self, sent: Sent) -> usize {
        let name = self.subs.get(&sent.subscriber).map_or("?", |truth| truth.id.as_str()).to_owned();
        let under_way: Vec<&Sent> = self
            .under_way
            .iter()
            .map(|index| &self.sends[*index])
            .filter(|other| other.subscriber == sent.subscriber)
            .collect();
        let mut wrong = Vec::new();
        wrong.extend(self.unheld(sent.delivery, sent.life));
        if under_way.iter().any(|other| other.delivery == sent.delivery) {
            wrong.push(format!("P3 delivery {} to {name} is sent twice at once", sent.delivery));
        }
        if sent.lane.is_some() && under_way.iter().any(|other| other.lane == sent.lane) {
            wrong.push(format!("P5 two in flight in lane {:?} of {name}", sent.lane));
        }
        let lane = sent.fold_lane().map(|key| (sent.subscriber, key));
        if lane.is_some_and(|lane| self.folds_under_way.values().any(|other| *other == lane)) {
            wrong.push(format!("P5 {} goes beside a fold in lane {:?} of {name}", sent.event.2, sent.lane));
        }
        let allowed = self.subs.get(&sent.subscriber).map_or(0, |truth| {
            truth.specs.iter().map(|(_, spec)| spec.concurrency as usize).max().unwrap_or(0)
        });
        if self.subs.get(&sent.subscriber).is_some_and(|truth| truth.is_silenced) {
            wrong.push(format!("an attempt began at {name} after its owner was told that none will"));
        }
        if under_way.len() + 1 > allowed {
            wrong.push(format!("P8 {} attempts at once to {name}, {allowed} allowed", under_way.len() + 1));
        }
        let line = format_args!(
            "life {} sends {} ({}) to {name} lane {:?}",
            sent.life, sent.delivery, sent.event.2, sent.lane
        )
        .to_string();
        self.line(sent.t, format_args!("{line}"));
        wrong.into_iter().for_each(|text| self.violation(text));
        *self.attempts.entry(sent.delivery).or_default() += 1;
        self.under_way.push(self.sends.len());
        self.beats.push((self.sends.len(), true));
        self.sends.push(sent);
        self.sends.len() - 1
    }
}
