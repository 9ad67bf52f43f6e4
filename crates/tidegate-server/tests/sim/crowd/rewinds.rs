//! A store that goes back in time, as PostgreSQL does after a failover to a standby that had fallen behind.
//!
//! Rows, claims and lives are again what they were a moment ago, under processes that know what came since. Whatever was
//! acknowledged in between is lost, and nobody can help that. But it is never taken for what came after: what is accepted from
//! then on arrives, what is called delivered was taken, and no id stands for two bodies (P2, P3).
//!
//! The stand-in draws the numbers of deliveries and lives again as PostgreSQL may, and tells versions and nonces apart as
//! PostgreSQL does by chance. What a process remembers and compares is the code that PostgreSQL's is (`tidegate_store::rewind`).
//!
//! What other worlds watch under way is not asked: a store that forgets breaks those rules by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use tidegate_core::delivery::Status;
use tidegate_core::id::{Incarnation, Mint, Version};
use tidegate_store::decided::Holders;
use tidegate_store::rewind::{Found, Seen};
use tidegate_store::{Configuration, DeliveryFilter, DeliveryRow, EventFilter, Replica, Result, Store as _};

use super::super::dice::Dice;
use super::super::history::{Claimed, EventKey, History};
use super::super::plan::{Act, END_T, Plan};
use super::super::receivers::{Mood, Moods};
use super::super::spec::{Lanes, Spec};
use super::super::terms::FoldSpec;
use super::lives::{Lives, Living, Membership};
use super::plan::Trouble;

/// The nonce of deliveries before the store has gone back.
pub(super) const FIRST_NONCE: u32 = 1;

/// How many groups of a life are there.
pub(super) fn groups(replica: &Replica) -> i64 {
    i64::try_from(replica.groups).expect("few")
}

/// What the store has lost.
#[derive(Default)]
pub(crate) struct Past {
    /// How often it went back.
    epoch: AtomicU32,
    /// Versions of the configuration that are not in force any more, and never will be.
    lost: Mutex<BTreeSet<Version>>,
}

impl Past {
    fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<Version>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a process remembers of the store.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) seen: Seen,
    /// How often the store had gone back when its session began.
    session: AtomicU32,
}

impl Membership {
    /// Refuses to go on if something is missing that was there.
    pub(super) fn compare(&self, found: Found) -> Result<()> {
        let compared = self.memory.seen.compare(self.memory.seen.known(), found);
        let mut history = self.lives.history.lock();
        match (&compared, self.lives.past.epoch()) {
            (Err(_), 0) => {
                history.violation("a store that never went back was taken for one that did".to_owned());
            }
            (Err(_), _) => history.reach("a process that noticed what was lost"),
            (Ok(()), _) => {}
        }
        compared
    }

    /// A group is written in a session that began when the store was back.
    pub(super) fn resume(&self, life: Incarnation) -> Result<()> {
        let epoch = self.lives.past.epoch();
        if self.memory.session.swap(epoch, Ordering::Relaxed) != epoch {
            let written = self.lives.lock().get(&life).map(|(own, _)| groups(own));
            self.compare(Found { written, version: None, block: None })?;
        }
        if self.memory.seen.is_back() { Err(tidegate_store::Error::Fenced) } else { Ok(()) }
    }

    /// Before a new life begins: the version moves past what was seen.
    pub(super) async fn move_on(&self) -> Result<()> {
        let (known, version) = (self.memory.seen.known(), self.lives.store.version().await?);
        if self.compare(Found { written: None, version: Some(version), block: None }).is_err() {
            self.lives.store.raise_version(known.version + 1).await?;
        }
        self.memory.session.store(self.lives.past.epoch(), Ordering::Relaxed);
        Ok(())
    }

    /// Before a change: its version is none that was lost.
    pub(crate) async fn step_over(&self) -> Result<()> {
        let last = self.lives.past.lost().last().copied();
        match last {
            Some(last) => self.lives.store.raise_version(last).await,
            None => Ok(()),
        }
    }

