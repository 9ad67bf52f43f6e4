//! What went to the subscribers that fold: every event in one window, every window in one delivery, and what has begun to
//! leave as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::delivery::{Job, Status};
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms};
use tidegate_core::id::DeliveryKey;
use tidegate_core::payload::Payload;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::{Span, Timestamp};
use tidegate_store::conformance::finished;
use tidegate_store::{
    Bundled, Claim, DeliveryFilter, DeliveryRow, Finished, Group, Refill, Room, Seal, Store, WindowFilter,
};

use crate::{FoldStep, Outcome, Sent};

const PROJECT: i64 = 1;

/// The subscribers that fold, and what they are owed.
#[derive(Default)]
pub(crate) struct Folds {
    /// The first folds by time, outside lanes; the second by calm, in lanes.
    pub(crate) subscribers: Vec<i64>,
    /// Per subscriber, the ids of its events.
    owed: BTreeMap<i64, BTreeSet<String>>,
    held: BTreeMap<i64, Job>,
    /// What each delivery carried when it began to leave.
    sealed: BTreeMap<i64, Vec<String>>,
}

impl Folds {
    pub(crate) fn routes(&self, sent: &Sent) -> Vec<Route> {
        let modes = [
            Mode::Window { window: Span::from_ms(700) },
            Mode::Quiet { quiet: Span::from_ms(400), max_wait: Span::from_ms(1_500) },
        ];
        let lanes = [None, Some(i64::from(sent.lane))];
        let all = self.subscribers.iter().zip(modes).zip(lanes).zip(sent.folded);
        all.filter(|(_, wanted)| *wanted)
            .map(|(((subscriber, mode), lane), _)| {
                let terms = Terms {
                    mode,
                    max_events: 4,
                    max_bytes: 1 << 20,
                    leading: sent.lane == 2,
                    adaptive: false,
                    cancel_on: CancelOn::Never,
                    payload: Payload::Full,
                };
                let key = Key::from_text(&format!("[{}]", sent.lane));
                let fold = Appending { key, terms: Arc::new(terms), cancels: Vec::new() };
                Route::folded(*subscriber, lane, fold)
            })
            .collect()
    }

    pub(crate) fn accept(&mut self, sent: &Sent, id: &str) {
        for (subscriber, _) in self.subscribers.iter().zip(sent.folded).filter(|(_, wanted)| *wanted) {
            self.owed.entry(*subscriber).or_default().insert(id.to_owned());
        }
    }

    /// The store handed one over.
    pub(crate) fn take(&mut self, job: Job) {
        let is_alone = |other: &Job| (other.subscriber, other.lane) != (job.subscriber, job.lane);
        assert!(job.lane.is_none() || self.held.values().all(is_alone), "one of a lane at a time");
        assert!(self.held.insert(job.delivery, job).is_none(), "nobody holds it twice");
    }

    pub(crate) fn restart(&mut self) {
        self.held.clear();
    }

    fn pick(&self, index: u16, from: impl Fn(&Job) -> bool) -> Option<Job> {
        let all: Vec<&Job> = self.held.values().filter(|job| from(job)).collect();
        all.get(usize::from(index) % all.len().max(1)).map(|job| Job::clone(job))
    }

    /// Some of what is in hand begins to leave.
    pub(crate) fn seals(&self, step: &FoldStep) -> Vec<Seal> {
        let picked = step.seals.iter().filter_map(|index| self.pick(*index, |_| true));
        picked.map(|job| seal(&job)).collect()
    }

    pub(crate) async fn sealed(&mut self, store: &dyn Store, seals: &[Seal]) {
        for seal in seals {
            let carrier = DeliveryKey { no: seal.claim.delivery, nonce: seal.claim.nonce };
            let carries = carried(store, seal.window, carrier).await;
            let before = self.sealed.insert(seal.claim.delivery, carries.clone());
            assert!(before.is_none_or(|before| before == carries), "nothing joined what had begun to leave");
        }
    }

    /// Attempts at what has begun to leave come to an end.
    pub(crate) fn results(&mut self, step: &FoldStep, now: Timestamp) -> Vec<Finished> {
        let mut results = Vec::new();
        for (index, outcome) in &step.results {
            let Some(job) = self.pick(*index, |job| self.sealed.contains_key(&job.delivery)) else { break };
            let later = |ms: u16| now.plus(Duration::from_millis(u64::from(ms)));
            let next = match *outcome {
                Outcome::Delivered => Next::Delivered,
                Outcome::RetryIn(ms) => Next::RetryAt(later(ms)),
                Outcome::PostponedBy(ms) => Next::PostponedTo(later(ms)),
                Outcome::Exhausted => Next::Exhausted("enough".to_owned()),
            };
            self.held.remove(&job.delivery);
            results.push(finished(&job, next, now));
        }
        results
    }

