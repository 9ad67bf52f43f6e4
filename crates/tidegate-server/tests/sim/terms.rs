//! The terms of a simulated fold: when its windows close, and which events it treats in a way of their own.
//!
//! They are written into the product as JSON. What they mean for an event is said here a second time, in the plainest way.

use serde_json::{Value, json};

use super::dice::Dice;
use super::spec::{Content, Lanes};

/// How a simulated subscriber folds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoldSpec {
    pub(crate) mode: Mode,
    pub(crate) max_events: u32,
    pub(crate) max_bytes: usize,
    pub(crate) leading: bool,
    /// Events whose number is a multiple of this go by themselves.
    pub(crate) bypass: Option<i64>,
    /// Events whose number is a multiple of this end the window they come to.
    pub(crate) cancel_on: Option<i64>,
}

/// When its windows close, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Window(i64),
    Quiet(i64, i64),
    Batch(i64),
}

impl FoldSpec {
    /// Any terms. What came later to them has dice of its own, so that the plans of seeds stay what they were.
    pub(crate) fn any(dice: &mut Dice, exceptions: &mut Dice) -> Self {
        let mode = dice.pick(&[
            Mode::Window(1_000),
            Mode::Window(4_000),
            Mode::Quiet(600, 2_500),
            Mode::Quiet(2_000, 9_000),
            Mode::Batch(1_500),
        ]);
        let bypass = exceptions.pick(&[None, Some(3), Some(5)]);
        let cancel_on = exceptions.pick(&[None, Some(4), Some(6)]);
        // The least that is allowed: some eight events.
        let max_bytes = exceptions.pick(&[1_024, 1_024, 1 << 20]);
        Self { mode, max_events: dice.pick(&[2, 5, 1_000]), max_bytes, leading: false, bypass, cancel_on }
    }

    /// Windows that stay open for some restarts, and take all that comes.
    pub(crate) fn long() -> Self {
        let (max_events, max_bytes, leading) = (1_000, 1 << 20, false);
        Self { mode: Mode::Window(4_000), max_events, max_bytes, leading, bypass: None, cancel_on: None }
    }

    /// The same, with the first event ahead: that can not be ended as if nobody had been told.
    pub(crate) fn led(self) -> Self {
        Self { leading: true, cancel_on: None, ..self }
    }

    /// As the product reads it.
    pub(crate) fn json(&self, lanes: Lanes) -> Value {
        let mut fold = match self.mode {
            Mode::Window(ms) => json!({"mode": "window", "window": format!("{ms}ms")}),
            Mode::Quiet(ms, most) => {
                json!({"mode": "quiet", "quiet": format!("{ms}ms"), "max_wait": format!("{most}ms")})
            }
            Mode::Batch(ms) => json!({"mode": "batch", "every": format!("{ms}ms")}),
        };
        fold["max_events"] = json!(self.max_events);
        fold["max_bytes"] = json!(self.max_bytes);
        fold["leading"] = json!(self.leading);
        if lanes == Lanes::PerKey {
            fold["by"] = json!(["data.key"]);
        }
        for (name, multiple) in [("bypass", self.bypass), ("cancel_on", self.cancel_on)] {
            if let Some(multiple) = multiple {
                fold[name] = json!(format!("data.n % {multiple} == 0"));
            }
        }
        fold
    }

    /// Whether an event goes by itself.
    pub(crate) fn passes(&self, content: &Content) -> bool {
        is_multiple(content, self.bypass)
    }

    /// Whether an event ends a window that was opened with these terms.
    pub(crate) fn ends(&self, content: &Content) -> bool {
        is_multiple(content, self.cancel_on)
    }

    /// What keeps the window of an event apart, as the product writes it.
    pub(crate) fn key(&self, lanes: Lanes, content: &Content) -> String {
        let key = match (lanes, self.mode) {
            (Lanes::PerKey, _) => json!({"data.key": content.key}),
            (_, Mode::Batch(_)) => json!({}),
            _ => json!({"type": content.type_name}),
        };
        key.to_string()
    }
}

/// An event without a number fulfils no condition.
fn is_multiple(content: &Content, of: Option<i64>) -> bool {
    of.is_some_and(|of| content.n >= 0 && content.n % of == 0)
}
