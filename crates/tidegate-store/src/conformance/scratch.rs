//! A directory for one test, gone when the test is.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of its own under the system's temporary one. It is made by whoever puts something into it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one in every call, of every process.
    #[expect(clippy::new_without_default, reason = "a directory is nothing to have by default")]
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-test-{}-{count}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can not be removed is the temporary directory's concern.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
