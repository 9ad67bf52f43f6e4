//! A stage for scenes that are played second by second: the real pipeline and store on virtual time, with receivers that
//! do what the scene says and note when what arrived.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::attempt::{Phases, ResponseHead};
use tidegate_core::delivery::Status;
use tidegate_core::egress::Policy;
use tidegate_core::id::SubscriberNo;
use tidegate_core::ingest::Request;
use tidegate_core::retry::Next;
use tidegate_core::route::{Judgement, Subscriber, View};
use tidegate_core::seal::Sealer;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{Answer, Exchange, MayLeave, Outbound, Transport};
use tidegate_server::clock::Clock;
use tidegate_server::entropy::Entropy;
use tidegate_server::metrics::Metrics;
use tidegate_server::pipeline::{Loops, Parts, Pipeline};
use tidegate_server::roster::Rosters;
use tidegate_server::standing::Standing;
use tidegate_store::conformance::finished;
use tidegate_store::sqlite::{Calls, SqliteStore};
use tidegate_store::{
    Change, DeliveryFilter, DeliveryRow, Group, NewSubscriber, Refill, Room, Store, SubscriberUpdate, Trace,
    TraceRule,
};
use tokio::runtime::Handle;

const PROJECT: i64 = 1;
/// A whole multiple of every period that scenes use, so that seconds are easy to count.
const START: Timestamp = Timestamp::from_ms(1_800_000_000_000);

/// What a receiver got.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// Whose receiver.
    to: String,
    /// In seconds since the scene began, rounded down to tenths.
    pub(crate) at: f64,
    /// The same in milliseconds.
    pub(crate) ms: u64,
    /// It was answered 2xx.
    pub(crate) is_taken: bool,
    pub(crate) body: Value,
}

impl Arrival {
    /// The ids of the events it carries.
    pub(crate) fn ids(&self) -> Vec<String> {
        let id = |event: &Value| event["id"].as_str().unwrap_or_default().to_owned();
        self.body["events"]
            .as_array()
            .map_or_else(|| vec![id(&self.body)], |events| events.iter().map(id).collect())
    }
}

/// What a receiver does with a request: after how many milliseconds, and what it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) after_ms: u64,
    pub(crate) status: u16,
    pub(crate) retry_after: Option<&'static str>,
}

impl Default for Reply {
    fn default() -> Self {
        Self { after_ms: 0, status: 200, retry_after: None }
    }
}

#[derive(Default)]
struct Notes {
    arrivals: Vec<Arrival>,
    /// What comes next from each receiver; the last of them stays.
    replies: BTreeMap<String, Vec<Reply>>,
    /// In this time, in milliseconds, all of them answer so.
    busy: Option<(Range<u64>, Reply)>,
}

impl Notes {
    fn reply(&mut self, to: &str, ms: u64) -> Reply {
        if let Some((_, reply)) = self.busy.as_ref().filter(|(time, _)| time.contains(&ms)) {
            return *reply;
        }
        match self.replies.get_mut(to) {
            Some(replies) if replies.len() > 1 => replies.remove(0),
            Some(replies) => replies.first().copied().unwrap_or_default(),
            None => Reply::default(),
        }
    }
}

/// The receivers.
struct Receivers {
    clock: Clock,
    notes: Arc<Mutex<Notes>>,
}

#[async_trait]
impl Transport for Receivers {
    async fn send_if(&self, outbound: Outbound, _: MayLeave<'_>) -> Option<Exchange> {
        let to = outbound.target.url().path().trim_start_matches('/').to_owned();
        let body = serde_json::from_slice(&outbound.body).expect("bodies are JSON");
        let ms = u64::try_from(self.clock.now().since(START).as_millis()).expect("scenes are short");
        let reply = {
            let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
            let reply = notes.reply(&to, ms);
            let is_taken = (200..300).contains(&reply.status);
            let at = (ms / 100) as f64 / 10.0;
            notes.arrivals.push(Arrival { to, at, ms, is_taken, body });
            reply
        };
        self.clock.pause(Duration::from_millis(reply.after_ms)).await;
        let retry_after = reply.retry_after.map(str::to_owned);
        let answer = Answer { status: reply.status, retry_after, head: ResponseHead::default(), grant: None };
        Some(Exchange { phases: Phases::default(), result: Ok(answer) })
    }
}

