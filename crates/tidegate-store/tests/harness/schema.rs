//! PostgreSQL under test: a schema of its own on the server that `TIDEGATE_TEST_POSTGRES` names, dropped at the end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::time::Timestamp;
use tidegate_store::postgres::connect::{Session, Target};
use tidegate_store::postgres::{Periods, PostgresStore, Terms};
use tokio_postgres::Client;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A place for one store.
pub(crate) struct Schema {
    url: String,
    name: String,
}

impl Schema {
    /// Nothing is there yet; the first store makes its tables.
    pub(crate) fn new() -> Self {
        let server = std::env::var("TIDEGATE_TEST_POSTGRES").expect(
            "set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run through `cargo xtask test`",
        );
        let name = format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mark = if server.contains('?') { '&' } else { '?' };
        Self { url: format!("{server}{mark}schema={name}"), name }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Another process of the store.
    pub(crate) async fn open(&self, now: Timestamp) -> PostgresStore {
        self.open_at(&self.url, now).await
    }

    /// The same by another way.
    pub(crate) async fn open_at(&self, url: &str, now: Timestamp) -> PostgresStore {
        // Short periods, so that what is kept by the period goes in a test's time.
        let periods = Periods { length: Duration::from_secs(1), bits: 32 };
        let terms = Terms { name: "test".to_owned(), periods, salt: b"salt".to_vec() };
        PostgresStore::open(url, terms, now).await.expect("the store opens")
    }

    pub(crate) async fn connect(&self) -> Session {
        Target::parse(&self.url).unwrap().connect().await.expect("the server can be reached")
    }

    /// Takes an id inside the transaction that `client` is in.
    pub(crate) async fn hold(&self, client: &Client, event: &tidegate_core::event::Event) {
        let (high, low) = tidegate_store::postgres::key_of(1, event);
        let sql = "INSERT INTO dedupe (key_high, key_low, event, fingerprint) VALUES ($1, $2, 0, '')";
        client.execute(sql, &[&high, &low]).await.unwrap();
    }

    /// Lets the beat of a life be overdue.
    pub(crate) async fn expire(&self, incarnation: i64) {
        let session = self.connect().await;
        session.client.execute("UPDATE beats SET at = 0 WHERE incarnation = $1", &[&incarnation]).await.unwrap();
    }

    /// How often the server had to break a circle.
    pub(crate) async fn deadlocks(&self) -> i64 {
        let session = self.connect().await;
        let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        session.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        // Its own loop: this runs wherever a test ends, also while it panics.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let session = Target::parse(&url).unwrap().connect_plain().await.unwrap();
                let sql = format!("SET client_min_messages = warning; SET lock_timeout = '5s'; DROP SCHEMA IF EXISTS {name} CASCADE");
                session.client.batch_execute(&sql).await
            })
        });
        if !matches!(dropped.join(), Ok(Ok(()))) {
            eprintln!("the schema {} could not be dropped", self.name);
        }
    }
}
