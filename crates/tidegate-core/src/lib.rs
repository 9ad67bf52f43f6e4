//! The decisions of Tidegate, and nothing else.
//!
//! Everything here is a pure function of its arguments: no async, no I/O, no clock, no randomness, no SQL and
//! no HTTP. `now` and chance are parameters. The loops that act on these decisions live in `tidegate-server`
//! under the same names, in the order an event meets them: ingest, route, schedule, deliver (sign, judge),
//! retry.

pub mod limits;

pub mod id;
pub mod time;

pub mod event;

pub mod delivery;

pub mod attempt;

pub mod egress;
pub mod headers;
pub mod retry_after;
pub mod sign;
