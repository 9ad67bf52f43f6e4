//! One store that several processes share, on virtual time.
//!
//! The rows, the lanes, the windows and the claims are the real ones: they live in an SQLite file, whose statements refuse
//! what a life says of a claim that is not its own. What SQLite has no need for is kept here the way PostgreSQL keeps it
//! (`tidegate-store/src/postgres/replicas.rs`): who lives and since when, by the store's own clock; a group of a life that was
//! declared dead comes to nothing; declaring it dead voids what it held.
//!
//! A group is decided with the code that decides it there (`tidegate_store::decided`): which of its results can count, and what its
//! requests are told when no answer came back.
//!
//! PostgreSQL itself can not play: it answers through sockets, and where time stands still until everybody waits an answer
//! from outside would come at no particular time. What only its own statements can break is asked of them in
//! `tidegate-store/tests/shared/`, of two processes on one database, and by `cargo xtask chaos replicas` and `folds` under load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::event::Event;
use tidegate_core::id::Incarnation;
use tidegate_core::lease::{BEAT_TIMEOUT, BEAT_TTL, LEASE_MARGIN};
use tidegate_core::schedule::Stance;
use tidegate_core::time::Timestamp;
use tidegate_store::decided::{Holders, newest, read_back};
use tidegate_store::rewind::Found;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{Beat, Committed, Error, Group, Load, Replica, Result, Store, TakenOver, UnitStatus};

use super::super::history::{Ended, EventKey, Histories};
use super::super::life::Life;
use super::rewinds::{Memory, Past, groups};

/// Whoever has beaten later than this still acts, and nobody declares it dead: but for a jump of the clock that is no longer than
/// what a slow beat takes, which can not be told from one.
const SILENT_MS_MIN: i64 =
    (BEAT_TTL.as_millis() - LEASE_MARGIN.as_millis() - BEAT_TIMEOUT.as_millis()) as i64;

/// What was on its way when a beat warned is written by then.
const UNDER_WAY_MS: i64 = 2_000;

/// For how many a group counts: a plan writes few, and its processes shall find each other busy all the same.
const GROUPS_FOR_ONE: u64 = 50;

/// Who lives, and when each has beaten last, in true time.
pub(super) type Living = BTreeMap<Incarnation, (Replica, i64)>;

/// Who shares the store.
pub(crate) struct Lives {
    pub(crate) store: Arc<SqliteStore>,
    pub(super) history: Histories,
    pub(super) living: Mutex<Living>,
    /// True time when it was last known.
    t: AtomicI64,
    /// What the store's clock shows at the beginning of true time.
    zero_ms: AtomicI64,
    pub(super) latest_ms: AtomicI64,
    /// The ids of all events.
    pub(super) kept: Mutex<Holders<EventKey>>,
    /// From when until when it might lose what it is given.
    weakness: Option<(i64, i64)>,
    pub(super) past: Past,
}

