//! A clock that is wrong by weeks, for a moment or for good: what was accepted is still there, what was held is still held, and ids
//! are still known, an hour later (P2, P9).
//!
//! Retention may go by a clock that is wrong by an hour. Every sweep is compared with true time as it happens.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::acts::Site;
use super::dice::Dice;
use super::history::{EventKey, History};
use super::plan::{Act, Crash, END_T, Plan, TYPES};
use super::spec::Content;
use super::world::START_MS;

const DAY_MS: i64 = 24 * 3_600_000;
/// A jump further than this is none that retention may follow.
const NEAR_MS: i64 = 3_600_000;
/// How long after a jump a clock that stays where it is must be followed: its minute, and a look a minute.
pub(crate) const FOLLOWED_MS: i64 = 125_000;

/// Whether a jump is one that nobody should believe at once.
pub(crate) fn is_far(ms: i64) -> bool {
    ms.abs() > NEAR_MS
}

/// When the clock jumps, and by how much: away and back, or away only.
pub(crate) fn jumps(seed: u64) -> Vec<(i64, i64)> {
    let mut dice = Dice::new(seed, "far");
    if !dice.percent(30) {
        return Vec::new();
    }
    let ms = dice.pick(&[40 * DAY_MS, 40 * DAY_MS, 500 * DAY_MS, -40 * DAY_MS]);
    let from = dice.between(1_000, END_T - 2_000);
    match dice.pick(&[1, 5_000, 70_000, 0, 0]) {
        0 => vec![(from, ms)],
        lasts => vec![(from, ms), (from + lasts, -ms)],
    }
}

/// Plans them for a process that lives alone. One that has followed such a clock, and has written by it, may die: its successor
/// finds a store and a clock that agree.
pub(crate) fn plan(seed: u64, acts: &mut Vec<(i64, Act)>) {
    let jumps = jumps(seed);
    if let [(t, _)] = jumps[..]
        && Dice::new(seed, "far death").percent(50)
    {
        let event = json!({"source": "shop", "id": "far", "type": TYPES[0], "data": {"n": 1_000_000}});
        let post = Act::Post { project: "default", body: event.to_string(), patience_ms: None };
        let crash = Act::Crash { how: Crash::AtOnce, down_ms: 1 };
        acts.extend([(t + FOLLOWED_MS, post), (t + FOLLOWED_MS + 2_000, crash)]);
    }
    acts.extend(jumps.into_iter().map(|(t, ms)| (t, Act::Jump { ms })));
}

/// An hour passes after a run whose clock was far wrong. Then every client sends again what was accepted.
pub(crate) async fn pass(site: &Site, plan: &Plan) {
    if !plan.acts.iter().any(|(_, act)| matches!(act, Act::Jump { ms } if is_far(*ms))) {
        return;
    }
    site.life.clock.pause(Duration::from_hours(1)).await;
    site.history.lock().reach("an hour after a clock was far wrong");
    if plan.terms.is_some() {
        return;
    }
    let accepted = site.history.lock().accepted.len();
    for (_, act) in &plan.acts {
        if is_known(site, act) {
            site.perform(act.clone()).await;
        }
    }
    let mut history = site.history.lock();
    if history.accepted.len() != accepted {
        history.violation("P2 an id that was accepted is new again".to_owned());
    }
}

/// Whether all that somebody posts was accepted before.
fn is_known(site: &Site, act: &Act) -> bool {
    let Act::Post { project, body, .. } = act else { return false };
    let Some(project) = site.parts.rosters.current().projects.get(*project).map(|row| row.no) else {
        return false;
    };
    let sent: Value = serde_json::from_str(body).expect("plans are JSON");
    let sent = sent.as_array().cloned().unwrap_or_else(|| vec![sent]);
    let history = site.history.lock();
    sent.iter().all(|event| {
        let key: EventKey = (project, "shop".to_owned(), event["id"].as_str().unwrap_or_default().to_owned());
        let fact = history.index.get(&key).map(|index| &history.accepted[*index]);
        fact.is_some_and(|fact| fact.content == Content::of(event))
    })
}

/// Retention goes by a time that has come, or lies an hour ahead where a clock was moved by that much.
pub(crate) fn check_sweep(history: &mut History, t: i64, now: Timestamp) {
    let near: i64 = history.moves.iter().filter(|ms| !is_far(**ms)).map(|ms| (*ms).max(0)).sum();
    let ahead_ms = now.as_ms() - (START_MS + t + near + history.apart_ms);
    if ahead_ms > 0 && !history.is_ageing {
        history.violation(format!("P2 retention goes by a time that is {ahead_ms} ms ahead"));
    }
}
