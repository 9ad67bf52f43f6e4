//! Gates: some subscribers of some runs share one, clients pass it too, and receivers that are busy close it.
//!
//! The bound is kept here a second time, in the plainest way: between any two moments no more passes than a burst and the
//! rate's worth (P7). What is said is left out around changes and jumps, which begin anew.

use std::time::Duration;

use tidegate_core::id::{GateNo, ProjectNo, SubscriberNo};
use tidegate_core::limits::GRANT_VALID_MS;
use tidegate_store::Change;

use super::acts::Site;
use super::crowd::ROUND_TRIP_MS;
use super::dice::Dice;
use super::folds::{FoldSent, is_fold};
use super::history::{Heard, History, Sent};
use super::plan::{Act, END_T, Plan};

/// What every gate is called.
pub(crate) const NAME: &str = "g";

/// How many in a second, and how many at once.
pub(crate) type Terms = (i64, i64);

const TERMS: [Terms; 4] = [(3, 3), (4, 1), (8, 4), (20, 5)];

/// How long after a change nothing is said: it may be heard of a little later than it was made.
const CHANGE_MS: i64 = 5_000;

/// What somebody does at a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deed {
    /// Changes what it allows.
    Set(Terms),
    /// Waits for a token, for so long.
    Acquire(i64),
    /// Says that somebody else was told "too many".
    Penalize(i64),
    /// Lets it go on before its time.
    Lift,
}

/// What happened at gates, beside the attempts.
#[derive(Default)]
pub(crate) struct GateTruth {
    /// When a gate became what, in true time.
    pub(crate) changes: Vec<(i64, ProjectNo, Terms)>,
    /// Clients that passed: the project, the life, true time and the product's.
    pub(crate) clients: Vec<(ProjectNo, usize, i64, i64)>,
    /// From when until when nothing passes, in the product's time, and in which life.
    pub(crate) closed: Vec<(ProjectNo, usize, i64, i64)>,
    /// When it was opened before its time, and in which life.
    pub(crate) lifted: Vec<(ProjectNo, usize, i64)>,
}

/// Whether a run has gates.
pub(crate) fn is_planned(seed: u64) -> bool {
    Dice::new(seed, "gates").percent(50)
}

/// Lets some of the subscribers pass a gate.
pub(crate) fn plan(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "gates");
    dice.roll();
    plan.gate = Some(dice.pick(&TERMS));
    for (_, act) in &mut plan.acts {
        if let Act::Create { spec, .. } | Act::Patch { spec, .. } = act {
            let may_pass = spec.id.starts_with('s') || spec.id == "down" || is_fold(&spec.id);
            spec.is_gated = may_pass && dice.percent(65);
        }
    }
    for _ in 0..dice.below(12) {
        let deed = match dice.below(8) {
            0 => Deed::Set(dice.pick(&TERMS)),
            1 => Deed::Penalize(dice.between(1, 6_000)),
            2 => Deed::Lift,
            _ => Deed::Acquire(dice.pick(&[0, 300, 3_000, 10_000])),
        };
        let project = dice.pick(&plan.projects);
        plan.acts.push((dice.between(500, END_T - 500), Act::Gate { project, deed }));
    }
}

impl Site {
    /// Makes the gate, if it is not there.
    pub(crate) async fn open_gate(&self, project: ProjectNo, terms: Terms) {
        if self.gate(project).is_none() {
            self.set_gate(project, terms).await;
        }
    }

    async fn set_gate(&self, project: ProjectNo, terms: Terms) {
        let definition = format!("{{\"rate\":\"{}/s\",\"burst\":{}}}", terms.0, terms.1);
        self.change(Change::PutGate { project, name: NAME.to_owned(), definition }).await;
    }

    fn gate(&self, project: ProjectNo) -> Option<GateNo> {
        self.parts.rosters.current().gate(project, NAME).map(|entry| entry.no)
    }

