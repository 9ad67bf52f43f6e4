//! A world: the real pipeline on the real store, on virtual time, living and dying as its plan says.
//!
//! Every life of the process is a runtime of its own. A crash drops that runtime with all its tasks, between any two
//! of their polls; the next life opens the same directory, and true time goes on. Graceful stops go through the
//! pipeline's own door. When the plan is done, faults stop, and the world must come to rest within bounded time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::time::Timestamp;
use tidegate_server::clock::Clock;
use tidegate_server::standing::Standing;
use tidegate_store::Store;
use tidegate_store::coordination::{Coordination, Hub};
use tidegate_store::sqlite::{Calls, SqliteStore, audit};
use tokio::runtime::Builder;

use super::acts::Site;
use super::history::{Ended, Histories};
use super::life::Life;
use super::plan::{Act, Crash, END_T, Plan};
use super::rest::unrest;
use super::store::FaultyStore;

/// The wall clock when the run begins.
pub(crate) const START_MS: i64 = 1_767_225_600_000;
/// How long after the last fault everything must have come to rest.
pub(crate) const REST_MS: i64 = 400_000;
/// How long a graceful stop may take: the longest timeout, and a little for the store.
pub(crate) const STOP_MS: i64 = 6_000;
/// Lives of one world at most; more means that it does not come up any more.
const LIVES_MAX: usize = 40;

/// One run of one seed.
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) history: Histories,
    pub(crate) dir: PathBuf,
    /// True time.
    pub(crate) t: i64,
    /// How far the wall clock has been moved.
    moved_ms: i64,
    cursor: Arc<AtomicUsize>,
}

/// How a life ended, and for how long the process is away.
enum End {
    Crashed(i64),
    Stopped(i64),
    Done,
}

