//! The simulation: the real pipeline and the real store on virtual time, among receivers that misbehave, clients
//! that hang up, crashes between any two steps, and clocks that jump.
//!
//! There are two kinds of runs. In one a process lives alone on its store, and whatever can go wrong with it does (`world`).
//! In the other some processes share a store, and what goes wrong is between them (`crowd`).
//!
//! A seed decides everything, so one seed gives one history. `TIDEGATE_SIM_SEEDS` and `TIDEGATE_SIM_SHARED` say how many
//! seeds of each kind run and `TIDEGATE_SIM_FROM` where they begin; seeds that once failed (`seeds.txt`, `seeds_shared.txt`)
//! always run first. A failing seed prints what was broken, the end of its history and the command that repeats it. A long
//! campaign that never took one of the rare paths it exists for fails too.

mod acts;
mod ageing;
mod arrivals;
mod breakers;
mod catalog;
mod checkers;
mod consent;
mod counts;
mod crowd;
mod dice;
mod endings;
mod far;
mod folds;
mod gates;
mod history;
mod keeping;
mod killed;
mod life;
mod notes;
mod pasts;
mod plan;
mod receivers;
mod rest;
mod site;
mod spec;
mod store;
mod terms;
mod windows;
mod world;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crowd::Crowd;
use history::Histories;
use world::World;

/// Seeds of a plain `cargo test`.
const SEEDS_DEFAULT: u64 = 50;
/// The same of those in which processes share a store.
const SHARED_DEFAULT: u64 = 10;
/// From this many seeds on, every rare path must have been taken.
const CAMPAIGN_SEEDS: u64 = 200;
/// The same where processes share a store.
const CAMPAIGN_SHARED: u64 = 60;
/// Threads that run seeds; each seed stays on one.
const THREADS: usize = 2;
/// Lines of a failing seed's history that are printed.
const LINES_SHOWN: usize = 60;

/// What a campaign must have seen.
const RARE_PATHS: [&str; 61] = [
    "a backfill done",
    "a breaker closed by a probe",
    "a breaker opened",
    "a client that hung up",
    "a client that passed a gate",
    "a clock jump back",
    "a clock jump forward",
    "a closed window cancelled",
    "a conflicting event",
    "a crash during a backfill",
    "a crash with claims in hand",
    "a delivery exhausted",
    "a duplicate after a lost response",
    "a duplicate event",
    "a fold that passed a gate",
    "a gate closed by a receiver",
    "a gate closed by a receiver of folds",
    "a gate opened before its time",
    "a gate passed",
    "a graceful stop while the store is away",
    "a graceful stop with attempts under way",
    "a held delivery released",
    "a job stopped",
    "a job that replays",
    "a job that retries",
    "a lane",
    "a probe that failed",
    "a notice delivered",
    "a queue spilled",
    "a receiver gone",
    "a receiver's wish honoured",
    "a replay of one event",
    "a request refused",
    "a request that was stale too often",
    "a request turned away",
    "a result of a former life refused",
    "a retry by hand",
    "a retry by hand queued",
    "a stale group rerouted",
    "a step of an errand repeated",
    "a store outage",
    "a subscriber given up",
    "a unit quarantined",
    "a unit released",
    "a window cancelled",
    "a window closed",
    "a window closed by its bytes",
    "a window closed to make room for others",
    "a window ended by a recovery",
    "a window ended by what passed it by",
    "a window flushed by hand",
    "a window judged by its end",
    "a window that kept its former terms",
    "an endpoint that agreed later",
    "an endpoint that refused",
    "an event gone under way",
    "an event that passed a fold by",
    "an hour after a clock was far wrong",
    "an undelivered event expired",
    "an undelivered event expired under way",
    "two folds under way",
];

/// What a campaign of stores that go back in time must have seen.
const RARE_PATHS_REWOUND: [&str; 2] =
    ["a process that noticed what was lost", "an acknowledged event that was lost"];