    /// What people do at a gate.
    pub(crate) async fn at_gate(&self, project: ProjectNo, deed: Deed) {
        let Some(gate) = self.gate(project) else { return };
        match deed {
            Deed::Set(terms) => self.set_gate(project, terms).await,
            Deed::Acquire(ms) => {
                let wait = Duration::from_millis(ms.unsigned_abs());
                let acquired = self.pipeline.desk.acquire(gate, wait).await;
                let (t, now) = (self.life.t(), self.parts.clock.now().as_ms());
                let mut history = self.history.lock();
                history.line(t, format_args!("a client at a gate: {acquired:?}"));
                if acquired.is_ok() {
                    history.reach("a client that passed a gate");
                    history.gates.clients.push((project, self.life.no(), t, now));
                }
            }
            Deed::Penalize(ms) => {
                let now = self.parts.clock.now();
                let until = now.plus(Duration::from_millis(ms.unsigned_abs()));
                self.pipeline.desk.penalize(gate, until, "a client was asked to wait");
                let closed = (project, self.life.no(), now.as_ms(), until.as_ms());
                self.history.lock().gates.closed.push(closed);
            }
            Deed::Lift => {
                let Some(flow) =
                    self.parts.rosters.current().gate(project, NAME).map(|entry| entry.gate.into())
                else {
                    return;
                };
                let was_closed =
                    self.pipeline.desk.line(gate).is_some_and(|line| !line.standing.penalized_for.is_zero());
                if self.pipeline.lift(gate, flow).await {
                    let now = self.parts.clock.now().as_ms();
                    let mut history = self.history.lock();
                    history.gates.lifted.push((project, self.life.no(), now));
                    if was_closed {
                        history.reach("a gate opened before its time");
                    }
                }
            }
        }
    }
}

/// Takes over a change.
pub(crate) fn note_change(gates: &mut GateTruth, change: &Change, t: i64) {
    let Change::PutGate { project, definition, .. } = change else { return };
    let value: serde_json::Value = serde_json::from_str(definition).expect("it is JSON");
    let rate = value["rate"].as_str().and_then(|rate| rate.strip_suffix("/s")?.parse().ok());
    let terms = (rate.expect("a rate"), value["burst"].as_i64().expect("a burst"));
    gates.changes.push((t, *project, terms));
}

/// Somebody who passed.
#[derive(Clone, Copy)]
struct Pass {
    life: usize,
    t: i64,
    now: i64,
}

/// P7: the bound holds in every stretch of time, and nothing passes a gate that a receiver or a client has closed.
pub(crate) fn check(history: &History, plan: &Plan, found: &mut Vec<String>) {
    let projects: Vec<ProjectNo> = history.gates.changes.iter().map(|(_, project, _)| *project).collect();
    for project in projects.iter().filter(|project| plan.gate.is_some() && **project > 0) {
        let passes = passes(history, *project);
        bound_holds(history, plan, *project, &passes, found);
        if !plan.is_shared {
            closed_is_closed(history, *project, &passes, found);
        }
    }
}

fn is_gated(history: &History, sent: &Sent) -> bool {
    passes_gate(history, sent.subscriber, sent.t)
}

fn passes_gate(history: &History, subscriber: SubscriberNo, t: i64) -> bool {
    history.subs[&subscriber].latest_before(t).is_gated
}

/// Attempts at folds that passed the gate of a project.
fn folds(history: &History, project: ProjectNo) -> impl Iterator<Item = &FoldSent> {
    let own = move |sent: &&FoldSent| {
        history.subs[&sent.subscriber].project == project && passes_gate(history, sent.subscriber, sent.t)
    };
    history.folds.iter().filter(own)
}

fn passes(history: &History, project: ProjectNo) -> Vec<Pass> {
    let own = |sent: &&Sent| history.subs[&sent.subscriber].project == project && is_gated(history, sent);
    let sent = history.sends.iter().filter(own);
    let sent = sent.map(|sent| Pass { life: sent.life, t: sent.t, now: sent.now });
    let clients = history.gates.clients.iter().filter(|(of, ..)| *of == project);
    let clients = clients.map(|(_, life, t, now)| Pass { life: *life, t: *t, now: *now });
    let folds = folds(history, project);
    let folds = folds.map(|sent| Pass { life: sent.life, t: sent.t, now: sent.now });
    let mut all: Vec<Pass> = sent.chain(folds).chain(clients).collect();
    all.sort_by_key(|pass| (pass.t, pass.now));
    all
}

/// Tokens of a shared rate or gate may be used a little later than they were taken.
pub(crate) fn held_ms(plan: &Plan) -> i64 {
    let valid_ms = if plan.shares_rates { GRANT_VALID_MS as i64 } else { 0 };
    if plan.is_shared { valid_ms + ROUND_TRIP_MS } else { valid_ms }
}

