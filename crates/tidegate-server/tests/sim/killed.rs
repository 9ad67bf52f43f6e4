//! A process that is killed again and again while much of what it holds only waits: at a gate, for a rate, behind others of its
//! lane. However often that happens, nothing is exhausted that was not sent (P2).
//!
//! One receiver hangs, so that something is being sent at nearly every end.

use serde_json::json;
use tidegate_core::delivery::{Status, set_aside_reason};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_store::DeliveryRow;

use super::dice::Dice;
use super::history::History;
use super::plan::{Act, Crash, END_T, KEYS, Plan};
use super::receivers::{Mood, Moods};
use super::spec::{Lanes, Spec};

/// The receiver that hangs.
const HUNG: &str = "hung";
/// How long it is waited for: longer than a process lives.
const HUNG_MS: u64 = 4_000;
/// Events that wait, so many that the gate does not let all of them pass before the kills are over.
const EVENTS: i64 = 40;

/// What such a campaign must have seen.
pub(crate) const RARE_PATHS: [&str; 4] =
    ["a crash with claims in hand", "a gate passed", "a suspect delivered", "a suspect set aside"];

/// Who subscribes, what is posted, and when the process is killed.
pub(crate) fn plan(seed: u64) -> Plan {
    let mut dice = Dice::new(seed, "killed");
    let (mut moods, mut acts) = (Moods::new(), Vec::new());
    let gated = |id: &str, lanes| Spec { lanes, is_gated: true, ..Spec::plain(id) };
    let specs = [
        Spec { timeout_ms: HUNG_MS, concurrency: dice.pick(&[1, 2, 4]), ..Spec::plain(HUNG) },
        gated("s0", Lanes::None),
        gated("s1", Lanes::PerKey),
        Spec { rate: Some((30, "m")), concurrency: dice.pick(&[1, 4]), ..Spec::plain("s2") },
        Spec { lanes: Lanes::One, ..Spec::plain("s3") },
    ];
    for spec in specs {
        let mood = if spec.id == HUNG { Mood::Hanging } else { Mood::Healthy(dice.pick(&[20, 300, 900])) };
        moods.insert(spec.id.clone(), vec![(END_T, mood)]);
        let (project, from_ms, patience_ms) = ("default", None, None);
        acts.push((0, Act::Create { project, spec, from_ms, active: true, patience_ms }));
    }
    for n in 0..EVENTS {
        let data = json!({"n": n, "key": dice.pick(&KEYS)});
        let body = json!({"id": format!("e{n}"), "source": "shop", "type": "order.paid", "data": data});
        let post = Act::Post { project: "default", body: body.to_string(), patience_ms: None };
        acts.push((dice.between(100, 500), post));
    }
    let mut t = 600;
    for _ in 0..i64::from(CLAIMS_LOST_MAX) + dice.between(3, 9) {
        let how = match dice.percent(50) {
            true => Crash::AtOnce,
            false => Crash::AfterPolls(u32::try_from(dice.below(40)).expect("small")),
        };
        acts.push((t, Act::Crash { how, down_ms: dice.pick(&[0, 1, 100]) }));
        t += dice.between(200, 1_300);
    }
    acts.sort_by_key(|(t, _)| *t);
    // Not slow: what is begun is sent in the same instant.
    let (shares_rates, is_haunted) = (dice.percent(50), dice.percent(50));
    Plan { shares_rates, is_haunted, gate: Some((1, 1)), ..Plan::calm(seed, acts, moods) }
}

/// What is exhausted was sent, unless the process ended in the very instant in which it was begun.
pub(crate) fn nothing_unsent_is_exhausted<'a>(
    history: &mut History,
    rows: impl Iterator<Item = &'a DeliveryRow>,
    found: &mut Vec<String>,
) {
    for row in rows.filter(|row| row.status == Status::Exhausted) {
        if row.reason == Some(set_aside_reason()) {
            history.reach("a suspect set aside");
        }
        let was_sent = history.sends.iter().any(|sent| sent.delivery == row.no);
        let begun = history.begun.get(&row.no);
        let ended_then = begun.is_some_and(|(t, _)| history.disturbed.iter().any(|(from, _)| from == t));
        if !was_sent && !ended_then {
            let (no, id, reason) = (row.no, &row.subscriber_id, &row.reason);
            found.push(format!("P2 delivery {no} to {id} was never sent and is exhausted: {reason:?}"));
        }
    }
}
