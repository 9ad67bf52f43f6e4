//! Route: which subscribers an event is for, and in which lane.
//!
//! Reads events and compiled subscribers; writes nothing. Asked at acceptance for every event ([`Router`]) and
//! later, in words, for a trace ([`Subscriber::judge`]).
//! Promises: both answer alike; any event and any saved condition get an answer within a bounded number of steps,
//! never a panic; an error in a condition is "not matched", with its reason.
//! Does not: know whether a subscriber is active. An inactive one matches, and its deliveries are held.

pub mod condition;
pub mod path;
pub mod pattern;

mod check;
mod judge;
mod nesting;
mod number;
mod router;
mod scan;
mod tree;
mod value;
mod view;
mod written;

#[cfg(test)]
mod tests;

pub use self::condition::{Condition, ConditionProblem};
pub use self::judge::{Judgement, Subscriber};
pub(crate) use self::number::{Spelling, spell};
#[cfg(test)]
pub(crate) use self::path::value_of;
pub(crate) use self::path::write_value_of;
pub use self::path::{Path, lane_of};
pub use self::pattern::Pattern;
pub use self::router::{Changes, Route, Router};
pub use self::view::View;
pub(crate) use self::written::{Texts, write_json};
