//! Disks that take beats for a write, with nothing lost: a record is written when the one before it is, the last of those that wait alone, and one sync
//! takes all that the regions had appended when it began.
//!
//! Some runs have no other fault, but that a node is killed once in a while, so that views have to change: *calm* ones. There nobody may be left out of a
//! view for silence who is up, and somebody serves again within a bound, however long every write of every disk takes.

use super::world::{Next, World};
use crate::group::setup::BEAT_NS;
use crate::properties::{Property, Violation};
use crate::reach::Reach;
use mainstay_group::ballot::{Because, Proposal};

/// Beats in which a calm group notices a crash, agrees on the next view and begins it, beside what its disks take.
const CHANGE_BEATS: u64 = 100;

/// Writes one after the other until a view is served: the proposer's ballot, a promise, an acceptance, the view, the regions' cut, that all data is there; each may
/// wait for one that is under way.
const CHANGE_WRITES: u64 = 12;

/// How long writes of one disk take, until when.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slow {
    pub(crate) until_ns: u64,
    beats_max: u64,
}

/// What a disk is at.
#[derive(Clone, Copy, Default)]
pub(crate) struct Writing {
    /// When the record that is being written is durable, and the one after it.
    until_ns: u64,
    next_ns: u64,
    /// Appended records of regions that the sync under way covers.
    pub(crate) covers: usize,
}

impl World {
    /// How long the next write takes at a node.
    fn write_ns(&mut self, at: usize) -> u64 {
        let Slow { until_ns, beats_max } = self.nodes[at].slow;
        match until_ns > self.now_ns {
            true => self.random.between(1, beats_max) * BEAT_NS,
            false => self.random.below(self.setup.disk_ns_max),
        }
    }

    /// How long until a record of the group that is asked for now is durable.
    pub(crate) fn persist_ns(&mut self, at: usize) -> u64 {
        let takes_ns = self.write_ns(at);
        let (now_ns, writing) = (self.now_ns, &mut self.nodes[at].writing_record);
        if writing.until_ns <= now_ns {
            writing.until_ns = writing.until_ns.max(writing.next_ns);
        }
        let done_ns = if writing.until_ns <= now_ns {
            writing.until_ns = now_ns + takes_ns;
            writing.until_ns
        } else {
            writing.next_ns = if writing.next_ns > writing.until_ns {
                writing.next_ns
            } else {
                writing.until_ns + takes_ns
            };
            writing.next_ns
        };
        done_ns - now_ns
    }

    /// Begins a sync of what the regions have appended.
    pub(crate) fn begin_sync(&mut self, at: usize, life: u64) {
        let takes_ns = self.write_ns(at);
        let appended = self.nodes[at].appending.len();
        // A quick disk is asked for a little at a time, so that crashes come between.
        let some = self.random.index(6) + 1;
        let slow = self.nodes[at].slow.until_ns > self.now_ns;
        self.nodes[at].writing_record.covers = if slow { appended } else { some };
        self.schedule(takes_ns, Next::Sync { node: at, life });
    }

    /// A disk, or all of them, slows down for a while.
    pub(crate) fn slow_down(&mut self, one: usize) {
        let (beats_max, all) = (self.random.between(2, 20), self.random.coin());
        let until_ns = self.now_ns + self.random.between(10, 60) * BEAT_NS;
        for at in 0..self.nodes.len() {
            if all || at == one {
                self.nodes[at].slow = Slow { until_ns, beats_max };
            }
        }
        self.reached.hit(Reach::SlowDisk);
    }

    /// The only fault of a calm run: a node is killed while all are up, and comes back.
    pub(crate) fn calm_fault(&mut self, beats_max: u64) {
        let pause = self.random.between(CHANGE_BEATS, 2 * CHANGE_BEATS + 4 * CHANGE_WRITES * beats_max);
        self.schedule(pause * BEAT_NS, Next::Fault);
        let now_ns = self.now_ns;
        let serves = |node: &super::node::Node| {
            node.running.as_ref().is_some_and(|running| running.serves(node.clock.shows(now_ns)))
        };
        if self.nodes.iter().all(serves) {
            let one = self.random.index(self.nodes.len());
            let store = self.nodes[one].store;
            self.kill(one);
            let down = self.random.below(2 * CHANGE_BEATS) * BEAT_NS;
            let needed = self
                .newest_view()
                .is_some_and(|view| !view.is_majority(view.weight() - view.weight_of(store)));
            self.disturbed_ns = self.now_ns + if needed { down } else { 0 };
            self.schedule(down, Next::Start { node: one });
        }
    }

    /// A calm run begins: disks are slow for all of it.
    pub(crate) fn begin_calm(&mut self, beats_max: u64) {
        let until_ns = self.setup.faults_end_ns;
        let slow = Slow { until_ns, beats_max };
        self.nodes.iter_mut().for_each(|node| node.slow = slow);
        self.reached.hit(Reach::SlowDisk);
        self.schedule(BEAT_NS, Next::Watch);
    }

    /// Looks, in each beat of a calm run, whether somebody serves.
    pub(crate) fn watch_calm(&mut self) {
        let Some(beats_max) = self.setup.calm.filter(|_| self.faulty) else { return };
        self.schedule(BEAT_NS, Next::Watch);
        let now_ns = self.now_ns;
        let serves = self.nodes.iter().any(|node| {
            node.running.as_ref().is_some_and(|running| running.serves(node.clock.shows(now_ns)))
        });
        if serves {
            self.disturbed_ns = self.disturbed_ns.max(now_ns);
        }
        let (unserved, bound) =
            (now_ns - self.disturbed_ns.min(now_ns), CHANGE_BEATS + CHANGE_WRITES * beats_max);
        if unserved > bound * BEAT_NS {
            let what = format!(
                "nobody has served for {bound} beats, and nothing is wrong but that a write takes up to {beats_max}"
            );
            self.found(Err(Violation::new(Property::Progress, what)));
        }
    }

    /// A view was decided in a calm run: who is up is in it.
    pub(crate) fn judge_departures(&self, proposal: &Proposal) -> Result<(), Violation> {
        if self.setup.calm.is_none() || !self.faulty {
            return Ok(());
        }
        let up = |departed| {
            self.nodes.iter().any(|node| {
                node.running.as_ref().is_some_and(|running| running.group().member_id() == Some(departed))
            })
        };
        let mut silent = proposal
            .departures
            .iter()
            .filter(|departure| matches!(departure.because, Because::Silent { .. }));
        match silent.find(|departure| up(departure.member)) {
            None => Ok(()),
            Some(departure) => {
                let what = format!(
                    "{} is left out of {} for silence, and only disks are slow",
                    departure.member, proposal.view
                );
                Err(Violation::new(Property::Rejoins, what))
            }
        }
    }
}