    pub(crate) fn is_lost(&self, version: Version) -> bool {
        self.lives.past.lost().contains(&version)
    }

    pub(crate) async fn configuration(&self, since: Version) -> Result<Configuration> {
        let known = self.memory.seen.known();
        let since = if self.is_lost(since) { 0 } else { since };
        let read = self.lives.store.configuration(since).await?;
        self.memory.seen.loaded(known, read.version);
        Ok(read)
    }

    pub(crate) fn rewinds(&self) -> u64 {
        self.memory.seen.times()
    }
}

/// What happens to the store of a run.
#[derive(Default)]
pub(super) struct Rewinds {
    kept: Option<Kept>,
    /// How many events had been accepted when it was kept and when it went back.
    spans: Vec<(usize, usize)>,
}

/// What a standby has.
struct Kept {
    file: PathBuf,
    living: Living,
    ids: Holders<EventKey>,
    latest_ms: i64,
    version: Version,
    accepted: usize,
    claims: BTreeMap<i64, Claimed>,
}

impl Rewinds {
    pub(super) fn befall(&mut self, trouble: Trouble, t: i64, lives: &Arc<Lives>, dir: &Path) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be built");
        match trouble {
            Trouble::Keep => self.kept = Some(runtime.block_on(keep(lives, dir.join(format!("kept-{t}"))))),
            Trouble::GoBack { away_ms } => {
                let Some(kept) = self.kept.take() else { return };
                let accepted = lives.history.lock().accepted.len();
                self.spans.push((kept.accepted, accepted));
                runtime.block_on(go_back(lives, kept));
                lives.history.lock().outages.push((t, t + away_ms));
            }
            _ => {}
        }
    }

    /// What the store has, and what it is owed to, at the end.
    pub(super) async fn check(&self, lives: &Lives, plan: &Plan) {
        let mut found = Vec::new();
        let rows = rows(lives).await;
        let mint = Mint::new(lives.store.salt());
        {
            let mut history = lives.history.lock();
            let seen = std::mem::take(&mut history.violations);
            // A run that does not come to rest is no other thing for having lost something.
            found.extend(seen.into_iter().filter(|text| text.starts_with("liveness")));
            history.lines.retain(|line| !line.contains("VIOLATION"));
            self.nothing_else_is_lost(&history, &rows.0, &mut found);
            everything_kept_arrived(&history, &rows, (&mint, plan), &mut found);
            no_id_stands_for_two(&history, &mut found);
        }
        let mut history = lives.history.lock();
        if self.spans.iter().any(|(kept, lost)| lost > kept) {
            history.reach("an acknowledged event that was lost");
        }
        found.into_iter().for_each(|text| history.violation(text));
    }

    /// What was accepted before the standby fell behind, and since it took over, is there.
    fn nothing_else_is_lost(&self, history: &History, events: &BTreeSet<EventKey>, found: &mut Vec<String>) {
        for (place, fact) in history.accepted.iter().enumerate() {
            let is_lost = self.spans.iter().any(|(kept, lost)| (*kept..*lost).contains(&place));
            if !is_lost && !events.contains(&fact.key) {
                found.push(format!("P2 event {} was accepted at {} and is not kept", fact.key.2, fact.t));
            }
        }
    }
}

async fn keep(lives: &Lives, file: PathBuf) -> Kept {
    lives.store.copy_to(file.clone()).await.expect("there is room for a copy");
    let version = lives.store.version().await.expect("it can be asked");
    let history = lives.history.lock();
    Kept {
        file,
        living: lives.lock().clone(),
        ids: lives.kept.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        latest_ms: lives.latest_ms(),
        version,
        accepted: history.accepted.len(),
        claims: history.claims.clone(),
    }
}