/// What a campaign of processes that share a store must have seen.
const RARE_PATHS_SHARED: [&str; 24] = [
    "a backfill done",
    "a clock jump back",
    "a clock jump forward",
    "a client that passed a gate",
    "a closed window cancelled",
    "a duplicate after a lost response",
    "a fold that passed a gate",
    "a gate passed",
    "a group of a dead life refused",
    "a lane",
    "a life after a death",
    "a result of a former life refused",
    "results of two claims of one delivery",
    "a store that might lose something",
    "a takeover of claims",
    "a window cancelled",
    "a window closed",
    "a window closed by its bytes",
    "a window closed to make room for others",
    "a window ended by a recovery",
    "a window ended by what passed it by",
    "a window that kept its former terms",
    "an event that passed a fold by",
    "clocks that agree after a jump",
];

/// A kind of runs.
struct Kind {
    run: fn(u64) -> Outcome,
    kept: &'static str,
    /// How many seeds, and from where.
    seeds: (u64, u64),
    rare_paths: Vec<&'static str>,
    campaign: u64,
    /// The way to say how many.
    option: &'static str,
}

/// What one run came to.
struct Outcome {
    seed: u64,
    digest: u64,
    violations: Vec<String>,
    reached: BTreeSet<&'static str>,
    lines: Vec<String>,
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// A panic inside a task is caught by the runtime, so it is counted where it happens.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with(|count| count.set(count.get() + 1));
            usual(panic);
        }));
    });
}

fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let history = world.history.clone();
    judge(seed, &history, || world.run())
}

fn run_killed(seed: u64) -> Outcome {
    let mut world = World::of(killed::plan(seed));
    let history = world.history.clone();
    judge(seed, &history, || world.run())
}

fn run_shared(seed: u64) -> Outcome {
    let mut crowd = Crowd::new(seed).expect("a store can be made");
    let history = crowd.history.clone();
    judge(seed, &history, || crowd.run())
}

fn run_joining(seed: u64) -> Outcome {
    let mut crowd = Crowd::joining(seed).expect("a store can be made");
    let history = crowd.history.clone();
    judge(seed, &history, || crowd.run())
}

fn run_rewound(seed: u64) -> Outcome {
    let mut crowd = Crowd::rewound(seed).expect("a store can be made");
    let history = crowd.history.clone();
    judge(seed, &history, || crowd.run())
}

fn judge(seed: u64, history: &Histories, run: impl FnOnce() -> anyhow::Result<()>) -> Outcome {
    count_panics();
    let panics = PANICS.with(Cell::get);
    let ended = catch_unwind(AssertUnwindSafe(run));
    let mut history = history.lock();
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => history.violation(format!("the world ended: {error:#}")),
        Err(_) => history.violation("the world panicked".to_owned()),
    }
    if PANICS.with(Cell::get) > panics {
        history.violation("a task panicked".to_owned());
    }
    let mut hasher = DefaultHasher::new();
    for sent in &history.sends {
        (sent.t, sent.now, sent.life, sent.subscriber, sent.delivery, sent.arrived).hash(&mut hasher);
        (sent.answered, sent.told.map(|(t, heard)| (t, format!("{heard:?}"))), &sent.body).hash(&mut hasher);
    }
    for sent in &history.folds {
        (sent.life, sent.delivery, &sent.body, sent.has_arrived).hash(&mut hasher);
    }
    history.lines.hash(&mut hasher);
    Outcome {
        seed,
        digest: hasher.finish(),
        violations: std::mem::take(&mut history.violations),
        reached: std::mem::take(&mut history.reached),
        lines: std::mem::take(&mut history.lines),
    }
}

