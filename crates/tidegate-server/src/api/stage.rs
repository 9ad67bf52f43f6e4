//! For tests of handlers: a whole server without a door, on virtual time, that sends nothing.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::egress::Policy;
use tidegate_core::ingest::Request;
use tidegate_core::key;
use tidegate_core::retention::Retention;
use tidegate_core::seal::Sealer;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{HttpTransport, SystemResolver};
use tidegate_store::conformance::Scratch;
use tidegate_store::sqlite::{Calls, SqliteStore};
use tidegate_store::{Change, NewKey, NewSubscriber};
use tokio::runtime::Handle;

use super::App;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::pipeline::{Loops, Parts, Pipeline};
use crate::roster::Rosters;
use crate::standing::Standing;

const START: Timestamp = Timestamp::from_ms(1_767_225_600_000);
const PROJECT: i64 = 1;

/// A server and its folder.
pub(super) struct Stage {
    pub(super) app: Arc<App>,
    _folder: Scratch,
}

impl Stage {
    /// To be called on paused time.
    pub(super) async fn new() -> Self {
        let folder = Scratch::new();
        let store = SqliteStore::open(folder.path(), b"salt", 7, START, Calls::Inline).expect("a new store");
        let store: Arc<dyn tidegate_store::Store> = Arc::new(store);
        let policy = Policy::public_only();
        let rosters = Rosters::load(Arc::clone(&store), Sealer::new(&[7; 32]), policy.clone()).await;
        let clock = Clock::simulated(START);
        let parts = Parts {
            store,
            rosters: rosters.expect("a new store"),
            transport: Arc::new(HttpTransport::new(policy, Arc::new(SystemResolver::default()))),
            standing: Standing::alone(&clock),
            coordination: None,
            clock,
            entropy: Entropy::seeded(7),
            metrics: Arc::default(),
            watch: Arc::default(),
            origin: http::HeaderValue::from_static("stage"),
            spans: Arc::default(),
            retention: Retention::default(),
            observing: crate::observing::Terms::default(),
        };
        let here = Handle::current();
        let loops = Loops { persist: here.clone(), deliver: here.clone(), beat: here };
        let pipeline = Pipeline::start_silent(&parts, &loops).await.expect("a new store");
        Self { app: Arc::new(App::new(pipeline, parts)), _folder: folder }
    }

    /// Creates a subscriber that wants everything.
    pub(super) async fn subscribe(&self, id: &str) -> i64 {
        let parts = &self.app.parts;
        let new = NewSubscriber {
            project: PROJECT,
            id: id.to_owned(),
            definition: r#"{"destination":{"url":"https://hooks.example/"}}"#.to_owned(),
            secret: parts.rosters.seal(PROJECT, id, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", [0; 24]),
            destination: None,
            active: true,
            unverified: false,
            backfill_from: None,
        };
        self.change(Change::CreateSubscriber(new)).await
    }

    /// A key that opens everything.
    pub(super) async fn admin_key(&self) -> String {
        let key = key::generate([7, 7]);
        let new = NewKey {
            project: 0,
            id: "key_stage".to_owned(),
            role: "admin".to_owned(),
            name: String::new(),
            prefix: key::shown(&key),
            hash: key::hash(&key).to_vec(),
        };
        self.change(Change::CreateKey(new)).await;
        key
    }

    /// Changes the configuration.
    pub(super) async fn change(&self, change: Change) -> i64 {
        let parts = &self.app.parts;
        parts.rosters.change(change, parts.clock.now()).await.expect("a change").no
    }

    /// Sends an event.
    pub(super) async fn publish(&self, body: &'static str) {
        let ingest = &self.app.pipeline.ingest;
        let request =
            Request { content_type: None, headers: &[], body: &Bytes::from_static(body.as_bytes()) };
        let units = ingest.decode(&request).expect("an event");
        ingest.accept(PROJECT, units).await.expect("it is accepted");
    }
}
