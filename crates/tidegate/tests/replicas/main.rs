//! End to end with several processes: the real binary, a real PostgreSQL, real time.
//!
//! `TIDEGATE_TEST_POSTGRES` names the server; `cargo xtask test` starts one, and without it these tests fail. Every test has
//! a schema of its own and processes that share it. They share the kit of the tests with one process, `tests/it`.

#[path = "../it/client.rs"]
mod client;
#[path = "../it/receiver.rs"]
#[expect(dead_code, reason = "a part of the kit")]
mod receiver;
#[path = "../it/server.rs"]
#[expect(dead_code, reason = "a part of the kit")]
mod server;

mod cluster;

mod auditing;
mod beats;
mod doctor;
mod folds;
mod hung;
mod keys;
mod lives;
mod together;