    /// Every event is in one window or one delivery, and in no other.
    pub(crate) async fn compare(&self, store: &dyn Store) {
        let rows = rows(store).await;
        for subscriber in &self.subscribers {
            let filter = WindowFilter { subscriber: Some(*subscriber), limit: 10_000, ..Default::default() };
            let windows = store.windows(PROJECT, filter).await.expect("the store works").items;
            let gathering: usize = windows.iter().map(|row| row.count as usize).sum();
            let mut closed = BTreeSet::new();
            for row in rows.iter().filter(|row| row.subscriber == *subscriber) {
                assert!(row.events.len() <= 4, "no more than a window takes");
                row.events.iter().for_each(|id| assert!(closed.insert(id.clone()), "{id} is in two"));
            }
            let owed = self.owed.get(subscriber).cloned().unwrap_or_default();
            assert!(closed.is_subset(&owed), "nobody gets what was not for them");
            assert_eq!(gathering + closed.len(), owed.len(), "each is in one");
        }
        for job in self.held.values().filter(|job| job.lane.is_some()) {
            let is_ahead = |row: &&DeliveryRow| {
                (row.subscriber, row.lane, row.no < job.delivery) == (job.subscriber, job.lane, true)
                    && !matches!(row.status, Status::Delivered | Status::Exhausted)
            };
            let ahead = rows.iter().find(is_ahead).map(|row| row.no);
            assert_eq!(ahead, None, "of its lane something closed before {}", job.delivery);
        }
        for row in &rows {
            if let (Some(sealed), Some(fold)) = (self.sealed.get(&row.no), &row.fold) {
                assert_eq!(
                    &carried(store, fold.no, row.key()).await,
                    sealed,
                    "what has begun to leave stays as it is"
                );
            }
        }
    }

    /// Everything closes and is delivered, lane by lane in the order it closed.
    pub(crate) async fn finish(&mut self, store: &dyn Store, now: Timestamp) {
        commit(store, Group { now, close: 10_000, ..Group::default() }).await;
        let unfinished = |row: &&DeliveryRow| matches!(row.status, Status::Exhausted | Status::Retrying);
        for row in rows(store).await.iter().filter(unfinished) {
            store.retry(PROJECT, row.no, now).await.expect("the store works");
        }
        loop {
            let refills = self.subscribers.iter().map(|no| Refill { subscriber: *no, jobs: 1_000 }).collect();
            let group = Group { now, refills, room: Room::new(1 << 24), ..Group::default() };
            commit(store, group).await.into_iter().for_each(|job| self.take(job));
            let jobs: Vec<Job> = std::mem::take(&mut self.held).into_values().collect();
            if jobs.is_empty() {
                break;
            }
            let seals: Vec<Seal> = jobs.iter().map(seal).collect();
            commit(store, Group { now, seals: seals.clone(), ..Group::default() }).await;
            self.sealed(store, &seals).await;
            let results = jobs.iter().map(|job| finished(job, Next::Delivered, now)).collect();
            commit(store, Group { now, results, ..Group::default() }).await;
        }
        self.compare(store).await;
        assert!(rows(store).await.iter().all(|row| row.status == Status::Delivered), "nothing is stuck");
        let carried: usize = rows(store).await.iter().map(|row| row.events.len()).sum();
        assert_eq!(carried, self.owed.values().map(BTreeSet::len).sum::<usize>(), "nothing gathers any more");
    }
}

fn seal(job: &Job) -> Seal {
    let claim = Claim::of(job);
    Seal { project: PROJECT, window: job.fold.expect("it is a fold"), claim }
}

async fn commit(store: &dyn Store, group: Group) -> Vec<Job> {
    let committed = store.commit(Arc::new(group)).await.expect("the store works");
    assert!(committed.stale == 0 && committed.unsealed.is_empty());
    committed.jobs
}

async fn rows(store: &dyn Store) -> Vec<DeliveryRow> {
    let filter = DeliveryFilter { limit: 100_000, ..Default::default() };
    let rows = store.deliveries(PROJECT, filter).await.expect("the store works").items;
    rows.into_iter().filter(|row| row.fold.is_some()).collect()
}

/// The bodies of what a fold carries.
async fn carried(store: &dyn Store, window: i64, carrier: DeliveryKey) -> Vec<String> {
    let bundled = store.bundle(window, carrier, usize::MAX).await.expect("the store works");
    let Some(Bundled::Whole(bundle)) = bundled else { panic!("it has closed") };
    bundle.events.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
}
