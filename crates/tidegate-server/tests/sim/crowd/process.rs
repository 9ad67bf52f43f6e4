//! One process of a crowd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tidegate_core::limits::CLOCK_JUMP_MAX;
use tidegate_core::time::Timestamp;
use tidegate_server::clock::Clock;
use tidegate_server::standing::Standing;
use tidegate_store::coordination::Hub;
use tokio::runtime::{Builder, Runtime};

use super::super::acts::Site;
use super::super::checkers;
use super::super::dice::Dice;
use super::super::history::Histories;
use super::super::life::Life;
use super::super::plan::{Act, Plan};
use super::super::store::FaultyStore;
use super::lives::{Lives, Membership};
use super::wire::Wire;

/// A process, while it lives.
pub(super) struct Process {
    runtime: Runtime,
    life: Arc<Life>,
    plan: Arc<Plan>,
    history: Histories,
    /// Present when it has come up.
    site: Arc<OnceLock<Arc<Site>>>,
    has_failed: Arc<AtomicBool>,
    is_leaving: bool,
    has_left: Arc<AtomicBool>,
    /// It is not driven before.
    wakes_at: Option<i64>,
    /// Since when it hears what the store's clock shows, as far as is planned.
    heard_since: i64,
}

impl Process {
    /// Starts one at `t`; it comes up by itself.
    pub(super) fn start(
        plan: &Arc<Plan>,
        history: &Histories,
        (lives, hub): (&Arc<Lives>, &Arc<Hub>),
        (t, chance): (i64, &str),
    ) -> Self {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).event_interval(1).build();
        let runtime = runtime.expect("a runtime can be built");
        let clock = {
            let _inside = runtime.enter();
            let (now, latest) = (Timestamp::from_ms(lives.now_ms()), Timestamp::from_ms(lives.latest_ms()));
            // A time so far ahead was written by a wrong clock, see `tidegate-store/src/postgres/open.rs`.
            let clock =
                Clock::simulated_led(if latest.since(now) > CLOCK_JUMP_MAX { now } else { now.max(latest) });
            clock.heard(now);
            clock.start_after(latest);
            clock
        };
        let life = Arc::new(Life::new(0, clock, t));
        let site = Arc::new(OnceLock::new());
        let dice = Mutex::new(Dice::new(plan.seed, &format!("wire/{chance}")));
        let wire = Arc::new(Wire { local: hub.join(), life: Arc::clone(&life), dice });
        let coming = come_up(Arc::clone(plan), history.clone(), (Arc::clone(lives), wire));
        let (place, has_failed) = (Arc::clone(&site), Arc::new(AtomicBool::new(false)));
        let failed = Arc::clone(&has_failed);
        runtime.spawn(async move {
            match coming.await {
                Ok(opened) => drop(place.set(Arc::new(opened))),
                Err(_) => failed.store(true, Ordering::Relaxed),
            }
        });
        Self {
            runtime,
            life,
            plan: Arc::clone(plan),
            history: history.clone(),
            site,
            has_failed,
            is_leaving: false,
            has_left: Arc::default(),
            wakes_at: None,
            heard_since: t,
        }
    }

    /// Lets it run until `t`.
    pub(super) fn drive(&mut self, t: i64) {
        if self.wakes_at.is_some_and(|at| t < at) {
            return;
        }
        let (life, is_awake) = (&self.life, self.wakes_at.take().is_none());
        self.runtime.block_on(async {
            let passed = Duration::from_millis((t - life.t()).unsigned_abs());
            match is_awake {
                true => life.clock.pause(passed).await,
                // It finds that time has passed, all at once.
                false => tokio::time::advance(passed).await,
            }
        });
    }

    /// Nothing of it runs until `t`.
    pub(super) fn sleep(&mut self, t: i64) {
        self.wakes_at = Some(t);
        self.heard_since = self.heard_since.max(t);
    }

    /// It reaches neither the store nor the others until `t`.
    pub(super) fn cut(&mut self, t: i64) {
        self.life.cut(t);
        self.heard_since = self.heard_since.max(t);
    }

    /// Whatever was done to it is over at `t`.
    pub(super) fn recover(&mut self, t: i64) {
        self.life.cut(t);
        self.wakes_at = self.wakes_at.map(|at| at.min(t));
        self.heard_since = self.heard_since.min(t);
    }

    /// Stops in good order; it has left some time after.
    pub(super) fn leave(&mut self) {
        let (Some(site), false) = (self.site.get().cloned(), self.is_leaving) else { return };
        self.is_leaving = true;
        let has_left = Arc::clone(&self.has_left);
        self.runtime.spawn(async move {
            site.pipeline.stop().await;
            has_left.store(true, Ordering::Relaxed);
        });
    }

    /// It did not come up.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Whether clients can turn to it.
    pub(super) fn listens(&self) -> bool {
        self.site.get().is_some() && !self.is_leaving && self.wakes_at.is_none()
    }

    /// Somebody turns to it.
    pub(super) fn perform(&self, act: Act) {
        if let Some(site) = self.site.get().cloned() {
            self.runtime.spawn(async move { site.perform(act).await });
        }
    }

    /// Everyone who is not meant to stay paused goes on.
    pub(super) fn resume_all(&self) {
        if let Some(site) = self.site.get().cloned() {
            let plan = Arc::clone(&self.plan);
            self.runtime.spawn(async move { site.resume_all(&plan).await });
        }
    }

    /// Asks something that takes no time.
    pub(super) fn block_on<T>(&self, asked: impl Future<Output = T>) -> T {
        self.runtime.block_on(asked)
    }

    /// Since when it hears the store.
    pub(super) fn heard_since(&self) -> i64 {
        self.heard_since
    }

    /// What its clock shows.
    pub(super) fn now_ms(&self) -> i64 {
        let _inside = self.runtime.enter();
        self.life.clock.now().as_ms()
    }

    /// What must hold at the end.
    pub(super) fn check(&self) {
        if let Some(site) = self.site.get() {
            self.runtime.block_on(checkers::check(site, &self.plan));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever is still polled while the runtime goes away is no more seen.
        self.life.end();
        if self.has_left() {
            return;
        }
        let t = self.runtime.block_on(async { self.life.t() });
        let (no, mut history) = (self.life.no(), self.history.lock());
        history.line(t, format_args!("the process of life {no} dies"));
        if no > 0 {
            history.silence(no);
        }
    }
}

async fn come_up(
    plan: Arc<Plan>,
    history: Histories,
    (lives, wire): (Arc<Lives>, Arc<Wire>),
) -> tidegate_store::Result<Site> {
    let life = Arc::clone(&wire.life);
    let membership = Membership::new(&lives, &life, life.clock.now()).await?;
    let store = FaultyStore {
        membership: Some(membership),
        ..FaultyStore::new(Arc::clone(&lives.store), &plan, &life, &history)
    };
    let ties = (Standing::shared(&life.clock), Some(wire as Arc<_>));
    let site = Site::open(&plan, store, ties).await?;
    let version = site.parts.rosters.current().version;
    let mut history = history.lock();
    history.version = history.version.max(version);
    drop(history);
    Ok(site)
}
