//! What is drawn for one run: how many nodes, which regions, how bad network and disks are.

use crate::group::setup::BEAT_NS;
use crate::random::Random;
use crate::region::limited_in_bytes;
use mainstay_group::limits::Timing;
use mainstay_region::limits::{Limits, Times};
use mainstay_region::patterns::Pattern;
use mainstay_replica::definition::Definition;
use mainstay_types::level::Level;
use std::time::Duration;

/// The circumstances of a run.
pub(crate) struct Setup {
    pub(crate) timing: Timing,
    pub(crate) nodes: usize,
    pub(crate) regions: Vec<Definition>,
    pub(crate) limits: Limits,
    pub(crate) times: Times,
    /// Bytes of records at which checkpoints begin.
    pub(crate) checkpoint_bytes_min: u64,
    /// Messages with which a connection breaks, of a million.
    pub(crate) breaks_per_million: u64,
    /// Messages that are late by beats, of a thousand.
    pub(crate) late_per_mille: u64,
    /// Effects behind which a node crashes, of a million.
    pub(crate) crash_per_million: u64,
    /// Longest write of a disk, in nanoseconds.
    pub(crate) disk_ns_max: u64,
    /// Nothing is wrong but that disks take up to so many beats for a write, and that a node is killed once in a while.
    pub(crate) calm: Option<u64>,
    /// When faults end, in nanoseconds.
    pub(crate) faults_end_ns: u64,
}

impl Setup {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let nodes = random.between(3, 7).min(random.between(3, 7));
        let mut timing = Timing::of_beat(Duration::from_nanos(BEAT_NS));
        if random.coin() {
            // A proposer in a hurry has to wait for leases more often.
            timing.preparation = timing.beat;
        }
        let small = random.chance(250);
        let limits = Limits {
            key_bytes_max: 16,
            value_bytes_max: 64,
            log_entries_max: if small { 8 } else { 64 },
            hold_back_entries_max: if small { 2 } else { 32 },
            held_payloads_max: 64,
            held_payloads_per_client_max: 16,
            early_messages_max: if small { 1 } else { 16 },
            early_versions_max: 16,
            grants_max: 16,
            waiting_max: 64,
            duplicate_threads_max: if random.chance(200) { 3 } else { 16 },
            duplicate_results_max: if random.chance(200) { 4 } else { 32 },
            history_entries_max: 512,
            image_chunk_bytes_max: 8,
            together_bytes_max: if small { 8 } else { 200 },
            checkpoint_tick_bytes_max: 300,
            repair_entries_max: 8,
            ..Limits::default()
        };
        let limits = limited_in_bytes(random.draw(), limits);
        let times = Times {
            repair_after: Duration::from_nanos(2 * BEAT_NS),
            grant_max: Duration::from_nanos(if random.coin() { BEAT_NS } else { 3 * BEAT_NS }),
            held_max: Duration::from_nanos(6 * BEAT_NS),
            image_patience: Duration::from_nanos(4 * BEAT_NS),
        };
        let regions = (0..random.between(1, 2)).map(|place| Definition {
            name: format!("region-{place}"),
            shards: u16::try_from(random.between(1, 3)).expect("it is small"),
            acknowledged_by_all: random.coin(),
            // Clients choose others, too: those that send payloads are refused where the region's does not.
            pattern: *random.pick(&Pattern::VERSIONED),
            level: Level::Disk,
            ..Definition::named("")
        });
        let regions = regions.collect();
        let calm = random.chance(150).then(|| random.between(1, 60));
        let faults_end_beats = match calm {
            Some(beats_max) => 400 + 60 * beats_max,
            None => random.between(60, 120),
        };
        let checkpoint_bytes_min = if random.coin() { 500 } else { random.between(1_000, 20_000) };
        Self {
            timing,
            nodes: usize::try_from(nodes).expect("it is small"),
            regions,
            limits,
            times,
            checkpoint_bytes_min,
            breaks_per_million: match calm {
                Some(_) => 0,
                None if random.coin() => 100,
                None => random.between(200, 5_000),
            },
            late_per_mille: if calm.is_some() || random.coin() { 0 } else { random.between(1, 10) },
            crash_per_million: if calm.is_some() { 0 } else { random.between(0, 400) },
            disk_ns_max: if random.chance(200) { BEAT_NS } else { 3_000_000 },
            calm,
            faults_end_ns: faults_end_beats * BEAT_NS,
        }
    }
}
