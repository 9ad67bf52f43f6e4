//! A crowd: several processes, each the real pipeline, on one store and one virtual time.
//!
//! Each process is a runtime of its own, and all are driven by one thread, a few milliseconds each in turn, so one seed still
//! gives one history. What happens to a process happens to its runtime: one that dies is dropped with all its tasks, one that is
//! stopped is not driven for a while and then finds that time has passed. So it may be hit wherever one of its tasks waits,
//! and nothing of it goes on that should not. One that is cut off runs, and reaches neither the store nor the others.
//!
//! The rules are those of every world, over all processes together; beside them, nobody sends what is not its own (`history`).

mod double;
mod joining;
mod lives;
mod plan;
mod process;
mod rewinds;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::time::Timestamp;
use tidegate_store::coordination::Hub;
use tidegate_store::sqlite::{Calls, SqliteStore, audit};

use super::dice::Dice;
use super::far;
use super::history::Histories;
use super::plan::{Act, END_T, Plan};
use super::rest::unrest;
use super::world::{REST_MS, START_MS, STOP_MS, fresh_dir};
use joining::Joining;
use lives::Lives;
pub(crate) use lives::Membership;
use plan::Trouble;
use process::Process;
use rewinds::{FIRST_NONCE, Rewinds};
pub(crate) use wire::ROUND_TRIP_MS;

/// How long a process runs before it is another one's turn: as far as their clocks, and what they see of each other, lie apart.
const QUANTUM_MS: i64 = 5;
/// By how much the clocks of two processes, or what one of them says and when it is written, may lie apart.
const CLOCKS_APART_MS: i64 = 100;
/// How long after a jump everybody has heard of it, whatever else was wrong with them.
const JUMP_HEARD_MS: i64 = 15_000;
/// How long whoever starts a process waits when it did not come up.
const START_AGAIN_MS: i64 = 1_000;

/// One run of one seed.
pub(crate) struct Crowd {
    plan: Arc<Plan>,
    pub(crate) history: Histories,
    dir: PathBuf,
    /// True time.
    t: i64,
    lives: Arc<Lives>,
    hub: Arc<Hub>,
    seats: Vec<Seat>,
    dice: Dice,
    /// When the store's clock jumped, and by how much.
    jumps: Vec<(i64, i64)>,
    troubles: Vec<(i64, Trouble)>,
    /// A receiver hangs meanwhile.
    joining: Option<Joining>,
    /// The store goes back in time.
    rewinds: Option<Rewinds>,
}

/// A place for a process.
#[derive(Default)]
struct Seat {
    process: Option<Process>,
    /// When the next one is started.
    starts_at: i64,
    /// How many were.
    started: u64,
}

impl Crowd {
    /// The crowd of a seed, not yet running.
    pub(crate) fn new(seed: u64) -> anyhow::Result<Self> {
        let plan = double::plan(seed, Plan::shared(seed));
        let troubles = double::troubles(seed).unwrap_or_else(|| plan::troubles(seed, &plan));
        Self::with(plan, troubles, &vec![0; plan::seats(seed)], plan::weakness(seed))
    }

    /// One in which processes come and go while a receiver hangs.
    pub(crate) fn joining(seed: u64) -> anyhow::Result<Self> {
        let joining = Joining::new(seed);
        let mut crowd = Self::with(joining::plan(seed), joining.troubles.clone(), &joining.starts, None)?;
        crowd.joining = Some(joining);
        Ok(crowd)
    }

    /// One in which the store goes back in time.
    pub(crate) fn rewound(seed: u64) -> anyhow::Result<Self> {
        let mut crowd =
            Self::with(rewinds::plan(seed), rewinds::troubles(seed), &rewinds::starts(seed), None)?;
        crowd.rewinds = Some(Rewinds::default());
        Ok(crowd)
    }

