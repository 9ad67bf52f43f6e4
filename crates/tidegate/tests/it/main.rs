//! End to end: the real binary, real sockets, real time.
//!
//! Every test plays a user: it starts a server on a free port with an empty folder, talks to it over HTTP, and
//! listens where the deliveries go. Nothing sleeps: tests wait for what a receiver got, for what the process printed,
//! or ask the API until it says what it should.
//!
//! `server`, `client`, `receiver` and `shell` are the kit; every other file is one chapter of the promises.

mod client;
mod receiver;
mod recent;
mod server;
mod shell;

mod auditing;
mod bombs;
mod breaker;
mod catalog;
mod commands;
mod crowd;
mod deliver;
mod egress;
mod encoding;
mod files;
mod folds;
mod gates;
mod gating;
mod http_edges;
mod ingest;
mod leaks;
mod lifecycle;
mod look;
mod master_key;
mod metrics;
mod objects;
mod observing;
mod operator;
mod order;
mod payload;
mod presets;
mod quarantine;
mod query;
mod quotas;
mod rates;
mod readiness;
mod replay;
mod retention;
mod sample;
mod seeds;
mod signing;
mod site;
mod smuggling;
mod spans;
mod stream;
mod subscribers;
mod tenants;
mod tls;
mod verification;
mod waiting;
mod windows;
