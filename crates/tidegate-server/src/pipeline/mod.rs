//! The journey of an event, stage by stage.
//!
//! [`ingest`] turns bytes into checked, routed units; [`persist`] commits them in groups, many requests at once,
//! together with the results of attempts; [`desk`] keeps whose turn it is; [`deliver`] sends and judges;
//! [`backfill`] brings past events to new subscribers; [`notices`] tells operators. Each asks `tidegate-core` what to do and does it.
//!
//! Ingest, persist and deliver each run on a loop of their own ([`Loops`]): a commit occupies its thread until it is
//! on disk. After the commit, work goes straight from memory to the desk; the store is read only for what memory
//! could not hold.

mod deprecation;
pub mod ingest;

pub mod persist;

pub mod desk;

pub mod deliver;

pub mod backfill;

mod notices;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::id::Mint;
use tidegate_core::schedule::Bounds;
use tidegate_destinations::Transport;
use tidegate_store::Store;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::roster::Rosters;
use crate::watch::Watch;
use backfill::Backfill;
use deliver::Deliver;
use desk::Desk;
use ingest::Ingest;
use notices::Notices;
use persist::Persist;

/// How long to wait before a failing store is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What the stages are made of.
#[derive(Clone)]
pub struct Parts {
    /// Durable truth.
    pub store: Arc<dyn Store>,
    /// Who is who.
    pub rosters: Arc<Rosters>,
    /// The way out.
    pub transport: Arc<dyn Transport>,
    /// The time.
    pub clock: Clock,
    /// Chance.
    pub entropy: Entropy,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Who looks on.
    pub watch: Arc<Watch>,
}

/// Where the loops run. In simulation all are one.
#[derive(Clone)]
pub struct Loops {
    /// The group commit. Nothing else should run here.
    pub persist: Handle,
    /// The workers.
    pub deliver: Handle,
}

/// The running pipeline.
pub struct Pipeline {
    /// The way in.
    pub ingest: Ingest,
    /// The group commit.
    pub persist: Arc<Persist>,
    /// Whose turn it is.
    pub desk: Arc<Desk>,
    /// Past events for new subscribers.
    pub backfill: Arc<Backfill>,
    /// Public ids.
    pub mint: Mint,
    deliver: Arc<Deliver>,
    persist_loop: Mutex<Option<JoinHandle<()>>>,
    follow_loop: JoinHandle<()>,
}

impl Pipeline {
    /// Starts the loops.
    pub async fn start(parts: &Parts, loops: &Loops) -> tidegate_store::Result<Self> {
        Self::start_within(parts, loops, Bounds::default()).await
    }

    /// The same, with other bounds on what memory holds.
    pub async fn start_within(parts: &Parts, loops: &Loops, bounds: Bounds) -> tidegate_store::Result<Self> {
        let mint = Mint::new(parts.store.salt());
        let desk = Arc::new(Desk::new(parts.clock.clone(), bounds));
        let persist = Persist::new(parts, Arc::clone(&desk));
        let notices = Notices::new(parts, Arc::clone(&persist));
        let deliver = Deliver::new(parts, Arc::clone(&desk), Arc::clone(&persist), notices, mint.clone());
        let backfill = Backfill::new(parts, Arc::clone(&persist));
        let ingest = Ingest::new(parts, Arc::clone(&persist));
        desk.follow(&parts.rosters.current());
        for (subscriber, at) in parts.store.due().await? {
            desk.expect(subscriber, at);
        }
        let persist_loop = Mutex::new(Some(loops.persist.spawn(Arc::clone(&persist).run())));
        loops.deliver.spawn(Arc::clone(&deliver).run());
        backfill.resume_all(&parts.rosters.current());
        let follow_loop = tokio::spawn(follow(
            Arc::clone(&parts.rosters),
            Arc::clone(&desk),
            Arc::clone(&persist),
            Arc::clone(&backfill),
            parts.clock.clone(),
        ));
        Ok(Self { ingest, persist, desk, backfill, mint, deliver, persist_loop, follow_loop })
    }

    /// Lets the stages follow the configuration at once; else they do so by themselves, soon.
    pub fn reconfigured(&self, rosters: &Rosters) {
        let released = self.desk.follow(&rosters.current());
        self.persist.release(released);
    }

    /// Stops in order: the unsent goes back, what was sent comes to its end, its results are written.
    pub async fn stop(&self) {
        self.follow_loop.abort();
        self.persist.release(self.desk.close());
        self.deliver.stop().await;
        self.persist.stop();
        let persist_loop = self.persist_loop.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(persist_loop) = persist_loop
            && let Err(error) = persist_loop.await
        {
            tracing::error!(%error, "the group commit ended early");
        }
    }
}

/// Keeps the stages on the newest configuration, whoever changed it and whatever became of them since.
async fn follow(
    rosters: Arc<Rosters>,
    desk: Arc<Desk>,
    persist: Arc<Persist>,
    backfill: Arc<Backfill>,
    clock: Clock,
) {
    loop {
        rosters.changed().await;
        let roster = rosters.current();
        persist.release(desk.follow(&roster));
        backfill.resume_all(&roster);
        // Whoever made the change may have failed to read it back. If there is more, this hears of it again.
        while let Err(error) = rosters.refresh().await {
            tracing::warn!(%error, "the new configuration can not be read yet");
            clock.pause(STORE_RETRY).await;
        }
    }
}
