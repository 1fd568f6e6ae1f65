//! What is drawn for one run: how many processes, what they bring, how bad the network is.

use crate::random::Random;
use mainstay_group::limits::Timing;
use mainstay_types::view::{Address, MemberKind, Offer};
use std::time::Duration;

/// One beat, in nanoseconds of true time.
pub(crate) const BEAT_NS: u64 = 100_000_000;

/// The circumstances of a run.
pub(crate) struct Setup {
    pub(crate) timing: Timing,
    /// Processes of the group.
    pub(crate) processes: usize,
    /// Another group is begun, and its addresses are known to this one.
    pub(crate) two_groups: bool,
    /// An arbiter decides.
    pub(crate) arbitrated: bool,
    /// Writes are acknowledged when all of the view have them, instead of a majority.
    pub(crate) acknowledged_by_all: bool,
    /// Messages lost, of a thousand.
    pub(crate) lost_per_mille: u64,
    /// Messages that are late by seconds, of a thousand.
    pub(crate) late_per_mille: u64,
    /// Effects behind which a process crashes, of a million.
    pub(crate) crash_per_million: u64,
    /// Requests to regions that take seconds, of a thousand.
    pub(crate) slow_regions_per_mille: u64,
    /// When faults end, one process goes on to hear nothing until the others have come together without it.
    pub(crate) one_stays_deaf: bool,
    /// When faults end, in nanoseconds.
    pub(crate) faults_end_ns: u64,
}

impl Setup {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let arbitrated = random.chance(150);
        let processes = if arbitrated { 2 } else { random.between(3, 9).min(random.between(3, 9)) };
        let mut timing = Timing::of_beat(Duration::from_nanos(BEAT_NS));
        if random.coin() {
            // A proposer in a hurry has to wait for leases more often.
            timing.preparation = timing.beat;
        }
        Self {
            timing,
            processes: usize::try_from(processes).expect("it is small"),
            two_groups: random.chance(100),
            arbitrated,
            acknowledged_by_all: arbitrated || random.coin(),
            lost_per_mille: if random.coin() { 0 } else { random.between(1, 80) },
            late_per_mille: if random.coin() { 0 } else { random.between(1, 10) },
            crash_per_million: random.between(0, 1500),
            slow_regions_per_mille: if random.coin() { 100 } else { 400 },
            one_stays_deaf: !arbitrated && random.chance(300),
            faults_end_ns: random.between(60, 140) * BEAT_NS,
        }
    }

    /// What process `number` brings: the first one votes.
    pub(crate) fn offer(&self, number: usize, random: &mut Random) -> Offer {
        if number > 0 && !self.arbitrated && random.chance(100) {
            return Offer { kind: MemberKind::Administrator, weight: 0, roles: Vec::new() };
        }
        let weight = if self.arbitrated || random.chance(700) { 1 } else { 1 + random.below(3) as u32 };
        Offer { weight, ..Offer::server() }
    }
}

/// A process listens at one of two ports of its machine.
pub(crate) fn address(machine: usize, port: u16) -> Address {
    Address::v4([10, 0, 0, u8::try_from(machine).expect("few machines")], port)
}

/// The machine at an address.
pub(crate) fn machine(address: Address) -> usize {
    usize::from(address.ip[15])
}
