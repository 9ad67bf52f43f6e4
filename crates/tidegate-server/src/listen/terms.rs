//! What is asked of connections: how many there may be, and how long they may take.

use std::time::Duration;

/// The bounds of the door. Every value has a default here and a setting of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Connections at once: one file descriptor each.
    pub connections: usize,
    /// Connections of one address (of one /64 with IPv6) at once. A proxy in front is one address.
    pub connections_per_address: usize,
    /// TLS handshakes at once: each costs a millisecond of computing.
    pub handshakes: usize,
    /// From the connection to the end of the handshake.
    pub handshake: Duration,
    /// From there to the first byte of the first request.
    pub first_byte: Duration,
    /// From a head's first byte to its last.
    pub head: Duration,
    /// Between an answer and the next request.
    pub idle: Duration,
    /// How long an answer may find no room because the client does not read.
    pub stall: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_address: 1024,
            handshakes: 256,
            handshake: Duration::from_secs(10),
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(30),
        }
    }
}

impl Terms {
    /// Leaves at least half of the file descriptors to the store and to deliveries: a crowd at the door must not
    /// starve them.
    #[must_use]
    pub fn within(mut self, open_files: Option<usize>) -> Self {
        if let Some(open_files) = open_files {
            self.connections = self.connections.min((open_files / 2).max(1));
        }
        self.connections_per_address = self.connections_per_address.min(self.connections);
        self
    }
}

/// How many files this process may have open, as Linux tells it.
pub fn open_files_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    parse_open_files(&limits)
}

fn parse_open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_files_are_left_to_the_others() {
        let table = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!(parse_open_files(table), Some(1024));
        assert_eq!(parse_open_files("Max open files  unlimited unlimited files"), None);
        let terms = Terms::default().within(Some(1024));
        assert_eq!((terms.connections, terms.connections_per_address), (512, 512));
        assert_eq!(Terms::default().within(None), Terms::default());
        assert_eq!(Terms::default().within(Some(1)).connections, 1);
    }
}
