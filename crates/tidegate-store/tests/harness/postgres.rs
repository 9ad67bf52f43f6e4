//! PostgreSQL as a case meets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tidegate_core::time::Timestamp;
use tidegate_store::Store;
use tidegate_store::conformance::Harness;
use tidegate_store::postgres::{audit, end_all, remove};

use crate::schema::Schema;

/// One store in one schema.
pub(crate) struct Postgres {
    schema: Schema,
    is_made: AtomicBool,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        Self { schema: Schema::new(), is_made: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Harness for Postgres {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        let url = self.schema.url();
        if self.is_made.swap(true, Ordering::Relaxed) {
            end_all(url, now).await.expect("the life before can be ended");
        } else {
            // Another run may have ended early and had the same number.
            remove(url).await.expect("there is a server");
        }
        Arc::new(self.schema.open(url, now).await)
    }

    async fn audit(&self) -> Vec<String> {
        audit(self.schema.url()).await.expect("the store can be looked at")
    }
}
