//! What every case works with: a store, a clock hand, and short words for long structures.
//!
//! A `Draft` says what an event is and where it was routed; a `Bench` sends it, finishes attempts, claims work and
//! looks. Helpers assert only what they need; the cases say what is promised.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::attempt::{Attempt, ErrorClass, Phases};
use tidegate_core::delivery::{Job, Status};
use tidegate_core::event::{Event, Fingerprinter, Unit, lookup_key};
use tidegate_core::id::{Lane, ProjectNo, SubscriberNo, Version};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::Harness;
use crate::{
    Admission, Change, Changed, Claim, Committed, DeliveryFilter, DeliveryRow, EventFilter, EventRow,
    Finished, Group, NewSubscriber, Refill, Refilled, Result, RetryOutcome, Room, RoutedUnit, Store,
    Submission, SubscriberUpdate, UnitStatus,
};

/// The project that every store is born with.
pub(crate) const PROJECT: ProjectNo = 1;
/// When every case begins.
pub(crate) const START: Timestamp = Timestamp::from_ms(1_800_000_000_000);
/// More bytes than any case needs.
pub(crate) const PLENTY: usize = 64 * 1024 * 1024;

/// An event on its way in.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) project: ProjectNo,
    pub(crate) source: String,
    pub(crate) id: String,
    pub(crate) type_name: String,
    pub(crate) subject: Option<String>,
    pub(crate) time: Timestamp,
    pub(crate) body: Bytes,
    pub(crate) routes: Vec<Route>,
    pub(crate) sub_events: Vec<Draft>,
}

/// An event of source `shop` that nobody gets yet; its body is its id.
pub(crate) fn draft(id: impl Into<String>) -> Draft {
    let id = id.into();
    Draft {
        project: PROJECT,
        source: "shop".to_owned(),
        body: Bytes::from(format!("{{\"id\":\"{id}\"}}")),
        id,
        type_name: "order.paid".to_owned(),
        subject: None,
        time: START,
        routes: Vec::new(),
        sub_events: Vec::new(),
    }
}

impl Draft {
    pub(crate) fn from(mut self, source: &str) -> Self {
        source.clone_into(&mut self.source);
        self
    }

    pub(crate) fn of(mut self, project: ProjectNo) -> Self {
        self.project = project;
        self
    }

    pub(crate) fn kind(mut self, type_name: &str) -> Self {
        type_name.clone_into(&mut self.type_name);
        self
    }

    pub(crate) fn saying(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn to(mut self, subscriber: SubscriberNo) -> Self {
        self.routes.push(Route::alone(subscriber, None));
        self
    }

    pub(crate) fn lane(mut self, subscriber: SubscriberNo, lane: Lane) -> Self {
        self.routes.push(Route::alone(subscriber, Some(lane)));
        self
    }

    pub(crate) fn with(mut self, sub_event: Draft) -> Self {
        self.sub_events.push(sub_event);
        self
    }

    /// The draft and its sub-events as one routed unit.
    pub(crate) fn unit(self) -> RoutedUnit {
        let mut print = Fingerprinter::default();
        let mut routed = RoutedUnit {
            unit: Unit { events: Vec::new(), fingerprint: [0; 16] },
            routes: Vec::new(),
            keys: Vec::new(),
            admission: Admission::Granted,
        };
        let (project, sub_events) = (self.project, self.sub_events.clone());
        for one in std::iter::once(self).chain(sub_events) {
            print.field(Some(&one.body));
            routed.keys.push(lookup_key(project, &one.source, &one.id));
            routed.routes.push(one.routes);
            routed.unit.events.push(Event {
                id: one.id,
                source: one.source,
                type_name: one.type_name,
                subject: one.subject,
                time: one.time,
                body: one.body,
            });
        }
        routed.unit.fingerprint = print.finish();
        routed
    }
}

/// The drafts as one request.
pub(crate) fn submission(drafts: impl IntoIterator<Item = Draft>) -> Submission {
    let mut drafts = drafts.into_iter().peekable();
    let project = drafts.peek().map_or(PROJECT, |draft| draft.project);
    Submission { project, units: drafts.map(Draft::unit).collect() }
}

/// Room for `jobs` deliveries of each of these subscribers.
pub(crate) fn room(jobs: usize, subscribers: &[SubscriberNo]) -> Room {
    let mut room = Room::new(PLENTY);
    subscribers.iter().for_each(|subscriber| room.set(*subscriber, jobs));
    room
}

pub(crate) fn claim(job: &Job) -> Claim {
    Claim::of(job)
}

/// The result of one attempt at `job`.
pub fn finished(job: &Job, next: Next, at: Timestamp) -> Finished {
    let arrived = next == Next::Delivered;
    Finished {
        claim: claim(job),
        subscriber: job.subscriber,
        lane: job.lane,
        n: job.attempts + 1,
        attempt: Attempt {
            at,
            status: Some(if arrived { 200 } else { 500 }),
            error: (!arrived).then_some(ErrorClass::Status),
            detail: if arrived { String::new() } else { "the receiver answered 500".to_owned() },
            phases: Phases { wait_us: Some(1_500), total_us: 2_000, ..Phases::default() },
            response: None,
        },
        next,
        steps_aside: false,
        body: None,
    }
}

/// What became of each unit, request after request. Panics if one could not be written.
pub(crate) fn statuses(committed: &Committed) -> Vec<UnitStatus> {
    let answers = committed.submissions.iter();
    answers.flat_map(|answer| answer.as_ref().expect("the submission can be written").clone()).collect()
}

/// The bodies of these jobs, as text.
pub(crate) fn bodies(jobs: &[Job]) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(&job.body).into_owned()).collect()
}

