//! Webhooks: a POST with the delivery's body, signed as Standard Webhooks say.
//!
//! [`render`] makes the headers of one attempt, [`judge`] says what the answer means for the delivery, [`attempt`]
//! what is remembered of it.

mod classify;
mod render;

pub use self::classify::{attempt, judge};
pub use self::render::{Letterhead, mark_out_of_order, mark_replay, render};
