//! The running thing: pipeline loops, HTTP API, boot and shutdown.
//!
//! [`boot`] makes it from [`settings`]; [`listen`] is its door, [`api`] what stands behind it, [`pipeline`] the
//! journey of an event, [`disk`] the room for it. [`standing`] knows who shares the store, [`watch`] tells those who look on. [`clock`] and [`entropy`] are the
//! only sources of time and chance.

pub mod api;
pub mod boot;
mod catalogs;
pub mod checkup;
pub mod clock;
pub mod disk;
pub mod entropy;
mod gates;
pub mod listen;
pub mod master_key;
pub mod metrics;
pub mod observing;
pub mod pipeline;
mod probe;
pub mod roster;
pub mod settings;
pub mod spans;
pub mod standing;
pub mod watch;
