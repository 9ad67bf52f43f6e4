//! How much room the disk has left for new events.
//!
//! Below the reserve nothing new is accepted, long before SQLite meets a full disk: what was accepted is delivered, its
//! results are written, and retention makes room again. Nothing ticks: the disk is looked at when an event comes and the
//! last look is a second old, or many bytes have come since.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::limits::{DISK_LOOK_BYTES, DISK_LOOK_EVERY_MS};
use tidegate_core::time::Timestamp;

/// The disk that the data is on.
pub struct Disk {
    path: PathBuf,
    /// Absent means that nobody looks.
    reserve: Option<u64>,
    free: AtomicU64,
    looked_at: AtomicI64,
    /// Bytes that have come since.
    taken: AtomicU64,
    look: fn(&Path) -> io::Result<u64>,
}

impl Disk {
    /// The disk of this folder, of which `reserve` bytes are kept.
    pub fn new(path: &Path, reserve: Option<u64>) -> Self {
        Self {
            path: path.to_owned(),
            reserve,
            free: AtomicU64::new(u64::MAX),
            looked_at: AtomicI64::new(i64::MIN),
            taken: AtomicU64::new(0),
            look: free_bytes,
        }
    }

    /// Whether the reserve is reached, now that a request of so many bytes has come.
    pub fn is_low(&self, bytes: u64, now: Timestamp) -> bool {
        let Some(reserve) = self.reserve else { return false };
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let looked_at = Timestamp::from_ms(self.looked_at.load(Ordering::Relaxed));
        if taken >= DISK_LOOK_BYTES || now.since(looked_at) >= Duration::from_millis(DISK_LOOK_EVERY_MS) {
            self.look_again(now);
        }
        self.free.load(Ordering::Relaxed) < reserve
    }

    fn look_again(&self, now: Timestamp) {
        self.looked_at.store(now.as_ms(), Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        // A disk that can not be asked is left to the store, which knows how to fail.
        let free = (self.look)(&self.path).unwrap_or(u64::MAX);
        self.free.store(free, Ordering::Relaxed);
    }

    /// The reserve and what is left, for people.
    pub fn state(&self) -> Option<(u64, u64)> {
        Some((self.reserve?, self.free.load(Ordering::Relaxed)))
    }
}

/// What an ordinary user may still write there.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_at_when_needed_and_recovers_by_itself() {
        static FREE: AtomicU64 = AtomicU64::new(100);
        let mut disk = Disk::new(Path::new("/"), Some(50));
        disk.look = |_| Ok(FREE.load(Ordering::Relaxed));
        let at = Timestamp::from_ms;
        assert!(!disk.is_low(1, at(10_000)));
        FREE.store(49, Ordering::Relaxed);
        assert!(!disk.is_low(1, at(10_999)), "the last look is fresh");
        assert!(disk.is_low(1, at(11_000)));
        FREE.store(50, Ordering::Relaxed);
        assert!(disk.is_low(1, at(11_001)));
        assert!(!disk.is_low(DISK_LOOK_BYTES, at(11_002)), "many bytes are a reason to look");
        assert_eq!(disk.state(), Some((50, 50)));
    }

    #[test]
    fn a_real_disk_can_be_asked_and_off_is_off() {
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
        let disk = Disk::new(Path::new("/"), None);
        assert!(!disk.is_low(u64::MAX, Timestamp::from_ms(0)));
    }
}
