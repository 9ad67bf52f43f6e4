//! From a seed to a plan: who subscribes, what is posted, how receivers behave, and what goes wrong when.
//!
//! Each seed turns every kind of trouble on or off for itself, so that some runs have one kind only and rare
//! combinations are met too. Everything here is decided before the run begins.

mod calm;
mod troubles;

use serde_json::{Value, json};
use tidegate_core::retention::Retention;
use tidegate_core::schedule::Bounds;
use tidegate_server::observing::Terms;

use super::catalog::{self, Edit};
use super::consent;
use super::counts;
use super::dice::Dice;
use super::far;
use super::folds;
use super::gates::{self, Deed};
use super::keeping;
use super::receivers::{Mood, Moods};
use super::spec::{Lanes, Spec};

/// From here on nothing goes wrong any more.
pub(crate) const END_T: i64 = 40_000;

pub(crate) const TYPES: [&str; 3] = ["order.paid", "order.sent", "user.seen"];
pub(crate) const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
/// The key that a poisoned receiver never takes.
pub(crate) const POISON: &str = "k0";

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A client posts; it hangs up after its patience, if it has a limit.
    Post {
        project: &'static str,
        body: String,
        patience_ms: Option<i64>,
    },
    /// A subscriber is created; `from` is how long ago its first event may have been accepted.
    Create {
        project: &'static str,
        spec: Spec,
        from_ms: Option<i64>,
        active: bool,
        patience_ms: Option<i64>,
    },
    Patch {
        spec: Spec,
        patience_ms: Option<i64>,
    },
    SetActive {
        id: String,
        active: bool,
        patience_ms: Option<i64>,
    },
    Delete {
        id: String,
    },
    /// Somebody changes a project's catalog, or releases what it kept out.
    Catalog {
        project: &'static str,
        edit: Edit,
    },
    /// Somebody changes, passes or closes a project's gate.
    Gate {
        project: &'static str,
        deed: Deed,
    },
    /// Somebody ends the windows of a subscriber, with or without deliveries.
    EndWindows {
        id: String,
        cancels: bool,
    },
    /// Somebody asks what was counted.
    Ask,
    /// Someone retries one of the deliveries by hand.
    Retry {
        roll: u64,
    },
    /// Someone sends one of the events again.
    Replay {
        roll: u64,
    },
    /// Someone begins a job, or stops one.
    Job {
        roll: u64,
    },
    /// The wall clock moves by itself.
    Jump {
        ms: i64,
    },
    /// The process is stopped and started again.
    Stop {
        down_ms: i64,
    },
    /// The process dies and is started again.
    Crash {
        how: Crash,
        down_ms: i64,
    },
}

/// How a process dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Crash {
    AtOnce,
    /// Before or after the n-th thing that others can see.
    AfterPoints(u32),
    /// Between two polls.
    AfterPolls(u32),
}

/// Everything about one run.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) projects: Vec<&'static str>,
    pub(crate) acts: Vec<(i64, Act)>,
    pub(crate) moods: Moods,
    pub(crate) outages: Vec<(i64, i64)>,
    pub(crate) bounds: Bounds,
    pub(crate) is_slow: bool,
    /// Several processes share a store.
    pub(crate) is_shared: bool,
    /// Rates are kept as if there were other replicas.
    pub(crate) shares_rates: bool,
    /// The store breaks down when the configuration has just changed.
    pub(crate) is_fragile: bool,
    pub(crate) is_haunted: bool,
    /// Stays paused to the end.
    pub(crate) left_paused: Option<String>,
    /// How long things are kept, where that is not for long.
    pub(crate) terms: Option<Retention>,
    /// What the gate of each project allows, where there is one.
    pub(crate) gate: Option<gates::Terms>,
    /// How events are counted, where they are.
    pub(crate) counting: Terms,
    /// How many windows a project may have, where those are few.
    pub(crate) windows_max: Option<usize>,
}