/// The store in a folder.
fn open(dir: &Path, now: Timestamp) -> SqliteStore {
    SqliteStore::open(dir, b"a salt of a scene", 1, now, Calls::Inline).expect("a store")
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

/// A running product whose time is ours.
pub(crate) struct Stage {
    dir: PathBuf,
    clock: Clock,
    notes: Arc<Mutex<Notes>>,
    show: Option<(Parts, Pipeline)>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tidegate-scene-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let clock = Clock::simulated(START);
        let mut stage =
            Self { dir: std::env::temp_dir().join(name), clock, notes: Arc::default(), show: None };
        stage.start().await;
        stage
    }

    /// The process starts.
    pub(crate) async fn start(&mut self) {
        let now = self.clock.now();
        let store =
            SqliteStore::open(&self.dir, b"a salt of a scene", 7, now, Calls::Inline).expect("a store");
        let store: Arc<dyn Store> = Arc::new(store);
        let rosters = Rosters::load(Arc::clone(&store), Sealer::new(&[7; 32]), Policy::public_only()).await;
        let parts = Parts {
            store,
            rosters: rosters.expect("a roster"),
            transport: Arc::new(Receivers { clock: self.clock.clone(), notes: Arc::clone(&self.notes) }),
            clock: self.clock.clone(),
            entropy: Entropy::seeded(1),
            metrics: Arc::new(Metrics::default()),
            retention: tidegate_core::retention::Retention::default(),
            observing: tidegate_server::observing::Terms::default(),
            watch: Arc::default(),
            origin: http::HeaderValue::from_static("scenes"),
            spans: Arc::default(),
            standing: Standing::alone(&self.clock),
            coordination: None,
        };
        let here = Handle::current();
        let loops = Loops { persist: here.clone(), deliver: here.clone(), beat: here };
        let pipeline = Pipeline::start(&parts, &loops).await.expect("a pipeline");
        self.show = Some((parts, pipeline));
    }

    /// The process ends, in good order. The next one works on a copy: some tasks of this one hold its files until the
    /// scene is over.
    pub(crate) async fn stop(&mut self) {
        let Some((_, pipeline)) = self.show.take() else { return };
        pipeline.stop().await;
        let next = self.dir.with_extension("next");
        copy_all(&self.dir, &next);
        let _ = std::fs::remove_dir_all(std::mem::replace(&mut self.dir, next));
    }

    fn show(&self) -> &(Parts, Pipeline) {
        self.show.as_ref().expect("the process runs")
    }

    /// A project has no more open windows than these.
    pub(crate) fn limit_windows(&self, of_a_project: usize) {
        self.show().0.store.limit_windows(of_a_project);
    }

    /// A gate.
    pub(crate) async fn gate(&self, name: &str, definition: Value) {
        let (parts, pipeline) = self.show();
        let (name, definition) = (name.to_owned(), definition.to_string());
        let change = Change::PutGate { project: PROJECT, name, definition };
        parts.rosters.change(change, parts.clock.now()).await.expect("it is made");
        pipeline.reconfigured(&parts.rosters);
    }

    /// A subscriber, whose receiver is named like it. `rest` is the rest of its definition.
    pub(crate) async fn subscribe(&self, id: &str, rest: Value) {
        let (parts, pipeline) = self.show();
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let new = NewSubscriber {
            project: PROJECT,
            id: id.to_owned(),
            definition: definition(id, &rest),
            secret: parts.rosters.seal(PROJECT, id, secret, parts.entropy.bytes()),
            destination: None,
            active: true,
            unverified: false,
            backfill_from: None,
        };
        parts.rosters.change(Change::CreateSubscriber(new), parts.clock.now()).await.expect("it is created");
        pipeline.reconfigured(&parts.rosters);
    }

    /// Its number.
    pub(crate) fn number_of(&self, id: &str) -> SubscriberNo {
        let roster = self.show().0.rosters.current();
        roster.endpoints().find(|endpoint| endpoint.rule.id == id).expect("it exists").rule.no
    }

    /// While no process runs: what is due of a subscriber is claimed and fails before it is sealed. It is due again at once.
    pub(crate) async fn fail_unsealed(&self, no: SubscriberNo) {
        let now = self.clock.now();
        let store =
            SqliteStore::open(&self.dir, b"a salt of a scene", 1, now, Calls::Inline).expect("a store");
        let commit = async |group: Group| store.commit(Arc::new(group)).await.expect("the store works");
        commit(Group { now, close: 9, ..Group::default() }).await;
        let refills = vec![Refill { subscriber: no, jobs: 9 }];
        let claimed = commit(Group { now, refills, room: Room::new(1 << 20), ..Group::default() }).await;
        let results = claimed.jobs.iter().map(|job| finished(job, Next::RetryAt(now), now)).collect();
        assert_eq!(
            (claimed.jobs.len(), commit(Group { now, results, ..Group::default() }).await.stale),
            (1, 0)
        );
    }

    /// While no process runs: so many start, claim what is due of a subscriber, and end without a word.
    pub(crate) async fn lose_claims(&self, no: SubscriberNo, times: u32) {
        let now = self.clock.now();
        for _ in 0..times {
            let store = open(&self.dir, now);
            let refills = vec![Refill { subscriber: no, jobs: 9 }];
            let group = Group { now, close: 9, refills, room: Room::new(1 << 20), ..Group::default() };
            assert!(!store.commit(Arc::new(group)).await.expect("the store works").jobs.is_empty());
        }
    }

    /// Where each event of the deliveries would stand if the process ended at this instant and another one started.
    pub(crate) async fn after_crash(&self) -> Vec<(String, Status)> {
        let copy = self.dir.with_extension("copy");
        copy_all(&self.dir, &copy);
        let store = open(&copy, self.clock.now());
        let filter = DeliveryFilter { limit: 100, ..DeliveryFilter::default() };
        let rows = store.deliveries(PROJECT, filter).await.expect("the store works").items;
        drop(store);
        let _ = std::fs::remove_dir_all(copy);
        let mut all: Vec<_> = rows.into_iter().map(|row| (row.events.join(" "), row.status)).collect();
        all.sort();
        all
    }

    /// Another definition of a subscriber.
    pub(crate) async fn redefine(&self, id: &str, rest: Value) {
        let (parts, pipeline) = self.show();
        let no = self.number_of(id);
        let update =
            SubscriberUpdate { definition: Some(definition(id, &rest)), ..SubscriberUpdate::default() };
        let change = Change::UpdateSubscriber { project: PROJECT, no, update };
        parts.rosters.change(change, parts.clock.now()).await.expect("it is changed");
        pipeline.reconfigured(&parts.rosters);
    }

    /// What the receiver of a subscriber answers from now on, one after the other; the last one stays.
    pub(crate) fn will_answer(&self, id: &str, replies: Vec<Reply>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).replies.insert(id.to_owned(), replies);
    }

    /// All receivers answer so in this time, in milliseconds since the beginning.
    pub(crate) fn will_be_busy(&self, time: Range<u64>, reply: Reply) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).busy = Some((time, reply));
    }

    /// Waits until so many seconds after the beginning.
    pub(crate) async fn at(&self, seconds: f64) {
        let target = START.plus(Duration::from_secs_f64(seconds));
        self.clock.pause(target.since(self.clock.now())).await;
    }

    /// An event comes in.
    pub(crate) async fn post(&self, id: &str, kind: &str, data: Value) {
        self.post_all(vec![json!({"id": id, "source": "shop", "type": kind, "data": data})]).await;
    }

    /// Many come in together.
    pub(crate) async fn post_all(&self, events: Vec<Value>) {
        let body = Bytes::from(Value::Array(events).to_string());
        let (_, pipeline) = self.show();
        let units = pipeline.ingest.decode(&Request { content_type: None, headers: &[], body: &body });
        let units = units.expect("events are fine");
        pipeline.ingest.accept(PROJECT, units).await.expect("the store works");
    }

    /// Everything that arrived so far, as time, receiver and ids of events.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).arrivals.clone()
    }

    /// The same in short: when, and which events.
    pub(crate) fn story(&self) -> Vec<(f64, String)> {
        self.arrivals().iter().map(|arrival| (arrival.at, arrival.ids().join(" "))).collect()
    }

    /// The events that came to one receiver.
    pub(crate) fn ids_of(&self, id: &str) -> Vec<String> {
        self.arrivals().iter().filter(|arrival| arrival.to == id).flat_map(Arrival::ids).collect()
    }

    /// What became of an event.
    pub(crate) async fn trace(&self, id: &str) -> Trace {
        let (parts, _) = self.show();
        let event = parts.store.event(PROJECT, id.to_owned()).await.expect("the store works");
        parts.store.trace(PROJECT, event[0].seq).await.expect("the store works")
    }

    /// What each subscriber made of an event by the definition that its trace names, as the API tells it.
    pub(crate) async fn judgements(&self, id: &str) -> Vec<Judgement> {
        let (parts, _) = self.show();
        let mut found = parts.store.event(PROJECT, id.to_owned()).await.expect("the store works");
        let event = found.remove(0).into_event();
        let judge = |rule: TraceRule| {
            let definition =
                serde_json::from_str(&rule.definition.expect("it existed")).expect("it was accepted");
            let subscriber = Subscriber::compile(rule.subscriber, PROJECT, rule.subscriber_id, definition);
            subscriber.expect("it was accepted").judge(&View::new(&event))
        };
        self.trace(id).await.rules.into_iter().map(judge).collect()
    }

    /// When the window of a subscriber that an event joined closes, in seconds since the beginning.
    pub(crate) async fn closes_at(&self, subscriber: &str, event: &str) -> f64 {
        let (parts, _) = self.show();
        let roster = parts.rosters.current();
        let no =
            roster.endpoints().find(|endpoint| endpoint.rule.id == subscriber).expect("it exists").rule.no;
        let windows = self.trace(event).await.windows;
        let window = windows.iter().find(|window| window.subscriber == no).expect("it joined a window");
        window.due_at.since(START).as_secs_f64()
    }

    /// All deliveries, newest first.
    pub(crate) async fn deliveries(&self) -> Vec<DeliveryRow> {
        let (parts, _) = self.show();
        let filter = tidegate_store::DeliveryFilter { limit: 1_000, ..Default::default() };
        parts.store.deliveries(PROJECT, filter).await.expect("the store works").items
    }
}

fn definition(id: &str, rest: &Value) -> String {
    let mut definition = json!({"name": id, "destination": {"url": format!("https://hooks.example/{id}")}});
    definition.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    definition.to_string()
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Best effort: what is left of a scene is only untidy.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
