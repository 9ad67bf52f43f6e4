//! The journey of an event, stage by stage.
//!
//! [`ingest`] turns bytes into checked, routed units; [`persist`] commits them in groups, many requests at once,
//! together with the results of attempts; [`desk`] keeps whose turn it is; [`deliver`] sends and judges;
//! `rates` brings tokens of rates that are shared; [`gates`] lets clients wait for some; [`errands`] goes through what is already there; [`verify`] asks
//! endpoints before anything is sent to them; [`notices`] tells operators. With a shared store [`beat`] says that this
//! process lives, and [`lookout`] sees what the others do. `lanes` tells and counts what folds do. Each asks `tidegate-core` what to do and does it.
//!
//! Ingest, persist, deliver and beat each run on a loop of their own ([`Loops`]): a commit occupies its thread until it is
//! on disk, and a slow request the one that judges it. After the commit, work goes straight from memory to the desk; the store is read only for what memory
//! could not hold.

mod beat;
mod bulk;
mod deprecation;
pub mod ingest;

pub mod persist;

pub mod desk;

pub mod deliver;

pub mod errands;

pub mod gates;
mod held;
pub(crate) mod lanes;

mod lookout;
mod notices;
pub mod observe;
mod rates;
mod retain;

pub mod verify;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::HeaderValue;
use tidegate_core::id::{DeliveryKey, DeliveryNo, Mint, SubscriberNo};
use tidegate_core::retention::Retention;
use tidegate_core::schedule::Bounds;
use tidegate_destinations::Transport;
use tidegate_store::coordination::{Coordination, News};
use tidegate_store::{Replay, Store};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::metrics::Metrics;
use crate::observing;
use crate::roster::Rosters;
use crate::spans::Spans;
use crate::standing::Standing;
use crate::watch::Watch;
use beat::Beats;
use deliver::Deliver;
use desk::Desk;
use errands::Errands;
use ingest::Ingest;
use lookout::Lookout;
use notices::Notices;
use observe::Observe;
use persist::Persist;
use retain::Retain;
use verify::Verify;

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
    /// Who we are to endpoints that want to know before they agree.
    pub origin: HeaderValue,
    /// What took how long.
    pub spans: Arc<Spans>,
    /// How long things are kept.
    pub retention: Retention,
    /// How events are observed.
    pub observing: observing::Terms,
    /// Who else shares the store, and whether we may act.
    pub standing: Arc<Standing>,
    /// The other processes, if the store is shared.
    pub coordination: Option<Arc<dyn Coordination>>,
}

/// Where the loops run. In simulation all are one.
#[derive(Clone)]
pub struct Loops {
    /// The group commit. Nothing else should run here.
    pub persist: Handle,
    /// The workers.
    pub deliver: Handle,
    /// The heartbeat of a process that shares its store. Nothing else should run here: whoever is late is declared dead.
    pub beat: Handle,
}

/// The running pipeline.
pub struct Pipeline {
    /// The way in.
    pub ingest: Ingest,
    /// The group commit.
    pub persist: Arc<Persist>,
    /// Whose turn it is.
    pub desk: Arc<Desk>,
    /// What goes through the past.
    pub errands: Arc<Errands>,
    /// What counts.
    pub observe: Arc<Observe>,
    /// Public ids.
    pub mint: Mint,
    deliver: Arc<Deliver>,
    persist_loop: Mutex<Option<JoinHandle<()>>>,
    observe_loop: Mutex<Option<JoinHandle<()>>>,
    /// What ends at once when the process stops.
    loops: Vec<JoinHandle<()>>,
    /// Says to the last that this process lives.
    beat_loop: Option<JoinHandle<()>>,
    standing: Arc<Standing>,
    coordination: Option<Arc<dyn Coordination>>,
    store: Arc<dyn Store>,
    clock: Clock,
}

impl Pipeline {
    /// Starts the loops.
    pub async fn start(parts: &Parts, loops: &Loops) -> tidegate_store::Result<Self> {
        Self::start_within(parts, loops, Bounds::default()).await
    }

    /// Starts the loops, but sends nothing: everything stays due in the store.
    pub async fn start_silent(parts: &Parts, loops: &Loops) -> tidegate_store::Result<Self> {
        let desk = desk(parts, Bounds::default());
        desk.close();
        Self::start_with(parts, loops, desk).await
    }

