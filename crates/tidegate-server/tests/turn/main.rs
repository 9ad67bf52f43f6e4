//! Seed 003's own scenarios, on virtual time, second by second: many users, one API that allows three requests a second, and
//! what happens when it says "too many".
//!
//! The real pipeline on a real store, with a receiver that notes when what came and answers as its script says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::attempt::{Phases, ResponseHead};
use tidegate_core::egress::Policy;
use tidegate_core::ingest::Request;
use tidegate_core::retention::Retention;
use tidegate_core::seal::Sealer;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{Answer, Exchange, Outbound, Transport};
use tidegate_server::clock::Clock;
use tidegate_server::entropy::Entropy;
use tidegate_server::pipeline::{Loops, Parts, Pipeline};
use tidegate_server::roster::Rosters;
use tidegate_server::standing::Standing;
use tidegate_store::conformance::Scratch;
use tidegate_store::sqlite::{Calls, SqliteStore};
use tidegate_store::{Change, NewSubscriber, Store};
use tokio::runtime::Handle;

const START_MS: i64 = 1_767_225_600_000;
const PROJECT: i64 = 1;
/// How long an update takes the API.
const WORK: Duration = Duration::from_millis(200);

/// What came: when, whose, the how many-th of that user, and whether it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    ms: i64,
    user: String,
    n: i64,
    is_taken: bool,
}

