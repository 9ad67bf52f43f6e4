//! A double fault: a process stands still for longer than its lease, another takes over what it held, is lost in its turn, and the
//! first one comes back and works on alone. Meanwhile a receiver has answered nobody. So attempts at one delivery, of the old life
//! and of the new one, are answered at one moment, and end in one group.
//!
//! Beside that, requests that name an id twice, with one content or with two: what each is answered must be true, also when it is
//! read back from what the group left.

use serde_json::json;

use super::super::dice::Dice;
use super::super::plan::{Act, Plan};
use super::super::receivers::Mood;
use super::super::spec::{Lanes, Spec};
use super::plan::{Trouble, seats};

/// How long the first one stands still.
const SLEEP_MS: i64 = 6_500;
/// When the others are lost; they have taken over by then.
const LOST_MS: i64 = 6_300;
/// When everything is answered: the first one has claimed everything again by then.
const ANSWER_MS: i64 = 17_000;
/// When the others are started again.
const DOWN_MS: i64 = 12_000;
/// Numbers of contents that no other part of a plan uses.
const FIRST_N: i64 = 1_000_000;

/// When it begins and whom it hits first, if it is planned.
fn planned(seed: u64) -> Option<(i64, usize, Dice)> {
    let mut dice = Dice::new(seed, "double");
    let (t, seat) = (dice.between(3_000, 8_000), dice.below(seats(seed)));
    dice.percent(30).then_some((t, seat, dice))
}

/// Adds the receiver that waits, and what it waits with.
pub(super) fn plan(seed: u64, mut plan: Plan) -> Plan {
    twins(seed, &mut plan);
    let Some((t, _, mut dice)) = planned(seed) else { return plan };
    let spec = Spec {
        lanes: dice.pick(&[Lanes::None, Lanes::PerKey]),
        timeout_ms: 60_000,
        retries_ms: vec![1_000; 20],
        types: vec!["double"],
        ..Spec::plain("waiting")
    };
    let moods = vec![
        (t, Mood::Until(t + ANSWER_MS)),
        // Whoever takes over learns at once that it must try again.
        (t + SLEEP_MS + 200, Mood::Failing),
        (t + ANSWER_MS, Mood::Until(t + ANSWER_MS)),
    ];
    plan.moods.insert(spec.id.clone(), moods);
    let project = plan.projects[0];
    plan.acts.push((0, Act::Create { project, spec, from_ms: None, active: true, patience_ms: None }));
    for n in 0..6 {
        let event = json!({
            "id": format!("double-{n}"), "source": "shop", "type": "double",
            "data": {"n": FIRST_N + n, "key": format!("d{}", n / 2)},
        });
        plan.acts.push((t - 1_000 + n * 20, post(project, event.to_string())));
    }
    plan.acts.sort_by_key(|(t, _)| *t);
    plan
}

/// What goes wrong then, and nothing else.
pub(super) fn troubles(seed: u64) -> Option<Vec<(i64, Trouble)>> {
    let (t, first, mut dice) = planned(seed)?;
    let mut troubles = vec![(t, Trouble::Sleep { seat: first, ms: SLEEP_MS })];
    for seat in (0..seats(seed)).filter(|seat| *seat != first) {
        let lost = match dice.percent(50) {
            true => Trouble::Die { seat, down_ms: DOWN_MS },
            false => Trouble::Leave { seat, down_ms: DOWN_MS },
        };
        troubles.push((t + LOST_MS, lost));
    }
    Some(troubles)
}

/// Requests in which an id stands several times.
fn twins(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "twins");
    let project = plan.projects[0];
    for which in 0..dice.below(4) {
        let events: Vec<_> = (0..dice.below(3) + 2)
            .map(|_| {
                let n = FIRST_N + 1_000 + i64::try_from(which * 10 + dice.below(2)).expect("few");
                json!({"id": format!("twin-{which}"), "source": "shop", "type": "order.paid", "data": {"n": n}})
            })
            .collect();
        let t = dice.between(500, 30_000);
        plan.acts.push((t, post(project, serde_json::Value::Array(events).to_string())));
    }
    plan.acts.sort_by_key(|(t, _)| *t);
}

fn post(project: &'static str, body: String) -> Act {
    Act::Post { project, body, patience_ms: None }
}