impl World {
    /// The world of a seed, not yet running.
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(Plan::new(seed))
    }

    /// The world of a plan, not yet running.
    pub(crate) fn of(plan: Plan) -> Self {
        Self {
            history: Histories::default(),
            dir: fresh_dir(plan.seed),
            plan: Arc::new(plan),
            t: 0,
            moved_ms: 0,
            cursor: Arc::default(),
        }
    }

    /// Runs the plan to its end, life after life.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        self.history.lock().outages.clone_from(&self.plan.outages);
        for no in 0..LIVES_MAX {
            let began = self.t;
            let end = self.live(no)?;
            let mut history = self.history.lock();
            let (text, down_ms) = match end {
                End::Done => return Ok(()),
                End::Crashed(down_ms) => ("crashes", down_ms),
                End::Stopped(down_ms) => ("stops", down_ms),
            };
            history.line(self.t, format_args!("life {no} (since {began}) {text}, away for {down_ms} ms"));
            let away = (self.t, self.t + down_ms + 1);
            history.disturbed.push(away);
            self.t += down_ms;
        }
        anyhow::bail!("the process does not come up any more")
    }

    /// One life.
    fn live(&mut self, no: usize) -> anyhow::Result<End> {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).event_interval(1).build()?;
        let zombies: Vec<_> = std::mem::take(&mut self.history.lock().claims).into_iter().collect();
        {
            let mut history = self.history.lock();
            history.lives.push(Ended::Not);
            history.posts_open = 0;
        }
        let (end, t) = runtime.block_on(async {
            let wall_ms = START_MS + self.t + self.moved_ms;
            let store = SqliteStore::open(
                &self.dir,
                &self.plan.seed.to_le_bytes(),
                no as u32 + 1,
                Timestamp::from_ms(wall_ms),
                Calls::Inline,
            )?;
            let start_ms = wall_ms.max(store.latest().as_ms());
            let clock = Clock::simulated(Timestamp::from_ms(start_ms));
            clock.jump(wall_ms - start_ms);
            clock.start_after(store.latest());
            let life = Arc::new(Life::new(no, clock, self.t));
            let end = tokio::select! {
                biased;
                () = life.ended() => End::Crashed(self.down_ms()),
                end = self.drive(store, Arc::clone(&life), zombies) => end,
            };
            // Whatever is still polled while the runtime goes away is no more seen.
            life.end();
            // Only inside its runtime does a clock show virtual time.
            anyhow::Ok((end, life.t()))
        })?;
        self.t = t;
        drop(runtime);
        let broken = audit(&self.dir)?;
        let mut history = self.history.lock();
        broken.into_iter().for_each(|text| history.violation(format!("audit: {text}")));
        history.under_way.clear();
        history.folds_under_way.clear();
        if matches!(end, End::Crashed(_)) {
            history.lives[no] = Ended::Suddenly;
            if !history.claims.is_empty() {
                history.reach("a crash with claims in hand");
            }
            if history.subs.values().any(|truth| truth.backfill.is_some() && truth.backfilled.is_none()) {
                history.reach("a crash during a backfill");
            }
        }
        Ok(end)
    }

    /// How long the process stays away after the crash that was planned last.
    fn down_ms(&self) -> i64 {
        let done = &self.plan.acts[..self.cursor.load(Ordering::Relaxed)];
        done.iter()
            .rev()
            .find_map(|(_, act)| if let Act::Crash { down_ms, .. } = act { Some(*down_ms) } else { None })
            .unwrap_or(0)
    }

    async fn drive(
        &mut self,
        store: SqliteStore,
        life: Arc<Life>,
        zombies: Vec<(i64, super::history::Claimed)>,
    ) -> End {
        let Ok(site) = self.start(store, &life, zombies).await else {
            // The store is away; whoever starts the process tries again in a second.
            return End::Crashed(1_000);
        };
        let site = Arc::new(site);
        loop {
            let index = self.cursor.load(Ordering::Relaxed);
            let Some((t, act)) = self.plan.acts.get(index).cloned() else { break };
            wait_until(&life, t).await;
            self.cursor.store(index + 1, Ordering::Relaxed);
            match act {
                Act::Jump { ms } => self.jump(&site, ms),
                Act::Stop { down_ms } => return self.stop(&site, down_ms).await,
                Act::Crash { how: Crash::AtOnce, down_ms } => return End::Crashed(down_ms),
                Act::Crash { how: Crash::AfterPoints(points), .. } => life.set_fuse(Some(points)),
                Act::Crash { how: Crash::AfterPolls(polls), down_ms } => {
                    for _ in 0..polls {
                        tokio::task::yield_now().await;
                    }
                    return End::Crashed(down_ms);
                }
                act => {
                    let site = Arc::clone(&site);
                    tokio::spawn(async move { site.perform(act).await });
                }
            }
        }
        wait_until(&life, END_T).await;
        life.set_fuse(None);
        self.rest(&site).await;
        super::far::pass(&site, &self.plan).await;
        self.stop(&site, 0).await;
        super::checkers::check(&site, &self.plan).await;
        super::ageing::age(&site).await;
        End::Done
    }

    async fn start(
        &mut self,
        store: SqliteStore,
        life: &Arc<Life>,
        zombies: Vec<(i64, super::history::Claimed)>,
    ) -> tidegate_store::Result<Site> {
        let store = FaultyStore {
            zombies: Mutex::new(if self.plan.is_haunted { zombies } else { Vec::new() }),
            ..FaultyStore::new(Arc::new(store), &self.plan, life, &self.history)
        };
        let standing = Standing::alone(&life.clock);
        let coordination =
            self.plan.shares_rates.then(|| Arc::new(Hub::new().join()) as Arc<dyn Coordination>);
        let site = Site::open(&self.plan, store, (standing, coordination)).await?;
        let mut history = self.history.lock();
        history.version = site.parts.rosters.current().version.max(history.version);
        history.disturbed.push((life.t() - 1, life.t() + 1));
        drop(history);
        Ok(site)
    }

    fn jump(&mut self, site: &Site, ms: i64) {
        self.moved_ms += ms;
        site.life.clock.jump(ms);
        let t = site.life.t();
        let mut history = self.history.lock();
        history.jumps.push(t);
        history.moves.push(ms);
        history.reach(if ms > 0 { "a clock jump forward" } else { "a clock jump back" });
        history.line(t, format_args!("the wall clock jumps by {ms} ms"));
    }

    /// A graceful stop: within bounded time, everybody answered, nothing left in hand.
    async fn stop(&self, site: &Site, down_ms: i64) -> End {
        let began = site.life.t();
        let was_busy = site.pipeline.desk.in_flight() > 0;
        site.pipeline.stop().await;
        let ended = site.life.t();
        site.life.clock.pause(Duration::from_millis(100)).await;
        let mut history = self.history.lock();
        history.disturbed.push((began, ended + 100));
        if was_busy {
            history.reach("a graceful stop with attempts under way");
        }
        let is_away = history.is_store_away(began, ended);
        if ended - began > STOP_MS && !is_away {
            history.violation(format!("a graceful stop took {} ms", ended - began));
        }
        if history.posts_open > 0 {
            let text = format!("{} requests were left unanswered by a stop", history.posts_open);
            history.violation(text);
        }
        history.posts_open = 0;
        // The store is never away for as long as a process tries to write what it holds.
        history.lives[site.life.no()] = Ended::Cleanly;
        if is_away {
            history.reach("a graceful stop while the store is away");
        }
        if !history.claims.is_empty() {
            let text = format!("a graceful stop kept {} claims", history.claims.len());
            history.violation(text);
        }
        End::Stopped(down_ms)
    }

    /// Faults are over: everyone resumes, and everything must come to its end.
    async fn rest(&self, site: &Site) {
        let (mut wait_ms, mut last) = (250, None);
        while site.life.t() < END_T + REST_MS {
            site.life.clock.pause(Duration::from_millis(wait_ms)).await;
            wait_ms = (wait_ms * 2).min(8_000);
            site.resume_all(&self.plan).await;
            last = unrest(&*site.parts.store, &self.history, &self.plan).await;
            if last.is_none() {
                return;
            }
        }
        let text = format!("liveness: not at rest {REST_MS} ms after the last fault; {last:?}");
        self.history.lock().violation(text);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Best effort: a left-over directory on a RAM disk is only untidy.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

async fn wait_until(life: &Life, t: i64) {
    let wait_ms = t - life.t();
    if wait_ms > 0 {
        life.clock.pause(Duration::from_millis(wait_ms.unsigned_abs())).await;
    }
}

/// Where a run keeps its files, in memory if that is possible.
pub(crate) fn fresh_dir(seed: u64) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    base.join(format!("tidegate-sim-{}-{count}-{seed}", std::process::id()))
}
