//! Folds: many events, few deliveries, and each event in exactly one of them (P5, P6).
//!
//! What a window does is decided by the book of `tidegate-core`; the cases here ask whether a store does what the book
//! says, keeps it, and finds it again.

mod closing;
mod keeping;
mod lanes;
mod past;
mod restart;
mod steer;

use std::sync::Arc;

use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, Bundle, CancelOn, ClosedBy, Fingerprint, Key, Mode, Terms};
use tidegate_core::id::{Lane, SubscriberNo};
use tidegate_core::payload::Payload;
use tidegate_core::route::Route;
use tidegate_core::time::Span;

use super::bench::{Bench, Draft, PROJECT, claim};
use super::{Case, named, retention};
use crate::{Bundled, Committed, Group, Seal, WindowFilter, WindowRow};

pub(super) fn cases() -> Vec<Case> {
    [closing::cases(), lanes::cases(), restart::cases(), past::cases(), steer::cases(), keeping::cases()]
        .into_iter()
        .flatten()
        .collect()
}

pub(super) fn window(ms: u64) -> Terms {
    terms(Mode::Window { window: Span::from_ms(ms) })
}

fn quiet(ms: u64, max_wait: u64) -> Terms {
    terms(Mode::Quiet { quiet: Span::from_ms(ms), max_wait: Span::from_ms(max_wait) })
}

/// The condition that all these folds have, see [`Draft::cancelling`].
const RECOVERED: Fingerprint = 0x7ec0_7e4e_d000_0001;

fn terms(mode: Mode) -> Terms {
    Terms {
        mode,
        max_events: 1_000,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::When(RECOVERED),
        payload: Payload::Full,
    }
}

/// Into the window under this key, in the lane of this number if it is not 0.
fn route(subscriber: SubscriberNo, terms: &Terms, key: &str, lane: Lane) -> Route {
    let terms = Arc::new(terms.clone());
    let appending = Appending { key: key_of(key), terms, cancels: Vec::new() };
    Route::folded(subscriber, Some(lane).filter(|lane| *lane != 0), appending)
}

fn key_of(key: &str) -> Key {
    Key::from_text(&format!("{{\"key\":\"{key}\"}}"))
}

impl Draft {
    pub(super) fn folded(mut self, subscriber: SubscriberNo, terms: &Terms, key: &str) -> Self {
        self.routes.push(route(subscriber, terms, key, 0));
        self
    }

    fn folded_in(mut self, subscriber: SubscriberNo, terms: &Terms, key: &str, lane: Lane) -> Self {
        self.routes.push(route(subscriber, terms, key, lane));
        self
    }

    /// What the subscriber's own rule says: it makes what gathered irrelevant.
    fn cancelling(self) -> Self {
        self.fulfilling(&[RECOVERED])
    }

    /// It goes by itself as well.
    fn passing(mut self) -> Self {
        let route = self.routes.last_mut().expect("it has a route");
        route.ends = route.fold.take();
        self
    }

    /// It fulfils these conditions, of which windows may have been opened with any.
    fn fulfilling(mut self, conditions: &[Fingerprint]) -> Self {
        let fold = self.routes.last_mut().and_then(|route| route.fold.as_mut());
        Arc::make_mut(fold.expect("its last route folds")).cancels = conditions.to_vec();
        self
    }
}

/// Closes what is due.
async fn close(bench: &Bench) -> Committed {
    bench.commit(Group { close: 1_000, ..Group::default() }).await
}

/// The windows that gather, oldest first.
async fn open(bench: &Bench) -> Vec<WindowRow> {
    let filter = WindowFilter { limit: 1_000, ..Default::default() };
    bench.store().windows(PROJECT, filter).await.expect("the store works").items
}

async fn bundle(bench: &Bench, job: &Job) -> Bundle {
    let window = job.fold.expect("it is a fold");
    match bench.store().bundle(window, job.key(), usize::MAX).await.expect("the store works") {
        Some(Bundled::Whole(bundle)) => bundle,
        other => panic!("it has closed, but: {other:?}"),
    }
}

/// Why a window closed, and the ids of what it carries.
async fn carried(bench: &Bench, job: &Job) -> (ClosedBy, String) {
    let bundle = bundle(bench, job).await;
    let ids = bundle.events.iter().map(|body| {
        let event: serde_json::Value = serde_json::from_slice(body).expect("it is JSON");
        event["id"].as_str().unwrap_or_default().to_owned()
    });
    (bundle.closed_by, ids.collect::<Vec<_>>().join(" "))
}

/// Says that it leaves; whether it may.
async fn seal(bench: &Bench, job: &Job) -> bool {
    let window = job.fold.expect("it is a fold");
    let seals = vec![Seal { project: job.project, window, claim: claim(job) }];
    bench.commit(Group { seals, ..Group::default() }).await.unsealed.is_empty()
}

/// Sends what is due, one after the other; says what each delivery carried, and why its window closed.
async fn drain(bench: &Bench, subscriber: SubscriberNo) -> Vec<(ClosedBy, String)> {
    let mut order = Vec::new();
    loop {
        let jobs = bench.claim_all(subscriber).await;
        for job in &jobs {
            assert!(seal(bench, job).await, "the claim holds");
            order.push(carried(bench, job).await);
            bench.deliver(job).await;
        }
        if jobs.is_empty() {
            bench.audit().await;
            return order;
        }
    }
}

fn told(expected: &[(ClosedBy, &str)]) -> Vec<(ClosedBy, String)> {
    expected.iter().map(|(by, ids)| (*by, (*ids).to_owned())).collect()
}