fn bound_holds(history: &History, plan: &Plan, project: ProjectNo, passes: &[Pass], found: &mut Vec<String>) {
    let (held_ms, late) = (held_ms(plan), i64::from(plan.shares_rates));
    let changes: Vec<(i64, Terms)> = history
        .gates
        .changes
        .iter()
        .filter(|(_, of, _)| *of == project)
        .map(|(t, _, terms)| (*t, *terms))
        .collect();
    let touched =
        history.subs.values().filter(|truth| truth.project == project).flat_map(|truth| &truth.touched);
    let breaks: Vec<i64> =
        touched.chain(&history.jumps).copied().chain(changes.iter().map(|(t, _)| *t)).collect();
    for (index, first) in passes.iter().enumerate() {
        let Some((_, (rate, burst))) = changes.iter().rev().find(|(t, _)| *t <= first.t) else { continue };
        let is_whole = |pass: &&Pass| {
            (first.life == pass.life || plan.is_shared || !plan.shares_rates)
                && !breaks.iter().any(|t| (first.t - CHANGE_MS..=pass.t).contains(t))
        };
        for (count, pass) in passes[index..].iter().take_while(is_whole).enumerate() {
            let span_ms = if plan.is_shared { pass.t - first.t } else { pass.now - first.now };
            let span_ms = span_ms + held_ms;
            if count as i64 + 1 > burst + span_ms * rate / 1_000 + late {
                let (from, to) = (first.t, pass.t);
                found.push(format!("P7 {} passed a gate of {rate}/s from {from} to {to}", count + 1));
                return;
            }
        }
    }
}

fn closed_is_closed(history: &History, project: ProjectNo, passes: &[Pass], found: &mut Vec<String>) {
    let asked = history.sends.iter().filter_map(|sent| {
        let (told, heard) = sent.told?;
        let is_own = history.subs[&sent.subscriber].project == project && is_gated(history, sent);
        let is_busy = matches!(heard, Heard::Status(429 | 503));
        let since = sent.now + (told - sent.t);
        (is_own && is_busy).then_some((sent.life, since, sent.asked?))
    });
    let by_hand = history.gates.closed.iter().filter(|(of, ..)| *of == project);
    let by_hand = by_hand.map(|(_, life, since, until)| (*life, *since, *until));
    let by_folds = folds(history, project)
        .filter_map(|sent| sent.closes.map(|(since, until)| (sent.life, since, until)));
    for (life, since, until) in asked.chain(by_folds).chain(by_hand) {
        let own = history.gates.lifted.iter().filter(|(of, during, _)| (*of, *during) == (project, life));
        let lifted = own.map(|(.., now)| *now).filter(|now| (since..until).contains(now)).min();
        let until = lifted.unwrap_or(until);
        let is_closed = |pass: &&Pass| (since + 1..until).contains(&pass.now);
        let early = passes.iter().find(|pass| pass.life == life && is_closed(pass));
        let Some(pass) = early else { continue };
        let begin = pass.t - (pass.now - since);
        let changed = history.subs.values().flat_map(|truth| &truth.touched).chain(&history.jumps);
        if !changed.into_iter().any(|t| (begin - 2_000..=pass.t).contains(t)) {
            found.push(format!("P7 somebody passed a gate at {} that was closed until {until}", pass.t));
            return;
        }
    }
}

/// What a receiver behind a gate says for all who pass it is no failure of its own.
pub(crate) fn is_mild(history: &History, sent: &Sent, heard: Heard) -> bool {
    let is_busy = heard == Heard::Status(429) || heard == Heard::Status(503) && sent.asked.is_some();
    is_busy && is_gated(history, sent)
}

/// The rare paths that were taken.
pub(crate) fn met(history: &History) -> Vec<&'static str> {
    let mut met = Vec::new();
    if history.sends.iter().any(|sent| is_gated(history, sent)) {
        met.push("a gate passed");
    }
    let closes = |sent: &&Sent| sent.told.is_some_and(|(_, heard)| is_mild(history, sent, heard));
    if history.sends.iter().any(|sent| closes(&sent)) {
        met.push("a gate closed by a receiver");
    }
    let is_gated = |sent: &&FoldSent| passes_gate(history, sent.subscriber, sent.t);
    if history.folds.iter().any(|sent| is_gated(&sent)) {
        met.push("a fold that passed a gate");
    }
    if history.folds.iter().filter(is_gated).any(|sent| sent.closes.is_some()) {
        met.push("a gate closed by a receiver of folds");
    }
    met
}
