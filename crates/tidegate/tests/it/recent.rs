//! Days of the recent past, for tests of what is only kept for some time.
//!
//! A test names the days of one week of 2026; here they become days that are not long ago.

use serde_json::Value;
use tidegate_core::time::Timestamp;

use crate::receiver::wall;

const DAY_MS: i64 = 86_400_000;

/// Days of a test, and by how much they are moved.
#[derive(Clone, Copy)]
pub(crate) struct Recent {
    moved_ms: i64,
}

impl Recent {
    /// This day becomes the day before yesterday, or a little before where it must be as many weeks away.
    pub(crate) fn moving(day: &str, whole_weeks: bool) -> Self {
        let since = wall().as_ms() - start(day) - 2 * DAY_MS;
        let unit = if whole_weeks { 7 * DAY_MS } else { DAY_MS };
        Self { moved_ms: since - since.rem_euclid(unit) }
    }

    /// A text with all its days moved.
    pub(crate) fn text(self, text: &str) -> String {
        let mut moved = String::new();
        let mut rest = text;
        while let Some((before, day)) = rest.find("2026-").map(|at| rest.split_at(at)) {
            let (day, after) = day.split_at(10);
            let there = Timestamp::from_ms(start(day) + self.moved_ms).to_string();
            moved.extend([before, &there[..10]]);
            rest = after;
        }
        moved + rest
    }

    /// The same in JSON.
    pub(crate) fn json(self, value: &Value) -> Value {
        serde_json::from_str(&self.text(&value.to_string())).expect("it was JSON and has other days")
    }
}

fn start(day: &str) -> i64 {
    Timestamp::parse(&format!("{day}T00:00:00Z")).expect("a day").as_ms()
}
