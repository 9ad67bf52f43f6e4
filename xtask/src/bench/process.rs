//! What Linux says about a process: CPU time, memory, context switches, bytes written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result};

/// `/proc` counts CPU in hundredths of a second on every Linux we know.
const TICKS_PER_SECOND: f64 = 100.0;

/// What an idle process must not use.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    /// CPU, in ticks of 10 ms.
    pub(crate) cpu_ticks: u64,
    /// Of all threads; one for each thread that ended.
    pub(crate) context_switches: u64,
    /// Bytes that reached or will reach the disk.
    pub(crate) write_bytes: u64,
}

impl Usage {
    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_ticks: self.cpu_ticks + other.cpu_ticks,
            context_switches: self.context_switches + other.context_switches,
            write_bytes: self.write_bytes + other.write_bytes,
        }
    }
}

/// The counters of a process at one instant.
pub(crate) struct Counters {
    cpu_ticks: u64,
    /// By thread: the counters of a thread vanish with it.
    context_switches: BTreeMap<OsString, u64>,
    write_bytes: u64,
}

impl Counters {
    /// As they are now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let io = fs::read_to_string(format!("/proc/{pid}/io")).context("no /proc/…/io")?;
        Ok(Self {
            cpu_ticks: cpu_ticks(pid)?,
            context_switches: context_switches(pid)?,
            write_bytes: field(&io, "write_bytes:").context("no write_bytes")?,
        })
    }

    /// What was used since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Usage {
        let (now, before) = (&self.context_switches, &earlier.context_switches);
        let ended = before.keys().filter(|thread| !now.contains_key(*thread)).count() as u64;
        let switched =
            now.iter().map(|(thread, count)| count - before.get(thread).unwrap_or(&0)).sum::<u64>();
        Usage {
            cpu_ticks: self.cpu_ticks - earlier.cpu_ticks,
            context_switches: switched + ended,
            write_bytes: self.write_bytes - earlier.write_bytes,
        }
    }
}

/// Ticks that the whole machine has worked and has idled since it was started.
pub(crate) fn machine_ticks() -> Result<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").context("no /proc/stat")?;
    parse_machine_ticks(&stat).context("/proc/stat is not as expected")
}

/// The first line sums all cores: user, nice, system, idle, waiting for the disk, and more kinds of work.
fn parse_machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().sum::<u64>() - idle, idle))
}

/// CPU seconds used since the process began.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    Ok(cpu_ticks(pid)? as f64 / TICKS_PER_SECOND)
}

/// CPU seconds of a process, of those it started and of what they started, those that have ended included.
pub(crate) fn cpu_seconds_with_children(pid: u32) -> Result<f64> {
    let mut ticks = ticks_with_ended(pid)?;
    let mut parents = vec![pid];
    let processes = parents_by_pid()?;
    while let Some(parent) = parents.pop() {
        for (child, _) in processes.iter().filter(|(_, its)| **its == parent) {
            // One that ended meanwhile is counted with its parent next time.
            ticks += ticks_with_ended(*child).unwrap_or(0);
            parents.push(*child);
        }
    }
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

fn ticks_with_ended(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("no /proc/…/stat")?;
    let (_, rest) = stat.rsplit_once(')').context("/proc/…/stat is not as expected")?;
    Ok(rest.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum())
}

fn parents_by_pid() -> Result<BTreeMap<u32, u32>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    Ok(parents)
}

/// Resident memory in megabytes of 10⁶ bytes.
pub(crate) fn resident_mb(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("no /proc/…/status")?;
    let kib = field(&status, "VmRSS:").context("no VmRSS")?;
    Ok(kib as f64 * 1024.0 / 1e6)
}

fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("no /proc/…/stat")?;
    parse_ticks(&stat).context("/proc/…/stat is not as expected")
}

/// User and system time are the 14th and 15th field; the second is a name in brackets that may hold spaces.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn context_switches(pid: u32) -> Result<BTreeMap<OsString, u64>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A thread may end between being listed and being read.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let voluntary = field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        let forced = field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
        threads.insert(task.file_name(), voluntary + forced);
    }
    Ok(threads)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Counters, Usage, field, parse_machine_ticks, parse_ticks};

    #[test]
    fn the_machine_works_or_idles() {
        let stat = "cpu  10 1 5 900 100 0 2 3 50 50\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_machine_ticks(stat), Some((21, 1000)));
    }

    #[test]
    fn threads_that_begin_and_end_are_counted() {
        let counters = |threads: &[(&str, u64)]| Counters {
            cpu_ticks: 7,
            context_switches: threads.iter().map(|(thread, count)| ((*thread).into(), *count)).collect(),
            write_bytes: 4096,
        };
        let before = counters(&[("1", 10), ("2", 500)]);
        let used = counters(&[("1", 12), ("3", 4)]).since(&before);
        assert_eq!(used, Usage { cpu_ticks: 0, context_switches: 2 + 4 + 1, write_bytes: 0 });
    }

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 90 0 0 0 12 30 0 0 20 0 3 0 5 6 7";
        assert_eq!(parse_ticks(stat), Some(42));
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let status = "nonvoluntary_ctxt_switches:\t3\nvoluntary_ctxt_switches:\t5\nVmRSS:\t  1024 kB\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(5));
        assert_eq!(field(status, "VmRSS:"), Some(1024));
    }
}
