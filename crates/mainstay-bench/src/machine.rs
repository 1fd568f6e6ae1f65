//! What the machine says about itself: its name, its clocks of processor time, its counts of device writes.

use crate::report::{DiskCounts, Machine};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a sector in `/proc/diskstats`, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// The machine, and the device beneath `directory`.
#[must_use]
pub fn describe(directory: &Path) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let processor = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| line.strip_prefix("model name").and_then(|rest| rest.split_once(':')))
        .map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned());
    Machine {
        processor,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        load_1_minute: read("/proc/loadavg")
            .split(' ')
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or(0.0),
        device: DeviceCounter::of(directory).map(|counter| counter.name),
    }
}

/// What the processors of this machine have passed, and how much of it their host gave to others, in ticks: a virtual machine whose host is busy has
/// less than its processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StolenTime {
    all: u64,
    stolen: u64,
}

impl StolenTime {
    /// As of now; nothing where the kernel does not say.
    pub(crate) fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let ticks = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        // user, nice, system, idle, iowait, irq, softirq, steal; what guests had is part of user.
        let ticks: Vec<u64> = ticks.take(8).map_while(|ticks| ticks.parse().ok()).collect();
        (ticks.len() == 8).then(|| Self { all: ticks.iter().sum(), stolen: ticks[7] })
    }

    /// The share that the host took since then; nothing if no tick has passed.
    pub(crate) fn percent_since(self, before: Self) -> Option<f64> {
        let all = self.all.saturating_sub(before.all);
        (all > 0).then(|| 100.0 * self.stolen.saturating_sub(before.stolen) as f64 / all as f64)
    }
}

/// Processor time used so far by the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time used so far by this process, in nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time used so far by another process, its ended threads included, in nanoseconds; nothing once it has ended.
#[must_use]
pub fn process_cpu_ns_of(process: u32) -> Option<u64> {
    let mut clock = MaybeUninit::uninit();
    let process = libc::pid_t::try_from(process).ok()?;
    // SAFETY: the buffer is of the right type.
    if unsafe { libc::clock_getcpuclockid(process, clock.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the successful call.
    try_clock_ns(unsafe { clock.assume_init() })
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    try_clock_ns(clock).expect("the clocks of this process always answer")
}

fn try_clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the buffer is of the right type; a clock that does not exist is refused.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the successful call.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).expect("time used is positive");
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).expect("time used is positive"))
}

/// The kernel's own counts for one block device.
#[derive(Clone, Debug)]
pub struct DeviceCounter {
    major: u32,
    minor: u32,
    name: String,
}

impl DeviceCounter {
    /// The device beneath `directory`, if it is a block device that the kernel counts.
    #[must_use]
    pub fn of(directory: &Path) -> Option<Self> {
        let device = fs::metadata(directory).ok()?.dev();
        let mut counter =
            Self { major: libc::major(device), minor: libc::minor(device), name: String::new() };
        counter.name = counter.fields()?.get(2)?.clone();
        Some(counter)
    }

    /// Its counts since the machine started.
    #[must_use]
    pub fn read(&self) -> DiskCounts {
        let fields = self.fields().unwrap_or_default();
        let field = |index: usize| fields.get(index).and_then(|field| field.parse().ok()).unwrap_or(0);
        // Columns of /proc/diskstats: writes 8, sectors written 10, flushes 19 (since Linux 5.5), counted from 1.
        DiskCounts { writes: field(7), write_bytes: field(9) * SECTOR_BYTES, flushes: field(18) }
    }

    fn fields(&self) -> Option<Vec<String>> {
        let text = fs::read_to_string("/proc/diskstats").ok()?;
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).find(
            |fields| {
                fields.first() == Some(&self.major.to_string())
                    && fields.get(1) == Some(&self.minor.to_string())
            },
        )
    }
}

/// Sums up what happens in slices: processor time of the process, and counts of the device.
#[derive(Debug)]
pub struct Meter {
    device: Option<DeviceCounter>,
    cpu_ns: u64,
    disk: DiskCounts,
}

impl Meter {
    /// Counts the device beneath `directory`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { device: DeviceCounter::of(directory), cpu_ns: 0, disk: DiskCounts::default() }
    }

    /// Runs one slice.
    pub fn slice<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let before = self.device.as_ref().map(DeviceCounter::read);
        let cpu_before = process_cpu_ns();
        let result = run();
        self.cpu_ns += process_cpu_ns() - cpu_before;
        if let (Some(device), Some(before)) = (&self.device, before) {
            let after = device.read();
            self.disk.writes += after.writes - before.writes;
            self.disk.write_bytes += after.write_bytes - before.write_bytes;
            self.disk.flushes += after.flushes - before.flushes;
        }
        result
    }

    /// Processor time per operation, in nanoseconds.
    #[must_use]
    pub fn cpu_ns_per_operation(&self, operations: u64) -> f64 {
        self.cpu_ns as f64 / operations.max(1) as f64
    }

    /// What the device did in all slices.
    #[must_use]
    pub fn disk(&self) -> Option<DiskCounts> {
        self.device.as_ref().map(|_| self.disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_took_is_a_share_of_all_ticks() {
        let before = StolenTime::parse("cpu  100 0 50 800 20 0 10 20 7 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, StolenTime { all: 1000, stolen: 20 });
        let after = StolenTime::parse("cpu  150 0 60 820 20 0 20 30 9 0\n").unwrap();
        assert_eq!(after.percent_since(before), Some(10.0));
        assert_eq!(before.percent_since(before), None);
        assert_eq!(StolenTime::parse("cpu  1 2 3\n"), None);
        assert_eq!(StolenTime::parse(""), None);
    }
}
