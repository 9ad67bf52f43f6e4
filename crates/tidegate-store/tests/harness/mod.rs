//! SQLite under test: each harness is a directory of its own that goes away with it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tidegate_core::time::Timestamp;
use tidegate_store::Store;
use tidegate_store::conformance::Harness;
use tidegate_store::sqlite::{Calls, SqliteStore, audit};

/// One store in one directory.
pub(crate) struct Sqlite {
    dir: PathBuf,
    calls: Calls,
}

impl Sqlite {
    pub(crate) fn new(calls: Calls) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-store-{}-{count}", std::process::id());
        Self { dir: std::env::temp_dir().join(name), calls }
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // What a failed test leaves behind is the temporary directory's concern.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn open(&self, now: Timestamp) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.dir, b"salt", now, self.calls).expect("the store opens"))
    }

    async fn audit(&self) -> Vec<String> {
        audit(&self.dir).expect("the store can be looked at")
    }
}
