//! What was answered as accepted stays on disk, also when somebody changes the settings of a PostgreSQL that is in use.
//!
//! A program of its own, because it changes settings of the whole server for a moment, in which others would be refused.

#[path = "harness/schema.rs"]
mod schema;

use std::time::Duration;

use schema::Schema;
use tidegate_core::time::Timestamp;
use tidegate_store::postgres::connect::{Session, Target};
use tidegate_store::{Load, Store};
use tokio_postgres::Client;

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

/// Whoever administers the server. What they changed is as before when they are gone, also after a panic.
struct Operator {
    session: Session,
    url: String,
}

impl Operator {
    async fn of(schema: &Schema) -> Self {
        let session = Target::parse(schema.url()).unwrap().connect_plain().await.expect("a server");
        Self { session, url: schema.url().to_owned() }
    }

    async fn change(&self, sql: &str) {
        change(&self.session.client, sql).await;
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let url = self.url.clone();
        let restoring = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = Target::parse(&url).unwrap().connect_plain().await.unwrap();
                change(&session.client, "ALTER SYSTEM RESET synchronous_commit").await;
                change(&session.client, "ALTER SYSTEM RESET fsync").await;
            });
        });
        restoring.join().expect("the settings are as before");
    }
}

async fn change(client: &Client, sql: &str) {
    // One by one: it can not be changed inside a transaction.
    client.execute(sql, &[]).await.expect("it may be changed");
    client.execute("SELECT pg_reload_conf()", &[]).await.expect("it is read again");
}

/// What a session would fall back to, which follows the server's files, and what holds in it.
async fn synchronous_commit(client: &Client) -> (String, String) {
    let sql = "SELECT reset_val, setting FROM pg_settings WHERE name = 'synchronous_commit'";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// A server reads its settings again a moment after it was told to, unless they were given when it was started.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_secs(20);
    tokio::time::timeout(patience, asking).await.expect("a setting that is changed takes effect");
}

#[tokio::test]
async fn settings_that_change_while_we_run_weaken_nothing() {
    let schema = Schema::new();
    let operator = Operator::of(&schema).await;
    let store = schema.open(schema.url(), NOW).await;
    let target = Target::parse(schema.url()).unwrap();
    let session = target.connect().await.expect("as every session of a store begins");

    operator.change("ALTER SYSTEM SET synchronous_commit = off").await;
    until(async || synchronous_commit(&session.client).await.0 == "off").await;
    let held = synchronous_commit(&session.client).await.1;
    assert_eq!(held, "on", "as it was when the session began");
    let refused = target.connect().await.err().expect("a new one is refused").to_string();
    assert!(refused.contains("synchronous_commit is off"), "{refused}");
    operator.change("ALTER SYSTEM RESET synchronous_commit").await;

    let weakness = async || store.beat(Load::default()).await.unwrap().weakness;
    assert_eq!(weakness().await, None);
    operator.change("ALTER SYSTEM SET fsync = off").await;
    until(async || weakness().await == Some("fsync is off")).await;
    operator.change("ALTER SYSTEM RESET fsync").await;
    until(async || weakness().await.is_none()).await;
}