/// The API that everybody writes to.
struct Api {
    clock: Clock,
    calls: Mutex<Vec<Call>>,
    /// Between these it answers 429, and asks to wait for so long.
    busy: Option<(i64, i64, &'static str)>,
}

#[async_trait]
impl Transport for Api {
    async fn send(&self, outbound: Outbound) -> Exchange {
        let event: Value = serde_json::from_slice(&outbound.body).expect("an event");
        let ms = self.clock.now().as_ms() - START_MS;
        let busy = self.busy.filter(|(from, until, _)| (*from..*until).contains(&ms));
        let user = event["data"]["assignee"].as_str().expect("a user").to_owned();
        let n = event["data"]["n"].as_i64().expect("a number");
        let call = Call { ms, user, n, is_taken: busy.is_none() };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        let (status, retry_after) = match busy {
            Some((_, _, wait)) => (429, Some(wait.to_owned())),
            None => {
                self.clock.pause(WORK).await;
                (200, None)
            }
        };
        let answer = Answer { status, retry_after, head: ResponseHead::default(), grant: None };
        Exchange { phases: Phases::default(), result: Ok(answer) }
    }
}

/// A server whose one subscriber writes to the API, a lane for each user, through a gate of three a second.
struct Scene {
    api: Arc<Api>,
    pipeline: Pipeline,
    clock: Clock,
    _folder: Scratch,
}

impl Scene {
    async fn new(busy: Option<(i64, i64, &'static str)>) -> Self {
        let (folder, start) = (Scratch::new(), Timestamp::from_ms(START_MS));
        let store = SqliteStore::open(folder.path(), b"salt", start, Calls::Inline).expect("a new store");
        let store: Arc<dyn Store> = Arc::new(store);
        let sealer = Sealer::new(&[7; 32]);
        let rosters =
            Rosters::load(Arc::clone(&store), sealer, Policy::public_only()).await.expect("it opens");
        let clock = Clock::simulated(start);
        let api = Arc::new(Api { clock: clock.clone(), calls: Mutex::default(), busy });
        let definition = r#"{"rate":"3/s","burst":3}"#.to_owned();
        let gate = Change::PutGate { project: PROJECT, name: "notion".to_owned(), definition };
        rosters.change(gate, start).await.expect("a gate");
        let definition = json!({
            "destination": {"url": "https://api.example/"}, "order": {"by": "data.assignee"}, "gate": "notion",
        });
        let subscriber = NewSubscriber {
            project: PROJECT,
            id: "notion".to_owned(),
            definition: definition.to_string(),
            secret: rosters.seal(PROJECT, "notion", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", [0; 24]),
            destination: None,
            active: true,
            unverified: false,
            backfill_from: None,
        };
        rosters.change(Change::CreateSubscriber(subscriber), start).await.expect("a subscriber");
        let parts = Parts {
            store,
            rosters,
            transport: Arc::clone(&api) as Arc<dyn Transport>,
            standing: Standing::alone(&clock),
            coordination: None,
            clock: clock.clone(),
            entropy: Entropy::seeded(7),
            metrics: Arc::default(),
            watch: Arc::default(),
            origin: http::HeaderValue::from_static("scene"),
            spans: Arc::default(),
            retention: Retention::default(),
        };
        let loops = Loops { persist: Handle::current(), deliver: Handle::current() };
        let pipeline = Pipeline::start(&parts, &loops).await.expect("it starts");
        Self { api, pipeline, clock, _folder: folder }
    }

    async fn update(&self, user: &str, n: i64) {
        let event = json!({"source": "app", "type": "task", "data": {"assignee": user, "n": n}});
        let body = Bytes::from(event.to_string());
        let units = self.pipeline.ingest.decode(&Request { content_type: None, headers: &[], body: &body });
        self.pipeline.ingest.accept(PROJECT, units.expect("an event")).await.expect("it is accepted");
    }

    async fn pass(&self, seconds: u64) -> Vec<Call> {
        self.clock.pause(Duration::from_secs(seconds)).await;
        self.api.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// No second sees more than the rate and a burst.
fn within_the_cap(calls: &[Call]) {
    for (first, call) in calls.iter().enumerate() {
        let span = calls[first..].iter().take_while(|other| other.ms < call.ms + 1_000);
        assert!(span.count() <= 6, "{calls:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn alternating_users_are_served_in_the_order_in_which_they_came() {
    let scene = Scene::new(None).await;
    for (user, n) in [("u1", 0), ("u2", 0), ("u1", 1), ("u3", 0), ("u2", 1), ("u1", 2)] {
        scene.update(user, n).await;
    }
    let calls = scene.pass(10).await;
    let order: Vec<(&str, i64)> = calls.iter().map(|call| (call.user.as_str(), call.n)).collect();
    assert_eq!(
        order[..3],
        [("u1", 0), ("u2", 0), ("u3", 0)],
        "one of each user at once, first come first served"
    );
    assert_eq!(order[3..], [("u1", 1), ("u2", 1), ("u1", 2)], "whose work is done goes on at the tail");
    for user in ["u1", "u2", "u3"] {
        let own: Vec<i64> = calls.iter().filter(|call| call.user == user).map(|call| call.ms).collect();
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 200), "one at a time: {own:?}");
    }
    within_the_cap(&calls);
}

#[tokio::test(start_paused = true)]
async fn after_too_many_everybody_waits_and_progress_continues() {
    let scene = Scene::new(Some((1_000, 1_500, "5"))).await;
    for n in 0..6 {
        for user in ["u1", "u2", "u3", "u4"] {
            scene.update(user, n).await;
        }
    }
    let calls = scene.pass(120).await;
    let refused: Vec<&Call> = calls.iter().filter(|call| !call.is_taken).collect();
    let said = refused.first().expect("somebody was refused").ms;
    let until = refused.iter().map(|call| call.ms + 5_000).max().expect("somebody was refused");
    let in_between: Vec<&Call> = calls.iter().filter(|call| (said + 1..until).contains(&call.ms)).collect();
    assert!(in_between.iter().all(|call| !call.is_taken), "nobody passes a closed gate: {in_between:?}");
    let after: Vec<i64> = calls.iter().map(|call| call.ms).filter(|ms| *ms >= until).collect();
    assert!(after[0] <= until + 50, "somebody goes as soon as it may: {} after {until}", after[0]);
    let within =
        |from: i64, to: i64| after.iter().filter(|ms| (until + from..until + to).contains(*ms)).count();
    assert!(within(0, 10_000) <= 5, "an eighth of the rate at first: {after:?}");
    assert!(within(0, 20_000) >= 8, "more and more: {after:?}");
    within_the_cap(&calls);
    for user in ["u1", "u2", "u3", "u4"] {
        let taken: Vec<i64> =
            calls.iter().filter(|call| call.user == user && call.is_taken).map(|call| call.n).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5], "nothing is lost and the order of {user} is kept");
    }
}
