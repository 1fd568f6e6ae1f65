//! What several processes used, and what the kernel counted meanwhile.

use crate::machine::{DeviceCounter, process_cpu_ns_of};
use crate::report::DiskCounts;
use std::fs;
use std::path::Path;

/// Sums up slices.
#[derive(Debug)]
pub(super) struct Usage {
    processes: Vec<u32>,
    device: Option<DeviceCounter>,
    /// Processor time of all the processes, in nanoseconds.
    pub(super) cpu_ns: u64,
    /// What the device did.
    pub(super) disk: DiskCounts,
    /// TCP segments that this machine sent, acknowledgements included: by whoever, so measure on a quiet machine.
    pub(super) segments: u64,
}

#[derive(Debug)]
struct Counts {
    cpu_ns: u64,
    disk: DiskCounts,
    segments: u64,
}

impl Usage {
    /// Of `processes`, and of the device beneath `directory`.
    pub(super) fn new(processes: Vec<u32>, directory: &Path) -> Self {
        let device = DeviceCounter::of(directory);
        Self { processes, device, cpu_ns: 0, disk: DiskCounts::default(), segments: 0 }
    }

    /// Runs one slice.
    pub(super) fn slice<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let before = self.counts();
        let result = run();
        let after = self.counts();
        self.cpu_ns += after.cpu_ns.saturating_sub(before.cpu_ns);
        self.segments += after.segments.saturating_sub(before.segments);
        self.disk.writes += after.disk.writes - before.disk.writes;
        self.disk.write_bytes += after.disk.write_bytes - before.disk.write_bytes;
        self.disk.flushes += after.disk.flushes - before.disk.flushes;
        result
    }

    fn counts(&self) -> Counts {
        Counts {
            cpu_ns: self.processes.iter().filter_map(|process| process_cpu_ns_of(*process)).sum(),
            disk: self.device.as_ref().map(DeviceCounter::read).unwrap_or_default(),
            segments: segments_sent().unwrap_or(0),
        }
    }
}

/// `OutSegs` of `/proc/net/snmp`: a line of names, and one of values below it.
fn segments_sent() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/snmp").ok()?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let column = lines.next()?.split_whitespace().position(|name| name == "OutSegs")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

/// Memory of a process that no file is behind, in bytes; nothing once it has ended.
pub(super) fn anonymous_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_this_process_uses() {
        let mut usage = Usage::new(vec![std::process::id()], Path::new("."));
        let sum = usage.slice(|| (0..3_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
        std::hint::black_box(sum);
        assert!(usage.cpu_ns > 0);
        assert!(segments_sent().is_some());
        assert!(anonymous_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert_eq!(anonymous_bytes(u32::MAX), None);
    }
}