/// A store under test.
pub(crate) struct Bench {
    harness: Arc<dyn Harness>,
    store: Option<Arc<dyn Store>>,
    pub(crate) now: Timestamp,
}

impl Bench {
    pub(crate) async fn new(harness: Arc<dyn Harness>) -> Self {
        let store = harness.open(START).await;
        Self { harness, store: Some(store), now: START }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().expect("the store is open")
    }

    /// Lets go of the store and opens it again, as after a crash.
    pub(crate) async fn reopen(&mut self) {
        drop(self.store.take());
        self.store = Some(self.harness.open(self.now).await);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = self.now.plus(Duration::from_millis(ms));
    }

    pub(crate) fn later(&self, ms: u64) -> Timestamp {
        self.now.plus(Duration::from_millis(ms))
    }

    /// The rows hold together right now.
    pub(crate) async fn audit(&self) {
        let violations = self.harness.audit().await;
        assert!(violations.is_empty(), "{violations:#?}");
    }

    pub(crate) async fn version(&self) -> Version {
        self.store().configuration(Version::MAX).await.expect("the configuration can be read").version
    }

    pub(crate) async fn try_change(&self, change: Change) -> Result<Changed> {
        self.store().change(change, self.now).await
    }

    pub(crate) async fn change(&self, change: Change) -> Changed {
        self.try_change(change).await.expect("the change is fine")
    }

    /// A subscriber that gets what is routed to it from now on.
    pub(crate) async fn subscriber(&self, id: &str) -> SubscriberNo {
        self.change(Change::CreateSubscriber(new_subscriber(id))).await.no
    }

    /// A subscriber that also gets what was accepted at or after `from`.
    pub(crate) async fn backfilled(&self, id: &str, from: Timestamp) -> SubscriberNo {
        let new = NewSubscriber { backfill_from: Some(from), ..new_subscriber(id) };
        self.change(Change::CreateSubscriber(new)).await.no
    }

    pub(crate) async fn update(&self, no: SubscriberNo, update: SubscriberUpdate) -> Changed {
        self.change(Change::UpdateSubscriber { project: PROJECT, no, update }).await
    }

    pub(crate) async fn pause(&self, no: SubscriberNo) {
        let update = SubscriberUpdate { active: Some(Err("paused".to_owned())), ..Default::default() };
        self.update(no, update).await;
    }

    pub(crate) async fn resume(&self, no: SubscriberNo) {
        self.update(no, SubscriberUpdate { active: Some(Ok(())), ..Default::default() }).await;
    }

    /// Commits a group as of now, routed by the configuration in force.
    pub(crate) async fn commit(&self, group: Group) -> Committed {
        let group = Group { now: self.now, version: self.version().await, ..group };
        let count = group.submissions.len();
        let committed = self.store().commit(Arc::new(group)).await.expect("the group can be written");
        assert_eq!(committed.submissions.len(), count, "one answer per submission");
        committed
    }

    /// Sends each draft in a request of its own, all in one group. Memory has no room.
    pub(crate) async fn send(&self, drafts: impl IntoIterator<Item = Draft>) -> Committed {
        self.send_into(Room::default(), drafts).await
    }

