//! Plays a history on the real store and the model side by side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::event::{Event, Fingerprinter, Unit, lookup_key};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;
use tidegate_store::conformance::{Harness, finished};
use tidegate_store::{
    Admission, BackfillStep, Change, Claim, Committed, DeliveryFilter, DeliveryRow, EventFilter, EventRow,
    Finished, Group, NewSubscriber, Refill, Room, RoutedUnit, Store, Submission, UnitStatus,
};

use crate::folds::Folds;
use crate::model::{Model, State};
use crate::{GroupStep, Outcome, Pick, Sent, Step};

const PROJECT: i64 = 1;
const START: Timestamp = Timestamp::from_ms(1_800_000_000_000);
const PLENTY: usize = 1 << 24;

/// One history on a new store. Panics where store and model differ.
pub(crate) fn play(harness: &dyn Harness, steps: &[Step]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be built").block_on(async {
        let mut stage = Stage::new(harness).await;
        for step in steps {
            stage.act(step).await;
            stage.compare().await;
        }
        stage.finish().await;
    });
}

/// Store and model, side by side.
struct Stage<'a> {
    harness: &'a dyn Harness,
    store: Option<Arc<dyn Store>>,
    model: Model,
    now: Timestamp,
    /// Unordered, ordered, and perhaps the late one, which is ordered too.
    subscribers: Vec<i64>,
    /// The lane of each event in the order of acceptance, for the backfill.
    lanes: Vec<i64>,
    /// The event's place by its number in the store.
    places: BTreeMap<i64, usize>,
    folds: Folds,
}

impl<'a> Stage<'a> {
    async fn new(harness: &'a dyn Harness) -> Self {
        let store = Some(harness.open(START).await);
        let mut stage = Self {
            harness,
            store,
            model: Model::default(),
            now: START,
            subscribers: Vec::new(),
            lanes: Vec::new(),
            places: BTreeMap::new(),
            folds: Folds::default(),
        };
        for id in ["folding", "folding in lanes"] {
            let no = stage.create(id, None).await;
            stage.folds.subscribers.push(no);
        }
        stage.subscribe("free", None).await;
        stage.subscribe("ordered", None).await;
        stage
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().expect("the store is open")
    }

    async fn subscribe(&mut self, id: &str, backfill_from: Option<Timestamp>) {
        let no = self.create(id, backfill_from).await;
        self.subscribers.push(no);
    }

    async fn create(&self, id: &str, backfill_from: Option<Timestamp>) -> i64 {
        let new = NewSubscriber {
            project: PROJECT,
            id: id.to_owned(),
            definition: "{}".to_owned(),
            secret: Vec::new(),
            destination: None,
            active: true,
            unverified: false,
            backfill_from,
        };
        let changed = self.store().change(Change::CreateSubscriber(new), self.now).await;
        changed.expect("the subscriber is fine").no
    }

    async fn act(&mut self, step: &Step) {
        match step {
            Step::Group(group) => self.commit(group).await,
            Step::Pass(ms) => self.now = self.now.plus(Duration::from_millis(u64::from(*ms))),
            Step::Subscribe if self.subscribers.len() == 2 => {
                self.subscribe("late", Some(START)).await;
                self.model.backfill = Some((self.subscribers[2], 0));
                self.model.backfill_until = self.model.events.len();
            }
            Step::Subscribe => {}
            Step::Restart => self.restart().await,
            Step::CrashLoop => {
                let refills = vec![(0, 200), (1, 200), (2, 200)];
                let claiming = GroupStep { refills, ..GroupStep::default() };
                for _ in 0..CLAIMS_LOST_MAX {
                    self.commit(&claiming).await;
                    self.restart().await;
                }
            }
            Step::Retry(index) => {
                let keys: Vec<_> = self.model.rows.keys().copied().collect();
                if !keys.is_empty() {
                    let key = pick(&keys, *index);
                    let no = self.numbers().await[&key];
                    let expected = self.model.retry(key, self.now);
                    let told = self.store().retry(PROJECT, no, self.now).await.expect("the store works");
                    assert_eq!(told, expected, "retrying {key:?}");
                }
            }
        }
    }

    async fn restart(&mut self) {
        drop(self.store.take());
        self.model.restart();
        self.folds.restart();
        self.store = Some(self.harness.open(self.now).await);
    }

    /// The numbers of all deliveries in the store, by subscriber and place of the event.
    async fn numbers(&self) -> BTreeMap<(i64, usize), i64> {
        self.rows().await.into_iter().map(|(key, row)| (key, row.no)).collect()
    }

    async fn rows(&self) -> BTreeMap<(i64, usize), DeliveryRow> {
        let filter = DeliveryFilter { limit: 100_000, ..Default::default() };
        let rows = self.store().deliveries(PROJECT, filter).await.expect("the store works").items;
        let rows = rows.into_iter().filter(|row| row.fold.is_none());
        let place = |id: &str| self.model.events.iter().position(|(known, _)| known == id).expect("accepted");
        rows.map(|row| ((row.subscriber, place(&row.events[0])), row)).collect()
    }