impl Lives {
    pub(crate) fn new(
        store: SqliteStore,
        history: Histories,
        zero_ms: i64,
        weakness: Option<(i64, i64)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            history,
            living: Mutex::default(),
            t: AtomicI64::new(0),
            zero_ms: AtomicI64::new(zero_ms),
            latest_ms: AtomicI64::new(zero_ms),
            kept: Mutex::default(),
            weakness,
            past: Past::default(),
        })
    }

    /// True time goes on.
    pub(crate) fn pass(&self, t: i64) {
        self.t.store(t, Ordering::Relaxed);
    }

    /// The store's clock jumps.
    pub(crate) fn jump(&self, ms: i64) {
        self.zero_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// What the store's clock shows.
    pub(crate) fn now_ms(&self) -> i64 {
        self.zero_ms.load(Ordering::Relaxed) + self.t.load(Ordering::Relaxed)
    }

    /// The latest time that anybody has written.
    pub(crate) fn latest_ms(&self) -> i64 {
        self.latest_ms.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Living> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a group the way PostgreSQL does: of results about one delivery it hears one. And as if no answer had come back:
    /// what the requests are told is read from what is there.
    async fn write(&self, life: Incarnation, group: Arc<Group>) -> Result<Committed> {
        if newest(&group.results).len() < group.results.len() {
            self.history.lock().reach("results of two claims of one delivery");
        }
        let (own, stale) = group.of_life(life).unzip();
        let group = own.map_or(group, Arc::new);
        let heard = newest(&group.results);
        let unheard = group.results.len() - heard.len();
        let group = match unheard {
            0 => group,
            _ => Arc::new(Group { results: heard.into_iter().cloned().collect(), ..Group::clone(&group) }),
        };
        let mut committed = self.store.commit_in(life, Arc::clone(&group)).await?;
        committed.stale += unheard as u64;
        let stale = stale.unwrap_or_default();
        committed.stale += stale.stale;
        committed.unsealed.extend(stale.unsealed);
        let mut history = self.history.lock();
        let told = self.read_back(&group, &committed);
        for (read, told) in told.into_iter().zip(&mut committed.submissions) {
            let Ok(told) = told else { continue };
            if read != *told {
                history.violation(format!("P1 a request was decided as {told:?} and is told {read:?}"));
            }
            *told = read;
        }
        Ok(committed)
    }

    /// What the requests of a group are told by what it left.
    fn read_back(&self, group: &Group, committed: &Committed) -> Vec<Vec<UnitStatus>> {
        let key = |project, event: &Event| (project, event.source.clone(), event.id.clone());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut before, mut ours) = (Holders::new(), Holders::new());
        for (submission, answers) in group.submissions.iter().zip(&committed.submissions) {
            let Ok(answers) = answers else { continue };
            for (routed, status) in submission.units.iter().zip(answers) {
                for event in &routed.unit.events {
                    let key = key(submission.project, event);
                    if *status == UnitStatus::Accepted {
                        ours.insert(key, Some(routed.unit.fingerprint));
                    } else if let Some(print) = kept.get(&key) {
                        before.insert(key, *print);
                    }
                }
            }
        }
        kept.extend(ours.iter().map(|(key, print)| (key.clone(), *print)));
        read_back(&group.submissions, key, before, &ours)
    }

    /// Ends a life: it will not write any more, and nothing that it held is its own.
    async fn end(&self, life: Incarnation, is_lost: bool, now: Timestamp) -> Result<TakenOver> {
        let found = self.store.end_life(life, is_lost, now).await?;
        let no = usize::try_from(life).expect("lives are few");
        let mut history = self.history.lock();
        let held = history.claims.len();
        history.claims.retain(|_, claimed| claimed.life != no);
        if (held - history.claims.len()) as u64 != found.due + found.set_aside {
            history.violation(format!("P2 life {life} held other claims than were found: {found:?}"));
        }
        if is_lost {
            history.silence(no);
        }
        Ok(found)
    }
}

/// How one process takes part.
pub(crate) struct Membership {
    pub(super) lives: Arc<Lives>,
    life: Arc<Life>,
    incarnation: AtomicI64,
    /// Since when it knows that the store might lose what it is given; 0 while it does not.
    warned_at: AtomicI64,
    pub(super) memory: Memory,
}

impl Membership {
    /// Begins the first life of a process.
    pub(crate) async fn new(lives: &Arc<Lives>, life: &Arc<Life>, now: Timestamp) -> Result<Self> {
        let (lives, life, incarnation) = (Arc::clone(lives), Arc::clone(life), AtomicI64::new(0));
        let memory = Memory::default();
        let new = Self { lives, life, incarnation, warned_at: AtomicI64::new(0), memory };
        new.join(now).await?;
        Ok(new)
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation.load(Ordering::Relaxed)
    }

    pub(crate) fn latest(&self) -> Timestamp {
        Timestamp::from_ms(self.lives.latest_ms())
    }

    pub(crate) async fn commit(&self, group: Arc<Group>) -> Result<Committed> {
        let life = self.incarnation();
        if !self.lives.lock().contains_key(&life) {
            self.lives.history.lock().reach("a group of a dead life refused");
            return Err(Error::Fenced);
        }
        self.resume(life)?;
        let (warned_at, t) = (self.warned_at.load(Ordering::Relaxed), self.life.t());
        if warned_at > 0 && t - warned_at > UNDER_WAY_MS && !group.submissions.is_empty() {
            let text = format!(
                "P1 life {life} accepts events though it knows since {warned_at} that they may be lost"
            );
            self.lives.history.lock().violation(text);
        }
        let now_ms = group.now.as_ms();
        let committed = self.lives.write(life, group).await?;
        self.lives.latest_ms.fetch_max(now_ms, Ordering::Relaxed);
        if let Some((own, _)) = self.lives.lock().get_mut(&life) {
            own.groups += GROUPS_FOR_ONE;
            self.memory.seen.group(life, groups(own), 0);
        }
        Ok(committed)
    }