struct Planner {
    dice: Dice,
    plan: Plan,
    specs: Vec<Spec>,
    next_n: i64,
    posted: Vec<(&'static str, String)>,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut planner = Planner::new(seed);
        planner.plan.terms = keeping::plan(seed);
        planner.subscribers();
        planner.posts();
        planner.changes();
        planner.troubles();
        // What is quarantined goes too, and nobody could tell whether rightly.
        if planner.plan.terms.is_none() {
            catalog::plan(seed, &planner.plan.projects, &mut planner.plan.acts);
        } else {
            keeping::plan_types(seed, &planner.plan.projects, &mut planner.plan.acts);
        }
        if seed % 3 == 1 && planner.plan.terms.is_none() {
            folds::plan(seed, &mut planner.plan);
            folds::restarts(seed, &mut planner.plan);
        }
        if gates::is_planned(seed) {
            gates::plan(seed, &mut planner.plan);
        }
        counts::plan(seed, &mut planner.plan);
        far::plan(seed, &mut planner.plan.acts);
        planner.plan.acts.sort_by_key(|(t, _)| *t);
        consent::plan(seed, &mut planner.plan.acts);
        planner.plan
    }

    /// For processes that share a store: who subscribes and what is posted. What goes wrong is planned elsewhere.
    pub(crate) fn shared(seed: u64) -> Self {
        let mut planner = Planner::new(seed);
        (planner.plan.is_shared, planner.plan.shares_rates) = (true, true);
        (planner.plan.is_fragile, planner.plan.is_haunted) = (false, false);
        planner.subscribers();
        planner.posts();
        folds::plan(seed, &mut planner.plan);
        gates::plan(seed, &mut planner.plan);
        planner.plan.acts.sort_by_key(|(t, _)| *t);
        for (_, act) in &mut planner.plan.acts {
            if let Act::Create { spec, .. } = act {
                // Whether anything arrives from elsewhere is a question of the other store.
                spec.disable_after_ms = None;
            }
        }
        planner.plan
    }
}

/// Small enough, in half of the runs, that a few events overflow them.
fn bounds(dice: &mut Dice) -> Bounds {
    if dice.percent(50) {
        return Bounds::default();
    }
    let queue_jobs = dice.below(6) + 2;
    Bounds {
        queue_jobs,
        place_jobs: dice.below(3) + 1,
        refill_below: (queue_jobs / 2).max(1),
        refill_jobs: dice.below(5) + 1,
        queue_bytes: dice.pick(&[700, 2_000, 1_000_000]),
        ..Bounds::default()
    }
}