async fn go_back(lives: &Lives, kept: Kept) {
    let version = lives.store.version().await.expect("it can be asked");
    let epoch = lives.past.epoch.fetch_add(1, Ordering::Relaxed);
    lives.store.go_back_to(kept.file, FIRST_NONCE + 1 + epoch).await.expect("it can go back");
    lives.past.lost().extend(kept.version + 1..=version);
    *lives.lock() = kept.living;
    *lives.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept.ids;
    lives.latest_ms.store(kept.latest_ms, Ordering::Relaxed);
    let mut history = lives.history.lock();
    (history.version, history.claims) = (kept.version, kept.claims);
}

/// All events and all deliveries.
async fn rows(lives: &Lives) -> (BTreeSet<EventKey>, Vec<DeliveryRow>) {
    let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
    let events = lives.store.events(1, filter).await.expect("it can be read").items;
    let filter = DeliveryFilter { limit: 10_000, ..DeliveryFilter::default() };
    let deliveries = lives.store.deliveries(1, filter).await.expect("it can be read").items;
    (events.into_iter().map(|row| (1, row.source, row.id)).collect(), deliveries)
}

/// Every event that is kept is in one delivery to everybody who wants it, which was taken under the id it has.
fn everything_kept_arrived(
    history: &History,
    (events, deliveries): &(BTreeSet<EventKey>, Vec<DeliveryRow>),
    (mint, plan): (&Mint, &Plan),
    found: &mut Vec<String>,
) {
    let alone = history.sends.iter().filter(|sent| sent.answered.is_some_and(|code| code < 300));
    let folded = history.folds.iter().filter(|sent| sent.has_arrived);
    let taken: BTreeSet<(&str, &str)> = alone
        .map(|sent| (sent.id.as_str(), sent.event.2.as_str()))
        .chain(folded.flat_map(|sent| sent.events.iter().map(|event| (sent.id.as_str(), event.2.as_str()))))
        .collect();
    let mut carried = BTreeMap::<(&str, &str), usize>::new();
    for row in deliveries {
        if row.status != Status::Delivered {
            found.push(format!("P2 delivery {} to {} is left {:?}", row.no, row.subscriber_id, row.status));
        }
        let id = mint.delivery(row.key());
        for event in &row.events {
            *carried.entry((&row.subscriber_id, event)).or_default() += 1;
            if row.status == Status::Delivered && !taken.contains(&(id.as_str(), event.as_str())) {
                found.push(format!(
                    "P2 {event} to {} is called delivered, nobody took {id}",
                    row.subscriber_id
                ));
            }
        }
    }
    for (subscriber, event) in plan.moods.keys().flat_map(|id| events.iter().map(move |event| (id, event))) {
        let times = carried.get(&(subscriber.as_str(), event.2.as_str())).copied().unwrap_or(0);
        if times != 1 {
            found.push(format!("P2 {} is in {times} deliveries to {subscriber}", event.2));
        }
    }
}

/// Whatever became of what was sent under an id: nothing else was.
fn no_id_stands_for_two(history: &History, found: &mut Vec<String>) {
    let mut bodies = BTreeMap::new();
    let alone = history.sends.iter().map(|sent| (&sent.id, sent.subscriber, &sent.body));
    let folded = history.folds.iter().map(|sent| (&sent.id, sent.subscriber, &sent.body));
    for (id, subscriber, body) in alone.chain(folded) {
        let first = *bodies.entry(id).or_insert((subscriber, body));
        if first != (subscriber, body) {
            let (one, other) = (String::from_utf8_lossy(first.1), String::from_utf8_lossy(body));
            found.push(format!("P3 {id} was sent to {} as {one} and to {subscriber} as {other}", first.0));
        }
    }
}

/// When each process starts: one of them may come while the standby is behind.
pub(super) fn starts(seed: u64) -> Vec<i64> {
    let mut dice = Dice::new(seed, "rewinds/starts");
    let (kept, lost) = spans(seed)[0];
    let third = if dice.percent(40) { dice.between(kept, lost) } else { 0 };
    vec![0, 0, third]
}