    pub(crate) async fn beat(&self, load: Load) -> Result<Beat> {
        let version = self.lives.store.version().await?;
        let (incarnation, now) = (self.incarnation(), Timestamp::from_ms(self.lives.now_ms()));
        let weakness = self.weakness();
        let mut living = self.lives.lock();
        let (own, beaten) = living.get_mut(&incarnation).ok_or(Error::Fenced)?;
        self.compare(Found { written: Some(groups(own)), version: Some(version), block: None })?;
        (own.at, own.load, *beaten) = (now, load, self.life.t());
        let is_due =
            |replica: &&Replica| now.since(replica.at) > BEAT_TTL || replica.at.since(now) > BEAT_TTL;
        let (expired, replicas): (Vec<_>, Vec<_>) =
            living.values().map(|(replica, _)| replica).partition(is_due);
        Ok(Beat {
            now: Some(now),
            incarnation,
            replicas: replicas.into_iter().cloned().collect(),
            expired: expired.into_iter().map(|replica| replica.incarnation).collect(),
            version: Some(version),
            weakness,
        })
    }

    /// What a beat tells of the store itself.
    fn weakness(&self) -> Option<&'static str> {
        let t = self.life.t();
        let is_weak = self.lives.weakness.is_some_and(|(from, to)| (from..to).contains(&t));
        let warned_at = if is_weak { self.warned_at.load(Ordering::Relaxed).max(1) } else { 0 };
        self.warned_at.store(if warned_at == 1 { t } else { warned_at }, Ordering::Relaxed);
        if is_weak {
            self.lives.history.lock().reach("a store that might lose something");
        }
        is_weak.then_some("fsync is off")
    }

    pub(crate) async fn take_over(&self, expired: Incarnation, now: Timestamp) -> Result<TakenOver> {
        let store_now = Timestamp::from_ms(self.lives.now_ms());
        let is_expired = |replica: &Replica| {
            store_now.since(replica.at) > BEAT_TTL || replica.at.since(store_now) > BEAT_TTL
        };
        {
            let mut living = self.lives.lock();
            let Some((_, beaten)) = living.get(&expired).filter(|(replica, _)| is_expired(replica)) else {
                return Ok(TakenOver::default());
            };
            let age_ms = self.life.t() - beaten;
            living.remove(&expired);
            if age_ms < SILENT_MS_MIN {
                let text = format!("P3 life {expired} is declared dead {age_ms} ms after it has beaten");
                self.lives.history.lock().violation(text);
            }
        }
        let found = self.lives.end(expired, true, now).await?;
        let t = self.life.t();
        let mut history = self.lives.history.lock();
        history.line(t, format_args!("life {} takes over from {expired}: {found:?}", self.incarnation()));
        history.reach(if found.due > 0 { "a takeover of claims" } else { "a takeover of nothing" });
        Ok(found)
    }

    pub(crate) async fn join(&self, now: Timestamp) -> Result<Incarnation> {
        self.move_on().await?;
        let incarnation = self.lives.store.begin_life().await?;
        self.memory.seen.begin(incarnation);
        let no = usize::try_from(incarnation).expect("lives are few");
        let before = self.incarnation.swap(incarnation, Ordering::Relaxed);
        let (at, name) = (Timestamp::from_ms(self.lives.now_ms()), String::new());
        // It has no part of any limit before it says more.
        let load = Load { stance: Some(Stance::default()), ..Load::default() };
        let replica = Replica { incarnation, name, began_at: now, at, load, groups: 0 };
        self.lives.lock().insert(incarnation, (replica, self.life.t()));
        self.life.renumber(no);
        let t = self.life.t();
        let mut history = self.lives.history.lock();
        history.lives.resize(no + 1, Ended::Not);
        history.line(t, format_args!("life {incarnation} begins where {before} was"));
        if before > 0 {
            history.reach("a life after a death");
        }
        Ok(incarnation)
    }

    pub(crate) async fn leave(&self, now: Timestamp) -> Result<()> {
        let life = self.incarnation();
        if self.lives.lock().remove(&life).is_none() {
            return Ok(());
        }
        let found = self.lives.end(life, false, now).await?;
        let t = self.life.t();
        let mut history = self.lives.history.lock();
        history.line(t, format_args!("life {life} leaves: {found:?}"));
        let holds_nothing = found == TakenOver::default();
        history.lives[self.life.no()] = if holds_nothing { Ended::Cleanly } else { Ended::Suddenly };
        // What it could not write down it does not give up.
        if !holds_nothing {
            history.violation(format!("a graceful stop of life {life} kept claims: {found:?}"));
        }
        Ok(())
    }
}