impl Planner {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "plan");
        let plan = Plan {
            seed,
            projects: if dice.percent(40) { vec!["default", "other"] } else { vec!["default"] },
            acts: Vec::new(),
            moods: Moods::new(),
            outages: Vec::new(),
            bounds: bounds(&mut dice),
            is_slow: dice.percent(70),
            is_shared: false,
            shares_rates: seed.is_multiple_of(3),
            is_fragile: dice.percent(25),
            is_haunted: dice.percent(60),
            left_paused: None,
            terms: None,
            counting: Terms::default(),
            gate: None,
            windows_max: None,
        };
        Self { dice, plan, specs: Vec::new(), next_n: 0, posted: Vec::new() }
    }

    fn subscribers(&mut self) {
        for project in self.plan.projects.clone() {
            let canary = Spec { breaker: Some((10, 60_000)), ..Spec::plain(&format!("canary-{project}")) };
            self.create(0, project, canary, None, true);
        }
        if self.dice.percent(40) {
            self.poisoned();
        }
        if self.dice.percent(20) {
            self.hog();
        }
        if self.dice.percent(40) {
            self.down();
        }
        for index in 0..self.dice.below(4) + 2 {
            let spec = self.any_spec(&format!("s{index}"));
            let project = self.dice.pick(&self.plan.projects);
            let late = self.dice.percent(40);
            let t = if late { self.dice.between(1_000, END_T - 2_000) } else { self.dice.between(1, 50) };
            let from = late && self.dice.percent(80);
            let from = from.then(|| self.dice.pick(&[i64::MAX, i64::MAX, 10_000]));
            let active = self.dice.percent(90);
            self.moods(&spec.id);
            self.create(t, project, spec.clone(), from, active);
            self.specs.push(spec);
        }
    }

    fn poisoned(&mut self) {
        let spec = Spec {
            types: vec!["order.*"],
            lanes: Lanes::PerKey,
            concurrency: 3,
            retries_ms: vec![3_000; 12],
            ..Spec::plain("poisoned")
        };
        self.plan.moods.insert(spec.id.clone(), vec![(END_T, Mood::Poisoned(POISON))]);
        let project = self.dice.pick(&self.plan.projects);
        self.create(0, project, spec, None, true);
    }

    /// Takes everything, answers nothing, and would fill all memory if it were let.
    fn hog(&mut self) {
        let spec =
            Spec { concurrency: 1, timeout_ms: 5_000, retries_ms: vec![1_000; 4], ..Spec::plain("hog") };
        self.plan.moods.insert(spec.id.clone(), vec![(END_T, Mood::Hanging)]);
        self.plan.bounds =
            Bounds { queue_jobs: 6, refill_below: 3, refill_jobs: 4, queue_bytes: 700, ..Bounds::default() };
        let project = self.dice.pick(&self.plan.projects);
        self.create(0, project, spec, None, true);
    }

    /// Its receiver is away for longer than its whole schedule lasts; no delivery may be the worse for it.
    fn down(&mut self) {
        let mut spec = self.any_spec("down");
        spec.retries_ms = vec![200, 400];
        spec.disable_after_ms = self.dice.pick(&[None, None, Some(12_000)]);
        spec.breaker = Some((self.dice.pick(&[2, 4]), self.dice.pick(&[1_000, 3_000])));
        let away = self.dice.pick(&[Mood::Failing, Mood::Unreachable, Mood::Busy, Mood::Hanging]);
        let moods = vec![(self.dice.between(1_000, 8_000), Mood::Healthy(20)), (END_T - 5_000, away)];
        self.plan.moods.insert(spec.id.clone(), moods);
        let project = self.dice.pick(&self.plan.projects);
        self.create(0, project, spec, None, true);
    }

    fn create(&mut self, t: i64, project: &'static str, spec: Spec, from_ms: Option<i64>, active: bool) {
        let patience_ms = if t > 100 { self.patience() } else { None };
        self.plan.acts.push((t, Act::Create { project, spec, from_ms, active, patience_ms }));
    }

    fn any_spec(&mut self, id: &str) -> Spec {
        let dice = &mut self.dice;
        Spec {
            types: dice.pick(&[
                vec![],
                vec!["order.*"],
                vec!["order.paid"],
                vec!["user.seen", "order.sent"],
                vec!["tidegate.*"],
            ]),
            only_key: dice.percent(10).then_some("k1"),
            lanes: dice.pick(&[
                Lanes::None,
                Lanes::None,
                Lanes::One,
                Lanes::PerKey,
                Lanes::PerKey,
                Lanes::PerKeyOrFree,
            ]),
            concurrency: dice.pick(&[1, 1, 2, 4]),
            rate: dice.pick(&[None, None, Some((2, "s")), Some((5, "s")), Some((90, "m"))]),
            timeout_ms: dice.pick(&[300, 1_000, 4_000]),
            retries_ms: (0..dice.below(6)).map(|_| dice.between(100, 5_000).unsigned_abs()).collect(),
            breaker: dice.pick(&[
                None,
                Some((10, 60_000)),
                Some((1, 1_000)),
                Some((2, 1_000)),
                Some((3, 4_000)),
            ]),
            disable_after_ms: dice.pick(&[None, None, None, Some(6_000)]),
            ..Spec::plain(id)
        }
    }

    fn moods(&mut self, id: &str) {
        let mut moods = Vec::new();
        let mut t = 0;
        while t < END_T {
            t = (t + self.dice.between(2_000, 14_000)).min(END_T);
            let mood = match self.dice.below(16) {
                0..5 => Mood::Healthy(self.dice.pick(&[5, 100, 900])),
                5 => Mood::Slow,
                6 => Mood::Failing,
                7 => Mood::Busy,
                8 => Mood::Hanging,
                9 => Mood::Unreachable,
                10 => Mood::Forgetful,
                11 if self.dice.percent(40) => Mood::Gone,
                _ => Mood::Mixed,
            };
            moods.push((t, mood));
        }
        self.plan.moods.insert(id.to_owned(), moods);
    }

    /// Clients come one by one, in bunches and all at once; some repeat themselves, some contradict themselves.
    fn posts(&mut self) {
        for _ in 0..self.dice.below(14) + 12 {
            let t = self.dice.between(0, END_T - 500);
            let count = match self.dice.below(10) {
                0..6 => 1,
                6..9 => self.dice.below(5) + 2,
                _ => self.dice.below(20) + 10,
            };
            let project = self.dice.pick(&self.plan.projects);
            let body = self.body(count);
            self.post(t, project, body);
        }
        // Once an event is gone its id is new again.
        let repeats = if self.plan.terms.is_some() { 0 } else { self.dice.below(5) };
        for _ in 0..repeats {
            let (project, body) = self.dice.pick(&self.posted);
            let t = self.dice.between(0, END_T - 500);
            self.post(t, project, body);
        }
    }

    fn post(&mut self, t: i64, project: &'static str, body: String) {
        let patience_ms = self.patience();
        self.posted.push((project, body.clone()));
        self.plan.acts.push((t, Act::Post { project, body, patience_ms }));
    }

    fn patience(&mut self) -> Option<i64> {
        self.dice.percent(12).then(|| self.dice.between(0, 60))
    }

    fn body(&mut self, count: usize) -> String {
        let mut events: Vec<Value> = (0..count).map(|_| self.event()).collect();
        if count == 1 && self.dice.percent(90) {
            return events[0].to_string();
        }
        if self.dice.percent(8) {
            // One malformed event refuses the request; nobody may ever see the others.
            for event in &mut events {
                event["id"] = json!(format!("bad-{}", event["data"]["n"]));
            }
            events[count - 1]["type"] = json!(17);
        } else if self.dice.percent(15) {
            let repeated = self.dice.pick(&events);
            events.push(repeated);
        }
        Value::Array(events).to_string()
    }

    fn event(&mut self) -> Value {
        let mut event = json!({"source": "shop", "type": self.dice.pick(&TYPES), "data": self.data()});
        let n = self.next_n;
        event["id"] = json!(if n > 0 && self.plan.terms.is_none() && self.dice.percent(4) {
            format!("e{}", self.dice.between(0, n)) // other content under an id that may be taken
        } else {
            format!("e{n}")
        });
        if self.dice.percent(8) {
            let children: Vec<Value> = (0..self.dice.below(2) + 1)
                .map(|_| json!({"type": self.dice.pick(&TYPES), "data": self.data()}))
                .collect();
            event["events"] = Value::Array(children);
        }
        event
    }

    fn data(&mut self) -> Value {
        self.next_n += 1;
        match self.dice.below(12) {
            0 => json!({"n": self.next_n}),
            _ => json!({"n": self.next_n, "key": self.dice.pick(&KEYS)}),
        }
    }

    fn changes(&mut self) {
        if self.dice.percent(25) {
            return;
        }
        let busy: Vec<i64> = self.plan.acts.iter().map(|(t, _)| *t).filter(|t| *t > 1_000).collect();
        for _ in 0..self.dice.below(6) {
            let t = match self.dice.percent(60) {
                true => self.dice.pick(&busy) + self.dice.between(0, 80),
                false => self.dice.between(1_500, END_T - 1_000),
            };
            let patience_ms = self.dice.percent(30).then(|| self.dice.between(0, 60));
            let index = self.dice.below(self.specs.len());
            match self.dice.below(10) {
                0..4 => self.pause_and_resume(index, t, patience_ms),
                4..8 => {
                    let Spec { id, lanes, edition, .. } = self.specs[index].clone();
                    let mut spec = Spec { edition: edition + 1, ..self.any_spec(&id) };
                    if self.dice.percent(70) {
                        spec.lanes = lanes;
                    }
                    self.specs[index] = spec.clone();
                    self.plan.acts.push((t, Act::Patch { spec, patience_ms }));
                }
                8 => self.plan.acts.push((t, Act::Delete { id: self.specs[index].id.clone() })),
                _ => {
                    self.plan.left_paused = Some(self.specs[index].id.clone());
                    let id = self.specs[index].id.clone();
                    self.plan.acts.push((t, Act::SetActive { id, active: false, patience_ms: None }));
                }
            }
        }
        for _ in 0..self.dice.below(8) {
            let (t, roll) = (self.dice.between(3_000, END_T - 500), self.dice.roll());
            self.plan.acts.push((t, Act::Retry { roll }));
        }
        for _ in 0..self.dice.below(5) {
            let (t, roll) = (self.dice.between(3_000, END_T - 500), self.dice.roll());
            self.plan.acts.push((t, Act::Replay { roll }));
        }
        for _ in 0..self.dice.below(4) {
            let (t, roll) = (self.dice.between(5_000, END_T - 500), self.dice.roll());
            self.plan.acts.push((t, Act::Job { roll }));
        }
    }

    fn pause_and_resume(&mut self, index: usize, t: i64, patience_ms: Option<i64>) {
        let id = self.specs[index].id.clone();
        let after = self.dice.pick(&[0, 1, 5, 20, 60, 500, 4_000]);
        let pause = Act::SetActive { id: id.clone(), active: false, patience_ms };
        let patience_ms = self.dice.percent(30).then(|| self.dice.between(0, 60));
        let resume = Act::SetActive { id, active: true, patience_ms };
        self.plan.acts.push((t, pause));
        self.plan.acts.push((t + after, resume));
    }
}
