//! Route: which subscribers an event is for, and in which lane.

pub mod path;
pub mod pattern;
