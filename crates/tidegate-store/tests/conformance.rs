//! Both stores keep the contract. The embedded one is called where the caller is, as in simulation, and on the blocking
//! pool, as in production, where calls really meet each other.

mod harness;
#[path = "harness/postgres.rs"]
mod postgres;
#[path = "harness/schema.rs"]
mod schema;

use std::sync::Arc;

use harness::Sqlite;
use postgres::Postgres;
use tidegate_store::conformance;
use tidegate_store::sqlite::Calls;

#[test]
fn sqlite_inline() {
    conformance::run(1, || Arc::new(Sqlite::new(Calls::Inline)));
}

#[test]
fn sqlite_blocking() {
    conformance::run(1, || Arc::new(Sqlite::new(Calls::Blocking)));
}

#[test]
fn postgresql() {
    conformance::run(6, || Arc::new(Postgres::new()));
}