/// When the standby falls behind, and when it takes over.
fn spans(seed: u64) -> Vec<(i64, i64)> {
    let mut dice = Dice::new(seed, "rewinds");
    let mut spans = Vec::new();
    for first in [4_000, 22_000] {
        let kept = first + dice.between(0, 8_000);
        spans.push((kept, kept + dice.pick(&[150, 700, 1_500, 4_000, 8_000])));
    }
    spans.truncate(1 + usize::from(dice.percent(50)));
    spans
}

/// What goes wrong, beside the failovers: processes come, go and stand still around them.
pub(super) fn troubles(seed: u64) -> Vec<(i64, Trouble)> {
    let mut dice = Dice::new(seed, "rewinds/troubles");
    let mut troubles = Vec::new();
    for (kept, lost) in spans(seed) {
        troubles.push((kept, Trouble::Keep));
        troubles.push((lost, Trouble::GoBack { away_ms: dice.pick(&[0, 300, 2_500, 9_000]) }));
        let (seat, t) = (dice.below(3), dice.between(kept - 3_000, lost + 3_000));
        match dice.below(6) {
            0 => troubles.push((t, Trouble::Die { seat, down_ms: dice.pick(&[1, 2_000]) })),
            1 => troubles.push((t, Trouble::Leave { seat, down_ms: dice.pick(&[1, 2_000]) })),
            2 => troubles.push((t, Trouble::Sleep { seat, ms: dice.pick(&[1_500, 6_500]) })),
            _ => {}
        }
    }
    troubles.sort_by_key(|(t, _)| *t);
    troubles
}

/// Who subscribes and what is posted.
pub(super) fn plan(seed: u64) -> Plan {
    let mut dice = Dice::new(seed, "rewinds/plan");
    let create = |t: i64, spec: Spec| {
        let (project, from_ms, patience_ms) = ("default", None, None);
        (t, Act::Create { project, spec, from_ms, active: true, patience_ms })
    };
    let lasting = |id: &str| Spec { retries_ms: vec![1_000; 60], timeout_ms: 5_000, ..Spec::plain(id) };
    let (mut moods, mut acts) = (Moods::new(), Vec::new());
    for (id, spec, mood) in [
        ("s0", lasting("s0"), Mood::Healthy(20)),
        ("s1", Spec { concurrency: 2, ..lasting("s1") }, Mood::Healthy(900)),
        ("s2", Spec { lanes: Lanes::PerKey, ..lasting("s2") }, Mood::Healthy(300)),
        ("s3", lasting("s3"), Mood::Failing),
        ("fold-0", Spec { fold: Some(FoldSpec::long()), ..lasting("fold-0") }, Mood::Healthy(300)),
        (
            "fold-1",
            Spec { lanes: Lanes::PerKey, fold: Some(FoldSpec::long()), ..lasting("fold-1") },
            Mood::Healthy(300),
        ),
    ] {
        let until = if mood == Mood::Failing { dice.between(8_000, 30_000) } else { END_T };
        moods.insert(id.to_owned(), vec![(until, mood)]);
        acts.push(create(0, spec));
    }
    for n in 0..200 {
        let key = format!("k{}", dice.below(4));
        let body = json!({
            "id": format!("e{n}"), "source": "shop", "type": "order.paid", "data": {"n": n, "key": key},
        });
        let post = Act::Post { project: "default", body: body.to_string(), patience_ms: None };
        acts.push((500 + n * 170 + dice.between(0, 100), post));
    }
    // A change that is lost, and another one that comes in its place.
    for (number, (kept, lost)) in spans(seed).into_iter().enumerate() {
        for (t, name) in [(dice.between(kept, lost), "lost"), (lost + dice.between(0, 4_000), "later")] {
            let spec = Spec { types: vec!["none"], ..Spec::plain(&format!("{name}-{number}")) };
            acts.push(create(t, spec));
        }
    }
    acts.sort_by_key(|(t, _)| *t);
    let is_slow = dice.percent(50);
    Plan { is_slow, is_shared: true, shares_rates: true, ..Plan::calm(seed, acts, moods) }
}
