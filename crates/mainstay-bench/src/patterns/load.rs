//! Clients that put, each with its window: a slice of work, what it took, and what all processes used for it.

use super::PatternsError;
use crate::group::Group;
use crate::machine::{process_cpu_ns, process_cpu_ns_of};
use mainstay_region::blob::Blob;
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_region_client::{Client, Settings};
use std::time::{Duration, Instant};

/// Keys that are written, so that all shards are.
const KEYS: u64 = 1000;

/// Payload written in a slice at most, in bytes: journals only grow.
const SLICE_BYTES_MAX: u64 = 16 << 20;

/// What a slice took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// Of all nodes and this process, in nanoseconds.
    pub(super) cpu_ns: u64,
}

impl Slice {
    /// Microseconds for one operation: seconds for a million.
    pub(super) fn us_per_operation(&self) -> f64 {
        self.seconds * 1e6 / self.operations as f64
    }

    /// Processor time for one operation, in nanoseconds.
    pub(super) fn cpu_ns_per_operation(&self) -> f64 {
        self.cpu_ns as f64 / self.operations as f64
    }
}

/// One client, and what it writes.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) client: Client,
    value: Blob,
    window: usize,
    next: u64,
}

impl Load {
    /// A client of `group` that writes values of so many bytes, `window` at a time.
    pub(super) fn start(
        group: &Group<'_>,
        pattern: Pattern,
        payload_bytes: usize,
        window: usize,
        link_delay: Duration,
    ) -> Result<Self, PatternsError> {
        let settings = Settings { pattern: Some(pattern), link_delay, ..Settings::default() };
        let mut client = Client::connect(&group.servers(), "data", settings)?;
        // Every connection is there, and the first client number's cost is not counted.
        client.put(b"warm", b"up")?;
        Ok(Self { client, value: vec![7; payload_bytes].into(), window, next: 0 })
    }

    /// Writes for so long, or until so many operations, whichever is first; every one has ended.
    pub(super) fn write(&mut self, time: Duration, operations_max: u64) -> Result<u64, PatternsError> {
        let began = Instant::now();
        let (mut begun, mut ended) = (0, 0);
        loop {
            // Time is asked for once a window.
            let goes_on = begun < operations_max && began.elapsed() < time;
            while goes_on && self.client.under_way() < self.window {
                let key = format!("k{:04}", self.next % KEYS).as_str().into();
                self.next += 1;
                self.client.begin(Operation::Put { key, value: self.value.clone() })?;
                begun += 1;
            }
            match self.client.next_ended() {
                Some((_, written)) => {
                    written?;
                    ended += 1;
                }
                None => return Ok(ended),
            }
        }
    }
}

/// One slice of all `loads`, each on a thread of its own where there are several.
pub(super) fn slice(group: &Group<'_>, loads: &mut [Load], time: Duration) -> Result<Slice, PatternsError> {
    let processes = group.processes();
    let used =
        || processes.iter().filter_map(|process| process_cpu_ns_of(*process)).sum::<u64>() + process_cpu_ns();
    let bytes = loads.first().map_or(1, |load| load.value.len().max(1)) as u64;
    let each_max = (SLICE_BYTES_MAX / bytes / loads.len().max(1) as u64).max(16);
    let (before, began) = (used(), Instant::now());
    let operations = match loads {
        [alone] => alone.write(time, each_max)?,
        several => std::thread::scope(|scope| {
            let writers: Vec<_> =
                several.iter_mut().map(|load| scope.spawn(move || load.write(time, each_max))).collect();
            writers
                .into_iter()
                .map(|writer| writer.join().expect("writers do not panic"))
                .sum::<Result<u64, _>>()
        })?,
    };
    let seconds = began.elapsed().as_secs_f64();
    Ok(Slice { operations, seconds, cpu_ns: used().saturating_sub(before) })
}
