//! SQLite under test: each harness is a directory of its own that goes away with it.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::time::Timestamp;
use tidegate_store::Store;
use tidegate_store::conformance::{Harness, Scratch};
use tidegate_store::sqlite::{Calls, SqliteStore, audit};

/// One store in one directory.
pub(crate) struct Sqlite {
    dir: Scratch,
    calls: Calls,
}

impl Sqlite {
    pub(crate) fn new(calls: Calls) -> Self {
        Self { dir: Scratch::new(), calls }
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(self.dir.path(), b"salt", now, self.calls).expect("the store opens"))
    }

    async fn audit(&self) -> Vec<String> {
        audit(self.dir.path()).expect("the store can be looked at")
    }
}
