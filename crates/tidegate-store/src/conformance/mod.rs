//! The contract of a store, executable.
//!
//! Every store passes every [`Case`]: what `Store` promises is tested here or nowhere. A case knows nothing but the
//! trait. It reaches its store through a [`Harness`], which can open it again as a process that starts anew would,
//! and which looks at the rows afterwards. Time is a number that the case moves; nothing here waits.

mod accept;
mod backfill;
pub(crate) mod bench;
mod bodies;
mod catalog;
mod configuration;
mod folds;
mod follow;
mod gates;
mod group;
mod ids;
mod jobs;
mod keeping;
mod keys;
mod lanes;
mod listing;
mod nonces;
mod objects;
mod observe;
mod pages;
mod quarantine;
mod rebuilds;
mod recount;
mod replay;
mod restart;
mod results;
mod retention;
mod retry;
mod room;
mod scratch;
mod sealed;
mod stress;
mod suspects;
mod trace;
mod trigger;
mod verification;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tidegate_core::time::Timestamp;

use crate::Store;
use bench::Bench;
pub use bench::finished;
pub use scratch::Scratch;

/// How a case gets at a store. One harness is one store, from its creation to its end.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens the store: the first call creates it, later ones find it again, as a process that starts anew does.
    /// Whoever calls has let go of it before.
    async fn open(&self, now: Timestamp) -> Arc<dyn Store>;

    /// Looks at the rows for what must hold between any two commits. Tells every violation in words.
    async fn audit(&self) -> Vec<String>;
}

/// One clause of the contract.
pub struct Case {
    /// What it says, with the file that holds it.
    pub name: &'static str,
    run: fn(Bench) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names the cases of one file.
macro_rules! named {
    ($file:literal: $($name:ident),+ $(,)?) => {
        vec![$(crate::conformance::Case {
            name: concat!($file, "::", stringify!($name)),
            run: |bench| Box::pin($name(bench)),
        }),+]
    };
}
use named;

/// The whole contract.
pub fn cases() -> Vec<Case> {
    [
        accept::cases(),
        ids::cases(),
        bodies::cases(),
        group::cases(),
        room::cases(),
        results::cases(),
        nonces::cases(),
        lanes::cases(),
        retry::cases(),
        trigger::cases(),
        replay::cases(),
        jobs::cases(),
        retention::cases(),
        restart::cases(),
        suspects::cases(),
        backfill::cases(),
        configuration::cases(),
        sealed::cases(),
        verification::cases(),
        catalog::cases(),
        gates::cases(),
        objects::cases(),
        observe::cases(),
        rebuilds::cases(),
        recount::cases(),
        keeping::cases(),
        keys::cases(),
        quarantine::cases(),
        listing::cases(),
        pages::cases(),
        follow::cases(),
        folds::cases(),
        trace::cases(),
        stress::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Case {
    /// Runs the case on a new store and audits what it left. Panics where the store breaks the contract.
    pub async fn run(&self, harness: Arc<dyn Harness>) {
        let bench = Bench::new(Arc::clone(&harness)).await;
        (self.run)(bench).await;
        let violations = harness.audit().await;
        assert!(violations.is_empty(), "the rows left behind: {violations:#?}");
    }

    fn run_alone(&self, harness: Arc<dyn Harness>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be built").block_on(self.run(harness));
    }
}

/// Runs the whole contract, each case on a store of its own, so many side by side; prints each by name and panics if any
/// failed.
///
/// The environment variable `CASE` picks those whose name contains it.
pub fn run(side_by_side: usize, make: impl Fn() -> Arc<dyn Harness> + Sync) {
    let wanted = std::env::var("CASE").unwrap_or_default();
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name.contains(&wanted)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("case {}", case.name);
                    if catch_unwind(AssertUnwindSafe(|| case.run_alone(make()))).is_err() {
                        println!("case {} FAILED", case.name);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(case.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failed.is_empty(), "the store breaks {} clauses of the contract: {failed:#?}", failed.len());
}