    fn with(
        plan: Plan,
        troubles: Vec<(i64, Trouble)>,
        starts: &[i64],
        weakness: Option<(i64, i64)>,
    ) -> anyhow::Result<Self> {
        let seed = plan.seed;
        let (dir, history) = (fresh_dir(seed), Histories::default());
        history.lock().apart_ms = CLOCKS_APART_MS;
        let now = Timestamp::from_ms(START_MS);
        let store = SqliteStore::open(&dir, &seed.to_le_bytes(), FIRST_NONCE, now, Calls::Inline)?;
        let lives = Lives::new(store, history.clone(), START_MS, weakness);
        let clock = Arc::clone(&lives);
        Ok(Self {
            plan: Arc::new(plan),
            history,
            dir,
            t: 0,
            lives,
            hub: Hub::timed(Box::new(move || clock.now_ms() * 1_000)),
            seats: starts.iter().map(|t| Seat { starts_at: *t, ..Seat::default() }).collect(),
            dice: Dice::new(seed, "seats"),
            jumps: Vec::new(),
            troubles,
            joining: None,
            rewinds: None,
        })
    }

    /// Runs the plan to its end.
    pub(crate) fn run(&mut self) -> anyhow::Result<()> {
        let (plan, mut acts, mut troubles) = (Arc::clone(&self.plan), 0, 0);
        let all = self.troubles.clone();
        while self.t < END_T {
            while let Some((_, trouble)) = all.get(troubles).filter(|(t, _)| *t <= self.t) {
                self.befall(*trouble);
                troubles += 1;
            }
            while let Some((_, act)) = plan.acts.get(acts).filter(|(t, _)| *t <= self.t) {
                if !self.perform(act) {
                    break;
                }
                acts += 1;
            }
            self.step();
        }
        self.rest();
        self.check();
        self.stop();
        self.seats.clear();
        let broken = audit(&self.dir)?;
        broken.into_iter().for_each(|text| self.history.lock().violation(format!("audit: {text}")));
        Ok(())
    }

    /// Some time passes for everybody, each in turn.
    fn step(&mut self) {
        self.lives.pass(self.t);
        let first = self.dice.below(self.seats.len());
        for place in 0..self.seats.len() {
            self.drive((first + place) % self.seats.len());
        }
        self.t += QUANTUM_MS;
    }

    fn drive(&mut self, place: usize) {
        let (t, seat) = (self.t, &mut self.seats[place]);
        if seat.process.is_none() && t >= seat.starts_at {
            let chance = format!("{place}/{}", seat.started);
            seat.started += 1;
            let ties = (&self.lives, &self.hub);
            seat.process = Some(Process::start(&self.plan, &self.history, ties, (t, &chance)));
        }
        let Some(process) = &mut seat.process else { return };
        process.drive(t + QUANTUM_MS);
        if process.has_failed() {
            (seat.process, seat.starts_at) = (None, t + START_AGAIN_MS);
        } else if process.has_left() {
            seat.process = None;
        }
    }

    fn befall(&mut self, trouble: Trouble) {
        let t = self.t;
        self.history.lock().line(t, format_args!("{trouble:?}"));
        if let Trouble::Jump { ms } = trouble {
            self.lives.jump(ms);
            self.jumps.push((t, ms));
            let mut history = self.history.lock();
            history.jumps.push(t);
            history.moves.push(ms);
            return history.reach(if ms > 0 { "a clock jump forward" } else { "a clock jump back" });
        }
        if let Some(rewinds) = &mut self.rewinds {
            rewinds.befall(trouble, t, &self.lives, &self.dir);
        }
        let (Trouble::Die { seat, .. }
        | Trouble::Leave { seat, .. }
        | Trouble::Sleep { seat, .. }
        | Trouble::Cut { seat, .. }) = trouble
        else {
            return;
        };
        let seat = &mut self.seats[seat];
        let Some(process) = &mut seat.process else { return };
        match trouble {
            Trouble::Die { down_ms, .. } => {
                seat.starts_at = t + down_ms;
                seat.process = None;
            }
            Trouble::Leave { down_ms, .. } => {
                seat.starts_at = t + down_ms;
                process.leave();
            }
            Trouble::Sleep { ms, .. } => process.sleep(t + ms),
            Trouble::Cut { ms, .. } => process.cut(t + ms),
            Trouble::Jump { .. } | Trouble::Keep | Trouble::GoBack { .. } => {}
        }
    }

    /// Lets somebody turn to one of the processes; whether there was one that listens.
    fn perform(&mut self, act: &Act) -> bool {
        let listening = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        let listening: Vec<&Process> = listening.filter(|process| process.listens()).collect();
        if listening.is_empty() {
            return false;
        }
        listening[self.dice.below(listening.len())].perform(act.clone());
        true
    }