    /// The same with room in memory.
    pub(crate) async fn send_into(&self, room: Room, drafts: impl IntoIterator<Item = Draft>) -> Committed {
        let submissions = drafts.into_iter().map(|draft| submission([draft])).collect();
        self.commit(Group { submissions, room, ..Group::default() }).await
    }

    /// Claims up to `jobs` due deliveries.
    pub(crate) async fn refill(&self, subscriber: SubscriberNo, jobs: usize) -> (Vec<Job>, Refilled) {
        let refills = vec![Refill { subscriber, jobs }];
        let group = Group { refills, room: Room::new(PLENTY), ..Group::default() };
        let committed = self.commit(group).await;
        let [refilled] = committed.refilled[..] else { panic!("one answer per refill") };
        (committed.jobs, refilled)
    }

    /// Claims everything that is due, oldest first.
    pub(crate) async fn claim_all(&self, subscriber: SubscriberNo) -> Vec<Job> {
        self.refill(subscriber, 100_000).await.0
    }

    /// Claims the one delivery that is due.
    pub(crate) async fn claim_one(&self, subscriber: SubscriberNo) -> Job {
        let mut jobs = self.claim_all(subscriber).await;
        assert_eq!(jobs.len(), 1, "exactly one is due, not {:?}", bodies(&jobs));
        jobs.remove(0)
    }

    /// Writes the result of an attempt. Memory has no room.
    pub(crate) async fn finish(&self, job: &Job, next: Next) -> Committed {
        let results = vec![finished(job, next, self.now)];
        self.commit(Group { results, ..Group::default() }).await
    }

    pub(crate) async fn deliver(&self, job: &Job) {
        let committed = self.finish(job, Next::Delivered).await;
        assert_eq!(committed.stale, 0, "the claim holds");
    }

    pub(crate) async fn exhaust(&self, job: &Job) {
        let committed = self.finish(job, Next::Exhausted("enough".to_owned())).await;
        assert_eq!(committed.stale, 0, "the claim holds");
    }

    pub(crate) async fn release(&self, job: &Job) {
        self.commit(Group { released: vec![claim(job)], ..Group::default() }).await;
    }

    /// Says that a suspect begins to be sent; whether it may.
    pub(crate) async fn begin(&self, job: &Job) -> bool {
        let committed = self.commit(Group { begun: vec![claim(job)], ..Group::default() }).await;
        assert!(committed.unsealed.iter().all(|void| *void == claim(job)), "{:?}", committed.unsealed);
        committed.unsealed.is_empty()
    }

    /// Loses the claims of everything that is due, over and over.
    pub(crate) async fn crash(&mut self, subscriber: SubscriberNo, times: u32) {
        for _ in 0..times {
            assert!(!self.claim_all(subscriber).await.is_empty());
            self.reopen().await;
        }
    }

    pub(crate) async fn retry(&self, delivery: i64) -> RetryOutcome {
        self.store().retry(PROJECT, delivery, self.now).await.expect("the store works")
    }

    /// All deliveries of a subscriber, oldest first.
    pub(crate) async fn rows(&self, subscriber: SubscriberNo) -> Vec<DeliveryRow> {
        let filter = DeliveryFilter { subscriber: Some(subscriber), limit: 100_000, ..Default::default() };
        let mut rows = self.store().deliveries(PROJECT, filter).await.expect("the store works").items;
        rows.reverse();
        rows
    }

    /// The delivery of an event for a subscriber.
    pub(crate) async fn row(&self, subscriber: SubscriberNo, event: &str) -> DeliveryRow {
        let rows = self.rows(subscriber).await;
        rows.into_iter().find(|row| row.events == [event]).expect("the delivery exists")
    }

    pub(crate) async fn status(&self, subscriber: SubscriberNo, event: &str) -> Status {
        self.row(subscriber, event).await.status
    }

    /// All events of a project, oldest first.
    pub(crate) async fn events(&self, project: ProjectNo) -> Vec<EventRow> {
        let filter = EventFilter { limit: 1_000_000, ..Default::default() };
        let mut rows = self.store().events(project, filter).await.expect("the store works").items;
        rows.reverse();
        rows
    }
}

/// A subscriber of the default project.
pub(crate) fn new_subscriber(id: &str) -> NewSubscriber {
    NewSubscriber {
        project: PROJECT,
        id: id.to_owned(),
        definition: format!("{{\"name\":\"{id}\"}}"),
        secret: b"sealed".to_vec(),
        destination: Some(b"sealed too".to_vec()),
        active: true,
        unverified: false,
        backfill_from: None,
    }
}
