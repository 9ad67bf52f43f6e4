//! The running thing: pipeline loops, HTTP API, boot and shutdown.

pub mod clock;
pub mod entropy;
pub mod metrics;
pub mod pipeline;
pub mod roster;