    async fn commit(&mut self, step: &GroupStep) {
        let mut results = self.results(step);
        results.extend(self.folds.results(&step.folds, self.now));
        let (released, begun) = (self.released(step), self.begun(step));
        let backfill = match step.backfill {
            Some(limit) => self.backfill(usize::from(limit)).await,
            None => None,
        };
        let mut room = Room::new(PLENTY);
        let everyone = self.subscribers.iter().chain(&self.folds.subscribers);
        everyone.for_each(|no| room.set(*no, usize::from(step.room)));
        let submissions: Vec<_> = step.sent.iter().map(|sent| self.submission(sent)).collect();
        let refills: Vec<Refill> = step
            .refills
            .iter()
            .filter_map(|(who, jobs)| Some((self.anybody(usize::from(*who))?, jobs)))
            .map(|(subscriber, jobs)| Refill { subscriber, jobs: usize::from(*jobs) })
            .collect();
        let expected: Vec<UnitStatus> = step.sent.iter().map(|sent| self.accept(sent)).collect();
        let backfills = backfill.into_iter().collect();
        let version = self.store().configuration(i64::MAX).await.expect("the store works").version;
        let group = Group {
            now: self.now,
            version,
            results,
            released,
            begun,
            backfills,
            submissions,
            refills,
            room,
            seals: self.folds.seals(&step.folds),
            close: usize::from(step.folds.close),
            ..Group::default()
        };
        let seals = group.seals.clone();
        let committed = self.store().commit(Arc::new(group)).await.expect("the store works");
        let told: Vec<UnitStatus> = committed
            .submissions
            .iter()
            .map(|answer| answer.as_ref().expect("it can be written")[0])
            .collect();
        assert_eq!(told, expected);
        assert_eq!(committed.stale, 0, "every result came by a valid claim");
        assert!(committed.unsealed.is_empty(), "every seal and beginning came by a valid claim");
        self.folds.sealed(&**self.store.as_ref().expect("the store is open"), &seals).await;
        self.take(committed).await;
    }

    /// The first three, then those that fold.
    fn anybody(&self, who: usize) -> Option<i64> {
        let folding = who.checked_sub(3).and_then(|who| self.folds.subscribers.get(who));
        self.subscribers.get(who).filter(|_| who < 3).or(folding).copied()
    }

    /// Results for some of what is held; the model takes them at once, as they come first in a group.
    fn results(&mut self, step: &GroupStep) -> Vec<Finished> {
        let mut results = Vec::new();
        for (index, outcome) in &step.results {
            let held = self.model.held();
            if held.is_empty() {
                break;
            }
            let row = self.model.rows.get_mut(&pick(&held, *index)).expect("it is held");
            let State::Claimed(job) = std::mem::replace(&mut row.state, State::Waiting) else {
                unreachable!()
            };
            let later = |ms: u16| self.now.plus(Duration::from_millis(u64::from(ms)));
            let next = match *outcome {
                Outcome::Delivered => Next::Delivered,
                Outcome::RetryIn(ms) => Next::RetryAt(later(ms)),
                Outcome::PostponedBy(ms) => Next::PostponedTo(later(ms)),
                Outcome::Exhausted => Next::Exhausted("enough".to_owned()),
            };
            row.attempts += 1;
            (row.lost, row.is_begun) = (0, false);
            match &next {
                Next::Delivered => row.state = State::Delivered,
                Next::Exhausted(_) => row.state = State::Exhausted,
                Next::RetryAt(at) | Next::PostponedTo(at) => row.due_at = *at,
            }
            results.push(finished(&job, next, self.now));
        }
        results
    }

    fn released(&mut self, step: &GroupStep) -> Vec<Claim> {
        let mut claims = Vec::new();
        for index in &step.released {
            let held = self.model.held();
            if held.is_empty() {
                break;
            }
            let row = self.model.rows.get_mut(&pick(&held, *index)).expect("it is held");
            let State::Claimed(job) = std::mem::replace(&mut row.state, State::Waiting) else {
                unreachable!()
            };
            row.is_begun = false;
            claims.push(Claim::of(&job));
        }
        claims
    }

    /// Some of the suspects in hand begin to be sent.
    fn begun(&mut self, step: &GroupStep) -> Vec<Claim> {
        let mut held = self.model.held();
        held.retain(|key| self.model.rows[key].is_suspect());
        let picked = step.begun.iter().filter(|_| !held.is_empty()).map(|index| pick(&held, *index));
        let mut claims = Vec::new();
        for key in picked {
            let row = self.model.rows.get_mut(&key).expect("it is held");
            let State::Claimed(job) = &row.state else { unreachable!() };
            claims.push(Claim::of(job));
            row.is_begun = true;
        }
        claims
    }

