//! A receiver hangs while a process comes and another goes, or one is taken for dead: nobody else waits for it.
//!
//! One subscriber's receiver answers nothing and its timeout is long, so that its attempts occupy their places for nearly the
//! whole run. All others have so few places that some of them change hands with every process. Whatever is accepted for
//! them must arrive soon, by virtual time, although those attempts have not ended.

use serde_json::json;

use super::super::dice::Dice;
use super::super::history::History;
use super::super::plan::{Act, END_T, Plan};
use super::super::receivers::{Mood, Moods};
use super::super::spec::Spec;
use super::plan::Trouble;

const HUNG: &str = "hung";
/// How long its receiver is waited for.
const HUNG_MS: u64 = 32_000;
/// Subscribers with a place or two.
const OTHERS: usize = 6;
/// Between two events.
const EVERY_MS: i64 = 400;
/// One falls silent for this long, which is long enough to be taken for dead.
const SLEEP_MS: i64 = 7_500;
/// How long the others may wait: some beats until all have agreed, and the regular look, should a hint have been lost. Without
/// an agreement they would wait for the receiver that hangs.
const WAIT_MS_MAX: i64 = 10_000;

/// What happens to processes.
pub(super) struct Joining {
    pub(super) troubles: Vec<(i64, Trouble)>,
    /// When each process starts.
    pub(super) starts: Vec<i64>,
    /// The longest that somebody is away who holds work.
    away_ms: i64,
}

impl Joining {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "joining");
        let t = dice.between(4_000, 9_000);
        if seed % 3 == 2 {
            let trouble = Trouble::Sleep { seat: dice.below(2), ms: SLEEP_MS };
            return Self { troubles: vec![(t, trouble)], starts: vec![0, 0], away_ms: SLEEP_MS };
        }
        // A while before the other one comes, or after, or both at once.
        let leaves = (dice.below(2), (t + dice.pick(&[-3_000, -500, 0, 500, 3_000, 8_000])));
        let trouble = Trouble::Leave { seat: leaves.0, down_ms: END_T };
        Self { troubles: vec![(leaves.1, trouble)], starts: vec![0, 0, t], away_ms: 0 }
    }

    /// What the others were sent, and when.
    pub(super) fn check(&self, history: &mut History) {
        let hung = history.subs.iter().find(|(_, truth)| truth.id == HUNG).map(|(no, _)| *no);
        let (first, last) =
            (self.troubles[0].0.min(self.starts[self.starts.len() - 1].max(1_000)), self.end());
        let is_under_way = |sent: &super::super::history::Sent| {
            Some(sent.subscriber) == hung && sent.t < first && sent.told.is_none_or(|(t, _)| t > last)
        };
        if history.sends.iter().any(is_under_way) {
            history.reach("a receiver that hung while processes came and went");
        }
        let mut late = Vec::new();
        for (no, truth) in history.subs.iter().filter(|(no, _)| Some(**no) != hung) {
            for fact in history.accepted.iter().filter(|fact| fact.t < END_T - WAIT_MS_MAX - self.away_ms) {
                let of = history.sends.iter().filter(|sent| sent.subscriber == *no && sent.event == fact.key);
                let waited = of.filter_map(|sent| sent.arrived).min().map(|arrived| arrived - fact.t);
                if waited.is_none_or(|ms| ms > WAIT_MS_MAX + self.away_ms) {
                    late.push(format!("P8 {} waited {waited:?} ms for {:?}", truth.id, fact.key));
                }
            }
        }
        late.into_iter().for_each(|text| history.violation(text));
    }

    /// When the last process has come, gone or woken up.
    fn end(&self) -> i64 {
        let started = self.starts.iter().copied().max().unwrap_or(0);
        self.troubles.iter().map(|(t, _)| t + self.away_ms).max().unwrap_or(0).max(started)
    }
}

/// Who subscribes and what is posted.
pub(super) fn plan(seed: u64) -> Plan {
    let mut dice = Dice::new(seed, "joining/plan");
    let create = |spec: Spec| {
        let (project, from_ms, patience_ms) = ("default", None, None);
        (0, Act::Create { project, spec, from_ms, active: true, patience_ms })
    };
    let hung = Spec {
        concurrency: dice.pick(&[2, 4, 7]),
        timeout_ms: HUNG_MS,
        retries_ms: vec![500; 9],
        ..Spec::plain(HUNG)
    };
    let mut moods = Moods::from([(HUNG.to_owned(), vec![(END_T, Mood::Hanging)])]);
    let mut acts = vec![create(hung)];
    for index in 0..OTHERS {
        let id = format!("s{index}");
        moods.insert(id.clone(), vec![(END_T, Mood::Healthy(20))]);
        acts.push(create(Spec { concurrency: dice.pick(&[1, 1, 2]), ..Spec::plain(&id) }));
    }
    for n in 0..(END_T - 1_000) / EVERY_MS {
        let body = json!({"id": format!("e{n}"), "source": "shop", "type": "order.paid", "data": {"n": n}});
        let post = Act::Post { project: "default", body: body.to_string(), patience_ms: None };
        acts.push((500 + n * EVERY_MS, post));
    }
    let is_slow = dice.percent(50);
    Plan { is_slow, is_shared: true, shares_rates: true, ..Plan::calm(seed, acts, moods) }
}
