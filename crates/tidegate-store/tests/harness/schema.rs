//! PostgreSQL under test: a schema of its own on the server that `TIDEGATE_TEST_POSTGRES` names, dropped at the end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_core::time::Timestamp;
use tidegate_store::postgres::{Periods, PostgresStore, Terms, remove};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A place for one store.
pub(crate) struct Schema {
    url: String,
}

impl Schema {
    /// Nothing is there yet; the first store makes its tables.
    pub(crate) fn new() -> Self {
        let server = std::env::var("TIDEGATE_TEST_POSTGRES").expect(
            "set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run through `cargo xtask test`",
        );
        let name = format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mark = if server.contains('?') { '&' } else { '?' };
        Self { url: format!("{server}{mark}schema={name}") }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Another process of the store, which reaches it by this URL.
    pub(crate) async fn open(&self, url: &str, now: Timestamp) -> PostgresStore {
        Self::open_at(url, now).await
    }

    /// The same, for whoever only has the URL.
    pub(crate) async fn open_at(url: &str, now: Timestamp) -> PostgresStore {
        // Short periods, so that what is kept by the period goes in a test's time.
        let periods = Periods { length: Duration::from_secs(1), bits: 32 };
        let terms = Terms { name: "test".to_owned(), periods, salt: b"salt".to_vec() };
        PostgresStore::open(url, terms, Some(now)).await.expect("the store opens")
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let url = self.url.clone();
        // Its own loop: this runs wherever a test ends, also while it panics.
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(remove(&url))
        });
        // A schema that is left behind does no harm.
        let _ = removing.join();
    }
}
