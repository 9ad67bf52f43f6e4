//! PostgreSQL under test: each harness is a schema of its own that goes away with it.
//!
//! The server is the one that `TIDEGATE_TEST_POSTGRES` names; `cargo xtask services` starts one for a command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::time::Timestamp;
use tidegate_store::Store;
use tidegate_store::conformance::Harness;
use tidegate_store::postgres::{Periods, PostgresStore, Terms, audit, end_all, remove};

/// One store in one schema.
pub(crate) struct Postgres {
    url: String,
    is_made: AtomicBool,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var("TIDEGATE_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!(
                "TIDEGATE_TEST_POSTGRES names no server: run `cargo xtask services -- cargo test`, or set it to the \
                 URL of a PostgreSQL that may be written to"
            )
        });
        let schema = format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let joint = if server.contains('?') { '&' } else { '?' };
        Self { url: format!("{server}{joint}schema={schema}"), is_made: AtomicBool::new(false) }
    }
}

/// Short periods, so that a case which lets seconds pass sees many of them.
fn terms() -> Terms {
    Terms {
        name: "conformance".to_owned(),
        periods: Periods { length: Duration::from_secs(1), bits: 32 },
        salt: b"salt".to_vec(),
    }
}

#[async_trait]
impl Harness for Postgres {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        if self.is_made.swap(true, Ordering::Relaxed) {
            end_all(&self.url, now).await.expect("the life before can be ended");
        } else {
            // Another run may have ended early and had the same number.
            remove(&self.url).await.expect("there is a server");
        }
        Arc::new(PostgresStore::open(&self.url, terms(), now).await.expect("the store opens"))
    }

    async fn audit(&self) -> Vec<String> {
        audit(&self.url).await.expect("the store can be looked at")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let url = self.url.clone();
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(remove(&url))
        });
        // A schema that is left behind does no harm.
        let _ = removing.join();
    }
}
