//! The decisions of Tidegate, and nothing else.
//!
//! Everything here is a pure function of its arguments: no async, no I/O, no clock, no randomness, no SQL and
//! no HTTP. `now` and chance are parameters. The loops that act on these decisions live in `tidegate-server`
//! under the same names. The modules stand in the order an event meets them.

pub mod limits;

pub mod id;
pub mod json;
pub mod time;

pub mod event;

pub mod ingest;

pub mod catalog;

pub mod operator;

pub mod span;

pub mod subscriber;

pub mod gate;

pub mod observe;

pub mod route;

pub mod fold;

pub mod schedule;

pub mod lease;

pub mod delivery;

pub mod payload;

pub mod sign;

pub mod headers;

pub mod egress;

pub mod verification;

pub mod attempt;

pub mod retry_after;

pub mod retry;

pub mod jumps;
pub mod retention;

pub mod key;
pub mod seal;
