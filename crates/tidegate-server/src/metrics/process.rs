//! What Linux knows about this process, under the names that every Prometheus client uses for it.
//!
//! Reads `/proc` when somebody scrapes, and only then. Where there is no `/proc`, these families are absent.

use std::fs;

use super::text::{Kind, Text};

/// The unit of times in `/proc`: fixed at a hundredth of a second on every architecture that runs this.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds what is known.
pub(super) fn add(text: &mut Text) {
    if let Some(status) = Status::read() {
        text.one(Kind::Gauge, "process_resident_memory_bytes", "Memory in use", status.resident_bytes);
        text.one(Kind::Gauge, "process_virtual_memory_bytes", "Address space in use", status.virtual_bytes);
    }
    if let Some(times) = Times::read() {
        text.one(
            Kind::Counter,
            "process_cpu_seconds",
            "Processor time of user and system",
            times.cpu_seconds,
        );
        text.one(
            Kind::Gauge,
            "process_start_time_seconds",
            "When the process began, since 1970",
            times.started_at,
        );
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        text.one(Kind::Gauge, "process_open_fds", "Open file descriptors", files.count());
    }
    if let Some(most) = crate::listen::open_files_max() {
        text.one(Kind::Gauge, "process_max_fds", "File descriptors that may be open", most);
    }
}

struct Status {
    resident_bytes: u64,
    virtual_bytes: u64,
}

impl Status {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
        };
        Some(Self { resident_bytes: bytes("VmRSS:")?, virtual_bytes: bytes("VmSize:")? })
    }
}

struct Times {
    cpu_seconds: f64,
    started_at: f64,
}

impl Times {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat, &fs::read_to_string("/proc/stat").ok()?)
    }

    /// The fields after the process's name, which may contain anything but ends at the last bracket.
    fn parse(stat: &str, system: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<f64>().ok()?;
        Some(Self {
            cpu_seconds: (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND,
            started_at: boot + ticks(19)? / TICKS_PER_SECOND,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_linux_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 12345 1000 200";
        let times = Times::parse(stat, "cpu 1 2\nbtime 1700000000\n").unwrap();
        assert!((times.cpu_seconds - 2.0).abs() < 1e-9 && (times.started_at - 1_700_000_123.45).abs() < 1e-3);
        let status = Status::parse("Name:\tx\nVmSize:\t  20 kB\nVmRSS:\t  10 kB\n").unwrap();
        assert_eq!((status.resident_bytes, status.virtual_bytes), (10_240, 20_480));
    }
}