    /// The same, with other bounds on what memory holds.
    pub async fn start_within(parts: &Parts, loops: &Loops, bounds: Bounds) -> tidegate_store::Result<Self> {
        Self::start_with(parts, loops, desk(parts, bounds)).await
    }

    async fn start_with(parts: &Parts, loops: &Loops, desk: Desk) -> tidegate_store::Result<Self> {
        let mint = Mint::new(parts.store.salt());
        let desk = Arc::new(desk);
        let retain = Retain::new(parts);
        retain.recall().await?;
        let observe = Observe::new(parts);
        let persist = Persist::new(parts, Arc::clone(&desk), Arc::clone(&observe));
        let notices = Notices::new(parts, Arc::clone(&persist));
        let deliver = Deliver::new(parts, Arc::clone(&desk), Arc::clone(&persist), notices, mint.clone());
        let errands = Errands::new(parts, Arc::clone(&desk), Arc::clone(&persist));
        let ingest = Ingest::new(parts, Arc::clone(&persist));
        desk.follow(&parts.rosters.current());
        desk.recall_gates(&parts.store.penalties().await?);
        for (subscriber, at) in parts.store.due().await? {
            desk.expect(subscriber, at);
        }
        if let Some(at) = parts.store.close_due().await? {
            persist.expect_close(at);
        }
        let persist_loop = Mutex::new(Some(loops.persist.spawn(Arc::clone(&persist).run())));
        let observe_loop = Mutex::new(Some(tokio::spawn(Arc::clone(&observe).run())));
        loops.deliver.spawn(Arc::clone(&deliver).run());
        errands.resume_backfills(&parts.rosters.current());
        errands.resume_jobs().await?;
        let verify = Verify::new(parts);
        verify.resume_all(&parts.rosters.current());
        let follow_loop = tokio::spawn(follow(
            Arc::clone(&parts.rosters),
            Arc::clone(&desk),
            Arc::clone(&persist),
            Arc::clone(&errands),
            Arc::clone(&verify),
            Arc::clone(&observe),
            parts.clock.clone(),
        ));
        let mut own_loops = vec![follow_loop, tokio::spawn(retain.run())];
        let mut beat_loop = None;
        if let Some(coordination) = &parts.coordination {
            own_loops.push(loops.deliver.spawn(rates::run(Arc::clone(&desk), Arc::clone(coordination))));
        }
        if let Some(coordination) = parts.coordination.clone().filter(|_| !parts.standing.is_alone()) {
            let hands = (Arc::clone(&desk), Arc::clone(&persist));
            let others = (verify, Arc::clone(&observe));
            let lookout = Lookout::new(parts, coordination, hands, Arc::clone(&errands), others);
            own_loops.push(tokio::spawn(Arc::clone(&lookout).listen()));
            own_loops.push(tokio::spawn(Arc::clone(&lookout).run()));
            let beats = Beats::new(parts, Arc::clone(&desk), Arc::clone(&persist), lookout);
            beat_loop = Some(loops.beat.spawn(beats.run()));
        }
        Ok(Self {
            ingest,
            persist,
            desk,
            errands,
            observe,
            mint,
            deliver,
            persist_loop,
            observe_loop,
            loops: own_loops,
            beat_loop,
            standing: Arc::clone(&parts.standing),
            coordination: parts.coordination.clone(),
            store: Arc::clone(&parts.store),
            clock: parts.clock.clone(),
        })
    }

    /// Makes new deliveries of a past event. What was begun comes to its end even if the caller goes away: a delivery
    /// that nobody heard of would wait for the next one of its subscriber.
    pub async fn replay(&self, replay: Replay) -> tidegate_store::Result<Vec<DeliveryKey>> {
        let (store, clock, herald) = (Arc::clone(&self.store), self.clock.clone(), self.herald());
        let replaying = tokio::spawn(async move {
            let subscribers: Vec<SubscriberNo> = replay.routes.iter().map(|route| route.subscriber).collect();
            let made = store.replay(replay, clock.now()).await?;
            herald.work_is_due(subscribers);
            Ok(made)
        });
        replaying.await.unwrap_or_else(|error| {
            Err(tidegate_store::Error::Unavailable(format!("the replay ended early: {error}")))
        })
    }

