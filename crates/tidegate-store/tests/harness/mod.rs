//! SQLite under test: each harness is a directory of its own that goes away with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use tidegate_core::time::Timestamp;
use tidegate_store::Store;
use tidegate_store::conformance::{Harness, Scratch};
use tidegate_store::sqlite::{Calls, SqliteStore, audit};

/// One store in one directory.
pub(crate) struct Sqlite {
    dir: Scratch,
    calls: Calls,
    /// Another nonce each time it is opened.
    opened: AtomicU32,
}

impl Sqlite {
    pub(crate) fn new(calls: Calls) -> Self {
        Self { dir: Scratch::new(), calls, opened: AtomicU32::new(0) }
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        let nonce = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let store = SqliteStore::open(self.dir.path(), b"salt", nonce, now, self.calls);
        Arc::new(store.expect("the store opens"))
    }

    async fn audit(&self) -> Vec<String> {
        audit(self.dir.path()).expect("the store can be looked at")
    }
}