/// Runs seeds side by side; the outcomes come back in order.
fn run_all(run: fn(u64) -> Outcome, seeds: &[u64]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut outcome = run(*seed);
                    if outcome.violations.is_empty() {
                        outcome.lines = Vec::new();
                    }
                    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    outcomes.insert(outcome.seed, outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Tells what broke: the end of the history, or all of it when this seed was asked for alone.
fn report(outcome: &Outcome, is_alone: bool, option: &str) {
    let shown = if is_alone { outcome.lines.len() } else { LINES_SHOWN };
    let skipped = outcome.lines.len().saturating_sub(shown);
    eprintln!("seed {} broke its promises; its history:", outcome.seed);
    outcome.lines[skipped..].iter().for_each(|line| eprintln!("  {line}"));
    outcome.violations.iter().take(12).for_each(|text| eprintln!("  broken: {text}"));
    eprintln!("  repeat: cargo xtask sim {option} --from {}", outcome.seed);
}

fn campaign(kind: &Kind) {
    let (count, from) = kind.seeds;
    let kept = kind.kept.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut seeds: Vec<u64> = kept.map(|line| line.parse().expect("a kept seed is a number")).collect();
    if count <= 1 {
        seeds.clear();
    }
    seeds.extend(from..from + count);
    let outcomes = run_all(kind.run, &seeds);
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.violations.is_empty()).collect();
    failed.iter().take(3).for_each(|outcome| report(outcome, count == 1, kind.option));
    let numbers: Vec<u64> = failed.iter().map(|outcome| outcome.seed).collect();
    assert!(failed.is_empty(), "{} of {} seeds failed: {numbers:?}", numbers.len(), outcomes.len());
    let reached: BTreeSet<&str> =
        outcomes.iter().flat_map(|outcome| outcome.reached.iter().copied()).collect();
    let missed: Vec<&&str> = kind.rare_paths.iter().filter(|path| !reached.contains(**path)).collect();
    assert!(missed.is_empty() || count < kind.campaign, "the campaign never saw: {missed:?}");
}

#[test]
fn promises_hold_whatever_happens() {
    campaign(&Kind {
        run,
        kept: include_str!("seeds.txt"),
        seeds: (setting("TIDEGATE_SIM_SEEDS", SEEDS_DEFAULT), setting("TIDEGATE_SIM_FROM", 0)),
        rare_paths: [&RARE_PATHS[..], &counts::RARE_PATHS].concat(),
        campaign: CAMPAIGN_SEEDS,
        option: "--seeds 1 --shared 0",
    });
}

#[test]
fn promises_hold_among_processes_that_share_a_store() {
    campaign(&Kind {
        run: run_shared,
        kept: include_str!("seeds_shared.txt"),
        seeds: (setting("TIDEGATE_SIM_SHARED", SHARED_DEFAULT), setting("TIDEGATE_SIM_FROM", 0)),
        rare_paths: RARE_PATHS_SHARED.to_vec(),
        campaign: CAMPAIGN_SHARED,
        option: "--seeds 0 --shared 1",
    });
}

#[test]
fn a_hung_receiver_stops_nobody_else_while_processes_come_and_go() {
    let count = setting("TIDEGATE_SIM_SHARED", SHARED_DEFAULT);
    campaign(&Kind {
        run: run_joining,
        kept: "",
        seeds: (count, setting("TIDEGATE_SIM_FROM", 0)),
        rare_paths: vec!["a receiver that hung while processes came and went"],
        campaign: SHARED_DEFAULT,
        option: "--seeds 0 --shared 1",
    });
}

#[test]
fn what_a_store_lost_is_never_taken_for_what_came_after() {
    let count = setting("TIDEGATE_SIM_SHARED", SHARED_DEFAULT);
    campaign(&Kind {
        run: run_rewound,
        kept: "",
        seeds: (count, setting("TIDEGATE_SIM_FROM", 0)),
        rare_paths: RARE_PATHS_REWOUND.to_vec(),
        campaign: SHARED_DEFAULT,
        option: "--seeds 0 --shared 1",
    });
}

#[test]
fn nothing_unsent_is_exhausted_however_often_the_process_is_killed() {
    campaign(&Kind {
        run: run_killed,
        kept: "",
        seeds: (setting("TIDEGATE_SIM_SHARED", SHARED_DEFAULT), setting("TIDEGATE_SIM_FROM", 0)),
        rare_paths: killed::RARE_PATHS.to_vec(),
        campaign: SHARED_DEFAULT,
        option: "--seeds 0 --shared 1",
    });
}

#[test]
fn one_seed_gives_one_history() {
    for seed in [1, 2, 3, 5, 8, 13, 21, 34] {
        repeats(run, seed);
    }
    repeats(run_shared, 1);
    repeats(run_shared, 2);
    repeats(run_joining, 1);
    repeats(run_rewound, 1);
    repeats(run_killed, 1);
}

fn repeats(run: fn(u64) -> Outcome, seed: u64) {
    let (first, second) = (run(seed), run(seed));
    if first.digest != second.digest {
        let differ = first.lines.iter().zip(&second.lines).find(|(one, other)| one != other);
        panic!("seed {seed} gave two histories: {differ:?}");
    }
    assert!(first.lines.len() > 20, "seed {seed} has a history");
}