    /// For those who make work due in the store.
    pub fn herald(&self) -> Herald {
        Herald {
            desk: Arc::clone(&self.desk),
            clock: self.clock.clone(),
            coordination: self.coordination.clone(),
        }
    }

    /// Lets the stages follow the configuration at once; else they do so by themselves, soon.
    pub fn reconfigured(&self, rosters: &Rosters) {
        let released = self.desk.follow(&rosters.current());
        self.persist.release(released);
    }

    /// Stops in order: the unsent goes back, what was sent comes to its end, its results are written.
    pub async fn stop(&self) {
        self.loops.iter().for_each(JoinHandle::abort);
        self.persist.release(self.desk.close());
        // Only now: whoever hears of it relies on nothing being begun here any more.
        self.standing.leave();
        self.deliver.stop().await;
        self.persist.stop();
        let is_written = join(&self.persist_loop, "the group commit").await && !self.persist.has_results();
        self.observe.stop();
        join(&self.observe_loop, "observing").await;
        self.leave(is_written).await;
    }

    /// The last thing: the others need not wait for the next beat to know that this process is gone. What was sent and could
    /// not be written down is not given up: the lease runs out, and those claims count as lost.
    async fn leave(&self, is_written: bool) {
        let Some(beat_loop) = &self.beat_loop else { return };
        // What was given back is theirs. If this does not reach them, they find out within a beat.
        self.herald().tell(News::everything());
        beat_loop.abort();
        if !is_written {
            return;
        }
        if let Err(error) = self.store.leave(self.clock.now()).await {
            tracing::warn!(%error, "could not leave in good order: the others take over in a moment");
        }
    }
}

/// Waits for a loop that was told to stop. Returns whether it stopped cleanly.
async fn join(running: &Mutex<Option<JoinHandle<()>>>, what: &str) -> bool {
    let running = running.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(running) = running
        && let Err(error) = running.await
    {
        tracing::error!(%error, "{what} ended early");
        return false;
    }
    true
}

/// Tells whoever may send it that work is due in the store: the desk here, and the other processes.
pub struct Herald {
    desk: Arc<Desk>,
    clock: Clock,
    coordination: Option<Arc<dyn Coordination>>,
}

impl Herald {
    /// Work of these subscribers is due now.
    pub fn work_is_due(&self, subscribers: Vec<SubscriberNo>) {
        let now = self.clock.now();
        subscribers.iter().for_each(|subscriber| self.desk.expect(*subscriber, now));
        self.tell(News::work(subscribers));
    }

    /// Somebody wants this delivery, which is due in the store, sent now.
    pub fn is_asked_for(&self, subscriber: SubscriberNo, delivery: DeliveryNo) {
        self.desk.ask(subscriber, delivery);
        self.tell(News::work([subscriber]));
    }

    fn tell(&self, news: News) {
        if let Some(coordination) = self.coordination.as_ref().filter(|_| !news.is_empty()) {
            coordination.tell(news);
        }
    }
}

/// Where there are other processes, rates are theirs too.
fn desk(parts: &Parts, bounds: Bounds) -> Desk {
    let desk = Desk::new(parts.clock.clone(), Arc::clone(&parts.standing), bounds);
    let desk = desk.counting(Arc::clone(&parts.metrics));
    if !parts.standing.is_alone() {
        desk.stand_by();
    }
    if parts.coordination.is_some() { desk.sharing_rates() } else { desk }
}

/// Keeps the stages on the newest configuration, whoever changed it and whatever became of them since.
async fn follow(
    rosters: Arc<Rosters>,
    desk: Arc<Desk>,
    persist: Arc<Persist>,
    errands: Arc<Errands>,
    verify: Arc<Verify>,
    observe: Arc<Observe>,
    clock: Clock,
) {
    loop {
        rosters.changed().await;
        let roster = rosters.current();
        persist.release(desk.follow(&roster));
        errands.resume_backfills(&roster);
        verify.resume_all(&roster);
        observe.look_again();
        // Whoever made the change may have failed to read it back. If there is more, this hears of it again.
        while let Err(error) = rosters.refresh().await {
            tracing::warn!(%error, "the new configuration can not be read yet");
            clock.pause(STORE_RETRY).await;
        }
    }
}