    /// The next step of the late subscriber's backfill, in which every event matches.
    async fn backfill(&mut self, limit: usize) -> Option<BackfillStep> {
        let (subscriber, looked_at) = self.model.backfill?;
        let found = self.store().backfill(subscriber, limit).await.expect("the store works");
        let (mut step, events): (BackfillStep, Vec<EventRow>) = found.expect("it is under way");
        let ids: Vec<&str> = events.iter().map(|row| row.id.as_str()).collect();
        let end = self.model.backfill_until.min(looked_at + limit);
        let expected: Vec<&str> =
            self.model.events[looked_at..end].iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, expected, "exactly the older events, in order");
        for (place, row) in (looked_at..end).zip(&events) {
            step.matched.push((row.seq, Route::alone(step.subscriber, Some(self.lanes[place]))));
            self.model.add(subscriber, place, Some(self.lanes[place]), self.now, false);
        }
        let is_last = step.through >= step.until;
        assert!(!is_last || end == self.model.backfill_until, "it ends after the last");
        self.model.backfill = (!is_last).then_some((subscriber, end));
        Some(step)
    }

    fn routes(&self, sent: &Sent) -> Vec<(i64, Option<i64>)> {
        let lane = Some(i64::from(sent.lane));
        let lanes = [None, lane, lane];
        let all = self.subscribers.iter().zip(lanes).zip(sent.to);
        all.filter(|(_, wanted)| *wanted).map(|((no, lane), _)| (*no, lane)).collect()
    }

    fn submission(&self, sent: &Sent) -> Submission {
        let (id, content) = named(sent);
        let mut print = Fingerprinter::default();
        print.field(Some(content.as_bytes()));
        let event = Event {
            source: "shop".to_owned(),
            type_name: "t".to_owned(),
            subject: None,
            time: self.now,
            body: Bytes::from(content),
            id: id.clone(),
        };
        let routes = self.routes(sent);
        let routes = routes.into_iter().map(|(subscriber, lane)| Route::alone(subscriber, lane));
        // Those that fold were made first.
        let routes = self.folds.routes(sent).into_iter().chain(routes).collect();
        let unit = RoutedUnit {
            unit: Unit { events: vec![event], fingerprint: print.finish() },
            routes: vec![routes],
            keys: vec![lookup_key(PROJECT, "shop", &id)],
            admission: Admission::Granted,
        };
        Submission { project: PROJECT, units: vec![unit] }
    }

    fn accept(&mut self, sent: &Sent) -> UnitStatus {
        let (id, content) = named(sent);
        let routes = self.routes(sent);
        let status = self.model.accept(&id, &content, &routes, self.now);
        if status == UnitStatus::Accepted {
            self.lanes.push(i64::from(sent.lane));
            self.folds.accept(sent, &id);
        }
        status
    }

    /// What a commit handed over must be claimable; what it called drained must be.
    async fn take(&mut self, committed: Committed) {
        let all = EventFilter { limit: 10_000, ..Default::default() };
        for row in self.store().events(PROJECT, all).await.expect("the store works").items {
            let place = self.model.events.iter().position(|(id, _)| *id == row.id).expect("accepted");
            self.places.insert(row.seq, place);
        }
        for job in committed.jobs {
            if job.fold.is_some() {
                self.folds.take(job);
                continue;
            }
            let place = self.places[&job.event];
            self.model.claim(job, place, self.now);
        }
        for refilled in committed.refilled {
            if refilled.drained {
                let left = self.model.claimable(refilled.subscriber, self.now);
                assert!(left.is_empty(), "{left:?} of {} were due and left behind", refilled.subscriber);
            }
        }
    }

    /// The store tells the same as the model, and its rows are sound.
    async fn compare(&self) {
        let told: BTreeMap<_, _> =
            self.rows().await.into_iter().map(|(key, row)| (key, (row.status, row.attempts))).collect();
        let expected: BTreeMap<_, _> =
            self.model.rows.iter().map(|(key, row)| (*key, (row.status(), row.attempts))).collect();
        assert_eq!(told, expected);
        self.folds.compare(&**self.store()).await;
        let violations = self.harness.audit().await;
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Ends the backfill, lets all time pass and delivers everything: nothing is stuck.
    async fn finish(mut self) {
        let group = |refills: Vec<(u8, u8)>, results| {
            Step::Group(GroupStep { results, backfill: Some(4), refills, ..GroupStep::default() })
        };
        self.act(&Step::Restart).await;
        self.now = self.now.plus(Duration::from_secs(3_600));
        let everyone = vec![(0, 200), (1, 200), (2, 200)];
        loop {
            self.act(&group(everyone.clone(), vec![])).await;
            let held = self.model.held().len();
            if held == 0 && self.model.backfill.is_none() {
                break;
            }
            self.act(&group(vec![], vec![(0, Outcome::Delivered); held])).await;
        }
        self.compare().await;
        self.folds.finish(&**self.store.as_ref().expect("the store is open"), self.now).await;
        let stuck: Vec<_> =
            self.model.rows.values().filter(|row| matches!(row.state, State::Waiting)).collect();
        assert!(stuck.is_empty(), "{stuck:#?}");
    }
}

fn pick<T: Copy>(from: &[T], by: Pick) -> T {
    from[usize::from(by) % from.len()]
}

fn named(sent: &Sent) -> (String, String) {
    (format!("e{}", sent.id), format!("{{\"id\":{},\"content\":{}}}", sent.id, sent.content))
}