    /// Faults are over: everyone resumes, and everything must come to its end.
    fn rest(&mut self) {
        for seat in &mut self.seats {
            seat.starts_at = seat.starts_at.min(self.t);
            if let Some(process) = &mut seat.process {
                process.recover(self.t);
            }
        }
        let (mut next, mut wait_ms, mut last) = (self.t, 250, None);
        while self.t < END_T + REST_MS {
            self.step();
            if self.t == END_T + REST_MS / 2 {
                self.set_clock_right();
            }
            if self.t < next || self.t < self.calm_since() {
                continue;
            }
            (next, wait_ms) = (self.t + wait_ms, (wait_ms * 2).min(4_000));
            let Some(process) = self.somebody() else { continue };
            process.resume_all();
            last = process.block_on(unrest(&*self.lives.store, &self.history, &self.plan));
            if last.is_none() {
                return;
            }
        }
        let text = format!("liveness: not at rest {REST_MS} ms after the last fault; {last:?}");
        self.history.lock().violation(text);
    }

    /// What somebody planned by a clock that was ahead waits until the others' have come so far.
    fn set_clock_right(&mut self) {
        let back_ms = self.back_ms();
        if back_ms > 0 {
            self.befall(Trouble::Jump { ms: back_ms });
        }
    }

    /// When retention has had the time to go wrong, if a jump should have led it to.
    fn calm_since(&self) -> i64 {
        let far = self.jumps.iter().filter(|(_, ms)| far::is_far(*ms));
        far.map(|(t, _)| t + far::FOLLOWED_MS).max().unwrap_or(0)
    }

    /// How far the store's clock went back, all in all.
    fn back_ms(&self) -> i64 {
        self.jumps.iter().map(|(_, ms)| (-ms).max(0)).sum()
    }

    fn somebody(&self) -> Option<&Process> {
        self.seats.iter().filter_map(|seat| seat.process.as_ref()).find(|process| process.listens())
    }

    fn check(&mut self) {
        let Some(process) = self.somebody() else {
            return self.history.lock().violation("nobody is left".to_owned());
        };
        if let Some(rewinds) = &self.rewinds {
            return process.block_on(rewinds.check(&self.lives, &self.plan));
        }
        process.check();
        if let Some(joining) = &self.joining {
            joining.check(&mut self.history.lock());
        }
        self.clocks_agree();
    }

    /// Everybody goes by the store's clock: forward at once, and back at half the speed.
    fn clocks_agree(&self) {
        let Some((last, ms)) = self.jumps.last() else { return };
        let heard_ms = if far::is_far(*ms) { far::FOLLOWED_MS } else { JUMP_HEARD_MS };
        let listening = self.seats.iter().filter_map(|seat| seat.process.as_ref());
        for process in listening.filter(|process| process.listens()) {
            let passed_ms = self.t - process.heard_since().max(*last);
            if passed_ms < heard_ms {
                continue;
            }
            let ahead_max = (self.back_ms() - (passed_ms - heard_ms) / 2).max(0) + CLOCKS_APART_MS;
            let ahead_ms = process.now_ms() - self.lives.now_ms();
            if !(-CLOCKS_APART_MS..=ahead_max).contains(&ahead_ms) {
                let text =
                    format!("a clock is {ahead_ms} ms ahead of the store's {passed_ms} ms after it jumped");
                self.history.lock().violation(text);
            }
            self.history.lock().reach("clocks that agree after a jump");
        }
    }

    /// Everybody stops in good order, within bounded time.
    fn stop(&mut self) {
        for seat in &mut self.seats {
            seat.starts_at = i64::MAX;
            seat.process.iter_mut().for_each(Process::leave);
        }
        let end = self.t + STOP_MS;
        while self.seats.iter().any(|seat| seat.process.is_some()) && self.t < end {
            self.step();
        }
        let mut history = self.history.lock();
        if self.seats.iter().any(|seat| seat.process.is_some()) {
            history.violation(format!("a graceful stop took {STOP_MS} ms"));
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.seats.clear();
        // Best effort: a left-over directory on a RAM disk is only untidy.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
